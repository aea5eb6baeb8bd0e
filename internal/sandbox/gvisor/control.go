package gvisor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// controlIdle is how long a control process outlives its last request.
const controlIdle = time.Minute

// controller asks running sandboxes for what runsc's commands ask them for, through one process of runsc control that
// serves all of them at once. It starts when it is needed, and again when it was killed. It is not tied to any sandbox:
// when it goes, what was under way fails, and the sandboxes go on.
type controller struct {
	command func() *exec.Cmd

	mu  sync.Mutex
	now *control // nil without a process
}

// control is one control process.
type control struct {
	stdin io.WriteCloser
	// all below are guarded by the controller's mu
	last    uint64
	waiting map[uint64]chan<- error
	idle    *time.Timer // ends the process
}

// controlRequest and controlAnswer are the lines of tools/runsc/control.go.
type controlRequest struct {
	ID      uint64 `json:"id"`
	Op      string `json:"op"`
	Sandbox string `json:"sandbox"`
	Dir     string `json:"dir,omitempty"`
	Network string `json:"network,omitempty"`
}

type controlAnswer struct {
	ID    uint64 `json:"id"`
	Error string `json:"error"`
}

var errControlEnded = errors.New("runsc control ended")

// do makes one request. When ctx ends first, the sandbox may still do what it was asked for.
func (c *controller) do(ctx context.Context, r controlRequest) error {
	answer := make(chan error, 1)
	op := r.Op
	if err := c.send(r, answer); err != nil {
		return fmt.Errorf("runsc %s: %w", op, err)
	}
	select {
	case err := <-answer:
		if err != nil {
			return fmt.Errorf("runsc %s: %w", op, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("runsc %s: %w", op, ctx.Err())
	}
}

// ready starts the process if there is none: a request will come soon.
func (c *controller) ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.readyLocked()
}

func (c *controller) readyLocked() error {
	if c.now != nil {
		return nil
	}
	return c.start()
}

func (c *controller) send(r controlRequest, answer chan<- error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.readyLocked(); err != nil {
		return err
	}
	p := c.now
	p.last++
	r.ID = p.last
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	p.idle.Stop()
	p.waiting[r.ID] = answer
	_, _ = p.stdin.Write(append(line, '\n')) // when it is gone, ended answers
	return nil
}

// start starts a process; its caller holds mu.
func (c *controller) start() error {
	cmd := c.command()
	errs := &output{limit: mib}
	cmd.Stderr = errs
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p := &control{stdin: stdin, waiting: map[uint64]chan<- error{}}
	p.idle = time.AfterFunc(controlIdle, func() { c.retire(p) })
	c.now = p
	go func() {
		c.listen(p, stdout)
		_ = cmd.Wait()
		c.ended(p, strings.TrimSpace(errs.buf.String()))
	}()
	return nil
}

// listen hands answers over until the process ends.
func (c *controller) listen(p *control, stdout io.Reader) {
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		var a controlAnswer
		if json.Unmarshal(lines.Bytes(), &a) != nil {
			continue
		}
		var err error
		if a.Error != "" {
			err = errors.New(a.Error)
		}
		c.mu.Lock()
		if w := p.waiting[a.ID]; w != nil {
			w <- err
			delete(p.waiting, a.ID)
		}
		if len(p.waiting) == 0 && c.now == p {
			p.idle.Reset(controlIdle)
		}
		c.mu.Unlock()
	}
}

// retire lets a process go that has nothing to do.
func (c *controller) retire(p *control) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now != p || len(p.waiting) > 0 {
		return // a request came in between, whose answer sets the timer again
	}
	c.now = nil
	_ = p.stdin.Close() // it ends
}

// ended answers those whom a process that is gone still owed an answer.
func (c *controller) ended(p *control, said string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now == p {
		c.now = nil
	}
	p.idle.Stop()
	_ = p.stdin.Close()
	err := errControlEnded
	if said != "" {
		err = fmt.Errorf("%w: %s", errControlEnded, said)
	}
	for id, w := range p.waiting {
		w <- err
		delete(p.waiting, id)
	}
}
