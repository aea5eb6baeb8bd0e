package command_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/command"
	"helmr.dev/helmr/internal/fault"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

const (
	exited   = workerpb.CommandExit_END_EXITED
	timedOut = workerpb.CommandExit_END_TIMED_OUT
)

func TestSpec_08_01_KeyMeetsTheSameAdmission(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		if one, other := w.exec(c, "true"), w.exec(c, "true"); one == other {
			t.Fatal("two calls without a key are one Command")
		}
		req := api.CommandCreateRequest{Command: []string{"true"}, IdempotencyKey: "k"}
		first, err := w.commands.Create(t.Context(), w.env, w.by, c, req)
		w.must(err)
		second, err := w.commands.Create(t.Context(), w.env, w.by, c, req)
		w.must(err)
		if first != second {
			t.Fatalf("%v and %v", first, second)
		}
		req.Command = []string{"false"}
		_, err = w.commands.Create(t.Context(), w.env, w.by, c, req)
		w.wantCode(err, fault.IdempotencyConflict)
	})
}

func TestSpec_08_02_Timeouts(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		limits := map[string]int64{"": 300_000, "1ms": 1, "20m": 1_200_000, "24h": 86_400_000, "1d": 86_400_000, "86400s": 86_400_000}
		for text := range limits {
			_, err := w.commands.Create(t.Context(), w.env, w.by, c, api.CommandCreateRequest{Command: []string{"x" + text}, Timeout: text})
			w.must(err)
		}
		h := w.place(c)
		h.exchange()
		for _, p := range h.guest {
			if text := strings.TrimPrefix(p.run.GetArgv()[0], "x"); p.run.GetTimeoutMs() != limits[text] {
				t.Errorf("timeout %q is %d ms, want %d", text, p.run.GetTimeoutMs(), limits[text])
			}
		}
		for _, text := range []string{"0ms", "0s", "25h", "2d", "86401s", "5", "-1s", "1.5s", "1w", "m", "86400001ms"} {
			_, err := w.commands.Create(t.Context(), w.env, w.by, c, api.CommandCreateRequest{Command: []string{"x"}, Timeout: text})
			w.wantCode(err, fault.InvalidComputerCommand)
		}
	})
}

func TestSpec_08_03_Cwd(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		create := func(cwd string) error {
			_, err := w.commands.Create(t.Context(), w.env, w.by, c, api.CommandCreateRequest{Command: []string{"x"}, Cwd: cwd})
			return err
		}
		for _, cwd := range []string{"", "/", "/work", "/" + strings.Repeat("x", 4095)} {
			w.must(create(cwd))
		}
		for _, cwd := range []string{"work", "./x", "/app/", "/a/../b", "/a//b", "/a/.", "/a\x00b", "/\xff", "/" + strings.Repeat("x", 4096)} {
			w.wantCode(create(cwd), fault.InvalidComputerCommand)
		}
	})
}

