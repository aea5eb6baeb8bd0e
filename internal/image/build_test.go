package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"helmr.dev/helmr/internal/fault"
)

// tiny imports a root filesystem of busybox and a program that says it is Node of the given version, under
// tiny/node:<version>, and gives the cache folder.
func tiny(t *testing.T, version string) (cacheDir string) {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal("the tests need busybox: apt-get install -y busybox-static")
	}
	root := t.TempDir()
	data, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"bin", "tmp", "etc", "root"} {
		must(t, os.Mkdir(filepath.Join(root, d), 0o755))
	}
	must(t, os.WriteFile(filepath.Join(root, "bin", "busybox"), data, 0o755))
	for _, applet := range []string{"sh", "ls", "cat", "printf", "mkdir", "stat", "find", "readlink", "ln", "rm", "chmod", "mknod", "mkfifo", "env", "id", "touch", "sleep"} {
		must(t, os.Symlink("busybox", filepath.Join(root, "bin", applet)))
	}
	must(t, os.WriteFile(filepath.Join(root, "etc", "passwd"), []byte("root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/:/bin/sh\n"), 0o644))
	must(t, os.WriteFile(filepath.Join(root, "etc", "group"), []byte("root:x:0:\napp:x:1000:\n"), 0o644))
	if version != "" {
		// It stands for Node in the check of the version only, which is what these images are built for.
		script := "#!/bin/sh\necho '" + nodeFound + version + "'\n[ " + strings.Split(version, ".")[0] + " -ge 22 ]\n"
		must(t, os.WriteFile(filepath.Join(root, "bin", "node"), []byte(script), 0o755))
	}
	// Equal content on every machine.
	must(t, filepath.WalkDir(root, func(p string, _ fs.DirEntry, err error) error {
		at := []unix.Timespec{{Sec: 1_700_000_000}, {Sec: 1_700_000_000}}
		return errors.Join(err, unix.UtimesNanoAt(unix.AT_FDCWD, p, at, unix.AT_SYMLINK_NOFOLLOW))
	}))
	cacheDir = t.TempDir()
	s, err := OpenStore(cacheDir)
	must(t, err)
	_, err = s.Import(t.Context(), "tiny/node", root)
	must(t, err)
	return cacheDir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// buildahFor gives the builder that the tests use, whatever else is on the machine.
func buildahFor(t *testing.T, cacheDir string) builder {
	t.Helper()
	b, why := findBuildah(t.Context(), cacheDir)
	if b == nil {
		t.Fatalf("the tests need buildah (apt-get install -y buildah): %s", why)
	}
	t.Cleanup(func() {
		// Overlay mounts must be gone before the folder can be.
		if out, err := b.command(context.Background(), "rm", "--all").CombinedOutput(); err != nil {
			t.Errorf("clean up buildah: %v: %s", err, out)
		}
	})
	return b
}

func from(steps ...Step) Definition {
	return Definition{Key: "box", Steps: append([]Step{{Op: OpFrom, Ref: "tiny/node"}}, steps...)}
}

func build(t *testing.T, cacheDir, src string, d Definition) (Built, error) {
	t.Helper()
	return buildWith(t, buildahFor(t, cacheDir), cacheDir, src, d)
}

func buildWith(t *testing.T, b builder, cacheDir, src string, d Definition) (Built, error) {
	t.Helper()
	return Build(t.Context(), Options{
		Definition: d, SourceRoot: src, Out: filepath.Join(t.TempDir(), "image.tar"), CacheDir: cacheDir,
		Progress: func(l string) { t.Log(l) }, builder: b,
	})
}

// onEachBuilder runs a test with buildah, and with BuildKit where that answers.
func onEachBuilder(t *testing.T, test func(t *testing.T, find func(cacheDir string) builder)) {
	t.Run("buildah", func(t *testing.T) {
		t.Parallel()
		test(t, func(cacheDir string) builder { return buildahFor(t, cacheDir) })
	})
	for name, find := range map[string]func(context.Context) (*buildkit, string){"buildctl": findBuildctl, "buildx": findBuildx} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, why := find(t.Context())
			if b == nil {
				t.Skipf("%s does not answer on this machine: %s", name, why)
			}
			test(t, func(string) builder { return b })
		})
	}
}

