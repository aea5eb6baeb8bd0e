// Package gvisor runs sandboxes with gVisor's runsc command, one gVisor kernel for each. It is not a general container
// runtime: one container in a sandbox, no network but a namespace that it is given, no hooks, no terminal.
//
// The root filesystem is one EROFS file under an overlay that gVisor's kernel holds: its tree in memory, its contents
// in one file on the host, with a size limit. That overlay is what a save captures. Times of restored files are rounded to
// seconds, because gVisor saves the tree as a tar archive.
//
// What exists of a sandbox on the host, and all that Remove has to find, also after a start that was cut off:
//
//	<Root>/records/<id>.json    written first and deleted last
//	<Spec.Dir>                  bundle, the overlay's file, logs
//	<Root>/runsc/               runsc's metadata and control socket
//	processes                   the sandbox, its gofer, or a runsc command on the way; found by their arguments
//	cgroup helmr-<root>-<id>    processes and limits
package gvisor

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"helmr.dev/helmr/internal/sandbox"
)

// removeTimeout bounds the clean-up that follows a failure, which must go on when the caller's context has ended.
const removeTimeout = 30 * time.Second

// Config says where things are.
type Config struct {
	// RunscPath is the runsc binary, built static.
	RunscPath string
	// Root is the folder in which the runtime keeps its state. It is made when missing, and belongs to one Worker:
	// a later Runtime with the same Root adopts the sandboxes of the earlier one.
	Root string
	// DiskSpeed bounds each sandbox; a number that is 0 is that of DefaultDiskSpeed.
	DiskSpeed DiskSpeed
}

// Runtime implements sandbox.Runtime.
type Runtime struct {
	cfg     Config
	state   string // runsc's --root
	name    string // of this root in cgroup names
	boot    string
	cg      cgroups
	records records
	locks   keyedLocks
	control controller
	// platform gives what Platform says, once it was found out.
	platform func() (string, error)

	mu       sync.Mutex
	consoles map[string]*os.File
}

var _ sandbox.Runtime = (*Runtime)(nil)

// New opens the runtime. It starts nothing and does not look for runsc: see Preflight.
func New(cfg Config) (*Runtime, error) {
	root, err := filepath.Abs(cfg.Root)
	if err != nil {
		return nil, fmt.Errorf("open gVisor runtime: %w", err)
	}
	r := &Runtime{cfg: cfg, consoles: map[string]*os.File{}}
	r.cfg.DiskSpeed.MiB = cmp.Or(cfg.DiskSpeed.MiB, DefaultDiskSpeed.MiB)
	r.cfg.DiskSpeed.Operations = cmp.Or(cfg.DiskSpeed.Operations, DefaultDiskSpeed.Operations)
	r.records.dir = filepath.Join(root, "records")
	r.state = filepath.Join(root, "runsc")
	for _, dir := range []string{r.records.dir, r.state} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, fmt.Errorf("open gVisor runtime: %w", err)
		}
	}
	// Processes are recognised by this path: it must be the same however the folder is spelled.
	if r.state, err = filepath.EvalSymlinks(r.state); err != nil {
		return nil, fmt.Errorf("open gVisor runtime: %w", err)
	}
	if r.cfg.RunscPath, err = filepath.Abs(cfg.RunscPath); err != nil {
		return nil, fmt.Errorf("open gVisor runtime: %w", err)
	}
	if r.boot, err = bootID(); err != nil {
		return nil, fmt.Errorf("open gVisor runtime: %w", err)
	}
	sum := sha256.Sum256([]byte(r.state))
	r.name = fmt.Sprintf("%x", sum[:4])
	r.cg = detectCgroups(cgroupMount)
	r.platform = sync.OnceValues(r.findPlatform)
	r.control.command = func() *exec.Cmd { return r.plain(context.Background(), "control", "--root="+r.state) }
	return r, nil
}

// Capabilities implements sandbox.Runtime. The disk is bounded by gVisor's kernel; all else needs cgroups.
func (r *Runtime) Capabilities() sandbox.Capabilities {
	has := r.cg.version != 0
	_, io := r.cg.disksOf(r.state)
	c := sandbox.Capabilities{CPU: has, Memory: has, Disk: true, DiskSpeed: io == nil}
	switch {
	case !has:
		c.Reason = "CPU and memory of sandboxes and the speed of their disks are not bounded: " + r.cg.reason
	case io != nil:
		c.Reason = "the speed of sandboxes' disks is not bounded: " + io.Error()
	}
	return c
}

