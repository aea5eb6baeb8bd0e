package build

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// take captures a project and gives the paths it kept.
func take(t *testing.T, dir string) ([]string, string, error) {
	t.Helper()
	target := t.TempDir()
	got, err := capture(t.Context(), dir, target)
	var names []string
	for _, e := range got.entries {
		names = append(names, e.path)
	}
	return names, target, err
}

func link(t *testing.T, dir, name, target string) {
	t.Helper()
	full := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, full); err != nil {
		t.Fatal(err)
	}
}

func TestSpec_02_13_OnlyHelmrignoreFiltersSource(t *testing.T) {
	t.Parallel()
	dir := project(t, ".helmrignore", "*.log\nnode_modules/\n", ".gitignore", "agents/\n", "a.log", "x", "node_modules/zod/index.js", "x",
		".git/HEAD", "x", ".helmr/deployment-bundle/manifest.json", "x", "docs/.git/HEAD", "kept", "docs/node_modules/x.js", "left out too", ".env.example", "KEY=", "src/.env.template", "KEY=")
	got, target, err := take(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{".env.example", ".gitignore", ".helmrignore", "agents", "agents/one.ts", "docs", "docs/.git", "docs/.git/HEAD", "helmr.config.ts", "package.json", "src", "src/.env.template"}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("kept %q\nwant %q", got, want)
	}
	info, err := os.Stat(filepath.Join(target, "agents", "one.ts"))
	if err != nil || !info.ModTime().Equal(sourceTime) || info.Mode() != 0o644 {
		t.Errorf("a captured file has its own time or mode: %v %v", info, err)
	}
}

func TestSpec_02_13_NegationCannotBringBackGit(t *testing.T) {
	t.Parallel()
	got, _, err := take(t, project(t, ".helmrignore", "!.git\n!.helmr\n", ".git/HEAD", "x", ".helmr/x", "x"))
	if err != nil || slices.Contains(got, ".git") || slices.Contains(got, ".helmr") {
		t.Errorf("kept %q, %v", got, err)
	}
}

func TestSpec_02_13_DangerousSourceFails(t *testing.T) {
	t.Parallel()
	for name, file := range map[string]string{
		"node_modules": "node_modules/zod/index.js", "helmr": "helmr/x", ".env": ".env", ".env.production": ".env.production", "config/.env.local": "config/.env.local",
		".env.example.bak": ".env.example.bak",
	} {
		_, _, err := take(t, project(t, file, "x"))
		refused(t, err, name, ".helmrignore")
	}
	for _, file := range []string{"src/helmr/x", "src/node_modules/x", "environment", ".envrc", ".env.sample", "a.env"} {
		if _, _, err := take(t, project(t, file, "x")); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestSpec_13_04_LinksStayInside(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		links   [][2]string
		problem string // "" is accepted
	}{
		"to a file":            {[][2]string{{"l", "agents/one.ts"}}, ""},
		"to a folder":          {[][2]string{{"l", "agents"}}, ""},
		"up and down":          {[][2]string{{"agents/l", "../agents/./one.ts"}}, ""},
		"to the root":          {[][2]string{{"agents/l", ".."}}, ""},
		"over a linked folder": {[][2]string{{"f", "agents"}, {"l", "f/one.ts"}}, ""},
		"out":                  {[][2]string{{"l", "../x"}}, "out of the project"},
		"out over a folder":    {[][2]string{{"f", "agents"}, {"l", "f/../../x"}}, "out of the project"},
		"absolute":             {[][2]string{{"l", "/etc/passwd"}}, "absolute path"},
		"dangling":             {[][2]string{{"l", "gone"}}, "does not exist or is left out"},
		"to what is left out":  {[][2]string{{"l", ".git/HEAD"}}, "does not exist or is left out"},
		"through a file":       {[][2]string{{"l", "package.json/x"}}, "is a file"},
		"to itself":            {[][2]string{{"l", "l"}}, "more than 40 links, or in a circle"},
		"in a circle":          {[][2]string{{"l", "m"}, {"m", "l"}}, "more than 40 links, or in a circle"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := project(t, ".git/HEAD", "x")
			for _, l := range test.links {
				link(t, dir, l[0], l[1])
			}
			_, _, err := take(t, dir)
			if test.problem == "" && err != nil {
				t.Errorf("refused: %v", err)
			} else if test.problem != "" {
				refused(t, err, test.problem)
			}
		})
	}
}

