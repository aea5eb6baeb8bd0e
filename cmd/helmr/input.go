package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/internal/id"
)

// inputFlags are the ways to give the input of a Turn.
func inputFlags() *valueFlags {
	return &valueFlags{text: "text", textUse: "input as one text", json: "input-json", jsonUse: `input as JSON, for example '[{"type":"text","text":"Hi"}]'`, file: "input-file"}
}

// valueFlags are ways to give one JSON value: as JSON, from a file, and, where it is content, as a text. Exactly one must be
// used. The fields are the names of the flags; text is empty where there is none.
type valueFlags struct {
	text, textUse, json, jsonUse, file string
	values                             struct{ text, json, file string }
}

func (f *valueFlags) register(c *cobra.Command) {
	if f.text != "" {
		c.Flags().StringVar(&f.values.text, f.text, "", f.textUse)
	}
	c.Flags().StringVar(&f.values.json, f.json, "", f.jsonUse)
	c.Flags().StringVar(&f.values.file, f.file, "", "file with the same as JSON; - is stdin")
}

// read gives the value.
func (f *valueFlags) read(cmd *cobra.Command) (json.RawMessage, error) {
	var names, given []string
	for _, name := range []string{f.text, f.json, f.file} {
		if name == "" {
			continue
		}
		names = append(names, "--"+name)
		if cmd.Flags().Changed(name) {
			given = append(given, name)
		}
	}
	if len(given) != 1 {
		return nil, usageErrorf("%s needs exactly one of %s", cmd.CommandPath(), strings.Join(names, ", "))
	}
	switch given[0] {
	case f.text:
		return json.Marshal([]map[string]string{{"type": "text", "text": f.values.text}})
	case f.json:
		return decodeJSON("--"+f.json, []byte(f.values.json))
	}
	var raw []byte
	var err error
	if f.values.file == "-" {
		raw, err = io.ReadAll(cmd.InOrStdin())
	} else {
		raw, err = os.ReadFile(f.values.file)
	}
	if err != nil {
		return nil, usageErrorf("--%s: %s", f.file, cause(err))
	}
	return decodeJSON("--"+f.file+" "+f.values.file, raw)
}

// cause gives the innermost reason of a file error with its path, without the name of the system call.
func cause(err error) string {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Path + ": " + pe.Err.Error()
	}
	return err.Error()
}

// pageFlags are the flags of every list.
type pageFlags struct {
	limit  int
	cursor string
}

func (f *pageFlags) register(c *cobra.Command) {
	c.Flags().IntVar(&f.limit, "limit", 50, "how many to list, 1 to 100")
	c.Flags().StringVar(&f.cursor, "cursor", "", "go on after the page that ended with this cursor")
}

func (f *pageFlags) check() error {
	if f.limit < 1 || f.limit > 100 {
		return usageErrorf("--limit is 1 to 100, not %d", f.limit)
	}
	return nil
}

// more says how to see the next page.
func (a *app) more(cmd *cobra.Command, cursor string) {
	if cursor != "" {
		a.progress(cmd, "There is more: add --cursor %s", cursor)
	}
}

// checkID refuses what cannot be an id of the server before it is asked.
func checkID(what, s string) error {
	if !id.Valid(s) {
		return usageErrorf("%q is not the ID of a %s; IDs look like 0197a1f3-5c1e-7d7a-9d0e-6f2b7c1a4e55", s, what)
	}
	return nil
}

var durationPattern = regexp.MustCompile(`^([1-9][0-9]{0,14})(ms|s|m|h|d)$`)

// parseDuration reads a duration as every part of helmr writes it: 500ms, 30s, 5m, 2h, 7d.
func parseDuration(flag, s string) (time.Duration, error) {
	m := durationPattern.FindStringSubmatch(s)
	if m == nil {
		return 0, usageErrorf("%s: %q is not a duration; write 500ms, 30s, 5m, 2h or 7d", flag, s)
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	unit := map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}[m[2]]
	if err != nil || n > int64(1<<62)/int64(unit) {
		return 0, usageErrorf("%s: %s is too long", flag, s)
	}
	return time.Duration(n) * unit, nil
}
