package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
)

func dialWithin(d time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: d}).DialContext
}

// sandboxGroup is how the sandboxes of a Worker's folder are named among the cgroups.
func sandboxGroup(dir string) string {
	root, err := filepath.EvalSymlinks(filepath.Join(dir, "sandboxes", "runsc"))
	if err != nil {
		return "\x00"
	}
	sum := sha256.Sum256([]byte(root))
	return fmt.Sprintf("helmr-%x-", sum[:4])
}

// fleetLost is how long a silent Worker of a fleet has: short, so that a round takes seconds.
const fleetLost = 6 * time.Second

// traffic is what a fleet does while things happen to it: Sessions take Turns, Commands run.
type traffic struct {
	f        *fleet
	ctx      context.Context
	stop     context.CancelFunc
	wg       sync.WaitGroup
	sessions []string
	sleepers []string // Sessions whose Computers hibernate

	mu sync.Mutex
	// all below are guarded by mu
	seen     map[string][]api.Event // events that a client was shown, by Session
	commands []string
	admitted map[string]int // Turns acknowledged, by Session

	// For settle alone: a cursor behind which all Turns have ended, by Session, and Commands that may not have ended.
	ended map[string]string
	open  []string
}

// repeat calls until it works, is refused for good, or the traffic ends.
func (tr *traffic) repeat(what string, call func(ctx context.Context) error) bool {
	for n := 0; tr.ctx.Err() == nil; n++ {
		limited, cancel := context.WithTimeout(tr.ctx, 20*time.Second)
		err := call(limited)
		cancel()
		if err == nil {
			return true
		}
		var refused *client.Error
		if errors.As(err, &refused) && refused.Status < 500 && refused.Status != 429 && refused.Code != "admission_unavailable" {
			tr.f.t.Errorf("%s: %v", what, err)
			return false
		}
		pauseFor(tr.ctx, 200*time.Millisecond)
	}
	return false
}