// Start implements sandbox.Runtime.
func (r *Runtime) Start(ctx context.Context, spec sandbox.Spec) (err error) {
	defer wrap(&err, "start sandbox %s", spec.ID)
	if err := check(spec); err != nil {
		return err
	}
	unlock, err := r.locks.lock(ctx, spec.ID)
	if err != nil {
		return err
	}
	defer unlock()

	if old, err := r.records.load(spec.ID); err == nil {
		if old.running(r.boot) {
			return sandbox.ErrExists
		}
		if err := r.remove(ctx, old); err != nil {
			return fmt.Errorf("remove its predecessor: %w", err)
		}
	} else if !errors.Is(err, sandbox.ErrNotFound) {
		return err
	}
	if err := mustBeFree(spec.Dir); err != nil {
		return err
	}
	// A command of a Worker that was killed may have written some again after Remove.
	if err := r.removeState(spec.ID); err != nil {
		return err
	}
	rec := record{ID: spec.ID, Dir: spec.Dir, Boot: r.boot}
	rec.Cgroup = fmt.Sprintf("helmr-%s-%s", r.name, spec.ID)
	if err := r.records.save(rec); err != nil {
		return err
	}
	if err := r.start(ctx, spec, rec); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
		defer cancel()
		if e := r.remove(clean, rec); e != nil {
			return errors.Join(err, fmt.Errorf("clean up: %w", e))
		}
		return err
	}
	return nil
}

// start makes everything of the sandbox; its caller removes it all on error.
func (r *Runtime) start(ctx context.Context, spec sandbox.Spec, rec record) error {
	rootfs, err := openRootFS(spec.RootFS)
	if err != nil {
		return err
	}
	defer rootfs.Close()
	console, err := newConsole()
	if err != nil {
		return err
	}
	keep := false
	defer func() {
		if !keep {
			console.Close()
		}
	}()
	bundle := filepath.Join(spec.Dir, "bundle")
	// A disk that cannot be bounded is none to refuse a start for: Preflight has told of it.
	disks, _ := r.cg.disksOf(append(nearest(spec.Dir), spec.RootFS)...)
	if err := writeBundle(bundle, ociSpec(spec, r.cg, rec.Cgroup, blockIO(disks, r.cfg.DiskSpeed))); err != nil {
		return err
	}
	pidFile := filepath.Join(spec.Dir, "pid")
	args := []string{"run", "-detach"}
	switch {
	case spec.MemoryFrom != "":
		args = []string{"create"} // and restored below
		if err := r.control.ready(); err != nil {
			return err
		}
	case spec.DiskFrom != "":
		args = append(args, "-fs-restore-image-path="+spec.DiskFrom)
	}
	err = r.runsc(ctx, call{
		global:  []string{"--panic-log=" + panicLog(spec.Dir)},
		network: network(spec),
		args:    append(args, "-bundle="+bundle, "-pid-file="+pidFile, spec.ID),
		log:     filepath.Join(spec.Dir, "start.log"),
		extra:   []*os.File{rootfs},
		stderr:  console,
	})
	if err == nil && spec.MemoryFrom != "" {
		err = r.restore(ctx, spec)
	}
	if err != nil {
		// When gVisor's kernel crashed, runsc itself only saw it go away.
		if why := crash(spec.Dir); why != "" {
			return fmt.Errorf("%w: %s", err, why[:min(len(why), 2048)])
		}
		var failed *runscError
		if errors.As(err, &failed) && failed.message == "" {
			failed.message = readConsole(console)
		}
		return err
	}
	if err := r.cg.setCPU(rec.Cgroup, spec.CPUMillis); err != nil {
		return err
	}
	b, err := os.ReadFile(pidFile)
	if err != nil {
		return fmt.Errorf("read pid: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return fmt.Errorf("read pid: %w", err)
	}
	// A sandbox that has ended already was started nonetheless: Wait tells how it ended.
	if main, err := lookUp(pid); err == nil {
		rec.Main = &main
	} else {
		rec.Main = &process{PID: pid}
	}
	if err := r.records.save(rec); err != nil {
		return err
	}
	keep = true
	r.keepConsole(rec.ID, console)
	return nil
}

// restore gives a sandbox that was made and runs nothing yet its memory, and lets it go on.
func (r *Runtime) restore(ctx context.Context, spec sandbox.Spec) error {
	if spec.MemoryReady != nil {
		if err := spec.MemoryReady(ctx); err != nil {
			return err
		}
	}
	// What is asked for cannot be taken back. When ctx ends the sandbox is killed, which answers, so that nothing is
	// written of it any more once it is removed.
	asked, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		limited, done := context.WithTimeout(asked, removeTimeout)
		defer done()
		defer cancel()
		if killOurs(limited, r.state, spec.ID) == nil {
			<-limited.Done()
		}
	})
	defer stop()
	err := r.control.do(asked, controlRequest{Op: "restore", Sandbox: spec.ID, Dir: spec.MemoryFrom, Network: network(spec)})
	if ctx.Err() != nil {
		return fmt.Errorf("runsc restore: %w", ctx.Err())
	}
	return err
}

// Exec implements sandbox.Runtime.
func (r *Runtime) Exec(ctx context.Context, id string, args []string) (res sandbox.ExecResult, err error) {
	defer wrap(&err, "exec in sandbox %s", id)
	rec, err := r.living(id)
	if err != nil {
		return res, err
	}
	log, err := os.CreateTemp(rec.Dir, "exec-*.log")
	if err != nil {
		return res, err
	}
	log.Close()
	defer os.Remove(log.Name())
	stdout, stderr := &output{limit: mib}, &output{limit: mib}
	err = r.runsc(ctx, call{
		args: append([]string{"exec", id}, args...), log: log.Name(), stdout: stdout, stderr: stderr,
	})
	res.Stdout, res.Stderr = stdout.buf.Bytes(), stderr.buf.Bytes()
	var failed *runscError
	if errors.As(err, &failed) && failed.message == "" {
		res.Code, err = failed.code, nil
	}
	return res, err
}

