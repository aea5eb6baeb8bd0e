package gvisor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"helmr.dev/helmr/internal/sandbox"
)

// call is one run of the runsc command.
type call struct {
	global  []string // further flags before the subcommand
	args    []string // subcommand, its flags and arguments
	network string   // of the sandbox, when it is being made
	log     string   // file that runsc writes its errors to; made anew
	extra   []*os.File
	stdout  *output
	stderr  any // *os.File for a command whose child keeps it, *output otherwise
}

// noNetwork is not even a loopback to the host; the Worker's socket is a file.
const noNetwork = "none"

// network is what runsc calls the network of a sandbox.
func network(s sandbox.Spec) string {
	if s.NetNS == "" {
		return noNetwork
	}
	return "sandbox" // gVisor's own network stack, on the devices of the sandbox's namespace
}

// runscError is what runsc said before it failed.
type runscError struct {
	command string
	code    int
	message string // of runsc itself; "" when a program inside caused the exit code
}

func (e *runscError) Error() string {
	return fmt.Sprintf("runsc %s: exit code %d: %s", e.command, e.code, e.message)
}

// plain is a run of runsc, not started. It and all it starts live in a session of their own, so that neither Ctrl-C in
// helmr's terminal nor helmr's death reaches them.
func (r *Runtime) plain(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, r.cfg.RunscPath, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"} // none of helmr's secrets
	return cmd
}

// runsc runs a command to its end.
func (r *Runtime) runsc(ctx context.Context, c call) error {
	if err := os.Remove(c.log); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("runsc %s: %w", c.args[0], err)
	}
	args := append([]string{
		"--root=" + r.state,
		"--platform=systrap", // needs no KVM
		"--network=" + cmp.Or(c.network, noNetwork),
		"--host-uds=open", // programs inside may dial sockets in bound folders, and make none on the host
		"--overlay2=none", // the root's overlay comes from the annotations; binds are read-only
		// A namespace for each gofer costs nothing measurable and leaves no mount behind, unlike the shared one.
		"--gofer-network-namespace=new",
		"--log=" + c.log, "--log-format=json",
	}, c.global...)
	if r.cg.version == 0 {
		args = append(args, "--ignore-cgroups")
	}
	cmd := r.plain(ctx, append(args, c.args...)...)
	cmd.ExtraFiles = c.extra
	cmd.WaitDelay = 5 * time.Second // a program left in the background by Exec may hold the pipes
	if c.stdout != nil {
		cmd.Stdout = c.stdout
	}
	switch w := c.stderr.(type) {
	case *os.File:
		cmd.Stderr = w
	case *output:
		cmd.Stderr = w
	}
	err := cmd.Run()
	if ctx.Err() != nil {
		return fmt.Errorf("runsc %s: %w", c.args[0], ctx.Err())
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return &runscError{command: c.args[0], code: exit.ExitCode(), message: lastError(c.log)}
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return fmt.Errorf("run runsc: %w", err)
	}
	return nil
}

// lastError reads the last message of a runsc log.
func lastError(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	var entry struct {
		Msg string `json:"msg"`
	}
	if json.Unmarshal([]byte(lines[len(lines)-1]), &entry) == nil && entry.Msg != "" {
		return entry.Msg
	}
	return lines[len(lines)-1]
}

// output keeps the first bytes written to it and drops the rest: what runs inside does not decide how much memory
// the Worker uses.
type output struct {
	buf   bytes.Buffer
	limit int
}

func (o *output) Write(p []byte) (int, error) {
	if room := o.limit - o.buf.Len(); room > 0 {
		o.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// removeState deletes what runsc keeps of one sandbox outside its bundle: its metadata and control socket.
func (r *Runtime) removeState(id string) error {
	for _, suffix := range []string{".state", ".lock"} {
		path := filepath.Join(r.state, id+"_sandbox:"+id+suffix)
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove runsc state: %w", err)
		}
	}
	// runsc takes the first of these folders in which the socket can be made; only the first for a short path.
	for _, dir := range []string{r.state, "/var/run", "/run", "/tmp"} {
		path := filepath.Join(dir, "runsc-"+id+".sock")
		if dir != r.state && answers(path) {
			continue // another Worker on this host runs a sandbox with the same id
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove runsc socket: %w", err)
		}
	}
	return nil
}
