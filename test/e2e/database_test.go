package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
)

// shaken is an installation whose database can be made to fail.
type shaken struct {
	*cluster
	database *dbtest.Proxy
	// sessionID is a Session that all parts give Turns to, box a Computer for Commands.
	sessionID, box string
	turns          int // completed ones
	keys           int
}

// shakenLost is how long a silent Worker of it has.
const shakenLost = 15 * time.Second

// TestDatabaseFaults has PostgreSQL lose answers, be slow, cut off and gone, while Turns and Commands run and Computers are
// saved and hibernate: nothing is lost, nothing is done twice, and all goes on by itself.
func TestDatabaseFaults(t *testing.T) {
	t.Parallel()
	p := dbtest.NewProxy(t, dbtest.URL(t, db.PostgreSQL), "127.0.0.1:0")
	c := &shaken{cluster: installOn(t, "HELMR_DATABASE_URL="+p.URL, "HELMR_TEST_WORKERS_LOST_AFTER="+shakenLost.String()), database: p}
	c.startWorker()
	c.program().login(c.info.URL, c.info.APIKey).run(t, "deploy", "testdata/project").ok(t)
	c.box = c.newComputer("box", "shaken")
	c.wantExit(c.sh(c.box, "true"), 0)
	r := c.create("counter", "hello")
	c.completed(r.SessionID, r.TurnID)
	c.sessionID, c.turns = r.SessionID, 1
	// One story; each part goes on from the one before.
	for _, part := range []struct {
		name string
		test func(c *shaken)
	}{
		{"each answer to a commit is lost once", (*shaken).answersLost},
		{"answers are lost while a computer hibernates", (*shaken).captureAnswersLost},
		{"slow", (*shaken).slowDatabase},
		{"connections are cut", (*shaken).connectionsCut},
		{"gone, for less than a lease", func(c *shaken) { c.goneBriefly(c.database.Down) }},
		{"silent, for less than a lease", func(c *shaken) { c.goneBriefly(c.database.Silent) }},
		{"gone, for longer than a lease", (*shaken).goneForLong},
	} {
		began := time.Now()
		part.test(c)
		c.database.Up()
		t.Logf("%s: %s; %d answers lost so far", part.name, time.Since(began).Round(time.Millisecond), c.database.Lost())
		if t.Failed() {
			return
		}
	}
}

// insist repeats a request under its key until it is acknowledged, which the database may prevent for a while.
func (c *shaken) insist(what string, ask func(ctx context.Context, key string) error) {
	c.t.Helper()
	c.keys++
	key := fmt.Sprint(c.keys)
	c.until(what, func() bool {
		limited, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err := ask(limited, key)
		var refused *client.Error
		if errors.As(err, &refused) && (refused.Status != 503 || refused.Code != "unavailable") {
			c.t.Fatalf("%s: %v", what, err)
		}
		return err == nil
	})
}

// begin admits a Turn.
func (c *shaken) begin(sessionID, text string) (turnID string) {
	c.t.Helper()
	c.insist("a Turn is admitted", func(ctx context.Context, key string) error {
		r, err := c.Enqueue(ctx, sessionID, api.EnqueueRequest{Input: input(text), IdempotencyKey: key})
		turnID = r.TurnID
		return err
	})
	return turnID
}

// once wants that a Turn of so many outputs ran once, in the process of the one before it.
func (c *shaken) once(turnID string, outputs int) {
	c.t.Helper()
	got := c.completed(c.sessionID, turnID)
	c.database.Up()
	c.turns++
	if got.Turns != c.turns || got.Inits != 1 {
		c.t.Errorf("turn %d of the process, which was made once: %+v", c.turns, got)
	}
	var of []api.Event
	for _, e := range c.events(c.sessionID) {
		if e.TurnID != nil && *e.TurnID == turnID {
			of = append(of, e)
		}
	}
	c.whole(of, outputs)
}

// lines is a Command that writes so many lines.
func (c *shaken) lines(n int) (commandID string) {
	c.t.Helper()
	c.insist("a Command is admitted", func(ctx context.Context, key string) error {
		r, err := c.CreateCommand(ctx, c.box, api.CommandCreateRequest{IdempotencyKey: key,
			Command: []string{"/bin/sh", "-c", fmt.Sprintf("echo x >>ran; i=0; while [ $i -lt %d ]; do echo $i; sleep 0.05; i=$((i+1)); done; exit 7", n)}})
		commandID = r.CommandID
		return err
	})
	return commandID
}