// List implements sandbox.Runtime.
func (r *Runtime) List(context.Context) ([]sandbox.Status, error) {
	ids, err := r.records.ids()
	if err != nil {
		return nil, err
	}
	var list []sandbox.Status
	for _, id := range ids {
		rec, err := r.records.load(id)
		if errors.Is(err, sandbox.ErrNotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		st := sandbox.Status{ID: id, Dir: rec.Dir, Running: rec.running(r.boot)}
		if st.Running {
			st.Frozen = rec.Frozen
			st.PID = rec.Main.PID
		}
		list = append(list, st)
	}
	return list, nil
}

// Wait implements sandbox.Runtime.
func (r *Runtime) Wait(ctx context.Context, id string) (exit sandbox.Exit, err error) {
	defer wrap(&err, "wait for sandbox %s", id)
	rec, err := r.records.load(id)
	if err != nil {
		return exit, err
	}
	if rec.running(r.boot) {
		if r.console(id) == nil {
			r.keepConsole(id, findConsole(rec.Main.PID))
		}
		if err := awaitEnd(ctx, rec); err != nil {
			return exit, err
		}
	}
	exit.OOM = r.cg.oomKills(rec.Cgroup) > 0
	exit.Output = readConsole(r.console(id))
	if text := crash(rec.Dir); text != "" {
		exit.Output = text
	}
	return exit, nil
}

// Remove implements sandbox.Runtime.
func (r *Runtime) Remove(ctx context.Context, id string) (err error) {
	defer wrap(&err, "remove sandbox %s", id)
	unlock, err := r.locks.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := r.records.load(id)
	if errors.Is(err, sandbox.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return r.remove(ctx, rec)
}

// remove takes everything away in an order that lets it be repeated from any point: the record goes last.
func (r *Runtime) remove(ctx context.Context, rec record) error {
	// All of a sandbox that started is in its cgroup. Before that, or without cgroups, its processes are known by their
	// arguments only, and finding them means reading those of every process on the host.
	if rec.Main == nil || r.cg.version == 0 {
		if err := killOurs(ctx, r.state, rec.ID); err != nil {
			return err
		}
	}
	if err := r.cg.remove(ctx, rec.Cgroup); err != nil {
		return err
	}
	if err := r.removeState(rec.ID); err != nil {
		return err
	}
	if err := os.RemoveAll(rec.Dir); err != nil {
		return fmt.Errorf("remove its folder: %w", err)
	}
	r.keepConsole(rec.ID, nil)
	return r.records.delete(rec.ID)
}

// living loads the record of a sandbox that runs.
func (r *Runtime) living(id string) (record, error) {
	rec, err := r.records.load(id)
	if err == nil && !rec.running(r.boot) {
		err = sandbox.ErrNotRunning
	}
	return rec, err
}

func (r *Runtime) console(id string) *os.File {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.consoles[id]
}

// keepConsole replaces the console of a sandbox; nil forgets it.
func (r *Runtime) keepConsole(id string, f *os.File) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.consoles[id]; old != nil {
		old.Close()
	}
	delete(r.consoles, id)
	if f != nil {
		r.consoles[id] = f
	}
}

// awaitEnd returns when the sandbox process of the record is gone.
func awaitEnd(ctx context.Context, rec record) error {
	fd, err := rec.Main.open()
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer fd.Close()
	return waitGone(ctx, fd)
}

func panicLog(dir string) string { return filepath.Join(dir, "panic.log") }

// crash returns the beginning of what gVisor's kernel said when it crashed; "" when it did not.
func crash(dir string) string {
	f, err := os.Open(panicLog(dir))
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, consoleSize))
	return string(b)
}

// mustBeFree refuses a folder that holds something: it may be somebody's, and it would be deleted.
func mustBeFree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("folder %s is not empty", dir)
	}
	return nil
}

// answers tells whether a process listens on the Unix socket at path.
func answers(path string) bool {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

func wrap(err *error, format string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf(format+": %w", append(args, *err)...)
	}
}

// Count tells of how many sandboxes this root may have something, also of such that are just being started. It needs
// neither runsc nor a lock.
func (r *Runtime) Count() (int, error) {
	ids, err := r.records.ids()
	return len(ids), err
}

// KillAll ends the processes of every sandbox of this root and of commands that are starting some, whoever works with
// them now, and tells how many it ended. It removes nothing else: Remove does.
func (r *Runtime) KillAll(ctx context.Context) (int, error) {
	found, err := ofRoot(r.state)
	if err != nil {
		return 0, err
	}
	for _, p := range found {
		if err := p.kill(ctx); err != nil {
			return 0, err
		}
	}
	return len(found), nil
}
