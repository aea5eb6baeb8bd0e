package build

import (
	"bytes"
	"context"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// kept gives what a walk with these rules keeps.
func kept(t *testing.T, dir, ignore string) []string {
	t.Helper()
	rules, err := parseIgnore([]byte(ignore))
	if err != nil {
		t.Fatal(err)
	}
	w := walker{root: dir, limits: sourceLimits, skip: func(name string, folder bool) bool { return name == ".git" || rules.ignored(name, folder) }}
	if err := w.walk(t.Context(), "", 0); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range w.entries {
		if e.kind != fs.ModeDir {
			names = append(names, e.path)
		}
	}
	slices.Sort(names)
	return names
}

// keptByGit gives what Git leaves untracked but not ignored under the same lines.
func keptByGit(t *testing.T, dir, ignore string) []string {
	t.Helper()
	exclude := filepath.Join(t.TempDir(), "exclude")
	if err := os.WriteFile(exclude, []byte(ignore), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "git", "-C", dir, "-c", "core.excludesFile=/dev/null", "ls-files", "--others", "-z", "--exclude-from="+exclude).Output()
	if err != nil {
		t.Fatal(err)
	}
	names := strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
	slices.Sort(names)
	return names
}

// gitTree makes a repository with one empty file for each name.
func gitTree(t *testing.T, names []string) string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed; it is the measure here")
	}
	dir := t.TempDir()
	if out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "git", "init", "-q", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range names {
		write(t, dir, name, "")
	}
	return dir
}

var ignoreTree = []string{
	"a", "b", "a.log", "src/a", "src/b.log", "src/deep/a", "src/deep/b.log", "src/deep/deeper/a.log", "node_modules/x/y", "src/node_modules/z",
	"build/out", "src/build/out", "build.txt", "a b", "a#", "#a", "!a", "{a,b}", "[a]", "x{y}z", "dist/keep/me", "dist/drop", "foo/bar/baz", "foo/baz", "bar/foo/x",
	"abc/def/ghi", "abc/ghi", "trail ", "back", ".hidden", ".env.example", "src/.hidden/x", "éé/üü", "A",
}

// Left out are three oddities: a ? or a class is a character here and a byte in Git, "s**/a" crosses folders in Git, and
// classes like []a] and [[:alpha:]] are not known here.
func TestIgnoreMeansWhatGitMeans(t *testing.T) {
	t.Parallel()
	dir := gitTree(t, ignoreTree)
	for _, ignore := range []string{
		"a", "/a", "a/", "*.log", "src/*.log", "src/**", "src/**/a", "**/a", "**", "*", "/*", "*/", "/*/", "!a", "*\n!a", "*\n!src\n!src/a", "src\n!src/a",
		"src/*\n!src/deep", "node_modules/", "/node_modules/", "build", "build/", "**/build/", "#a", `\#a`, `\!a`, "a ", `trail\ `, "trail ", "{a,b}", "x{y}z", "[a]", `\[a\]`, "[!a]", "[^a]",
		"[a-c]", "?", "a?", "a??", "foo/**/baz", "foo/**", "foo/**/", "**/foo", "**/foo/**", "abc/**/ghi", "dist/*\n!dist/keep", "dist/**\n!dist/keep/", "dist\n!dist/keep/me", ".*", ".env*\n!.env.example",
		"\n\n", " ", "/", "//", "!", "!/", "a\r\nb\r\n", "é", "*é*", "src/deep/", "src/deep", "deep/", "deep/a", "./a", "src//a", "a**", "**a", "***", "src/***", "[", "a[", `a\`, `\a`, "*.l?g", "A",
	} {
		if got, want := kept(t, dir, ignore), keptByGit(t, dir, ignore); !slices.Equal(got, want) {
			t.Errorf("%q keeps\n  %q\nGit keeps\n  %q", ignore, got, want)
		}
	}
}

func TestIgnoreMeansWhatGitMeansForMadeUpRules(t *testing.T) {
	t.Parallel()
	dir := gitTree(t, ignoreTree)
	pieces := []string{"a", "b", "src", "deep", "foo", "bar", "*", "**", "?", "/", "/", "/", "!", ".log", "\n", "\n", "build", "dist", "keep", " ", "{", "}", `\a`}
	random := rand.New(rand.NewPCG(1, 2))
	for range 150 {
		var ignore strings.Builder
		for range 1 + random.IntN(9) {
			ignore.WriteString(pieces[random.IntN(len(pieces))])
		}
		if got, want := kept(t, dir, ignore.String()), keptByGit(t, dir, ignore.String()); !slices.Equal(got, want) {
			t.Errorf("%q keeps\n  %q\nGit keeps\n  %q", ignore.String(), got, want)
		}
	}
}

func TestIgnoreFileBounds(t *testing.T) {
	t.Parallel()
	if _, err := parseIgnore(bytes.Repeat([]byte("a"), maxIgnoreBytes)); err != nil {
		t.Errorf("1 MiB is refused: %v", err)
	}
	_, err := parseIgnore(bytes.Repeat([]byte("a"), maxIgnoreBytes+1))
	refused(t, err, ".helmrignore", "1048577 bytes")
	_, err = parseIgnore([]byte("a\xff"))
	refused(t, err, ".helmrignore", "UTF-8")
}

func FuzzIgnore(f *testing.F) {
	f.Add([]byte("*.log\n!a\nsrc/**/x\n"), "src/a/x")
	f.Fuzz(func(t *testing.T, text []byte, name string) {
		rules, err := parseIgnore(text)
		if err != nil || len(text) > 4096 || len(name) > 4096 {
			return
		}
		rules.ignored(name, true)
		rules.ignored(name, false)
	})
}
