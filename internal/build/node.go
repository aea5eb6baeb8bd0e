package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// oldestNode runs what the build runs itself. Computers need a later one; that is checked where images are built.
const oldestNode = 20

// maxOutput bounds what is kept of the output of a program that failed.
const maxOutput = 16 << 10

// node is the Node.js of the machine that builds.
type node struct{ path, version string }

// findNode looks for a Node.js that is new enough.
func findNode(ctx context.Context) (node, error) {
	const remedy = "Install Node.js 22 or later and run the build again"
	name, err := exec.LookPath("node")
	if err != nil {
		return node{}, problem("node", remedy, "no Node.js is on the PATH; the build runs helmr.config.ts and the modules with it")
	}
	out, err := exec.CommandContext(ctx, name, "--version").Output()
	if err != nil {
		return node{}, problem("node", remedy, "%s --version failed: %v", name, err)
	}
	version := strings.TrimSpace(string(out))
	major, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < oldestNode {
		return node{}, problem("node", remedy, "%s is version %s; the build needs %d or later", name, version, oldestNode)
	}
	return node{path: name, version: version}, nil
}

// run starts node with args in dir and waits. Output goes to the log line by line; it is not interpreted.
func (n node) run(ctx context.Context, log func(string), dir string, env []string, args ...string) error {
	command := exec.CommandContext(ctx, n.path, args...)
	command.Dir, command.Env = dir, env
	return runCommand(ctx, command, log)
}

// outputGrace is how long output is awaited from what a program started and its process group no longer holds.
const outputGrace = time.Second

// runCommand runs a program in a process group of its own, which ends as a whole with the program or with ctx.
func runCommand(ctx context.Context, command *exec.Cmd, log func(string)) error {
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start %s: %w", filepath.Base(command.Path), err)
	}
	defer func() { _ = read.Close() }() // closed already, except after an error
	command.Stdout, command.Stderr = write, write
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{}
	}
	command.SysProcAttr.Setpgid = true
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	err = command.Start()
	if cerr := write.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", filepath.Base(command.Path), err)
	}
	output := &lineWriter{log: log}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(output, read) // ends with the writers, or when read is closed below
	}()
	err = command.Wait()
	// What the program left running belongs to the build and ends with it.
	_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) // usually nothing is left
	select {
	case <-copied:
	case <-time.After(outputGrace):
		_ = read.Close()
		<-copied
	}
	output.flush()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return &commandError{err: err, output: output.tail()}
	}
	return nil
}

// commandError is a program that ran and failed.
type commandError struct {
	err    error
	output string // the end of what it printed
}

func (e *commandError) Error() string { return e.err.Error() }
func (e *commandError) Unwrap() error { return e.err }

// lineWriter hands on whole lines and keeps the end of everything.
type lineWriter struct {
	log     func(string)
	partial []byte
	kept    []byte
}

func (w *lineWriter) Write(data []byte) (int, error) {
	w.kept = append(w.kept, data...)
	if excess := len(w.kept) - maxOutput; excess > 0 {
		w.kept = append(w.kept[:0], w.kept[excess:]...)
	}
	w.partial = append(w.partial, data...)
	for {
		line, rest, found := strings.Cut(string(w.partial), "\n")
		if !found && len(w.partial) < maxOutput {
			return len(data), nil
		}
		w.emit(line)
		w.partial = append(w.partial[:0], rest...)
	}
}

func (w *lineWriter) flush() {
	if len(w.partial) > 0 {
		w.emit(string(w.partial))
		w.partial = nil
	}
}

func (w *lineWriter) emit(line string) {
	if line = strings.TrimRight(line, "\r"); line != "" && w.log != nil {
		w.log(strings.ToValidUTF8(line, "\ufffd"))
	}
}

func (w *lineWriter) tail() string { return strings.ToValidUTF8(string(w.kept), "\ufffd") }

var _ io.Writer = (*lineWriter)(nil)

// hostEnvironment picks variables by name from the environment of the build, and adds others.
func hostEnvironment(names []string, extra ...string) []string {
	var env []string
	for _, name := range names {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return append(env, extra...)
}

// exitText says how a program ended.
func exitText(err error) string {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.String()
	}
	return err.Error()
}