func TestSpec_13_04_FortyHops(t *testing.T) {
	t.Parallel()
	chain := func(hops int) string {
		dir := project(t)
		link(t, dir, "l1", "package.json")
		for i := 2; i <= hops; i++ {
			link(t, dir, fmt.Sprintf("l%d", i), fmt.Sprintf("l%d", i-1))
		}
		return dir
	}
	if _, _, err := take(t, chain(40)); err != nil {
		t.Errorf("40 hops: %v", err)
	}
	_, _, err := take(t, chain(41))
	refused(t, err, "l41", "40 links")
}

func TestSpec_13_04_SourceLimits(t *testing.T) {
	t.Parallel()
	small := limits{what: "the source", bytes: 10, fileBytes: 8, entries: 4, nameBytes: 20, depth: 3, linkHops: 40}
	for name, test := range map[string]struct {
		files   map[string]int // bytes by name
		problem string
	}{
		"at every limit":   {map[string]int{"aa/b/c": 8, "d": 2}, ""},
		"file":             {map[string]int{"a": 9}, "has 9 bytes; at most 8"},
		"all bytes":        {map[string]int{"a": 8, "b": 3}, "the source has 11 bytes; at most 10"},
		"entries":          {map[string]int{"a": 0, "b": 0, "c": 0, "d": 0, "e": 0}, "more than 4 entries"},
		"names":            {map[string]int{"aaaaaaaaaaaaaaaaaaaaa": 0}, "more than 20 bytes"},
		"depth":            {map[string]int{"a/b/c/d": 0}, "lies 4 folders deep; at most 3"},
		"backslash":        {map[string]int{`a\b`: 0}, "backslash"},
		"line break":       {map[string]int{"a\nb": 0}, "line break"},
		"not UTF-8":        {map[string]int{"a\xff": 0}, "UTF-8"},
		"names at a limit": {map[string]int{strings.Repeat("n", 20): 0}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, size := range test.files {
				write(t, dir, file, strings.Repeat("x", size))
			}
			w := walker{root: dir, limits: small}
			err := w.walk(t.Context(), "", 0)
			if test.problem == "" && err != nil {
				t.Errorf("refused: %v", err)
			} else if test.problem != "" {
				refused(t, err, test.problem)
			}
		})
	}
	if sourceLimits != (limits{what: "the source", bytes: 512 << 20, fileBytes: 512 << 20, entries: 100_000, nameBytes: 128 << 20, depth: 128, linkHops: 40}) ||
		installedLimits.bytes != 10<<30 || installedLimits.fileBytes != 1<<30 || installedLimits.entries != 200_000 {
		t.Error("the limits are others than those of the contract")
	}
}

func TestOddFilesAreRefused(t *testing.T) {
	t.Parallel()
	dir := project(t)
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, _, err := take(t, dir)
	refused(t, err, "pipe", "neither a file nor a folder nor a link")

	dir = project(t, "package.json", "-")
	link(t, dir, "package.json", "helmr.config.ts")
	_, _, err = take(t, dir)
	refused(t, err, "package.json", "not a plain file")

	_, _, err = take(t, filepath.Join(dir, "gone"))
	refused(t, err, "there is no such folder", "helmr init")
	_, _, err = take(t, filepath.Join(dir, "helmr.config.ts"))
	refused(t, err, "is not a folder")
}

func TestCaptureKeepsLinksAndModes(t *testing.T) {
	t.Parallel()
	dir := project(t, "bin/run", "#!/bin/sh\n", "empty/keep", "")
	if err := os.Chmod(filepath.Join(dir, "bin/run"), 0o700); err != nil {
		t.Fatal(err)
	}
	link(t, dir, "run", "bin/run")
	_, target, err := take(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(filepath.Join(target, "bin/run")); err != nil || info.Mode() != 0o755 {
		t.Errorf("mode %v, %v", info, err)
	}
	if got, err := os.Readlink(filepath.Join(target, "run")); err != nil || got != "bin/run" {
		t.Errorf("link %q, %v", got, err)
	}
	if info, err := os.Stat(filepath.Join(target, "bin")); err != nil || !info.ModTime().Equal(sourceTime) {
		t.Errorf("folder time %v, %v", info, err)
	}
}

func FuzzLinks(f *testing.F) {
	f.Add("a\nb/\nb/c\nl>b/c\nm>../x\n")
	f.Fuzz(func(t *testing.T, text string) {
		var entries []entry
		for line := range strings.SplitSeq(text, "\n") {
			name, target, isLink := strings.Cut(line, ">")
			e := entry{path: strings.TrimSuffix(name, "/"), target: target}
			switch {
			case isLink:
				e.kind = fs.ModeSymlink
			case strings.HasSuffix(name, "/"):
				e.kind = fs.ModeDir
			}
			if fs.ValidPath(e.path) && len(entries) < 100 {
				entries = append(entries, e)
			}
		}
		_ = checkLinks(entries, 40)
	})
}
