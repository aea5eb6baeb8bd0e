package preparation_test

import (
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/fault"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

func TestSpec_07_05_TheFirstDiskIsThePreparedImage(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.deploy("p", define{id: "box", callback: "box"}, define{id: "plain"})
		plain, _ := w.want("plain")
		first, _ := w.want("box")
		w.settle()
		w.startsFrom(plain, "")
		w.waits(first)
		w.is("box", "running", "needed") // there is a Worker with room
		h := w.maker()
		second, _ := w.want("box")
		h.exits(0)
		w.settle()
		w.waits(first, second)
		h.publish("m1")
		w.is("box", "succeeded", "needed")
		h.gone()
		w.startsFrom(first, "m1")
		w.startsFrom(second, "m1")
		third, _ := w.want("box")
		w.settle()
		w.startsFrom(third, "m1")
		if n := w.count(preparationsOf, w.env); n != 1 {
			t.Fatalf("%d preparations", n)
		}
		// Its own Save is what it starts from later.
		r := w.host(third)
		r.exchange()
		r.guest[r.run.GetCommandId()].Started = true
		r.ends(workerpb.CommandExit_END_EXITED, 0)
		w.clock.advance(computer.StaysUnused + time.Second)
		w.run("computer.unused")
		r.exchange()
		r.publish("m2")
		r.exchange()
		r.call(workerpb.Phase_PHASE_STOPPED)
		w.exec(third)
		w.settle()
		w.startsFrom(third, "m2")
	})
}

// The preparation's Computer is nobody's: it is not listed, read, used or counted as one of the Environment's.
func TestTheComputerOfAPreparationIsHidden(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.deploy("p", define{id: "box", callback: "box"})
		mine, _ := w.want("box")
		w.settle()
		h := w.maker()
		page, err := w.computers.List(t.Context(), w.env, computer.Filter{Limit: 10})
		w.must(err)
		if len(page.Computers) != 1 || page.Computers[0].ID != mine {
			t.Fatalf("listed are %+v", page.Computers)
		}
		_, err = w.computers.Get(t.Context(), w.env, h.computer)
		w.wantCode(err, fault.ComputerNotFound)
		_, err = w.commands.Create(t.Context(), w.env, w.by, h.computer, api.CommandCreateRequest{Command: []string{"true"}})
		w.wantCode(err, fault.ComputerNotFound)
		_, err = w.commands.DeleteComputer(t.Context(), w.env, w.by, h.computer, "")
		w.wantCode(err, fault.ComputerNotFound)
		_, err = w.commands.CommandUsage(t.Context(), w.env, h.computer, "", 10)
		w.wantCode(err, fault.ComputerNotFound)
		if n := w.count(`SELECT COALESCE(SUM(reserved_mib), 0) FROM environment_reservations WHERE environment_id = ?`, w.env); n != computer.DefaultDiskMiB {
			t.Fatalf("%d MiB are reserved", n)
		}
	})
}

func TestSpec_09_04_TheCallbackIsRunByTheHostProgram(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.deploy("p", define{id: "box", callback: "box", network: `{"allowDomains":["a.example"]}`})
		w.want("box")
		w.settle()
		h := w.maker()
		if got := strings.Join(h.run.GetArgv(), " "); got != "node /opt/helmr/runtime/host.mjs prepare /opt/helmr/programs/p/index.mjs box" || h.run.GetProgramDigest() != "p" {
			t.Fatalf("run is %s with program %q", got, h.run.GetProgramDigest())
		}
		if h.run.GetCwd() != "" || len(h.run.GetStdin()) != 0 || h.run.GetSecrets() {
			t.Fatalf("%+v", h.run)
		}
		// TestSpec_09_21: the policy of the phase, not that of run time.
		if got := h.spec.GetNetwork(); got != `{"allowDomains":["a.example"]}` || h.spec.GetSaveManifest() != "" {
			t.Fatalf("spec is %+v", h.spec)
		}
		h.write("one line\n")
		p := w.preparation("box")
		page, done, err := w.preparations.Logs(t.Context(), w.env, p.ID, "", 10)
		w.must(err)
		if done || page.OutputState != "open" || len(page.Logs) != 1 || string(page.Logs[0].Content) != "one line\n" {
			t.Fatalf("%+v %v", page, done)
		}
		h.exits(0)
		h.publish("m")
		page, done, err = w.preparations.Logs(t.Context(), w.env, p.ID, page.NextCursor, 10)
		w.must(err)
		if !done || page.OutputState != "closed" || len(page.Logs) != 0 {
			t.Fatalf("%+v %v", page, done)
		}
	})
}

