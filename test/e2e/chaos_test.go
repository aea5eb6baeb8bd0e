package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
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

// chaosSeed gives the seed of a run: HELMR_TEST_SEED, or a new one. It is printed, so that a run can be repeated.
func chaosSeed(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("HELMR_TEST_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed: HELMR_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// load keeps Sessions busy with Turns of a few outputs each, whatever happens to the server meanwhile.
type load struct {
	h        *helmr
	sessions []string
	wg       sync.WaitGroup
}

const chaosSteps = 3

// begin creates sessions and, beside the test, admits turns to each of them.
func begin(h *helmr, sessions, turns int) *load {
	l := &load{h: h}
	for range sessions {
		r := h.create("counter", fmt.Sprintf("slow %d", chaosSteps))
		l.sessions = append(l.sessions, r.SessionID)
	}
	for i, sessionID := range l.sessions {
		l.wg.Go(func() {
			for n := 1; n < turns; n++ {
				l.admit(sessionID, fmt.Sprintf("%d-%d", i, n))
			}
		})
	}
	return l
}

// admit enqueues one Turn, again and again until it is acknowledged: the key makes it one.
func (l *load) admit(sessionID, key string) {
	for deadline := time.Now().Add(patience); ; {
		_, err := l.h.Enqueue(context.Background(), sessionID, api.EnqueueRequest{Input: input(fmt.Sprintf("slow %d", chaosSteps)), IdempotencyKey: key})
		if err == nil {
			return
		}
		var refused *client.Error
		if errors.As(err, &refused) && refused.Status < 500 && refused.Code != "admission_unavailable" || time.Now().After(deadline) {
			l.h.t.Errorf("enqueue %s: %v", key, err)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// settle waits until every Turn is terminal, resuming every hold on the way.
func (l *load) settle(turns int) {
	h := l.h
	l.wg.Wait()
	for _, sessionID := range l.sessions {
		h.until("all Turns of session "+sessionID+" end", func() bool {
			s, err := h.GetSession(context.Background(), sessionID)
			if err != nil {
				return false
			}
			for _, hold := range s.Holds {
				_, _ = h.ResumeSession(context.Background(), sessionID, api.ResumeRequest{HoldID: hold.ID})
			}
			page, err := h.ListTurns(context.Background(), sessionID, "", 100)
			if err != nil || len(page.Turns) != turns {
				return false
			}
			for _, v := range page.Turns {
				if !v.Terminal() {
					return false
				}
			}
			return true
		})
	}
}

// check compares every Session's events with what must be true after any history. It gives how many Turns completed.
func (l *load) check() (completed int) {
	h := l.h
	for _, sessionID := range l.sessions {
		page, err := h.ListTurns(context.Background(), sessionID, "", 100)
		if err != nil {
			h.t.Fatal(err)
		}
		history := map[string][]api.Event{}
		last := int64(0)
		for _, e := range h.events(sessionID) {
			if e.TurnID == nil {
				continue
			}
			history[*e.TurnID] = append(history[*e.TurnID], e)
			if e.Kind == "turn.running" {
				for _, v := range page.Turns {
					if v.ID == *e.TurnID {
						if v.Sequence <= last {
							h.t.Errorf("turn %d of session %s ran after turn %d", v.Sequence, sessionID, last)
						}
						last = v.Sequence
					}
				}
			}
		}
		for _, v := range page.Turns {
			checkTurn(h.t, v, history[v.ID])
			if v.Status == "completed" {
				completed++
			}
		}
	}
	return completed
}

// checkTurn holds one Turn to its promises: admitted once, run at most once, its outputs in order without a gap or a
// repeat, one end.
func checkTurn(t testing.TB, v api.Turn, events []api.Event) {
	count := map[string]int{}
	var outputs []string
	for _, e := range events {
		count[e.Kind]++
		if e.Kind == "turn.output" {
			var parts []struct{ Text string }
			if err := json.Unmarshal(e.Data, &parts); err != nil {
				t.Errorf("output %s: %v", e.Data, err)
			}
			outputs = append(outputs, parts[0].Text)
		}
	}
	ends := count["turn.completed"] + count["turn.failed"] + count["turn.interrupted"] + count["turn.cancelled"]
	if count["turn.queued"] != 1 || count["turn.running"] > 1 || ends != 1 || count["turn."+v.Status] != 1 {
		t.Errorf("turn %s (%s) has events %v", v.ID, v.Status, count)
	}
	want := []string{"run " + v.ID}
	for i := range chaosSteps {
		want = append(want, fmt.Sprintf("step %d", i))
	}
	if len(outputs) > len(want) || strings.Join(outputs, "|") != strings.Join(want[:len(outputs)], "|") {
		t.Errorf("turn %s has outputs %q", v.ID, outputs)
	}
	if v.Status == "completed" && len(outputs) != len(want) {
		t.Errorf("completed turn %s lost output: %q", v.ID, outputs)
	}
}

func chaosKinds(t *testing.T, test func(t *testing.T, h *helmr)) {
	for _, kind := range []db.Kind{db.SQLite, db.PostgreSQL} {
		t.Run(string(kind), func(t *testing.T) {
			h := start(t, kind)
			h.deploy("testdata/project")
			test(t, h)
		})
	}
}

// TestSpec_21_04_KillsOfHelmrStopNothing kills the whole helmr process, server and Worker, at random moments. Everything
// goes on in the sandboxes that live on: every Turn completes, in the process that began, with all its output once.
func TestSpec_21_04_KillsOfHelmrStopNothing(t *testing.T) {
	chaosKinds(t, func(t *testing.T, h *helmr) {
		random := chaosSeed(t)
		const sessions, turns, kills = 4, 25, 8
		l := begin(h, sessions, turns)
		for range kills {
			time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond) // the random moment is the point
			h.kill()
			h.run()
		}
		l.settle(turns)
		if n := l.check(); n != sessions*turns {
			t.Errorf("%d of %d Turns completed", n, sessions*turns)
		}
		for _, sessionID := range l.sessions {
			page, err := h.ListTurns(context.Background(), sessionID, "", 100)
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range page.Turns {
				var r result
				if err := json.Unmarshal(v.Result, &r); err != nil || r.Turns != i+1 || r.Inits != 1 {
					t.Errorf("turn %d of session %s has result %s", i+1, sessionID, v.Result)
				}
			}
		}
	})
}

// TestSpec_00_03_NothingRunsTwiceWhateverDies kills helmr, sandboxes, guests and Session processes at random moments.
func TestSpec_00_03_NothingRunsTwiceWhateverDies(t *testing.T) {
	chaosKinds(t, func(t *testing.T, h *helmr) {
		random := chaosSeed(t)
		const sessions, turns, kills = 4, 25, 16
		l := begin(h, sessions, turns)
		done := map[string]int{}
		for range kills {
			time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond)
			computerID := l.computer(random.IntN(sessions))
			switch what := random.IntN(4); what {
			case 0:
				h.kill()
				h.run()
				done["helmr"]++
			case 1:
				if pid := h.sandboxPID(computerID); pid != 0 {
					_ = syscall.Kill(pid, syscall.SIGKILL)
					done["sandbox"]++
				}
			case 2:
				if h.runsc("kill", computerID, "KILL") == nil {
					done["guest"]++
				}
			case 3:
				if h.runsc("exec", computerID, "/bin/sh", "-c", killNode) == nil {
					done["process"]++
				}
			}
			for _, sessionID := range l.sessions { // held Sessions go on, so that later kills hit running Turns too
				if s, err := h.GetSession(context.Background(), sessionID); err == nil {
					for _, hold := range s.Holds {
						_, _ = h.ResumeSession(context.Background(), sessionID, api.ResumeRequest{HoldID: hold.ID})
					}
				}
			}
		}
		l.settle(turns)
		t.Logf("killed %v; %d of %d Turns completed", done, l.check(), sessions*turns)
	})
}

const killNode = `for p in /proc/[0-9]*; do case "$(tr '\0' ' ' < $p/cmdline 2>/dev/null)" in node*host.mjs*) kill -9 ${p#/proc/};; esac; done; true`

func (l *load) computer(i int) string {
	s, err := l.h.GetSession(context.Background(), l.sessions[i])
	if err != nil {
		return ""
	}
	return s.ComputerID
}

// runsc runs a command of the sandbox runtime itself.
func (h *helmr) runsc(args ...string) error {
	root := filepath.Join(h.dir, "worker", "sandboxes", "runsc")
	return exec.Command(binary(h.t, "runsc"), append([]string{"--root", root}, args...)...).Run()
}