func TestSpec_09_03_EveryStepBuildsAndEqualInputGivesEqualBytes(t *testing.T) {
	t.Parallel()
	onEachBuilder(t, everyStep)
}

func everyStep(t *testing.T, find func(cacheDir string) builder) {
	cache := tiny(t, "24.1.0")
	src := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(src, "app", "sub"), 0o700))
	must(t, os.WriteFile(filepath.Join(src, "app", "sub", "run.sh"), []byte("#!/bin/sh\necho hi\n"), 0o700))
	must(t, os.WriteFile(filepath.Join(src, "app", "a [b] $c.txt"), []byte("odd"), 0o600))
	must(t, os.Symlink("sub/run.sh", filepath.Join(src, "app", "link")))
	must(t, os.WriteFile(filepath.Join(src, ".dockerignore"), []byte("*\n"), 0o600))
	must(t, os.WriteFile(filepath.Join(src, "one.txt"), []byte("one"), 0o600))
	tools := Definition{Key: "tools", Steps: []Step{
		{Op: OpFrom, Ref: "docker.io/tiny/node:latest"},
		{Op: OpRun, Argv: []string{"sh", "-c", "echo made > /made"}},
	}}
	odd := `a b $HOME ${X} "q" 'z' \ # \n <<EOF`
	d := from(
		Step{Op: OpEnv, Key: "ODD", Value: odd},
		Step{Op: OpWorkdir, Path: `/srv/a b $x'"\y`},
		Step{Op: OpCopy, Source: &Source{KindDirectory, "app"}, Destination: "./app dir $d"},
		Step{Op: OpCopy, Source: &Source{KindFile, "one.txt"}, Destination: "/etc/one"},
		Step{Op: OpCopy, Source: &Source{KindFile, "app/a [b] $c.txt"}, Destination: "/srv/in/"},
		Step{Op: OpCopyFrom, Image: &tools, SourcePath: "/made", Destination: "/from tools"},
		Step{Op: OpRun, Argv: []string{"sh", "-c", `printf '%s' "$ODD" > /odd; pwd > /pwd; for a; do printf '[%s]' "$a"; done > /args`, "x", "a\nb", odd, "", "*"}},
		Step{Op: OpUser, Name: "app"},
		Step{Op: OpRun, Argv: []string{"sh", "-c", "id -u > /tmp/id"}},
	)
	d.Steps[7].Argv[2] += "; chmod 777 /tmp"
	one, err := buildWith(t, find(cache), cache, src, d)
	must(t, err)
	if one.Config.User != "app" || one.Config.Workdir != `/srv/a b $x'"\y` || !contains(one.Config.Env, "ODD="+odd) {
		t.Errorf("config = %+v", one.Config)
	}
	files := archiveFiles(t, one.ArchivePath)
	wd := `srv/a b $x'"\y/app dir $d/`
	for name, want := range map[string]string{
		"odd": odd, "pwd": `/srv/a b $x'"\y` + "\n", "args": "[a\nb][" + odd + "][][*]", "from tools": "made\n", "etc/one": "one",
		"srv/in/a [b] $c.txt": "odd", wd + "a [b] $c.txt": "odd", wd + "sub/run.sh": "#!/bin/sh\necho hi\n", wd + "link": "-> sub/run.sh",
		"tmp/id": "1000\n",
	} {
		if got, ok := files[name]; !ok || got != want {
			t.Errorf("file %q = %q, %v; want %q", name, got, ok, want)
		}
	}
	if mode := files["mode:"+wd+"sub/run.sh"]; mode != "755" {
		t.Errorf("mode of a program = %s, want 755", mode)
	}

	// Another machine: another cache, so nothing is remembered. Equal input gives equal bytes.
	other := tiny(t, "24.1.0")
	two, err := buildWith(t, find(other), other, src, d)
	must(t, err)
	if two.Digest != one.Digest || two.Size != one.Size {
		t.Errorf("two builds of one definition: %s and %s", one.Digest, two.Digest)
	}
	again, err := buildWith(t, find(cache), cache, src, d)
	must(t, err)
	if again.Digest != one.Digest {
		t.Errorf("a repeated build: %s and %s", one.Digest, again.Digest)
	}
}

