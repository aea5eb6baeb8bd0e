package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// asleepWithin bounds how long a Computer that is idle takes to be hibernated.
const asleepWithin = time.Minute

// hibernate measures the way of a Computer into its capture and out of it, in turn with the floors of the very same sandbox:
// runsc fscheckpoint and checkpoint with a durable copy of what they wrote, and a copy of the memory with runsc restore.
// What runsc takes by itself is a figure too. Each time it is a new Computer, of which nothing is stored.
func (b *bench) hibernate(ctx context.Context, h *helmr) error {
	var down, downFloor, up, upFloor []float64
	var plainDown, plainUp []float64
	var left float64
	for i := range b.few(5, 3) + 1 { // the first is to warm up
		t, err := b.sleepOnce(ctx, h, i)
		if err != nil {
			return err
		}
		if i > 0 {
			down, downFloor, up, upFloor = append(down, t.down), append(downFloor, t.downFloor), append(up, t.up), append(upFloor, t.upFloor)
			plainDown, plainUp = append(plainDown, t.plainDown), append(plainUp, t.plainUp)
		}
		left = max(left, t.left)
	}
	b.report.add("hibernate", h.kind, median(down), "ms", median(downFloor), atMostRatio(1.3))
	b.report.add("resume", h.kind, median(up), "ms", median(upFloor), atMostRatio(1.3))
	b.report.add("floor_checkpoint", h.kind, median(plainDown), "ms", 0, nil)
	b.report.add("floor_restore", h.kind, median(plainUp), "ms", 0, nil)
	b.report.add("memory_hibernated", h.kind, left, "MiB", 0, atMost(0))
	return nil
}

// sleepTimes are those of one Computer in ms, and the memory in MiB that is left of it while it sleeps.
type sleepTimes struct{ down, downFloor, plainDown, up, upFloor, plainUp, left float64 }

func (b *bench) sleepOnce(ctx context.Context, h *helmr, n int) (t sleepTimes, err error) {
	s, err := h.newWarm(ctx, "sleeper", "0", "")
	if err != nil {
		return t, err
	}
	turnID, _, err := s.enqueue(ctx, "4000")
	if err != nil {
		return t, err
	}
	if _, err := s.until(ctx, turnID, "turn.output", nil); err != nil {
		return t, err
	}
	p := plainSleep{b: b, runsc: filepath.Join(h.worker, "sandboxes", "runsc"), dir: filepath.Join(h.dir, "floor", fmt.Sprint("sleep-", n)), id: fmt.Sprint("bench-sleep-", n)}
	defer func() { err = errors.Join(err, p.close()) }()
	if t.plainDown, t.downFloor, err = p.checkpoint(ctx, h, s.computer); err != nil {
		return t, fmt.Errorf("plain runsc checkpoint: %w", err)
	}
	if _, err := s.until(ctx, turnID, "turn.completed", nil); err != nil {
		return t, err
	}
	began, err := s.residency(ctx, "hibernating", "hibernated")
	if err != nil {
		return t, err
	}
	ended, err := s.residency(ctx, "hibernated")
	if err != nil {
		return t, err
	}
	t.down = ms(ended.Sub(began))
	if t.left, err = leftOf(ctx, s.computer); err != nil {
		return t, err
	}
	if t.plainUp, t.upFloor, err = p.restore(ctx); err != nil {
		return t, fmt.Errorf("plain runsc restore: %w", err)
	}
	turnID, began, err = s.enqueue(ctx, "0")
	if err != nil {
		return t, err
	}
	e, err := s.until(ctx, turnID, "turn.output", nil)
	if err != nil {
		return t, err
	}
	t.up = ms(e.at.Sub(began))
	if _, err := s.until(ctx, turnID, "turn.completed", nil); err != nil {
		return t, err
	}
	return t, s.leave(ctx)
}

