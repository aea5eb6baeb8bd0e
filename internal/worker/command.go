package worker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	guest "helmr.dev/helmr/internal/guest/client"
	guestproto "helmr.dev/helmr/internal/guest/proto"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// Bounds of the output of Commands on its way.
const (
	// maxPendingOutput bounds what waits of one Computer, in bytes. The guest hands over less; this is for one that lies.
	maxPendingOutput = 64 << 20
	// maxBatch is where one call to the server is closed, maxBlock the most that becomes one record, both in bytes.
	maxBatch = 2 << 20
	maxBlock = 256 << 10
)

// command is what this Worker knows of a Command in the guest, on the present connection. The computer's mu guards it.
type command struct {
	started, cancelled bool
	exit               *workerpb.CommandExit
	// chunks are not known to be stored, in the order in which they came.
	chunks []chunkOf
}

// chunkOf is a piece of one stream.
type chunkOf struct {
	stream int32
	seq    int64
	data   []byte
}

// describeCommands adds to an Exchange what the guest has of Commands.
func (g *guestState) describeCommands(req *workerpb.ExchangeRequest) {
	for id, k := range g.commands {
		req.Commands = append(req.Commands, &workerpb.ObservedCommand{CommandId: id, Started: k.started, Exit: k.exit, Drained: k.exit != nil && len(k.chunks) == 0})
	}
}

// connectedLocked takes up what the guest has of Commands as a connection begins. What it has not been acknowledged comes
// again.
func (g *guestState) connectedLocked(commands []guest.Command) {
	clear(g.commands)
	g.outputBytes = 0
	for _, k := range commands {
		g.commands[k.ID] = &command{started: k.Started}
	}
}

// CommandStarted is the guest's word that a program runs. Of a program that has ended meanwhile the guest says only that.
func (h *handler) CommandStarted(commandID string) {
	c := h.c
	c.mu.Lock()
	if k := c.guest.commands[commandID]; k != nil {
		k.started = true
	}
	c.mu.Unlock()
	c.wake()
}

// CommandOutput keeps a chunk until the server has it. It blocks, and so holds the guest up, while too much waits.
func (h *handler) CommandOutput(commandID string, stream guestproto.Stream, seq int64, data []byte) {
	c := h.c
	for {
		c.mu.Lock()
		if c.guest.outputBytes < maxPendingOutput || !c.guest.connected {
			break
		}
		c.mu.Unlock()
		time.Sleep(5 * time.Millisecond)
	}
	if k := c.guest.commands[commandID]; k != nil && len(data) > 0 {
		k.chunks = append(k.chunks, chunkOf{stream: int32(stream), seq: seq, data: data})
		c.guest.outputBytes += len(data) + entryBytes
	}
	c.mu.Unlock()
	select {
	case c.outputDue <- struct{}{}:
	default:
	}
}

// CommandExited is the guest's word that a scope has ended. All output of it came before.
func (h *handler) CommandExited(e guest.CommandExit) {
	ends := map[guestproto.CommandEnd]workerpb.CommandExit_End{
		guestproto.CommandEnd_COMMAND_END_EXITED: workerpb.CommandExit_END_EXITED, guestproto.CommandEnd_COMMAND_END_CANCELLED: workerpb.CommandExit_END_CANCELLED,
		guestproto.CommandEnd_COMMAND_END_TIMED_OUT: workerpb.CommandExit_END_TIMED_OUT, guestproto.CommandEnd_COMMAND_END_FAULT: workerpb.CommandExit_END_FAULT,
	}
	c := h.c
	c.mu.Lock()
	if k := c.guest.commands[e.ID]; k != nil {
		k.exit = &workerpb.CommandExit{End: ends[e.End], ExitCode: e.ExitCode, Detail: strings.ToValidUTF8(e.Detail, "?")}
	}
	c.mu.Unlock()
	c.wake()
}

// commandCallsLocked turns what is wanted of Commands into the requests that the guest has not had yet.
func (c *computer) commandCallsLocked(resp *workerpb.ExchangeResponse, link *guest.Client) []call {
	var calls []call
	add := func(name, id string, do func(ctx context.Context) error) {
		calls = append(calls, call{name: name + " of command " + id, quiet: true, do: func(ctx context.Context) error {
			limited, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			err := do(limited)
			if errors.Is(err, guest.ErrDisconnected) || errors.Is(err, guest.ErrClosed) || errors.Is(err, guest.ErrUnknown) {
				return nil // the next connection, or Exchange, begins with what the guest has
			}
			return err
		}})
	}
	for _, want := range resp.GetCommands() {
		id := want.GetCommandId()
		k := c.guest.commands[id]
		switch want.GetAction() {
		case workerpb.WantedCommand_ACTION_RUN:
			if k == nil {
				k = &command{} // the server hears of it as the guest's from here on
				c.guest.commands[id] = k
				// A name of its own: a step that is about to end must not swallow this one.
				add(fmt.Sprintf("start %p", k), id, func(ctx context.Context) error { return c.runCommand(ctx, link, k, want) })
			}
		case workerpb.WantedCommand_ACTION_CANCEL:
			if k != nil && !k.cancelled && k.exit == nil {
				add("cancel", id, func(ctx context.Context) error { return c.cancelCommand(ctx, link, k, id) })
			}
		case workerpb.WantedCommand_ACTION_FORGET:
			if k != nil {
				add("forget", id, func(ctx context.Context) error { return c.forgetCommand(ctx, link, id) })
			}
		}
	}
	return calls
}