func TestPruneKeepsWhatWasImported(t *testing.T) {
	t.Parallel()
	cache := tiny(t, "24.1.0")
	d := from(Step{Op: OpRun, Argv: []string{"sh", "-c", "echo x > /x"}})
	first, err := build(t, cache, t.TempDir(), d)
	must(t, err)
	must(t, Prune(t.Context(), cache))
	if left, _ := filepath.Glob(filepath.Join(cache, "archives", "*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	again, err := build(t, cache, t.TempDir(), d)
	must(t, err)
	if again.Digest != first.Digest {
		t.Errorf("after a prune: %s instead of %s", again.Digest, first.Digest)
	}
}

func TestBuildRefusesAnImageWithoutNode(t *testing.T) {
	t.Parallel()
	onEachBuilder(t, func(t *testing.T, find func(cacheDir string) builder) {
		for version, want := range map[string]string{"20.9.1": "has Node.js 20.9.1, and Agents need 22 or later", "": "does not run Node.js"} {
			cache := tiny(t, version)
			_, err := buildWith(t, find(cache), cache, t.TempDir(), from())
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"box"`) {
				t.Errorf("err = %v, want %q with the image's key", err, want)
			}
		}
	})
}

func TestBuildFailures(t *testing.T) {
	t.Parallel()
	cache := tiny(t, "24.1.0")
	src := t.TempDir()
	must(t, os.Symlink("/etc", filepath.Join(src, "out")))
	must(t, os.Mkdir(filepath.Join(src, "dir"), 0o755))
	must(t, os.Symlink("../../x", filepath.Join(src, "dir", "up")))
	for name, c := range map[string]struct {
		d    Definition
		want string
	}{
		"run":          {from(Step{Op: OpRun, Argv: []string{"sh", "-c", "echo because >&2; exit 3"}}), "because"},
		"missing file": {from(Step{Op: OpCopy, Source: &Source{KindFile, "nope"}, Destination: "/x"}), `cannot copy file "nope": no such file`},
		"escape":       {from(Step{Op: OpCopy, Source: &Source{KindDirectory, "out"}, Destination: "/x"}), "escapes"},
		"link out":     {from(Step{Op: OpCopy, Source: &Source{KindDirectory, "dir"}, Destination: "/x"}), "points out of the project"},
		"kind":         {from(Step{Op: OpCopy, Source: &Source{KindFile, "dir"}, Destination: "/x"}), "no regular file"},
		"base":         {Definition{Key: "box", Steps: []Step{{Op: OpFrom, Ref: "localhost:1/none:1"}}}, "helmr image import localhost:1/none:1"},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := build(t, cache, src, c.d)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("err = %v, want %q", err, c.want)
			}
			if fault.From(err).Code == fault.Internal {
				t.Errorf("%v is no public error", err)
			}
			if b.ArchivePath != "" {
				t.Errorf("a failed build gave %+v", b)
			}
			mounts, err := os.ReadFile("/proc/mounts")
			if err != nil || strings.Contains(string(mounts), "/"+filepath.Base(filepath.Dir(cache))+"/") {
				t.Errorf("mounts are left (%v):\n%s", err, mounts)
			}
		})
	}
}

func TestBuildStopsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	cache := tiny(t, "24.1.0")
	b := buildahFor(t, cache)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	_, err := Build(ctx, Options{
		Definition: from(Step{Op: OpRun, Argv: []string{"sh", "-c", "echo started; sleep 4242"}}), CacheDir: cache, builder: b,
		SourceRoot: t.TempDir(), Out: filepath.Join(t.TempDir(), "image.tar"), Progress: func(l string) {
			if l == "started" {
				stop()
			}
		},
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil || strings.Contains(string(mounts), cache) {
		t.Errorf("mounts are left (%v):\n%s", err, mounts)
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	for _, c := range commands {
		if line, err := os.ReadFile(c); err == nil && strings.Contains(string(line), "sleep\x004242") {
			t.Errorf("%s still runs", c)
		}
	}
}

func contains(all []string, s string) bool {
	for _, a := range all {
		if a == s {
			return true
		}
	}
	return false
}