// residency waits until the Computer of s has one of some, and tells when it was seen.
func (s *session) residency(ctx context.Context, want ...string) (time.Time, error) {
	for deadline := time.Now().Add(asleepWithin); ; {
		c, err := s.h.GetComputer(ctx, s.computer)
		if err != nil {
			return time.Time{}, err
		}
		at := time.Now()
		for _, w := range want {
			if c.Residency == w {
				return at, nil
			}
		}
		if at.After(deadline) {
			return at, fmt.Errorf("computer %s is %s and not %v", s.computer, c.Residency, want)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// leftOf weighs the processes of a Computer that the machine still has, once it has had time to end them.
func leftOf(ctx context.Context, computer string) (float64, error) {
	total := 0.0
	for deadline := time.Now().Add(asleepWithin); ctx.Err() == nil; {
		total = 0
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return 0, err
		}
		for _, e := range entries {
			line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
			if err != nil || !bytes.Contains(line, []byte(computer)) {
				continue
			}
			var pid int
			_, _ = fmt.Sscan(e.Name(), &pid)
			mib, err := rss(pid)
			if err == nil {
				total += mib
			}
		}
		if total == 0 || time.Now().After(deadline) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	return total, ctx.Err()
}

// plainSleep is what runsc alone saves of a sandbox and makes of it again.
type plainSleep struct {
	b              *bench
	runsc, dir, id string // runsc's state folder of helmr, and a folder and an id of its own
}

// checkpoint saves the sandbox of a running Computer, which goes on: plain is runsc checkpoint alone, all with the disk and
// a durable copy.
func (p *plainSleep) checkpoint(ctx context.Context, h *helmr, computer string) (plain, all float64, err error) {
	bundles, err := filepath.Glob(filepath.Join(h.worker, "computers", computer, "*", "bundle", "config.json"))
	if err != nil || len(bundles) != 1 {
		return 0, 0, fmt.Errorf("computer %s has %d bundles", computer, len(bundles))
	}
	if err := p.adapt(bundles[0], filepath.Join(h.worker, "computers", computer, "sock")); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := p.run(exec.CommandContext(ctx, p.b.binary("runsc"), "--root="+p.runsc, "fscheckpoint", "-leave-running", "-image-path="+filepath.Join(p.dir, "disk"), computer)); err != nil {
		return 0, 0, err
	}
	disk := time.Now()
	if err := p.run(exec.CommandContext(ctx, p.b.binary("runsc"), "--root="+p.runsc, "checkpoint", "-leave-running", "-image-path="+filepath.Join(p.dir, "image"), computer)); err != nil {
		return 0, 0, err
	}
	plain = ms(time.Since(disk))
	for _, dir := range []string{"disk", "image"} {
		if err := copyFolder(filepath.Join(p.dir, dir), filepath.Join(p.dir, dir+"-copy"), true); err != nil {
			return 0, 0, err
		}
	}
	return plain, ms(time.Since(began)), nil
}

// copyFolder copies the files of a folder.
func copyFolder(from, to string, durable bool) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, e := range entries {
		in, err := os.Open(filepath.Join(from, e.Name()))
		if err != nil {
			return err
		}
		out, err := os.Create(filepath.Join(to, e.Name()))
		if err == nil {
			_, err = io.Copy(out, in)
			if err == nil && durable {
				err = out.Sync()
			}
			err = errors.Join(err, out.Close())
		}
		if err = errors.Join(err, in.Close()); err != nil {
			return err
		}
	}
	return nil
}

// adapt writes a bundle like a Computer's, without what goes when that sleeps.
func (p *plainSleep) adapt(config, socket string) error {
	raw, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	var spec specs.Spec
	if err := json.Unmarshal(raw, &spec); err != nil {
		return err
	}
	own := filepath.Join(p.dir, "sock")
	for i, m := range spec.Mounts {
		if m.Source == socket {
			spec.Mounts[i].Source = own
		}
	}
	spec.Linux.CgroupsPath = fmt.Sprintf("/helmr-bench-%d-%s", os.Getpid(), p.id)
	if raw, err = json.Marshal(&spec); err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(own, 0o755), os.MkdirAll(filepath.Join(p.dir, "bundle", "rootfs"), 0o755), os.MkdirAll(filepath.Join(p.dir, "state"), 0o755), os.WriteFile(filepath.Join(p.dir, "bundle", "config.json"), raw, 0o600))
}

// restore makes a sandbox of a copy of what checkpoint wrote: plain is runsc restore alone.
func (p *plainSleep) restore(ctx context.Context) (plain, all float64, err error) {
	rootfs, err := os.Open(p.b.floors.rootfs)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = rootfs.Close() }()
	began, image := time.Now(), filepath.Join(p.dir, "fetched")
	if err := copyFolder(filepath.Join(p.dir, "image-copy"), image, false); err != nil {
		return 0, 0, err
	}
	fetched := time.Now()
	args := append(p.global(), "restore", "-detach", "-image-path="+image, "-bundle="+filepath.Join(p.dir, "bundle"), p.id)
	cmd := exec.CommandContext(ctx, p.b.binary("runsc"), args...)
	cmd.ExtraFiles = []*os.File{rootfs}
	err = p.run(cmd)
	return ms(time.Since(fetched)), ms(time.Since(began)), err
}

func (p *plainSleep) global() []string {
	args := []string{"--root=" + filepath.Join(p.dir, "state"), "--platform=systrap", "--network=none", "--host-uds=open", "--overlay2=none", "--gofer-network-namespace=new"}
	if !p.b.floors.sandbox.runtime.Capabilities().CPU {
		args = append(args, "--ignore-cgroups")
	}
	return args
}

// run runs a command whose child may live on with its standard error.
func (p *plainSleep) run(cmd *exec.Cmd) error {
	errs, err := os.Create(filepath.Join(p.dir, "stderr"))
	if err != nil {
		return err
	}
	defer func() { _ = errs.Close() }()
	cmd.Stderr = errs
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(errs.Name())
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(said)))
	}
	return nil
}

func (p *plainSleep) close() error {
	if _, err := os.Stat(p.dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	cmd := exec.Command(p.b.binary("runsc"), append(p.global(), "delete", "-force", p.id)...)
	return errors.Join(p.run(cmd), os.RemoveAll(p.dir))
}