// onceCommand wants that it ran once and all of its output is there.
func (c *shaken) onceCommand(commandID string, n int) {
	c.t.Helper()
	e := c.wantExit(commandID, 7)
	c.database.Up()
	var want strings.Builder
	for i := range n {
		fmt.Fprintf(&want, "%d\n", i)
	}
	if e.stdout != want.String() {
		c.t.Errorf("the Command wrote %q", e.stdout)
	}
}

// answersLost loses the answer to the first commit of a Turn and of a Command, then to the second, and so on: admission,
// placement, claim, each output, the result, the Save, the outcome.
func (c *shaken) answersLost() {
	const commits = 12
	before := c.database.Lost()
	ran := strings.Count(c.wantExit(c.sh(c.box, "touch ran; cat ran"), 0).stdout, "x")
	for skip := range commits {
		c.database.LoseCommits(skip, 1)
		c.once(c.begin(c.sessionID, "slow 3"), 3)
		c.database.LoseCommits(skip, 1)
		c.onceCommand(c.lines(3), 3)
	}
	if lost := c.database.Lost() - before; lost < commits {
		c.t.Errorf("only %d answers were lost", lost)
	}
	if now := strings.Count(c.wantExit(c.sh(c.box, "cat ran"), 0).stdout, "x"); now != ran+commits {
		c.t.Errorf("%d Commands ran %d times", commits, now-ran)
	}
	// All answers, for a while.
	c.database.LoseCommits(0, 30)
	c.once(c.begin(c.sessionID, "slow 3"), 3)
}

// captureAnswersLost does it while a Computer hibernates and resumes.
func (c *shaken) captureAnswersLost() {
	c.program().login(c.info.URL, c.info.APIKey).run(c.t, "deploy", "testdata/hibernate").ok(c.t)
	sessionID, last := c.asleep("hello")
	for skip := range 4 {
		c.database.LoseCommits(skip, 1)
		turnID := c.begin(sessionID, "hello")
		now := c.slept(sessionID, turnID)
		unchanged(c.t, last, now)
		last = now
		c.database.LoseCommits(skip, 1)
		c.until("it hibernates", func() bool {
			s, err := c.GetSession(context.Background(), sessionID)
			if err != nil {
				return false
			}
			where, err := c.GetComputer(context.Background(), s.ComputerID)
			return err == nil && where.Residency == "hibernated"
		})
		c.database.Up()
	}
	if _, err := c.CancelSession(context.Background(), sessionID, api.ControlRequest{}); err != nil {
		c.t.Error(err)
	}
}

func (c *shaken) slowDatabase() {
	c.database.Slow(60 * time.Millisecond)
	turnID, commandID := c.begin(c.sessionID, "slow 3"), c.lines(3)
	v, err := c.settledSlowly(turnID)
	if err != nil || v.Status != "completed" {
		c.t.Errorf("%+v, %v", v, err)
	}
	c.once(turnID, 3)
	c.onceCommand(commandID, 3)
}

// settledSlowly waits for a Turn while the database does what it was made to do.
func (c *shaken) settledSlowly(turnID string) (api.Turn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c.WaitTurn(ctx, c.sessionID, turnID)
}

// connectionsCut cuts all connections again and again while a Turn and a Command run.
func (c *shaken) connectionsCut() {
	turnID, commandID := c.begin(c.sessionID, "slow 40"), c.lines(40)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := c.WaitTurn(ctx, c.sessionID, turnID)
		ended <- err
	}()
	again := time.NewTicker(700 * time.Millisecond)
	defer again.Stop()
	for cut := 0; ; cut++ {
		select {
		case err := <-ended:
			if err != nil || cut < 2 {
				c.t.Errorf("%v after %d cuts", err, cut)
			}
			c.once(turnID, 40)
			c.onceCommand(commandID, 40)
			return
		case <-again.C:
			c.database.Cut()
		}
	}
}

