package worker

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	guest "helmr.dev/helmr/internal/guest/client"
	guestproto "helmr.dev/helmr/internal/guest/proto"
	"helmr.dev/helmr/internal/image"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// Bounds of what waits between guest and server.
const (
	maxPendingBytes = 32 << 20
	// entryBytes is what an operation or a chunk counts beside its content: many small ones are bounded too.
	entryBytes = 256
	// maxControls is how many keys of what was said an Exchange names; older ones come again and are left out here.
	maxControls = 64
	callTimeout = 10 * time.Second
)

type processKey struct {
	session string
	epoch   int64
}

// process is what this Worker knows of a process in the guest, on the present connection.
type process struct {
	exited  bool
	pending []*workerpb.Operation
	// turnID is the Turn that the process has; controls are the keys of what it was passed since.
	turnID   string
	controls []string
	// queued holds the Turn and the keys that were taken up to be said; lines are what is not said yet, in order. talking
	// tells that somebody says them.
	queued  map[string]bool
	lines   []line
	talking bool
}

// line is something to say to a process: a Turn or a control with its key.
type line struct {
	key    string
	turnID string
	say    func(ctx context.Context) error
}

func newProcess() *process { return &process{queued: map[string]bool{}} }

// guestState is what the guest of one Computer said. The computer's mu guards it.
type guestState struct {
	connected bool
	// generation grows with each connection: an answer to what was said on an older one is stale for the guest.
	generation   int64
	processes    map[processKey]*process
	pendingBytes int
	drained      *sync.Cond
	commands     map[string]*command
	outputBytes  int
}

func (g *guestState) init() {
	g.processes, g.commands = map[processKey]*process{}, map[string]*command{}
}

// describe adds to an Exchange what the guest has and has said.
func (g *guestState) describe(req *workerpb.ExchangeRequest) {
	req.GuestConnected = g.connected
	for k, p := range g.processes {
		req.Processes = append(req.Processes, &workerpb.ObservedProcess{SessionId: k.session, Epoch: k.epoch, TurnId: p.turnID, Exited: p.exited, Controls: slices.Clone(p.controls)})
		if len(p.pending) > 0 {
			req.Operations = append(req.Operations, &workerpb.ProcessOperations{SessionId: k.session, Epoch: k.epoch, Operations: slices.Clone(p.pending)})
		}
	}
	g.describeCommands(req)
}

func (c *computer) socket() string {
	return filepath.Join(c.w.computerDir(c.id), "sock", "worker.sock")
}

// listen waits for the guest; connected is closed when it first connects.
func (c *computer) listen(config image.Config, environmentID string) (connected <-chan struct{}, err error) {
	h := &handler{c: c, connected: make(chan struct{})}
	if old := c.takeLink(); old != nil {
		old.Close()
	}
	link, err := guest.Listen(c.socket(), h, guest.Options{Log: c.w.cfg.Log, Commands: h})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.link, c.config, c.env = link, config, environmentID
	return h.connected, nil
}

func (c *computer) takeLink() *guest.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	link := c.link
	c.link = nil
	return link
}

// handler takes up what the guest says.
type handler struct {
	c         *computer
	connected chan struct{}
	once      sync.Once
}

func (h *handler) Connected(hello guest.Hello) {
	c := h.c
	c.mu.Lock()
	c.guest.connected = true
	c.guest.generation++
	c.guest.pendingBytes = 0
	clear(c.guest.processes)
	for _, p := range hello.Processes {
		known := newProcess()
		known.exited = p.State == guestproto.ProcessState_PROCESS_STATE_EXITED
		if n := len(p.TurnIDs); n > 0 {
			known.turnID = p.TurnIDs[n-1]
		}
		c.guest.processes[processKey{p.SessionID, p.Epoch}] = known
	}
	c.guest.connectedLocked(hello.Commands)
	starting := c.phase == workerpb.Phase_PHASE_STARTING
	c.mu.Unlock()
	h.once.Do(func() { close(h.connected) })
	if !starting { // whoever starts it reports at once that it runs; an Exchange before that would only be in the way
		c.wake()
	}
}

func (h *handler) Disconnected(error) {
	c := h.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.guest.connected = false
	c.guest.generation++
	for _, p := range c.guest.processes {
		p.pending = nil // they come again
	}
	c.guest.pendingBytes = 0
	c.guest.connectedLocked(nil)
}