func TestSpec_08_05_LimitsOfARequest(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		many := func(n int) map[string]string {
			m := map[string]string{}
			for i := range n {
				m["V"+strings.Repeat("x", i)] = "1"
			}
			return m
		}
		args := func(n int) []string { return strings.Split(strings.Repeat("x ", n-1)+"x", " ") }
		stdin := func(n int) string { return base64.StdEncoding.EncodeToString(make([]byte, n)) }
		for name, test := range map[string]struct {
			req  api.CommandCreateRequest
			code fault.Code
		}{
			"128 entries":       {api.CommandCreateRequest{Command: args(128)}, ""},
			"129 entries":       {api.CommandCreateRequest{Command: args(129)}, fault.InvalidComputerCommand},
			"none":              {api.CommandCreateRequest{}, fault.InvalidComputerCommand},
			"no program":        {api.CommandCreateRequest{Command: []string{"", "x"}}, fault.InvalidComputerCommand},
			"64 KiB":            {api.CommandCreateRequest{Command: []string{"x", strings.Repeat("y", 64<<10-1)}}, ""},
			"64 KiB and one":    {api.CommandCreateRequest{Command: []string{"x", strings.Repeat("y", 64<<10)}}, fault.CommandTooLarge},
			"NUL":               {api.CommandCreateRequest{Command: []string{"x", "a\x00b"}}, fault.InvalidComputerCommand},
			"no UTF-8":          {api.CommandCreateRequest{Command: []string{"x", "\xff"}}, fault.InvalidComputerCommand},
			"128 variables":     {api.CommandCreateRequest{Command: args(1), Env: many(128)}, ""},
			"129 variables":     {api.CommandCreateRequest{Command: args(1), Env: many(129)}, fault.InvalidComputerCommand},
			"256 KiB env":       {api.CommandCreateRequest{Command: args(1), Env: map[string]string{"A": strings.Repeat("y", 256<<10-1)}}, ""},
			"256 KiB env, +1":   {api.CommandCreateRequest{Command: args(1), Env: map[string]string{"A": strings.Repeat("y", 256<<10)}}, fault.CommandTooLarge},
			"1 MiB stdin":       {api.CommandCreateRequest{Command: args(1), StdinBase64: stdin(1 << 20)}, ""},
			"1 MiB stdin, +1":   {api.CommandCreateRequest{Command: args(1), StdinBase64: stdin(1<<20 + 1)}, fault.StdinTooLarge},
			"2 MiB stdin":       {api.CommandCreateRequest{Command: args(1), StdinBase64: stdin(2 << 20)}, fault.StdinTooLarge},
			"stdin not base64":  {api.CommandCreateRequest{Command: args(1), StdinBase64: "??"}, fault.InvalidComputerCommand},
			"value with NUL":    {api.CommandCreateRequest{Command: args(1), Env: map[string]string{"A": "\x00"}}, fault.InvalidComputerCommand},
			"08.4 bad name":     {api.CommandCreateRequest{Command: args(1), Env: map[string]string{"1A": "x"}}, fault.InvalidComputerCommand},
			"08.4 name with =":  {api.CommandCreateRequest{Command: args(1), Env: map[string]string{"A=B": "x"}}, fault.InvalidComputerCommand},
			"08.4 empty name":   {api.CommandCreateRequest{Command: args(1), Env: map[string]string{"": "x"}}, fault.InvalidComputerCommand},
			"08.4 reserved":     {api.CommandCreateRequest{Command: args(1), Env: map[string]string{"HELMR_X": "x"}}, fault.InvalidComputerCommand},
			"08.4 not reserved": {api.CommandCreateRequest{Command: args(1), Env: map[string]string{"helmr_x": "x", "_A1": ""}}, ""},
		} {
			_, err := w.commands.Create(t.Context(), w.env, w.by, c, test.req)
			if test.code == "" && err != nil {
				t.Errorf("%s: %v", name, err)
			} else if test.code != "" && !fault.Is(err, test.code) {
				t.Errorf("%s: %v, want %s", name, err, test.code)
			}
		}
	})
}

func TestSpec_08_06_CommandStartsAColdComputer(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		if got := w.computer(c).Residency; got != "cold" {
			t.Fatalf("a new Computer is %s", got)
		}
		k := w.exec(c, "true")
		w.wantStatus(k, "pending")
		h := w.place(c)
		h.begin(k)
		if got := w.computer(c).Residency; got != "running" {
			t.Fatalf("the Computer is %s", got)
		}
		_, err := w.commands.Create(t.Context(), w.env, w.by, "01a00000-0000-7000-8000-000000000000", api.CommandCreateRequest{Command: []string{"x"}})
		w.wantCode(err, fault.ComputerNotFound)
	})
}

