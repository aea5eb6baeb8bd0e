package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSpec_17_05_SecretCommands(t *testing.T) {
	t.Parallel()
	w := setup(t)
	const value = "hunter2hunter2"
	in := func(stdin string, args ...string) ran {
		r := w.runIn(t.Context(), stdin, args...)
		if strings.Contains(r.stdout+r.stderr, value) {
			t.Errorf("helmr %s shows the value: %+v", strings.Join(args, " "), r)
		}
		return r
	}
	for _, c := range []struct {
		status      int
		stdin, says string
		args        []string
	}{
		{0, value + "\n", "active", []string{"create", "TOKEN"}},
		{1, value, "secret rotate TOKEN", []string{"create", "TOKEN"}},
		{2, "", "no value", []string{"create", "OTHER"}},
		{2, "\n", "no value", []string{"create", "OTHER"}},
		{2, strings.Repeat("x", 1<<20+1), "longer than", []string{"create", "OTHER"}},
		{0, "", "active", []string{"create", "ARG", "--value", value}},
		{2, "", "--value is empty", []string{"create", "OTHER", "--value", ""}},
		{0, value + "2\r\n", "rotated", []string{"rotate", "TOKEN"}},
		{1, value, "does not exist", []string{"rotate", "NOBODY"}},
		{0, "", "rotated", []string{"get", "TOKEN"}},
		{0, "", "TOKEN", []string{"list"}},
		{2, "", "--yes", []string{"revoke", "TOKEN"}},
		{0, "", "revoked", []string{"revoke", "TOKEN", "--yes"}},
		{1, value, "revoked", []string{"rotate", "TOKEN"}},
		{1, "", "does not exist", []string{"get", "NOBODY"}},
	} {
		r := in(c.stdin, append([]string{"secret"}, c.args...)...)
		if r.status != c.status || !strings.Contains(r.stdout+r.stderr, c.says) {
			t.Errorf("secret %v: %+v, want status %d and %q", c.args, r, c.status, c.says)
		}
	}
	if s := w.object(t, "secret", "get", "TOKEN"); s["status"] != "revoked" || s["value"] != nil || s["revoked_at"] == nil {
		t.Errorf("%v", s)
	}
	contains(t, "computers", w.ok(t, "computer", "list", "--secret", "TOKEN"), "VALUE IN")
}

func TestComputerCreateTakesBindings(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.deploy(t, "reviewer")
	w.ok(t, "secret", "create", "TOKEN", "--value", "v")
	file := filepath.Join(t.TempDir(), "bindings.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`[{"secret":"TOKEN","env":{"name":"TOKEN","mode":"raw"}},{"secret":"TOKEN","file":{"path":"/run/token"}}]`)
	id := strings.TrimSpace(w.ok(t, "computer", "create", "box", "--secrets-file", file))
	contains(t, "get", w.ok(t, "computer", "get", id), "TOKEN as TOKEN (raw)", "TOKEN in the file /run/token")
	for text, want := range map[string]int{`{}`: 2, `[{"secret":"TOKEN","env":{"name":"TOKEN","mode":"raw"},"value":"x"}]`: 2, `[{"secret":"NONE","file":{"path":"/a"}}]`: 1} {
		write(text)
		if r := w.run(t, "computer", "create", "box", "--secrets-file", file); r.status != want {
			t.Errorf("%s: %+v", text, r)
		}
	}
}

func TestKeyFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "encryption.key")
	first, err := keyFile(path, keyOfSecrets)
	if err != nil || len(first) != 32 {
		t.Fatalf("%d bytes, %v", len(first), err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left over: %v", entries)
	}
	if again, err := keyFile(path, keyOfSecrets); err != nil || !bytes.Equal(again, first) {
		t.Errorf("another key: %v", err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := keyFile(path, keyOfSecrets); err == nil || !strings.Contains(hint(err), "chmod 600") {
		t.Errorf("a key that others may read: %v", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("c2hvcnQ=\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := keyFile(path, keyOfSecrets); err == nil || strings.Contains(err.Error(), "c2hvcnQ") {
		t.Errorf("a broken key: %v", err)
	}
}

func hint(err error) string {
	if h, ok := errors.AsType[hinted](err); ok {
		return h.hint
	}
	return ""
}