// Ops keeps operations until the server has answered them. It blocks, and so holds the guest up, while too much waits.
func (h *handler) Ops(sessionID string, epoch int64, ops []guest.Op) {
	c := h.c
	for {
		c.mu.Lock()
		if c.guest.pendingBytes < maxPendingBytes || !c.guest.connected {
			break
		}
		c.mu.Unlock()
		c.wake()
		time.Sleep(5 * time.Millisecond)
	}
	p := c.guest.processes[processKey{sessionID, epoch}]
	if p == nil {
		p = newProcess()
		c.guest.processes[processKey{sessionID, epoch}] = p
	}
	for _, op := range ops {
		p.pending = append(p.pending, &workerpb.Operation{Sequence: op.Seq, Payload: op.Payload})
		c.guest.pendingBytes += len(op.Payload) + entryBytes
		if isExited(op.Payload) {
			p.exited = true
			c.w.cfg.Log.Info("session process ended", "computer", c.id, "session", sessionID, "epoch", epoch, "how", exitCause(op.Payload))
		}
	}
	c.mu.Unlock()
	c.wake()
}

func (h *handler) Log(l guest.Log) { h.c.w.logs.write(h.c.id, l.Data) }

// take carries out what an Exchange answered: acknowledgements first, then what processes should do.
func (c *computer) take(ctx context.Context, resp *workerpb.ExchangeResponse, generation int64) {
	c.mu.Lock()
	link := c.link
	if link == nil || c.guest.generation != generation {
		c.mu.Unlock()
		return // the guest has connected anew since: what it says now is exchanged again
	}
	var acks []guest.Ack
	for _, pa := range resp.GetAcks() {
		p := c.guest.processes[processKey{pa.GetSessionId(), pa.GetEpoch()}]
		for _, a := range pa.GetAcks() {
			acks = append(acks, guest.Ack{SessionID: pa.GetSessionId(), Epoch: pa.GetEpoch(), Seq: a.GetSequence(), Line: a.GetLine()})
			if p != nil && len(p.pending) > 0 && p.pending[0].GetSequence() == a.GetSequence() {
				c.guest.pendingBytes -= len(p.pending[0].GetPayload()) + entryBytes
				p.pending = p.pending[1:]
			}
		}
	}
	calls := append(c.callsLocked(resp, link), c.commandCallsLocked(resp, link)...)
	c.talkLocked(ctx, resp, link)
	c.mu.Unlock()
	if len(acks) > 0 {
		_ = link.Ack(acks) // without a connection they come again
	}
	for _, call := range calls {
		c.runStep(ctx, call.name, call.do, !call.quiet)
	}
}

// call is one request to the guest; calls of one name do not overlap.
type call struct {
	name string
	do   func(ctx context.Context) error
	// quiet calls leave the server nothing to hear of when they succeed.
	quiet bool
}

// callsLocked turns what is wanted into the requests that the guest has not had yet.
func (c *computer) callsLocked(resp *workerpb.ExchangeResponse, link *guest.Client) []call {
	var calls []call
	add := func(name, session string, epoch int64, do func(ctx context.Context) error) {
		calls = append(calls, call{name: fmt.Sprintf("%s of %s/%d", name, session, epoch), do: func(ctx context.Context) error {
			limited, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			err := do(limited)
			if errors.Is(err, guest.ErrDisconnected) || errors.Is(err, guest.ErrClosed) {
				return nil // the next connection begins with what the guest has
			}
			return err
		}})
	}
	for _, p := range resp.GetProcesses() {
		session, epoch := p.GetSessionId(), p.GetEpoch()
		switch p.GetAction() {
		case workerpb.WantedProcess_ACTION_START:
			calls = append(calls, call{name: "start of " + session, do: func(ctx context.Context) error { return c.startProcess(ctx, link, p) }})
		case workerpb.WantedProcess_ACTION_KILL:
			add("kill", session, epoch, func(ctx context.Context) error { return link.Kill(ctx, session, epoch) })
		case workerpb.WantedProcess_ACTION_FORGET:
			add("forget", session, epoch, func(ctx context.Context) error { return c.forget(ctx, link, session, epoch) })
		}
	}
	return calls
}