// Each arrow of the table of statuses; command() checks that the outcome is there exactly when the status is terminal.
func TestSpec_08_12_EachArrowOfACommand(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		h := w.up(c)
		run := func() (string, *prog) {
			k := w.exec(c, "x")
			return k, h.begin(k)
		}
		// main process exits, with whatever code
		for _, code := range []int32{0, 1, 143} {
			k, p := run()
			p.ends(exited, code)
			h.exchange()
			if got := w.wantStatus(k, "exited"); *got.Outcome.ExitCode != code || got.Outcome.Kind != "exited" || !got.ProcessReconciled {
				t.Errorf("%+v", got)
			}
			if h.guest[k] != nil {
				t.Error("the guest was not told to forget it")
			}
		}
		// argv cannot be executed: starting -> exited
		k := w.exec(c, "nope")
		h.exchange()
		w.wantStatus(k, "starting")
		h.guest[k].ends(exited, 127)
		h.exchange()
		if got := w.wantStatus(k, "exited"); *got.Outcome.ExitCode != 127 {
			t.Errorf("%+v", got.Outcome)
		}
		// pending -> cancelled
		h.connected = false
		k = w.exec(c, "x")
		w.cancel(k)
		if got := w.wantStatus(k, "cancelled"); !got.ProcessReconciled || got.Outcome.Kind != "cancelled" {
			t.Errorf("%+v", got)
		}
		h.connected = true
		h.exchange()
		if h.guest[k] != nil {
			t.Error("a cancelled Command was begun")
		}
		// running -> stopping -> cancelled; what the guest says of the end does not count
		k, p := run()
		w.cancel(k)
		w.wantStatus(k, "stopping")
		h.exchange()
		if !p.cancelled {
			t.Fatal("the guest was not told to stop it")
		}
		p.ends(exited, 0)
		h.exchange()
		w.wantStatus(k, "cancelled")
		// running -> stopping -> timed_out, by the guest's clock
		k, p = run()
		p.ends(timedOut, 0)
		h.exchange()
		if got := w.wantStatus(k, "timed_out"); got.Outcome.Kind != "timed_out" {
			t.Errorf("%+v", got.Outcome)
		}
		// the guest reports a fault
		k = w.exec(c, "x")
		h.exchange()
		h.guest[k].ends(workerpb.CommandExit_END_FAULT, 0)
		h.guest[k].exit.Detail = "no more pipes"
		h.exchange()
		if got := w.wantStatus(k, "failed"); got.Outcome.Kind != "system_failed" || got.Outcome.Failure.Reason != "guest_failure" || got.Outcome.Failure.Message != "no more pipes" {
			t.Errorf("%+v", got.Outcome)
		}
		// the guest knows a running one no more
		k, _ = run()
		delete(h.guest, k)
		h.exchange()
		w.wantStatus(k, "failed")
		// a starting one that did not reach the guest is given to it again
		k = w.exec(c, "x")
		h.exchange()
		delete(h.guest, k)
		h.exchange()
		if h.guest[k] == nil {
			t.Fatal("it was not given to the guest again")
		}
		// stopping before it reached the guest
		delete(h.guest, k)
		w.cancel(k)
		h.exchange()
		w.wantStatus(k, "cancelled")
	})
}

// up brings a Computer up with a Command that has ended.
func (w *world) up(computerID string) *host {
	w.t.Helper()
	k := w.exec(computerID, "true")
	h := w.place(computerID)
	h.begin(k).ends(exited, 0)
	h.exchange()
	w.wantStatus(k, "exited")
	return h
}

func TestScopeThatCannotBeTerminated(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		h := w.up(c)
		k := w.exec(c, "x")
		p := h.begin(k)
		w.cancel(k)
		h.exchange()
		w.clock.advance(29 * time.Second)
		h.exchange()
		w.wantStatus(k, "stopping")
		w.clock.advance(2 * time.Second)
		h.exchange()
		got := w.wantStatus(k, "failed")
		if got.Outcome.Failure.Reason != "scope_termination_failed" || got.ProcessReconciled {
			t.Fatalf("%+v %v", got.Outcome, got.ProcessReconciled)
		}
		p.ends(exited, 137)
		h.exchange()
		if got := w.wantStatus(k, "failed"); !got.ProcessReconciled {
			t.Fatal("08.14: cleanup is proven and not said")
		}
	})
}

func TestSpec_08_09_CommandsKeepAComputerFromBeingEmptied(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		h := w.up(c)
		k := w.exec(c, "x")
		p := h.begin(k)
		w.clock.advance(2 * time.Minute)
		h.exchange()
		w.run("computer.unused")
		h.exchange()
		if h.save != nil || h.stop {
			t.Fatal("a Computer with a running Command is emptied")
		}
		// It has ended, but its output is not fetched.
		p.ends(exited, 0)
		p.drained = false
		h.exchange()
		w.wantStatus(k, "exited")
		w.clock.advance(2 * time.Minute)
		w.run("computer.unused")
		h.exchange()
		if h.save != nil || h.stop {
			t.Fatal("a Computer with output that is not fetched is emptied")
		}
		p.drained = true
		h.exchange()
		w.clock.advance(61 * time.Second)
		w.run("computer.unused")
		h.exchange()
		h.publish()
		if h.exchange(); !h.stop {
			t.Fatal("an unused Computer is not stopped")
		}
		h.phase = workerpb.Phase_PHASE_STOPPED
		h.exchange()
		if got := w.computer(c).Residency; got != "cold" {
			t.Fatalf("the Computer is %s", got)
		}
	})
}