func pauseFor(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

func (f *fleet) traffic(sessions, computers, sleepers int) *traffic {
	f.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	tr := &traffic{f: f, ctx: ctx, stop: stop, seen: map[string][]api.Event{}, admitted: map[string]int{}}
	for range sessions {
		r := f.create("counter", fmt.Sprintf("slow %d", chaosSteps))
		tr.sessions = append(tr.sessions, r.SessionID)
		tr.admitted[r.SessionID] = 1
		tr.wg.Go(func() { tr.turns(r.SessionID) })
		tr.wg.Go(func() { tr.follow(r.SessionID) })
	}
	for i := range computers {
		c, err := f.CreateComputer(ctx, api.ComputerCreateRequest{Template: "box", Key: fmt.Sprintf("commands-%d", i)})
		if err != nil {
			f.t.Fatal(err)
		}
		tr.wg.Go(func() { tr.execs(c.ComputerID) })
	}
	if sleepers > 0 {
		f.deploy("testdata/hibernate")
	}
	for range sleepers {
		r := f.create("sleeper", "hello")
		tr.sleepers = append(tr.sleepers, r.SessionID)
		tr.wg.Go(func() { tr.naps(r.SessionID) })
	}
	tr.wg.Go(tr.resumes)
	return tr
}

// naps gives a Session a Turn now and then: in between its Computer hibernates.
func (tr *traffic) naps(sessionID string) {
	for n := 1; tr.ctx.Err() == nil; n++ {
		req := api.EnqueueRequest{Input: input("hello"), IdempotencyKey: strconv.Itoa(n)}
		if !tr.repeat("enqueue", func(ctx context.Context) error { _, err := tr.f.Enqueue(ctx, sessionID, req); return err }) {
			return
		}
		pauseFor(tr.ctx, 5*time.Second)
	}
}

// checkSleeper wants that no process was continued twice from one captured memory: the Turns of a process (its token) go
// up, the file that it reads goes on, and no random number comes again.
func (tr *traffic) checkSleeper(sessionID string) (turns int) {
	f := tr.f
	f.t.Helper()
	last, random := map[string]slept{}, map[string]bool{}
	for cursor := ""; ; {
		page, err := f.ListTurns(context.Background(), sessionID, cursor, 100)
		if err != nil {
			f.t.Fatal(err)
		}
		for _, v := range page.Turns {
			var s slept
			if v.Status != "completed" {
				continue
			}
			if err := json.Unmarshal(v.Result, &s); err != nil || !s.Intact || s.Said != "you said hello" || s.Memory != "kept" {
				f.t.Errorf("sleeper %s: turn %s answers %s", sessionID, v.ID, v.Result)
				continue
			}
			turns++
			if before := last[s.Token]; s.Turns <= before.Turns || (s.Line != "" && s.Line <= before.Line) || len(last) > s.Inits {
				f.t.Errorf("sleeper %s: after %+v comes %+v", sessionID, before, s)
			}
			last[s.Token] = s
			for _, r := range s.Random {
				if random[r] {
					f.t.Errorf("sleeper %s: the random number %s came twice", sessionID, r)
				}
				random[r] = true
			}
		}
		if cursor = page.NextCursor; cursor == "" {
			return turns
		}
	}
}

// turns admits one Turn after the other, each when the one before has ended.
func (tr *traffic) turns(sessionID string) {
	for n := 1; tr.ctx.Err() == nil; n++ {
		var r api.EnqueueReceipt
		req := api.EnqueueRequest{Input: input(fmt.Sprintf("slow %d", chaosSteps)), IdempotencyKey: strconv.Itoa(n)}
		if !tr.repeat("enqueue", func(ctx context.Context) (err error) { r, err = tr.f.Enqueue(ctx, sessionID, req); return err }) {
			return
		}
		tr.mu.Lock()
		tr.admitted[sessionID]++
		tr.mu.Unlock()
		tr.repeat("wait", func(ctx context.Context) error {
			v, err := tr.f.GetTurn(ctx, sessionID, r.TurnID)
			if err == nil && !v.Terminal() {
				err = errors.New("not yet")
			}
			return err
		})
	}
}

// follow remembers every event that the server has shown.
func (tr *traffic) follow(sessionID string) {
	for tr.ctx.Err() == nil {
		tr.mu.Lock()
		after := int64(len(tr.seen[sessionID]))
		tr.mu.Unlock()
		for e, err := range tr.f.StreamEvents(tr.ctx, sessionID, after) {
			if err != nil {
				break
			}
			tr.mu.Lock()
			tr.seen[sessionID] = append(tr.seen[sessionID], e)
			tr.mu.Unlock()
		}
		pauseFor(tr.ctx, 200*time.Millisecond)
	}
}

// execs runs one Command after the other on a Computer.
func (tr *traffic) execs(computerID string) {
	for n := 0; tr.ctx.Err() == nil; n++ {
		var r api.CommandReceipt
		req := api.CommandCreateRequest{Command: []string{"/bin/sh", "-c", commandScript}, IdempotencyKey: strconv.Itoa(n)}
		if !tr.repeat("create command", func(ctx context.Context) (err error) { r, err = tr.f.CreateCommand(ctx, computerID, req); return err }) {
			return
		}
		tr.mu.Lock()
		tr.commands = append(tr.commands, r.CommandID)
		tr.mu.Unlock()
		tr.repeat("wait for command", func(ctx context.Context) error {
			v, err := tr.f.GetCommand(ctx, r.CommandID)
			if err == nil && !commandEnded(v) {
				err = errors.New("not yet")
			}
			return err
		})
	}
}

const (
	commandLines  = 10
	commandScript = `i=1; while [ $i -le 10 ]; do echo line $i; sleep 0.05; i=$((i+1)); done`
)

func commandEnded(v api.Command) bool {
	switch v.Status {
	case "exited", "failed", "cancelled", "timed_out", "lost":
		return true
	}
	return false
}

// resumes releases every hold, as a person would.
func (tr *traffic) resumes() {
	for tr.ctx.Err() == nil {
		for _, sessionID := range append(slices.Clone(tr.sessions), tr.sleepers...) {
			limited, cancel := context.WithTimeout(tr.ctx, 5*time.Second)
			if s, err := tr.f.GetSession(limited, sessionID); err == nil {
				for _, hold := range s.Holds {
					_, _ = tr.f.ResumeSession(limited, sessionID, api.ResumeRequest{HoldID: hold.ID})
				}
			}
			cancel()
		}
		pauseFor(tr.ctx, 500*time.Millisecond)
	}
}

// completed counts the Turns that were shown as completed.
func (tr *traffic) completed() (n int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, events := range tr.seen {
		for _, e := range events {
			if e.Kind == "turn.completed" {
				n++
			}
		}
	}
	return n
}

// works waits until more Turns than before have completed: the fleet is at work.
func (tr *traffic) works(before int) {
	tr.f.t.Helper()
	tr.f.until("another Turn completes", func() bool { return tr.completed() > before })
}

// check compares what is there now with what must be true after any history.
func (tr *traffic) check() (turns, completed, commands, exited int) {
	f := tr.f
	f.t.Helper()
	for _, sessionID := range tr.sessions {
		tr.mu.Lock()
		seen, admitted := tr.seen[sessionID], tr.admitted[sessionID]
		tr.mu.Unlock()
		// Turns first: what has ended by then has all its events.
		var listed []api.Turn
		for cursor := ""; ; {
			page, err := f.ListTurns(context.Background(), sessionID, cursor, 100)
			if err != nil {
				f.t.Fatal(err)
			}
			listed = append(listed, page.Turns...)
			if cursor = page.NextCursor; cursor == "" {
				break
			}
		}
		all := f.events(sessionID)
		// What a client was shown is still there, and the same.
		for i, e := range seen {
			if i >= len(all) || all[i].Sequence != e.Sequence || all[i].Kind != e.Kind || string(all[i].Data) != string(e.Data) {
				f.t.Errorf("session %s: event %d was shown as %s %s and is gone or changed", sessionID, e.Sequence, e.Kind, e.Data)
				break
			}
		}
		history := map[string][]api.Event{}
		running := map[string]bool{}
		for _, e := range all {
			if e.TurnID == nil {
				continue
			}
			history[*e.TurnID] = append(history[*e.TurnID], e)
			switch {
			case e.Kind == "turn.running":
				running[*e.TurnID] = true
			case strings.HasPrefix(e.Kind, "turn.") && e.Kind != "turn.queued" && e.Kind != "turn.output" && e.Kind != "turn.finalizing":
				delete(running, *e.TurnID)
			}
			if len(running) > 1 {
				f.t.Errorf("session %s: two Turns at once at event %d", sessionID, e.Sequence)
			}
		}
		if len(listed) < admitted {
			f.t.Errorf("session %s: %d Turns of %d acknowledged ones", sessionID, len(listed), admitted)
		}
		for _, v := range listed {
			turns++
			if !v.Terminal() {
				continue
			}
			checkTurn(f.t, v, history[v.ID])
			if v.Status == "completed" {
				completed++
			}
		}
	}
	tr.mu.Lock()
	ids := append([]string{}, tr.commands...)
	tr.mu.Unlock()
	for _, commandID := range ids {
		commands++
		if tr.checkCommand(commandID) {
			exited++
		}
	}
	return turns, completed, commands, exited
}

// checkCommand wants the lines of a Command in order, all of them if it exited and its output is closed.
func (tr *traffic) checkCommand(commandID string) (exited bool) {
	f := tr.f
	v, err := f.GetCommand(context.Background(), commandID)
	if err != nil {
		f.t.Fatal(err)
	}
	var out strings.Builder
	gap, state := false, ""
	for cursor := ""; ; {
		page, err := f.ListCommandLogs(context.Background(), commandID, cursor, 100)
		if err != nil {
			f.t.Fatal(err)
		}
		if cursor == "" {
			state = page.OutputState // closed: all that there is of it is there now
		}
		for _, r := range page.Logs {
			gap = gap || r.Kind != "output"
			out.Write(r.Content)
		}
		if cursor = page.NextCursor; cursor == "" {
			break
		}
	}
	var want strings.Builder
	for i := range commandLines {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	if !strings.HasPrefix(want.String(), out.String()) || (v.Status == "exited" && state == "closed" && !gap && out.String() != want.String()) {
		f.t.Errorf("command %s (%s) wrote %q", commandID, v.Status, out.String())
	}
	return v.Status == "exited"
}

// settle lets everything that was admitted end.
func (tr *traffic) settle() {
	f := tr.f
	f.t.Helper()
	tr.ended, tr.open = map[string]string{}, slices.Clone(tr.commands)
	left := ""
	defer func() {
		if f.t.Failed() {
			f.t.Logf("what had not ended: %s", left)
		}
	}()
	f.until("all Turns and Commands end", func() bool {
		left = tr.unfinished()
		return left == ""
	})
}

// unfinished names something that has not ended, and releases holds.
func (tr *traffic) unfinished() string {
	f := tr.f
	for _, sessionID := range append(slices.Clone(tr.sessions), tr.sleepers...) {
		s, err := f.GetSession(context.Background(), sessionID)
		if err != nil || s.Status != "open" {
			return fmt.Sprintf("session %s: %s %v", sessionID, s.Status, err)
		}
		for _, hold := range s.Holds {
			_, _ = f.ResumeSession(context.Background(), sessionID, api.ResumeRequest{HoldID: hold.ID})
		}
		for cursor := tr.ended[sessionID]; ; {
			page, err := f.ListTurns(context.Background(), sessionID, cursor, 100)
			if err != nil {
				return err.Error()
			}
			for _, v := range page.Turns {
				if !v.Terminal() {
					where, err := f.GetComputer(context.Background(), s.ComputerID)
					return fmt.Sprintf("session %+v: turn %+v on %+v %v", s, v, where, err)
				}
			}
			if cursor = page.NextCursor; cursor == "" {
				break
			}
			tr.ended[sessionID] = cursor
		}
	}
	for ; len(tr.open) > 0; tr.open = tr.open[1:] {
		if v, err := f.GetCommand(context.Background(), tr.open[0]); err != nil || !commandEnded(v) {
			where, werr := f.GetComputer(context.Background(), v.ComputerID)
			return fmt.Sprintf("command %+v %v on %+v %v", v, err, where, werr)
		}
	}
	return ""
}

// fleetRounds is how many faults a run has: HELMR_TEST_ROUNDS, or a few.
func fleetRounds(t *testing.T) int {
	text := os.Getenv("HELMR_TEST_ROUNDS")
	if text == "" {
		return 5
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestSpec_21_09_AComputerNeverRunsTwice kills, pauses and cuts off a server and two Workers at random moments, for random
// times, while Sessions take Turns and Commands run. After each round, and at the end, nothing has run twice and nothing
// that was acknowledged is missing; no Computer was on two Workers; drained, the Workers leave nothing behind. With
// HELMR_TEST_FLEET_DATABASE=postgres the database takes part.
func TestSpec_21_09_AComputerNeverRunsTwice(t *testing.T) {
	t.Parallel()
	kind := db.SQLite
	if os.Getenv("HELMR_TEST_FLEET_DATABASE") == string(db.PostgreSQL) {
		kind = db.PostgreSQL
	}
	f := newFleet(t, kind, fleetLost, "a", "b")
	random := chaosSeed(t)
	tr := f.traffic(3, 2, 2)
	defer tr.stop()
	tr.works(0)
	w := f.watch()
	nodes := append([]*node{f.server}, f.workers...)
	done := map[string]int{}
	for round := range fleetRounds(t) {
		pauseFor(tr.ctx, time.Duration(random.IntN(3000))*time.Millisecond) // the random moment is the point
		what, lasts := f.fault(random, nodes)
		done[what]++
		pauseFor(tr.ctx, lasts)
		if f.database != nil {
			f.database.Up()
		}
		for _, n := range nodes {
			n.heal()
		}
		tr.works(tr.completed())
		turns, completed, commands, exited := tr.check()
		naps := 0
		for _, sessionID := range tr.sleepers {
			naps += tr.checkSleeper(sessionID)
		}
		t.Logf("round %d: %s for %s; %d of %d Turns completed, %d of %d Commands exited, %d Turns after naps", round+1, what, lasts.Round(time.Millisecond), completed, turns, exited, commands, naps)
		if t.Failed() {
			break
		}
	}
	tr.stop()
	tr.wg.Wait()
	tr.settle()
	turns, completed, commands, exited := tr.check()
	for computerID, d := range w.end() {
		t.Errorf("computer %s was on two Workers for %s", computerID, d)
	}
	t.Logf("%v; %d of %d Turns completed, %d of %d Commands exited; looked %d times", done, completed, turns, exited, commands, w.looks)
	f.leavesNothing()
}

// fault does something to one node, and sometimes to another one as well, and says for how long.
func (f *fleet) fault(random *rand.Rand, nodes []*node) (what string, lasts time.Duration) {
	// Shorter than a lease, about as long, and longer than it takes to be lost.
	lasts = time.Duration(random.IntN(int(2 * fleetLost)))
	first := random.IntN(len(nodes))
	if f.database != nil && random.IntN(3) == 0 {
		what = f.databaseFault(random) + " and "
		if random.IntN(2) == 0 {
			return strings.TrimSuffix(what, " and "), lasts
		}
	}
	what += nodes[first].fault(random)
	if random.IntN(4) == 0 {
		second := nodes[(first+1+random.IntN(len(nodes)-1))%len(nodes)]
		what += " and " + second.fault(random)
	}
	return what, lasts
}

// databaseFault does something to the connections between the server and its database.
func (f *fleet) databaseFault(random *rand.Rand) string {
	switch random.IntN(5) {
	case 0:
		n := 1 + random.IntN(20)
		f.database.LoseCommits(0, n)
		return fmt.Sprintf("lose %d answers to commits", n)
	case 1:
		f.database.Down()
		return "stop the database"
	case 2:
		f.database.Silent()
		return "cut off the database"
	case 3:
		by := time.Duration(random.IntN(300)) * time.Millisecond
		f.database.Slow(by)
		return fmt.Sprintf("slow the database by %s", by)
	}
	f.database.Cut()
	return "cut the database's connections"
}

func (n *node) fault(random *rand.Rand) string {
	switch kind := random.IntN(10); {
	case kind < 3:
		n.kill()
		return "kill " + n.role
	case kind < 6:
		n.pause()
		return "pause " + n.role
	case kind < 9 || n == n.f.server:
		n.cut()
		return "cut off " + n.role
	}
	for _, p := range hostProcesses() {
		if strings.HasSuffix(p.args, " worker guard "+n.dir) {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
	}
	return "kill the guard of " + n.role
}

// leavesNothing drains the Workers, stops all processes and looks for what is left.
func (f *fleet) leavesNothing() {
	f.t.Helper()
	for _, w := range f.workers {
		f.until("worker "+w.role+" is enrolled", func() bool {
			r := w.own("worker", "status", "--json")
			var v api.Worker
			return r.code == 0 && json.Unmarshal([]byte(r.stdout), &v) == nil && (v.Status == "active" || v.Status == "draining")
		})
	}
	for _, w := range f.workers {
		r := w.own("worker", "drain", "--timeout", "1s", "--json")
		if r.code != 0 || !strings.Contains(r.stdout, `"termination_ready"`) {
			f.t.Errorf("drain of %s: exit %d\n%s%s", w.role, r.code, r.stdout, r.stderr)
		}
	}
	for _, n := range append([]*node{f.server}, f.workers...) {
		n.live.signal(os.Interrupt)
		if r := n.live.wait(); r.code != 0 {
			f.t.Errorf("%s ended with %d\n%s", n.role, r.code, r.stderr)
		}
	}
	f.until("nothing is left", func() bool { return len(f.traces()) == 0 || f.t.Failed() })
	for _, left := range f.traces() {
		f.t.Errorf("left behind: %s", left)
	}
}