// talkLocked queues what is to be said to each process and was not taken up on this connection. A process hears it in
// the order of the answer: a Turn, then what is about that Turn, then to stop.
func (c *computer) talkLocked(ctx context.Context, resp *workerpb.ExchangeResponse, link *guest.Client) {
	add := func(session string, epoch int64, l line) {
		k := processKey{session, epoch}
		p := c.guest.processes[k]
		if p == nil || p.queued[l.key] || (l.turnID != "" && p.turnID == l.turnID) {
			return
		}
		p.queued[l.key] = true
		p.lines = append(p.lines, l)
		if !p.talking {
			p.talking = true
			c.steps.Add(1)
			go c.talk(ctx, k, p)
		}
	}
	for _, d := range resp.GetDeliveries() {
		session, epoch := d.GetSessionId(), d.GetEpoch()
		add(session, epoch, line{key: "turn:" + d.GetTurnId(), turnID: d.GetTurnId(), say: func(ctx context.Context) error {
			_, err := link.DeliverTurn(ctx, session, epoch, d.GetTurnId(), d.GetLine())
			return err
		}})
	}
	for _, ctl := range resp.GetControls() {
		session, epoch := ctl.GetSessionId(), ctl.GetEpoch()
		add(session, epoch, line{key: ctl.GetKey(), say: func(ctx context.Context) error { return link.Control(ctx, session, epoch, ctl.GetLine()) }})
	}
	for _, p := range resp.GetProcesses() {
		session, epoch := p.GetSessionId(), p.GetEpoch()
		if p.GetAction() == workerpb.WantedProcess_ACTION_STOP {
			add(session, epoch, line{key: "stop", say: func(ctx context.Context) error { return link.Control(ctx, session, epoch, p.GetStopLine()) }})
		}
	}
}

// talk says the lines of one process, one after the other, until none is left. When one fails the rest is dropped too,
// so that nothing overtakes it: the next Exchange brings them again. A process of an older connection is left alone.
func (c *computer) talk(ctx context.Context, k processKey, p *process) {
	defer c.steps.Done()
	for {
		c.mu.Lock()
		if len(p.lines) == 0 || c.guest.processes[k] != p {
			p.talking = false
			c.mu.Unlock()
			c.wake()
			return
		}
		l := p.lines[0]
		c.mu.Unlock()
		err := c.say(ctx, l)
		c.mu.Lock()
		switch {
		case err != nil:
			for _, dropped := range p.lines {
				delete(p.queued, dropped.key)
			}
			p.lines = nil
		case l.turnID != "":
			p.turnID, p.controls, p.lines = l.turnID, nil, p.lines[1:]
			clear(p.queued)
			for _, waiting := range p.lines {
				p.queued[waiting.key] = true
			}
		default:
			p.controls, p.lines = append(p.controls, l.key), p.lines[1:]
			if extra := len(p.controls) - maxControls; extra > 0 {
				p.controls = slices.Delete(p.controls, 0, extra)
			}
		}
		c.mu.Unlock()
		if err != nil && ctx.Err() == nil && !errors.Is(err, guest.ErrDisconnected) && !errors.Is(err, guest.ErrClosed) {
			c.w.cfg.Log.Warn("a process was not told", "computer", c.id, "session", k.session, "what", l.key, "error", err)
			sleep(ctx, 500*time.Millisecond)
		}
	}
}

// say says one line within the time that the guest has for it.
func (c *computer) say(ctx context.Context, l line) error {
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return l.say(limited)
}

func (c *computer) forget(ctx context.Context, link *guest.Client, session string, epoch int64) error {
	err := link.Forget(ctx, session, epoch)
	if err != nil && !errors.Is(err, guest.ErrUnknown) {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.guest.processes, processKey{session, epoch})
	return nil
}

// startProcess puts the program in place and has the guest start the Session process.
func (c *computer) startProcess(ctx context.Context, link *guest.Client, p *workerpb.WantedProcess) error {
	c.mu.Lock()
	config, environmentID := c.config, c.env
	_, known := c.guest.processes[processKey{p.GetSessionId(), p.GetEpoch()}]
	c.mu.Unlock()
	if known {
		return nil
	}
	if err := c.w.assets.program(ctx, environmentID, p.GetProgramDigest()); err != nil {
		return err
	}
	env, refused := environment(config), ""
	if p.GetSecrets() {
		variables, why, err := c.deliverSecrets(ctx, link, config.User)
		if err != nil {
			return err
		}
		env, refused = overlay(env, variables), why
	}
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	cwd := config.Workdir
	if cwd == "" {
		cwd = "/"
	}
	err := link.StartProcess(limited, guest.StartProcess{SessionID: p.GetSessionId(), Epoch: p.GetEpoch(), Argv: []string{"node", hostInside},
		Env: env, Cwd: cwd, User: config.User, Start: p.GetStartLine(), Refused: refused})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := processKey{p.GetSessionId(), p.GetEpoch()}
	if c.guest.processes[k] == nil {
		c.guest.processes[k] = newProcess()
	}
	return nil
}

// environment gives the image's variables, with a PATH if it has none.
func environment(config image.Config) []string {
	env := slices.Clone(config.Env)
	for _, v := range env {
		if len(v) > 5 && v[:5] == "PATH=" {
			return env
		}
	}
	return append(env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
}
