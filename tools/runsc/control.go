package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/checkpoint"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/sandbox"
)

// finishWithin bounds how long requests that are under way may go on after whoever asked is gone.
const finishWithin = time.Minute

// request is one line of input. The operations are those of runsc's commands of the same names, with the sandbox left running.
type request struct {
	ID      uint64 `json:"id"`
	Op      string `json:"op"` // fscheckpoint, checkpoint, restore, pause or resume
	Sandbox string `json:"sandbox"`
	Dir     string `json:"dir"`     // an empty folder, of the first two; what checkpoint wrote there, of the third
	Network string `json:"network"` // of a sandbox that is restored, as runsc's flag has it
}

// answer is one line of output. Answers come in the order in which requests end.
type answer struct {
	ID    uint64 `json:"id"`
	Error string `json:"error,omitempty"`
}

// control serves requests until its input ends: runsc control --root=DIR. Starting runsc anew for each would take longer
// than most of them. Sandboxes are asked all at once, each in the order of its requests: one that nobody waits for any
// more never overtakes a later one. A sandbox is never left between two states: what has begun is finished first.
func control(args []string) int {
	flags := flag.NewFlagSet("runsc control", flag.ContinueOnError)
	root := flags.String("root", "", "runsc's state folder")
	if err := flags.Parse(args); err != nil || *root == "" || flags.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: runsc control --root=DIR")
		return 2
	}
	log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: io.Discard}})
	var writing sync.Mutex
	out := json.NewEncoder(os.Stdout)
	var running sync.WaitGroup
	queues := queues{last: map[string]chan struct{}{}}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var r request
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			fmt.Fprintln(os.Stderr, "malformed request:", err)
			return 2
		}
		turn, served := queues.join(r.Sandbox)
		running.Go(func() {
			defer served()
			<-turn
			a := answer{ID: r.ID}
			if err := serve(*root, r); err != nil {
				a.Error = err.Error()
			}
			writing.Lock()
			defer writing.Unlock()
			_ = out.Encode(a) // whoever asked may be gone
		})
	}
	finished := make(chan struct{})
	go func() { running.Wait(); close(finished) }()
	select {
	case <-finished:
	case <-time.After(finishWithin):
	}
	return 0
}

// queues keeps the requests of each sandbox in order.
type queues struct {
	mu   sync.Mutex
	last map[string]chan struct{} // by sandbox, closed when its last request is served; guarded by mu
}

// join gives a channel that is closed when all earlier requests of the sandbox are served, and what to call when this one is.
func (q *queues) join(sandbox string) (turn <-chan struct{}, served func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	before, mine := q.last[sandbox], make(chan struct{})
	if before == nil {
		before = make(chan struct{})
		close(before)
	}
	q.last[sandbox] = mine
	return before, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		close(mine)
		if q.last[sandbox] == mine {
			delete(q.last, sandbox)
		}
	}
}

func serve(root string, r request) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", r.Op, err)
		}
	}()
	switch r.Op {
	case "fscheckpoint":
		c, err := find(root, r.Sandbox)
		if err != nil {
			return err
		}
		return c.FSSave(&config.Config{RootDir: root}, r.Dir, sandbox.FSSaveOpts{Paths: []checkpoint.ResourceID{{Path: "/"}}})
	case "checkpoint": // pages as they are, in a file of their own
		c, err := find(root, r.Sandbox)
		if err != nil {
			return err
		}
		return c.Checkpoint(&config.Config{RootDir: root}, r.Dir, sandbox.CheckpointOpts{Compression: statefile.CompressionLevelNone, Resume: true})
	case "restore": // of a sandbox that was created
		c, err := container.Load(root, fullID(r.Sandbox), container.LoadOpts{Exact: true})
		if err != nil {
			return err
		}
		conf, err := configuration(root, r.Network)
		if err != nil {
			return err
		}
		return c.Restore(conf, r.Dir, false, false, nil)
	case "pause", "resume":
		c, err := container.Load(root, fullID(r.Sandbox), container.LoadOpts{Exact: true})
		switch {
		case err != nil:
			return err
		case r.Op == "pause" && c.Status != container.Paused:
			return c.Pause()
		case r.Op == "resume" && c.Status == container.Paused:
			return c.Resume()
		case c.Status == container.Stopped:
			return errors.New("the sandbox has stopped")
		}
		return nil
	}
	return errors.New("no such operation")
}

// configuration is what runsc has with these flags.
func configuration(root, network string) (*config.Config, error) {
	flags := flag.NewFlagSet("runsc", flag.ContinueOnError)
	config.RegisterFlags(flags)
	if err := flags.Parse([]string{"--root=" + root, "--platform=systrap", "--network=" + network}); err != nil {
		return nil, err
	}
	return config.NewFromFlags(flags)
}

func fullID(id string) container.FullID { return container.FullID{SandboxID: id, ContainerID: id} }

// find reads what runsc knows of a sandbox. It takes no lock, so it makes no file: the sandbox may be removed meanwhile.
func find(root, id string) (*container.Container, error) {
	text, err := os.ReadFile(filepath.Join(root, id+"_sandbox:"+id+".state"))
	if err != nil {
		return nil, err
	}
	c := &container.Container{}
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("read metadata: %w", err)
	}
	c.Sandbox.SetRootDir(root)
	return c, nil
}
