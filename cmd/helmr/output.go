package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"helmr.dev/helmr/client/api"
)

// show prints one REST object: as JSON with --json, otherwise as human writes it. Both go to stdout.
func (a *app) show(cmd *cobra.Command, object any, human func(w *text)) error {
	if a.flags.json {
		return printJSON(cmd.OutOrStdout(), object)
	}
	w := newText(cmd.OutOrStdout())
	human(w)
	return w.flush()
}

// printJSON prints one object over several lines.
func printJSON(out io.Writer, object any) error {
	b, err := json.MarshalIndent(object, "", "  ")
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	if _, err := out.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// printLine prints one object of a stream on a line of its own.
func printLine(out io.Writer, object any) error {
	b, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	if _, err := out.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// text writes for people: lines, and tables whose columns line up. It remembers the first error.
type text struct {
	out *bufio.Writer
	tab *tabwriter.Writer
}

func newText(out io.Writer) *text {
	b := bufio.NewWriter(out)
	return &text{out: b, tab: tabwriter.NewWriter(b, 0, 4, 2, ' ', 0)}
}

// line writes one line.
func (t *text) line(format string, args ...any) {
	_, _ = fmt.Fprintf(t.tab, format+"\n", args...) // the first error is kept by out and given by flush
}

// field writes a name and a value; fields that follow each other line up. An empty value is left out.
func (t *text) field(name string, value any) {
	s := fmt.Sprint(value)
	if s == "" {
		return
	}
	t.line("%s:\t%s", name, s)
}

// row writes the cells of a table line.
func (t *text) row(cells ...any) {
	for i, c := range cells {
		if i > 0 {
			_, _ = io.WriteString(t.tab, "\t")
		}
		s := strings.TrimSpace(fmt.Sprint(c))
		if s == "" {
			s = "-"
		}
		_, _ = io.WriteString(t.tab, s)
	}
	_, _ = io.WriteString(t.tab, "\n")
}

func (t *text) flush() error {
	if err := t.tab.Flush(); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	if err := t.out.Flush(); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// progress writes to stderr what a person wants to know while waiting; it is silent with --json.
func (a *app) progress(cmd *cobra.Command, format string, args ...any) {
	if !a.flags.json {
		cmd.PrintErrf(format+"\n", args...)
	}
}

// isTerminal tells whether w is a terminal.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// when writes a time for people: local, to the second.
func when(t api.Time) string { return t.Local().Format("2006-01-02 15:04:05") }

// whenOpt is when for a time that may be missing.
func whenOpt(t *api.Time) string {
	if t == nil {
		return ""
	}
	return when(*t)
}

// period writes milliseconds as a duration; nil means never.
func period(ms *int64) string {
	if ms == nil {
		return "never"
	}
	d := time.Duration(*ms) * time.Millisecond
	if d >= 24*time.Hour && d%(24*time.Hour) == 0 {
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// compact gives a JSON value on one line, "" for none.
func compact(raw json.RawMessage) string {
	if len(raw) == 0 || string(raw) == "null" {
		return ""
	}
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return string(raw)
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(v) != nil {
		return string(raw)
	}
	return strings.TrimSpace(b.String())
}

// contentText gives the readable form of content: its texts, and a word for each other kind.
func contentText(raw json.RawMessage) string {
	if len(raw) == 0 || string(raw) == "null" {
		return ""
	}
	var one struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	var plain string
	if json.Unmarshal(raw, &plain) == nil {
		return plain
	}
	var parts []json.RawMessage
	if json.Unmarshal(raw, &parts) != nil {
		parts = []json.RawMessage{raw}
	}
	var b strings.Builder
	for _, p := range parts {
		one.Type, one.Text = "", ""
		if json.Unmarshal(p, &one) == nil && one.Type == "text" {
			b.WriteString(one.Text)
			continue
		}
		if b.Len() > 0 && !strings.HasSuffix(b.String(), "\n") {
			b.WriteString("\n")
		}
		b.WriteString(compact(p))
	}
	return b.String()
}

// brief cuts a text to one line of at most n characters.
func brief(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// clean takes out the control characters with which a text from outside could drive the terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		if r < 0x20 || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return -1
		}
		return r
	}, s)
}

// mebibytes writes a size given in MiB.
func mebibytes(n int64) string {
	if n >= 1024 && n%1024 == 0 {
		return fmt.Sprintf("%d GiB", n/1024)
	}
	return fmt.Sprintf("%d MiB", n)
}

// decimal writes thousandths as a number.
func decimal(thousandths int64) string {
	return strconv.FormatFloat(float64(thousandths)/1000, 'f', -1, 64)
}