func TestSpec_08_13_LostAndPlacementFailed(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		h := w.up(c)
		running, starting, stopping, done := w.exec(c, "x"), w.exec(c, "x"), w.exec(c, "x"), w.exec(c, "x")
		h.exchange()
		h.guest[running].started, h.guest[stopping].started, h.guest[done].started = true, true, true
		h.guest[done].ends(exited, 3)
		h.guest[done].drained = false
		h.exchange()
		w.cancel(stopping)
		h.connected = false
		pending := w.exec(c, "x")
		h.phase, h.message = workerpb.Phase_PHASE_LOST, "the sandbox was killed: out of memory"
		h.exchange()
		for _, k := range []string{running, starting, stopping} {
			got := w.wantStatus(k, "lost")
			if got.Outcome.Kind != "system_failed" || got.Outcome.Failure.Reason != "guest_failure" || !strings.Contains(got.Outcome.Failure.Message, "out of memory") || !got.ProcessReconciled {
				t.Errorf("%+v %+v", got, got.Outcome.Failure)
			}
			if got := w.logs(k).OutputState; got != "unavailable" {
				t.Errorf("output is %s", got)
			}
		}
		if got := w.wantStatus(pending, "failed"); got.Outcome.Failure.Reason != "placement_failed" || w.logs(pending).OutputState != "closed" {
			t.Errorf("%+v", got.Outcome)
		}
		if got := w.wantStatus(done, "exited"); *got.Outcome.ExitCode != 3 || w.logs(done).OutputState != "unavailable" {
			t.Errorf("%+v", got.Outcome)
		}
		// Nothing of it is given to the next sandbox.
		k := w.exec(c, "again")
		h = w.place(c)
		h.begin(k)
		if len(h.guest) != 1 {
			t.Fatalf("the guest was given %d Commands", len(h.guest))
		}
	})
}

func TestSpec_07_10_UnavailableComputer(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		k := w.exec(c, "x")
		for range 5 {
			w.wantStatus(k, "pending")
			w.clock.advance(time.Minute)
			h := w.place(c)
			h.phase, h.message = workerpb.Phase_PHASE_START_FAILED, "no disk"
			h.exchange()
		}
		if got := w.computer(c); got.Residency != "unavailable" || got.Error == nil || got.Error.Code != "computer_start_failed" {
			t.Fatalf("%+v", got)
		}
		if got := w.wantStatus(k, "failed"); got.Outcome.Failure.Reason != "placement_failed" || !strings.Contains(got.Outcome.Failure.Message, "no disk") {
			t.Fatalf("%+v", got.Outcome)
		}
		_, err := w.commands.Create(t.Context(), w.env, w.by, c, api.CommandCreateRequest{Command: []string{"x"}})
		w.wantCode(err, fault.ComputerStartFailed)
		// A Turn waits instead, and the retry that comes brings the Computer back.
		_, err = w.turns.CreateSession(t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "echo", Input: text("x"), ComputerID: c}, nil)
		w.must(err)
		w.clock.advance(6 * time.Minute)
		h := w.place(c)
		h.exchange()
		h.begin(w.exec(c, "x"))
	})
}

func TestSpec_08_14_CleanupProvenAfterTheLossOfAWorker(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		h := w.up(c)
		k := w.exec(c, "x")
		h.begin(k)
		w.clock.advance(3 * time.Minute)
		w.run("computer.workers")
		w.run("turn.lost")
		if got := w.wantStatus(k, "lost"); got.ProcessReconciled {
			t.Fatal("cleanup on a lost Worker is not proven")
		}
		w.run("command.reconciled")
		use, err := w.commands.CommandUsage(t.Context(), w.env, c, "", 50)
		w.must(err)
		if len(use.Commands) != 1 || use.Commands[0].UsageState != "unreconciled" {
			t.Fatalf("%+v", use.Commands)
		}
		w.clock.advance(time.Second)
		w.register() // it is back, under its name, and has discarded what it had
		w.run("command.reconciled")
		if !w.command(k).ProcessReconciled {
			t.Fatal("cleanup is proven and not said")
		}
	})
}

func TestSpec_08_15_CancelIsIdempotentAndLeavesOutcomes(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		h := w.up(c)
		k := w.exec(c, "x")
		p := h.begin(k)
		first := w.cancel(k)
		if first.TargetID != k || first.Status != "accepted" || w.cancel(k) != first {
			t.Fatalf("%+v", first)
		}
		p.ends(workerpb.CommandExit_END_CANCELLED, 0)
		h.exchange()
		if w.wantStatus(k, "cancelled"); w.cancel(k) != first {
			t.Fatal("another receipt after the end")
		}
		k = w.exec(c, "x")
		h.begin(k).ends(exited, 4)
		h.exchange()
		before := w.command(k)
		w.cancel(k)
		if got := w.command(k); *got.Outcome.ExitCode != 4 || got.Outcome.TerminalAt != before.Outcome.TerminalAt {
			t.Fatalf("%+v", got.Outcome)
		}
		_, err := w.commands.Cancel(t.Context(), w.env, w.by, "01a00000-0000-7000-8000-000000000000", api.ControlRequest{})
		w.wantCode(err, fault.CommandNotFound)
	})
}

