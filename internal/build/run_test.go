package build

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"helmr.dev/helmr/internal/build/bundle"
)

// workFolders lists what builds left in the temporary folder.
func workFolders(t *testing.T, temporary string) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(temporary, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// ended waits for the end of a process that was killed.
func ended(t *testing.T, text string) {
	t.Helper()
	pid, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }() // of no use any more
	const patience = 30_000
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, patience)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n != 1 || err != nil {
			t.Errorf("process %d still runs (%v)", pid, err)
		}
		return
	}
}

func TestSpec_13_01_ExistingTargetIsRefused(t *testing.T) {
	t.Parallel()
	dir := project(t, ".helmr/deployment-bundle/old", "x")
	_, err := Run(t.Context(), Options{Dir: dir})
	refused(t, err, ".helmr/deployment-bundle", "exists already", "--output")
	file := filepath.Join(t.TempDir(), "file")
	write(t, filepath.Dir(file), "file", "x")
	_, err = Run(t.Context(), Options{Dir: dir, Output: file})
	refused(t, err, "exists already")
}

func TestSpec_13_03_FailureLeavesNothing(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	dir := project(t, "agents/one.ts", "throw new Error('no')")
	output := filepath.Join(t.TempDir(), "a", "b")
	_, err := Run(t.Context(), Options{Dir: dir, Output: output})
	refused(t, err, "agents/one.ts:1:7", "no")
	if left := workFolders(t, temporary); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if _, err := os.Lstat(filepath.Dir(output)); err == nil {
		t.Error("the folder of the output was made")
	}
}

func TestSpec_13_03_InterruptEndsEverything(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	marker := filepath.Join(t.TempDir(), "pid")
	// The module starts a child that would outlive it, tells about it, and never ends.
	dir := project(t, "agents/one.ts", `import { spawn } from "node:child_process"
const child = spawn("sleep", ["600"], { stdio: "ignore" })
console.log("started " + child.pid)
setInterval(() => {}, 1000)
await new Promise(() => {})`)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var pid string
	var once sync.Once
	_, err := Run(ctx, Options{Dir: dir, Output: marker + ".bundle", Progress: func(e Event) {
		if text, ok := strings.CutPrefix(e.Message, "started "); ok && e.Kind == EventLog {
			once.Do(func() { pid = text; interrupt() })
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	if pid == "" {
		t.Fatal("the module was not run")
	}
	ended(t, pid)
	if left := workFolders(t, temporary); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestAssembleLeavesNothingWhenItFails(t *testing.T) {
	t.Parallel()
	b, _, err := prepared(t, project(t))
	if err != nil {
		t.Fatal(err)
	}
	parent := t.TempDir()
	output := filepath.Join(parent, "new", "folders", "bundle")
	_, err = assemble(assembly{plan: b.index.plan, sdk: "1", program: b.program, images: []builtImage{{archive: "/no/such/archive"}}}, output)
	if err == nil {
		t.Fatal("assembled without an image")
	}
	if left := workFolders(t, parent); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestAssembledBundleOpens(t *testing.T) {
	t.Parallel()
	b, _, err := prepared(t, project(t, "agents/two.ts", agentModule("two", "box-two")))
	if err != nil {
		t.Fatal(err)
	}
	made := assembled(t, b)
	folder, err := bundle.Open(made.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if folder.Digest != made.Digest || len(folder.Manifest.TemplateImages) != 2 || len(folder.Manifest.Objects) != 2 {
		t.Errorf("%+v", folder.Manifest)
	}
	if err := folder.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := b.assemble(); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("written over: %v", err)
	}
}

func TestImageErrorsNameTheTemplate(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ image, part string }{
		"no base":      {`image("box")`, "has no base"},
		"two bases":    {`image("box").from("node:24").from("node:22")`, "step 2"},
		"no reference": {`image("box").from("NOT A REF".replaceAll(" ", "_"))`, "image reference"},
		"cannot pull":  {`image("box").from("registry.invalid/none:1")`, "registry.invalid/none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := project(t, "agents/one.ts", `import { agent, image, template } from "@helmr/sdk"
const box = template({ id: "box", image: `+test.image+`, resources: { cpu: 1, memory: "512MiB" } })
export const one = agent({ id: "one", template: box, turn: () => null })`)
			_, err := Run(t.Context(), Options{Dir: dir, Output: filepath.Join(t.TempDir(), "bundle")})
			text := refused(t, err, "agents/one.ts", `template "box"`, test.part)
			t.Log(text)
		})
	}
}

func TestWhatAModuleLeavesRunningIsKilled(t *testing.T) {
	t.Parallel()
	// The child holds standard output, so a build that waited for the end of output would wait for the child.
	b, r, err := prepared(t, project(t, "agents/one.ts", agentModule("one", "box")+`
import { spawn } from "node:child_process"
const child = spawn("sleep", ["600"], { stdio: "inherit" })
console.log("started " + child.pid)`))
	if err != nil {
		t.Fatal(err)
	}
	if len(b.index.plan.Agents) != 1 {
		t.Errorf("%+v", b.index.plan)
	}
	for _, e := range r.events {
		if pid, ok := strings.CutPrefix(e.Message, "started "); ok {
			ended(t, pid)
			return
		}
	}
	t.Error("the module was not run")
}
