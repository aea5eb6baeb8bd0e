package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// coldCPUs and coldMiB are the resources of the Template that cold runs on.
const (
	coldCPUs = 2
	coldMiB  = 512
)

// cold measures from the call that creates a Session to its first output, in turn with the floor: runsc run of the same
// image, resources and Node program to its first line.
func (b *bench) cold(ctx context.Context, h *helmr) error {
	var times, floor []float64
	for i := range b.few(11, 5) + 1 { // the first is to warm up
		f, err := b.plainStart(ctx, h, i)
		if err != nil {
			return fmt.Errorf("plain runsc run: %w", err)
		}
		began := time.Now()
		s, err := h.newSession(ctx, "cold", "", "")
		if err != nil {
			return err
		}
		e, err := s.until(ctx, s.first, "turn.output", nil)
		if err != nil {
			return err
		}
		if i > 0 {
			times, floor = append(times, ms(e.at.Sub(began))), append(floor, f)
		}
		if _, err := s.until(ctx, s.first, "turn.completed", nil); err != nil {
			return err
		}
		if err := s.leave(ctx); err != nil {
			return err
		}
	}
	b.report.add("cold_start", h.kind, median(times), "ms", median(floor), atMostRatio(1.5))
	b.report.add("cold_start_p99", h.kind, percentile(times, 99), "ms", percentile(floor, 99), nil)
	return nil
}

// plainStart gives the ms that runsc takes from its own start to the first line of the program.
func (b *bench) plainStart(ctx context.Context, h *helmr, n int) (took float64, err error) {
	f := b.floors
	dir := filepath.Join(h.dir, "floor", fmt.Sprint("cold-", n))
	bundle := filepath.Join(dir, "bundle")
	if err := os.MkdirAll(filepath.Join(bundle, "rootfs"), 0o755); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	raw, err := json.Marshal(b.plainSpec(n))
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), raw, 0o600); err != nil {
		return 0, err
	}
	args := []string{"--root=" + filepath.Join(dir, "state"), "--platform=systrap", "--network=none", "--overlay2=none", "--gofer-network-namespace=new"}
	if !f.sandbox.runtime.Capabilities().CPU {
		args = append(args, "--ignore-cgroups")
	}
	cmd := exec.CommandContext(ctx, b.binary("runsc"), append(args, "run", "-bundle="+bundle, fmt.Sprint("bench-cold-", n))...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	errs, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		return 0, err
	}
	defer func() { _ = errs.Close() }()
	cmd.Stderr = errs
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	took = ms(time.Since(began))
	if wait := cmd.Wait(); err != nil || wait != nil || line != "ready\n" {
		said, _ := os.ReadFile(errs.Name())
		return 0, fmt.Errorf("it printed %q and ended with %w: %s", line, errors.Join(err, wait), said)
	}
	return took, nil
}

// plainSpec is the container that helmr starts too, with Node in the place of helmr's guest.
func (b *bench) plainSpec(n int) *specs.Spec {
	f := b.floors
	memory, quota, period := int64(coldMiB<<20), int64(coldCPUs*100_000), uint64(100_000)
	bind := func(source, destination string) specs.Mount {
		return specs.Mount{Type: "bind", Source: source, Destination: destination, Options: []string{"rbind", "ro", "nosuid", "nodev"}}
	}
	return &specs.Spec{
		Version: "1.0.2", Hostname: "computer",
		Process: &specs.Process{Args: []string{"node", "/floor/floor.mjs", "cold", "/program/index.mjs"}, Env: f.config.Env, Cwd: "/work"},
		Root:    &specs.Root{Path: "rootfs"},
		Mounts: []specs.Mount{{Destination: "/proc", Type: "proc"}, {Destination: "/sys", Type: "sysfs", Options: []string{"ro"}}, {Destination: "/dev", Type: "tmpfs"},
			bind(filepath.Join(b.root, "bench", "floor"), "/floor"), bind(f.program, "/program")},
		Annotations: map[string]string{"dev.gvisor.spec.rootfs.type": "erofs", "dev.gvisor.spec.rootfs.source": f.rootfs,
			"dev.gvisor.spec.rootfs.overlay": "self", "dev.gvisor.spec.rootfs.options": "size=1024m"},
		Linux: &specs.Linux{
			CgroupsPath: fmt.Sprintf("/helmr-bench-%d-%d", os.Getpid(), n),
			Resources:   &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &memory}, CPU: &specs.LinuxCPU{Quota: &quota, Period: &period}},
			Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace},
				{Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}},
		},
	}
}