// runCommand has the guest run a Command. If the guest says no, the server hears that it does not have it and asks again.
func (c *computer) runCommand(ctx context.Context, link *guest.Client, k *command, want *workerpb.WantedCommand) error {
	c.mu.Lock()
	config, environmentID := c.config, c.env
	c.mu.Unlock()
	cwd := want.GetCwd()
	if cwd == "" {
		cwd = config.Workdir
	}
	if cwd == "" {
		cwd = "/"
	}
	env, refused := environment(config), ""
	var err error
	if program := want.GetProgramDigest(); program != "" {
		err = c.w.assets.program(ctx, environmentID, program)
	}
	if err == nil && want.GetSecrets() {
		var variables []string
		variables, refused, err = c.deliverSecrets(ctx, link, config.User)
		env = overlay(env, variables)
	}
	if err == nil {
		err = link.ExecCommand(ctx, guest.ExecCommand{ID: want.GetCommandId(), Argv: want.GetArgv(), Env: overlay(env, want.GetEnv()), Cwd: cwd,
			User: config.User, Stdin: want.GetStdin(), Timeout: time.Duration(want.GetTimeoutMs()) * time.Millisecond, Refused: refused})
	}
	if err == nil {
		return nil
	}
	if !errors.Is(err, guest.ErrDisconnected) && !errors.Is(err, guest.ErrClosed) {
		c.w.cfg.Log.Warn("a command was not begun; trying again", "computer", c.id, "command", want.GetCommandId(), "error", err)
		sleep(ctx, 500*time.Millisecond)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.guest.commands[want.GetCommandId()] == k {
		delete(c.guest.commands, want.GetCommandId())
	}
	c.wake() // so that the server hears that the guest has it not
	return nil
}

func (c *computer) cancelCommand(ctx context.Context, link *guest.Client, k *command, id string) error {
	if err := link.CancelCommand(ctx, id); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k.cancelled = true
	return nil
}

// forgetCommand lets the guest drop a Command with all it holds.
func (c *computer) forgetCommand(ctx context.Context, link *guest.Client, id string) error {
	err := link.AckCommand(guest.AckCommand{ID: id, Started: true, Exited: true, StdoutThrough: math.MaxInt64, StderrThrough: math.MaxInt64})
	if err == nil {
		err = link.ForgetCommand(ctx, id)
	}
	if err != nil && !errors.Is(err, guest.ErrUnknown) {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.guest.commands[id]; k != nil {
		for _, chunk := range k.chunks {
			c.guest.outputBytes -= len(chunk.data) + entryBytes
		}
		delete(c.guest.commands, id)
	}
	return nil
}

// storeOutput brings the output of Commands to the server, apart from the Exchanges, so that neither waits for the other.
// It goes on until ctx ends.
func (c *computer) storeOutput(ctx context.Context) error {
	for pause := time.Duration(0); ; {
		batch := c.takeBatch()
		if len(batch) == 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-c.outputDue:
			}
			continue
		}
		resp, err := c.w.cfg.Server.StoreOutput(ctx, &workerpb.StoreOutputRequest{WorkerId: c.w.id, ComputerId: c.id, Epoch: c.epoch, Output: batch})
		if err != nil {
			pause = min(max(pause*2, 50*time.Millisecond), 2*time.Second)
			if ctx.Err() == nil {
				c.w.cfg.Log.Warn("output of commands is not stored; trying again", "computer", c.id, "error", err)
				c.wake() // a lease that is gone is found by the Exchange
			}
			if !sleep(ctx, pause) {
				return ctx.Err()
			}
			continue
		}
		pause = 0
		for _, stored := range resp.GetStored() {
			c.stored(stored)
		}
	}
}

// takeBatch gives output that is to be stored next: of each Command with some a fair part, joined into blocks.
func (c *computer) takeBatch() []*workerpb.Output {
	c.mu.Lock()
	defer c.mu.Unlock()
	var batch []*workerpb.Output
	budget := maxBatch
	waiting := 0
	for _, k := range c.guest.commands {
		if len(k.chunks) > 0 {
			waiting++
		}
	}
	for id, k := range c.guest.commands {
		if budget <= 0 {
			break
		}
		share := max(maxBatch/max(waiting, 1), guestproto.MaxChunk)
		var block *workerpb.Output
		for _, chunk := range k.chunks {
			if share <= 0 {
				break
			}
			n := len(chunk.data)
			if block == nil || block.GetStream() != chunk.stream || block.GetFirst()+int64(len(block.GetLengths())) != chunk.seq || len(block.GetData())+n > maxBlock {
				block = &workerpb.Output{CommandId: id, Stream: chunk.stream, First: chunk.seq}
				batch = append(batch, block)
			}
			block.Lengths = append(block.Lengths, int32(n))
			block.Data = append(block.Data, chunk.data...)
			share -= n
			budget -= n
		}
	}
	return batch
}

// stored lets go of chunks that the server has, here and in the guest.
func (c *computer) stored(s *workerpb.StoredOutput) {
	c.mu.Lock()
	link := c.link
	drained := false
	if k := c.guest.commands[s.GetCommandId()]; k != nil {
		kept := k.chunks[:0]
		for _, chunk := range k.chunks {
			if (chunk.stream == 1 && chunk.seq <= s.GetStdoutThrough()) || (chunk.stream == 2 && chunk.seq <= s.GetStderrThrough()) {
				c.guest.outputBytes -= len(chunk.data) + entryBytes
				continue
			}
			kept = append(kept, chunk)
		}
		clear(k.chunks[len(kept):])
		k.chunks = kept
		drained = len(kept) == 0 && k.exit != nil
	}
	c.mu.Unlock()
	if link != nil { // without a connection they come again, and are stored already
		_ = link.AckCommand(guest.AckCommand{ID: s.GetCommandId(), StdoutThrough: s.GetStdoutThrough(), StderrThrough: s.GetStderrThrough()})
	}
	if drained {
		c.wake()
	}
}