// goneBriefly has no database while a Turn and a Command end: they wait with what they have, and nothing is lost.
func (c *shaken) goneBriefly(fault func()) {
	turnID, commandID := c.begin(c.sessionID, "slow 10"), c.lines(10)
	c.running(api.SessionCreateReceipt{SessionID: c.sessionID, TurnID: turnID})
	fault()
	pauseFor(context.Background(), shakenLost/8) // nobody can say when they have ended
	c.database.Up()
	c.once(turnID, 10)
	c.onceCommand(commandID, 10)
}

// goneForLong has no database until the leases are over: the Worker ends what runs, and once the database is back it is
// told so, held, and goes on after a resume from the last Save.
func (c *shaken) goneForLong() {
	turnID, commandID := c.begin(c.sessionID, "slow 10000"), c.lines(10000)
	c.running(api.SessionCreateReceipt{SessionID: c.sessionID, TurnID: turnID})
	computerID := c.whereIs(c.sessionID).ID
	c.database.Down()
	c.until("the Worker ends its Computers", func() bool { return c.sandboxPID(computerID) == 0 && c.sandboxPID(c.box) == 0 })
	c.database.Up()
	if v := c.settled(c.sessionID, turnID); v.Status != "interrupted" || v.Error.Code != "computer_lost" {
		c.t.Errorf("the Turn is %s: %+v", v.Status, v.Error)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if k, err := c.WaitCommand(ctx, commandID); err != nil || k.Status != "lost" {
		c.t.Errorf("the Command is %s, %v", k.Status, err)
	}
	waits := c.begin(c.sessionID, "hello")
	c.until("the Session is held", func() bool {
		s, err := c.GetSession(ctx, c.sessionID)
		return err == nil && len(s.Holds) == 1 && s.Holds[0].Reason == "computer_lost"
	})
	c.resume(c.sessionID)
	if got := c.completed(c.sessionID, waits); got.Turns != 1 || got.Inits != 2 || got.Recovery.Reason != "computer_lost" {
		c.t.Errorf("%+v", got)
	}
	c.wantExit(c.sh(c.box, "true"), 0)
}

// TestALockedSQLiteFile is held by another program, such as one that copies it, for longer than writes wait for it, while a
// Turn and a Command run: both end whole once it is free.
func TestALockedSQLiteFile(t *testing.T) {
	t.Parallel()
	h := start(t, db.SQLite)
	h.deploy("testdata/project")
	box := h.newComputer("box", "locked")
	r := h.create("counter", "hello")
	h.completed(r.SessionID, r.TurnID)
	turnID := h.enqueue(r.SessionID, "slow 40")
	commandID := h.sh(box, "echo one; sleep 3; echo two; exit 7")
	h.running(api.SessionCreateReceipt{SessionID: r.SessionID, TurnID: turnID})
	other, err := sql.Open("sqlite", "file:"+strings.TrimPrefix(h.database, "sqlite:"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	other.SetMaxOpenConns(1)
	if _, err := other.Exec("PRAGMA busy_timeout = 10000; BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	create := api.SessionCreateRequest{Agent: "counter", Input: input("hello"), IdempotencyKey: "locked"}
	_, err = h.CreateSession(context.Background(), create)
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Status != 503 || refused.Code != "unavailable" {
		t.Errorf("with a locked file: %v", err)
	}
	if _, err := h.GetSession(context.Background(), r.SessionID); err != nil {
		t.Errorf("reading a locked file: %v", err)
	}
	if _, err := other.Exec("ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if got := h.completed(r.SessionID, turnID); got.Turns != 2 || got.Inits != 1 {
		t.Errorf("%+v", got)
	}
	outputs := 0
	for _, e := range h.events(r.SessionID) {
		if e.Kind == "turn.output" && e.TurnID != nil && *e.TurnID == turnID && strings.Contains(string(e.Data), fmt.Sprintf(`"step %d"`, outputs)) {
			outputs++
		}
	}
	if outputs != 40 {
		t.Errorf("%d of 40 outputs in order", outputs)
	}
	if e := h.wantExit(commandID, 7); e.stdout != "one\ntwo\n" {
		t.Errorf("the Command wrote %q", e.stdout)
	}
	again, err := h.CreateSession(context.Background(), create)
	if err != nil {
		t.Fatal(err)
	}
	h.completed(again.SessionID, again.TurnID)
}