func TestServerEndsACommandWhoseGuestDoesNot(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		h := w.up(c)
		r, err := w.commands.Create(t.Context(), w.env, w.by, c, api.CommandCreateRequest{Command: []string{"x"}, Timeout: "10s"})
		w.must(err)
		p := h.begin(r.CommandID)
		w.clock.advance(10 * time.Second)
		w.run("command.timeouts")
		w.wantStatus(r.CommandID, "running") // the guest comes first
		w.clock.advance(2 * time.Second)
		w.run("command.timeouts")
		w.wantStatus(r.CommandID, "stopping")
		if w.cancel(r.CommandID); !p.cancelled {
			h.exchange()
		}
		p.ends(workerpb.CommandExit_END_CANCELLED, 0)
		h.exchange()
		w.wantStatus(r.CommandID, "timed_out") // the first cause
	})
}

func TestSpec_21_12_OrderlyStopCancelsCommands(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		h := w.up(c)
		k := w.exec(c, "x")
		p := h.begin(k)
		_, err := w.computers.Heartbeat(t.Context(), w.worker, true)
		w.must(err)
		waiting := w.exec(c, "y")
		h.exchange()
		w.wantStatus(k, "stopping")
		if h.save != nil || h.stop || !p.cancelled || h.guest[waiting] != nil {
			t.Fatalf("save %v, stop %v, cancelled %v", h.save, h.stop, p.cancelled)
		}
		p.ends(workerpb.CommandExit_END_CANCELLED, 0)
		h.exchange()
		w.wantStatus(k, "cancelled")
		h.publish()
		if h.exchange(); !h.stop {
			t.Fatal("the Computer is not stopped")
		}
		h.phase = workerpb.Phase_PHASE_STOPPED
		h.exchange()
		w.wantStatus(waiting, "pending") // it was not begun: it waits for the next start, as a queued Turn does
		late := w.exec(c, "z")
		w.worker = w.register()
		h = w.place(c)
		for _, k := range []string{waiting, late} {
			h.begin(k).ends(exited, 0)
			h.exchange()
			w.wantStatus(k, "exited")
		}
		if fmt.Sprint(h.order) != fmt.Sprint([]string{waiting, late}) {
			t.Errorf("they were begun as %v", h.order)
		}
	})
}

func TestManyCommandsAreGivenToTheGuestInOrderAndWithinItsBounds(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		h := w.up(c)
		h.order = nil
		var all []string
		for range 600 {
			all = append(all, w.exec(c, "x"))
		}
		h.exchange()
		h.exchange()
		if len(h.guest) != 512 {
			t.Fatalf("the guest has %d Commands", len(h.guest))
		}
		for i := range 100 {
			h.guest[all[i]].ends(exited, 0)
		}
		h.exchange()
		h.exchange()
		if len(h.guest) != 500 || strings.Join(h.order, " ") != strings.Join(all, " ") {
			t.Fatalf("the guest has %d Commands, %d were given to it", len(h.guest), len(h.order))
		}
	})
}

func TestSpec_08_21_Retention(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		h := w.up(c)
		req := api.CommandCreateRequest{Command: []string{"x"}, IdempotencyKey: "k"}
		r, err := w.commands.Create(t.Context(), w.env, w.by, c, req)
		w.must(err)
		p := h.begin(r.CommandID)
		h.write(r.CommandID, 1, 1, "hello")
		w.clock.advance(command.Retention - time.Minute)
		p.ends(exited, 0)
		h.exchange()
		w.run("command.retention")
		if got := w.logs(r.CommandID); len(got.Logs) != 1 {
			t.Fatalf("%+v", got)
		}
		w.clock.advance(2 * time.Minute)
		w.run("command.retention")
		_, err = w.commands.Get(t.Context(), w.env, r.CommandID)
		w.wantCode(err, fault.CommandResultExpired)
		_, _, err = w.commands.Logs(context.Background(), w.env, r.CommandID, "", 10)
		w.wantCode(err, fault.CommandResultExpired)
		_, err = w.commands.Create(t.Context(), w.env, w.by, c, req)
		w.wantCode(err, fault.IdempotencyExpired)
	})
}