// The transitions of the table in 09 that end in failed, and what becomes of the Computers that wait.
func TestSpec_07_10_AFailedPreparationExhaustsItsComputers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fails func(w *world)
		why   string
	}{
		"throws": {func(w *world) { w.maker().exits(1) }, "exit code 1; `helmr template logs box`"},
		"out of time": {func(w *world) {
			h := w.maker()
			w.clock.advance(29 * time.Minute)
			w.settle()
			w.is("box", "running", "needed")
			w.clock.advance(time.Minute)
			w.settle()
			h.exchange()
			h.ends(workerpb.CommandExit_END_CANCELLED, 0)
		}, "did not end within 30m0s"},
		"out of time, and stuck": {func(w *world) {
			w.maker()
			w.clock.advance(30*time.Minute + time.Second)
			w.settle()
			w.is("box", "running", "needed")
			w.clock.advance(time.Minute)
			w.settle()
		}, "did not end within 30m0s"},
		"lost three times": {func(w *world) {
			for range 3 {
				w.is("box", "running", "needed")
				w.maker().lost()
			}
		}, "lost 3 times"},
		"cannot start": {func(w *world) {
			for range computer.StartFailures {
				w.makerHost().call(workerpb.Phase_PHASE_START_FAILED)
				w.clock.advance(20 * time.Second)
				w.settle()
			}
		}, "could not be started"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(w *world) {
				w.deploy("p", define{id: "box", callback: "box"})
				first, k1 := w.want("box")
				second, k2 := w.want("box")
				w.settle()
				test.fails(w)
				w.settle()
				w.is("box", "failed", "needed")
				for i, computerID := range []string{first, second} {
					w.exhausted(computerID, test.why)
					k, err := w.commands.Get(w.t.Context(), w.env, []string{k1, k2}[i])
					w.must(err)
					if k.Status != "failed" || k.Outcome.Failure.Reason != "placement_failed" {
						w.t.Fatalf("%+v", k.Outcome)
					}
					_, err = w.commands.Create(w.t.Context(), w.env, w.by, computerID, api.CommandCreateRequest{Command: []string{"true"}})
					w.wantCode(err, fault.ComputerPreparationExhausted)
				}
				// Nothing tries again, however long it waits.
				w.clock.advance(time.Hour)
				w.settle()
				w.exhausted(first, test.why)
				if n := w.count(preparationsOf, w.env); n != 1 {
					w.t.Fatalf("%d preparations", n)
				}
				// A new Computer does, with a preparation of its own.
				third, _ := w.want("box")
				w.prepare("m")
				w.startsFrom(third, "m")
				w.exhausted(first, test.why)
			})
		})
	}
}

// No Worker has room: the time runs out while it is queued.
func TestAPreparationThatFindsNoWorkerFails(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.deploy("p", define{id: "box", callback: "box", memory: 1 << 20})
		first, _ := w.want("box")
		w.settle()
		w.is("box", "queued", "needed")
		w.waits(first)
		w.clock.advance(31 * time.Minute)
		w.settle()
		w.is("box", "failed", "needed")
		w.exhausted(first, "did not end within")
	})
}

// A loss is followed by another attempt from the image of the Template; the log has both.
func TestALostPreparationIsAttemptedAgain(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.deploy("p", define{id: "box", callback: "box"})
		first, _ := w.want("box")
		w.settle()
		h := w.maker()
		h.write("first\n")
		h.lost()
		again := w.maker()
		if again.computer == h.computer || again.spec.GetSaveManifest() != "" {
			t.Fatal("the second attempt goes on with the disk of the first")
		}
		again.write("second\n")
		again.exits(0)
		// Lost before the Save is published: once more.
		again.lost()
		w.waits(first)
		third := w.maker()
		third.write("third\n")
		third.exits(0)
		third.publish("m")
		w.startsFrom(first, "m")
		p := w.is("box", "succeeded", "needed")
		text, cursor := "", ""
		for {
			page, done, err := w.preparations.Logs(t.Context(), w.env, p.ID, cursor, 1)
			w.must(err)
			for _, r := range page.Logs {
				text += string(r.Content)
			}
			if cursor = page.NextCursor; done {
				break
			}
		}
		if text != "first\nsecond\nthird\n" {
			t.Fatalf("the log is %q", text)
		}
		_, _, err := w.preparations.Logs(t.Context(), w.env, p.ID, "99999999999999", 1)
		w.wantCode(err, fault.InvalidCursor)
		// What an older attempt says does not count any more.
		if !again.callFenced() {
			t.Fatal("the lost attempt still has its lease")
		}
	})
}

func (h *host) callFenced() bool {
	h.w.t.Helper()
	return h.call(workerpb.Phase_PHASE_RUNNING).GetFenced()
}

// An orderly stop of the Worker is no failure and counts as no loss.
func TestAnOrderlyStopOfTheWorkerIsNoLoss(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.deploy("p", define{id: "box", callback: "box"})
		first, _ := w.want("box")
		w.settle()
		for range 4 {
			h := w.maker()
			_, err := w.computers.Heartbeat(t.Context(), w.worker, true)
			w.must(err)
			h.exchange()
			h.ends(workerpb.CommandExit_END_CANCELLED, 0)
			h.gone()
			w.deployments++
			w.register()
			w.settle()
		}
		w.prepare("m")
		w.startsFrom(first, "m")
	})
}
