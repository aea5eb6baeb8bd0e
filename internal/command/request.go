package command

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/fault"
)

// Bounds of a request.
const (
	MaxArgs       = 128
	MaxArgBytes   = 64 << 10
	MaxVariables  = 128
	MaxEnvBytes   = 256 << 10
	MaxCwdBytes   = 4096
	MaxStdinBytes = 1 << 20

	DefaultTimeout = 5 * time.Minute
	MaxTimeout     = 24 * time.Hour

	reservedPrefix = "HELMR_"
)

// request is what to run, as kept.
type request struct {
	Argv  []string `json:"argv"`
	Env   []string `json:"env,omitempty"` // NAME=value
	Cwd   string   `json:"cwd,omitempty"`
	Stdin []byte   `json:"stdin,omitempty"`
	// Program is the digest of a Deployment's program that has to be in place, of Commands of the platform.
	Program string `json:"program,omitempty"`
}

var (
	variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	durationText = regexp.MustCompile(`^([1-9][0-9]{0,9})(ms|s|m|h|d)$`)
)

func invalid(field, format string, args ...any) error {
	return fault.New(fault.InvalidComputerCommand, format, args...).With("field", field)
}

func tooLarge(field, format string, args ...any) error {
	return fault.New(fault.CommandTooLarge, format, args...).With("field", field)
}

// check reads what a caller asks for: what to run, as kept, and its execution limit.
func check(in api.CommandCreateRequest) (text string, timeout time.Duration, err error) {
	r := request{Argv: in.Command, Cwd: in.Cwd}
	if err := checkArgv(in.Command); err != nil {
		return "", 0, err
	}
	if in.Cwd != "" && (len(in.Cwd) > MaxCwdBytes || !path.IsAbs(in.Cwd) || path.Clean(in.Cwd) != in.Cwd || !plain(in.Cwd)) {
		return "", 0, invalid("cwd", "cwd must be a clean absolute path of at most %d bytes: no trailing slash, no . or .. in it", MaxCwdBytes)
	}
	if r.Env, err = checkEnv(in.Env); err != nil {
		return "", 0, err
	}
	if base64.StdEncoding.DecodedLen(len(in.StdinBase64)) > MaxStdinBytes+2 {
		return "", 0, stdinTooLarge()
	}
	if r.Stdin, err = base64.StdEncoding.Strict().DecodeString(in.StdinBase64); err != nil {
		return "", 0, invalid("stdin_base64", "stdin_base64 is not base64 (the standard alphabet, with padding)")
	}
	if len(r.Stdin) > MaxStdinBytes {
		return "", 0, stdinTooLarge()
	}
	if timeout, err = checkTimeout(in.Timeout); err != nil {
		return "", 0, err
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return "", 0, fmt.Errorf("encode command: %w", err)
	}
	return string(raw), timeout, nil
}

func stdinTooLarge() error {
	return fault.New(fault.StdinTooLarge, "stdin is larger than %d bytes; put larger data into a file on the Computer first", MaxStdinBytes).With("field", "stdin_base64")
}

func checkArgv(argv []string) error {
	size := 0
	for i, a := range argv {
		size += len(a)
		if !plain(a) {
			return invalid("command", "command[%d] must be valid UTF-8 without NUL", i)
		}
	}
	switch {
	case len(argv) == 0 || len(argv) > MaxArgs:
		return invalid("command", "command must have 1 to %d entries, but has %d; write a script for longer ones", MaxArgs, len(argv))
	case argv[0] == "":
		return invalid("command", "command[0] must name a program")
	case size > MaxArgBytes:
		return tooLarge("command", "the entries of command have %d bytes together, at most %d are allowed; pass more as stdin or in a file", size, MaxArgBytes)
	}
	return nil
}

func checkEnv(env map[string]string) ([]string, error) {
	if len(env) > MaxVariables {
		return nil, invalid("env", "env has %d variables, at most %d are allowed", len(env), MaxVariables)
	}
	var out []string
	size := 0
	for _, name := range slices.Sorted(maps.Keys(env)) {
		value := env[name]
		size += len(name) + len(value)
		switch {
		case !variableName.MatchString(name):
			return nil, invalid("env", "%s is no name of a variable: use letters, digits and '_', beginning with no digit", strconv.Quote(name))
		case strings.HasPrefix(name, reservedPrefix):
			return nil, invalid("env", "%s is reserved: names must not begin with %s", name, reservedPrefix)
		case !plain(value):
			return nil, invalid("env", "the value of %s must be valid UTF-8 without NUL", name)
		}
		out = append(out, name+"="+value)
	}
	if size > MaxEnvBytes {
		return nil, tooLarge("env", "env has %d bytes of names and values, at most %d are allowed", size, MaxEnvBytes)
	}
	return out, nil
}

var units = map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}

func checkTimeout(text string) (time.Duration, error) {
	if text == "" {
		return DefaultTimeout, nil
	}
	m := durationText.FindStringSubmatch(text)
	if m != nil {
		n, err := strconv.ParseInt(m[1], 10, 64)
		if err == nil && n <= int64(MaxTimeout/units[m[2]]) {
			return time.Duration(n) * units[m[2]], nil
		}
	}
	return 0, invalid("timeout", `timeout must be from 1ms to 24h: a whole number with ms, s, m, h or d, such as "20m"`)
}

// plain tells whether s is valid UTF-8 without NUL.
func plain(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }
