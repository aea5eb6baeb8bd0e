package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"helmr.dev/helmr/client/api"
)

// commands measures Commands on one Computer: one after the other, a hundred at once, and one that writes a lot. What the
// first is compared with runs in the very same sandbox, in turn with it: a shell that forks and waits for the same program,
// and runsc exec.
func (b *bench) commands(ctx context.Context, h *helmr) error {
	c, err := h.CreateComputer(ctx, api.ComputerCreateRequest{Template: "small"})
	if err != nil {
		return fmt.Errorf("create a computer: %w", err)
	}
	box := c.ComputerID
	var ours, plain, runsc []float64
	var outside, inside time.Duration
	alone := []*session{{h: h, computer: box}}
	const perRound = 10
	rounds := b.few(10, 4)
	for round := range rounds + 1 { // the first is to warm up
		before, insideBefore := h.cpu(), cpuInside(alone)
		for range perRound {
			took, err := h.command1(ctx, box, "/bin/true")
			if err != nil {
				return err
			}
			if round > 0 {
				ours = append(ours, took)
			}
		}
		if round > 0 {
			outside, inside = outside+h.cpu()-before, inside+cpuInside(alone)-insideBefore
		}
		forked, err := h.forks(ctx, box, 20)
		if err != nil {
			return fmt.Errorf("fork and exec in a shell: %w", err)
		}
		execd, err := h.runscExec(ctx, box, 3)
		if err != nil {
			return fmt.Errorf("runsc exec: %w", err)
		}
		if round > 0 {
			plain, runsc = append(plain, forked...), append(runsc, execd...)
		}
	}
	b.report.add("command_exec", h.kind, median(ours), "ms", median(plain), atMostRatio(1.5))
	b.report.add("command_exec_p99", h.kind, percentile(ours, 99), "ms", percentile(plain, 99), nil)
	b.report.add("command_exec_runsc", h.kind, median(ours), "ms", median(runsc), atMostRatio(0.5))
	b.report.add("command_exec_cpu", h.kind, ms(outside)/float64(rounds*perRound), "ms", 0, nil)
	if inside > 0 {
		b.report.add("command_exec_cpu_inside", h.kind, ms(inside)/float64(rounds*perRound), "ms", 0, nil)
	}
	if err := b.commandsAtOnce(ctx, h, box, 100); err != nil {
		return err
	}
	if err := b.logThroughput(ctx, h, box, b.few(300, 60)); err != nil {
		return err
	}
	_, err = h.DeleteComputer(ctx, box, api.ControlRequest{})
	return err
}

// command1 gives the ms from the call that admits a Command to its outcome, which must be exit code 0.
func (h *helmr) command1(ctx context.Context, computer string, argv ...string) (took float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	r, err := h.CreateCommand(ctx, computer, api.CommandCreateRequest{Command: argv, Timeout: "10m"})
	if err != nil {
		return 0, fmt.Errorf("admit a command: %w", err)
	}
	k, err := h.WaitCommand(ctx, r.CommandID)
	took = ms(time.Since(began))
	if err == nil && (k.Status != "exited" || *k.Outcome.ExitCode != 0) {
		err = fmt.Errorf("it is %s: %+v", k.Status, k.Outcome)
	}
	if err != nil {
		return 0, fmt.Errorf("command %s: %w", r.CommandID, err)
	}
	return took, nil
}

// output gives what a Command writes to stdout.
func (h *helmr) output(ctx context.Context, commandID string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var out strings.Builder
	for r, err := range h.StreamCommandLogs(ctx, commandID, "") {
		if err != nil {
			return "", err
		}
		if r.Stream == "stdout" {
			out.Write(r.Content)
		}
	}
	return out.String(), nil
}

// forks has a shell in the Computer run /bin/true n times and tell what each took.
func (h *helmr) forks(ctx context.Context, computer string, n int) ([]float64, error) {
	script := fmt.Sprintf(`for i in $(seq %d); do a=$EPOCHREALTIME; /bin/true; b=$EPOCHREALTIME; echo $((${b/./} - ${a/./})); done`, n)
	r, err := h.CreateCommand(ctx, computer, api.CommandCreateRequest{Command: []string{"bash", "-c", script}})
	if err != nil {
		return nil, err
	}
	text, err := h.output(ctx, r.CommandID)
	if err != nil {
		return nil, err
	}
	var times []float64
	for _, line := range strings.Fields(text) {
		us, err := strconv.ParseFloat(line, 64)
		if err != nil {
			return nil, err
		}
		times = append(times, us/1000)
	}
	if len(times) != n {
		return nil, fmt.Errorf("it measured %d, want %d", len(times), n)
	}
	return times, nil
}

// runscExec gives the ms that runsc takes to run /bin/true in the sandbox of the Computer.
func (h *helmr) runscExec(ctx context.Context, computer string, n int) ([]float64, error) {
	var times []float64
	for range n {
		cmd := exec.CommandContext(ctx, h.b.binary("runsc"), "--root="+filepath.Join(h.worker, "sandboxes", "runsc"), "exec", computer, "/bin/true")
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
		began := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%w: %s", err, out)
		}
		times = append(times, ms(time.Since(began)))
	}
	return times, nil
}

// commandsAtOnce admits n Commands at once. The floor is a shell in the Computer that starts as many at once and waits for
// them.
func (b *bench) commandsAtOnce(ctx context.Context, h *helmr, box string, n int) error {
	var totals, each99, floors []float64
	for round := range b.few(5, 2) + 1 { // the first is to warm up
		var mu sync.Mutex
		var times []float64
		began := time.Now()
		err := each(n, n, func(int) error {
			took, err := h.command1(ctx, box, "/bin/true")
			mu.Lock()
			defer mu.Unlock()
			times = append(times, took)
			return err
		})
		total := ms(time.Since(began))
		if err != nil {
			return fmt.Errorf("%d at once: %w", n, err)
		}
		r, err := h.CreateCommand(ctx, box, api.CommandCreateRequest{Command: []string{"bash", "-c",
			fmt.Sprintf(`a=$EPOCHREALTIME; for i in $(seq %d); do /bin/true & done; wait; b=$EPOCHREALTIME; echo $((${b/./} - ${a/./}))`, n)}})
		if err != nil {
			return err
		}
		text, err := h.output(ctx, r.CommandID)
		if err != nil {
			return err
		}
		us, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil {
			return err
		}
		if round > 0 {
			totals, each99, floors = append(totals, total), append(each99, percentile(times, 99)), append(floors, us/1000)
		}
	}
	b.report.add(fmt.Sprintf("commands_%d", n), h.kind, median(totals), "ms", median(floors), nil)
	b.report.add(fmt.Sprintf("commands_%d_p99", n), h.kind, median(each99), "ms", 0, nil)
	return nil
}

// logThroughput follows a Command that writes so many MB as fast as it can, and counts every byte. The floor is the same
// program under runsc exec, its output read through a pipe.
func (b *bench) logThroughput(ctx context.Context, h *helmr, box string, mb int) error {
	size := mb * 1_000_000
	argv := []string{"head", "-c", strconv.Itoa(size), "/dev/zero"}
	began := time.Now()
	r, err := h.CreateCommand(ctx, box, api.CommandCreateRequest{Command: argv, Timeout: "1h"})
	if err != nil {
		return err
	}
	got := 0
	for rec, err := range h.StreamCommandLogs(ctx, r.CommandID, "") {
		if err != nil {
			return fmt.Errorf("output of %d MB: %w", mb, err)
		}
		if rec.Kind != "output" {
			return errors.New("the output has a gap")
		}
		got += len(rec.Content)
	}
	if got != size {
		return fmt.Errorf("%d bytes of output arrived, want %d", got, size)
	}
	rate := float64(mb) / time.Since(began).Seconds()
	floor, err := h.runscOutput(ctx, box, mb, argv)
	if err != nil {
		return fmt.Errorf("runsc exec: %w", err)
	}
	b.report.add("log_throughput", h.kind, rate, "MB/s", floor, nil)
	return nil
}

// countWriter counts what is written to it.
type countWriter int

func (c *countWriter) Write(p []byte) (int, error) {
	*c += countWriter(len(p))
	return len(p), nil
}

func (h *helmr) runscOutput(ctx context.Context, computer string, mb int, argv []string) (float64, error) {
	args := append([]string{"--root=" + filepath.Join(h.worker, "sandboxes", "runsc"), "exec", computer}, argv...)
	cmd := exec.CommandContext(ctx, h.b.binary("runsc"), args...)
	cmd.Env, cmd.Stderr = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, os.Stderr
	var n countWriter
	cmd.Stdout = &n
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, err
	}
	if int(n) != mb*1_000_000 {
		return 0, fmt.Errorf("%d bytes arrived, want %d MB", n, mb)
	}
	return float64(mb) / time.Since(began).Seconds(), nil
}
