package command_test

import (
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/fault"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

func (w *world) delete(computerID string) error {
	w.t.Helper()
	r, err := w.commands.DeleteComputer(w.t.Context(), w.env, w.by, computerID, "")
	if err == nil && r.ComputerID != computerID {
		w.t.Fatalf("receipt %+v", r)
	}
	return err
}

func TestSpec_07_01_CreateFromTheCurrentDeployment(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.computer(w.newComputer("t"))
		if c.Template != "t" || c.Status != "available" || c.Residency != "cold" || c.ExecutionWait != nil {
			t.Fatalf("%+v", c)
		}
		_, err := w.computers.Create(t.Context(), w.env, w.by, api.ComputerCreateRequest{Template: "none"})
		w.wantCode(err, fault.NotFound)
		_, err = w.computers.Create(t.Context(), w.env, w.by, api.ComputerCreateRequest{Template: "not an id"})
		w.wantCode(err, fault.BadRequest)
	})
}

func TestSpec_07_02_Keys(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		create := func(key, idempotency string) (api.ComputerReceipt, error) {
			return w.computers.Create(t.Context(), w.env, w.by, api.ComputerCreateRequest{Template: "t", Key: key, IdempotencyKey: idempotency})
		}
		first, err := create("repo:42", "i")
		w.must(err)
		again, err := create("repo:42", "i")
		w.must(err)
		if first != again {
			t.Fatalf("%v %v", first, again)
		}
		_, err = create("repo:42", "")
		w.wantCode(err, fault.ComputerKeyConflict)
		_, err = create(strings.Repeat("k", 513), "")
		w.wantCode(err, fault.BadRequest)
		found, err := w.computers.List(t.Context(), w.env, computer.Filter{Key: "repo:42"})
		w.must(err)
		if len(found.Computers) != 1 || found.Computers[0].ID != first.ComputerID || found.Computers[0].Key != "repo:42" {
			t.Fatalf("%+v", found)
		}
		w.must(w.delete(first.ComputerID))
		second, err := create("repo:42", "") // a deleted Computer frees its key
		w.must(err)
		if second == first {
			t.Fatal("the same Computer")
		}
		// The key of the idempotency record answers as before, also after the deletion.
		again, err = create("repo:42", "i")
		w.must(err)
		if again != first {
			t.Fatalf("%v", again)
		}
	})
}

func TestSpec_07_06_StorageIsReservedUntilDeleted(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		var all []string
		for range 10 { // of 32 GiB each
			all = append(all, w.newComputer("t"))
		}
		_, err := w.computers.Create(t.Context(), w.env, w.by, api.ComputerCreateRequest{Template: "t"})
		w.wantCode(err, fault.AdmissionUnavailable)
		if f := fault.From(err); f.Details["reason"] != "storage_limit" {
			t.Fatalf("%+v", f.Details)
		}
		w.must(w.delete(all[3]))
		w.newComputer("t")
		_, err = w.computers.Create(t.Context(), w.env, w.by, api.ComputerCreateRequest{Template: "t"})
		w.wantCode(err, fault.AdmissionUnavailable)
	})
}

func TestSpec_07_17_Usage(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		sessions := func() string {
			page, err := w.commands.SessionUsage(t.Context(), w.env, c, "", 50)
			w.must(err)
			var all []string
			for _, u := range page.Sessions {
				all = append(all, u.UsageState)
			}
			return strings.Join(all, " ")
		}
		commands := func() string {
			page, err := w.commands.CommandUsage(t.Context(), w.env, c, "", 50)
			w.must(err)
			var all []string
			for _, u := range page.Commands {
				all = append(all, u.UsageState)
			}
			return strings.Join(all, " ")
		}
		if sessions() != "" || commands() != "" {
			t.Fatal("an unused Computer is in use")
		}
		k := w.exec(c, "x")
		s, err := w.turns.CreateSession(t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "echo", Input: text("x"), ComputerID: c}, nil)
		w.must(err)
		if sessions() != "admitted" || commands() != "admitted" {
			t.Fatalf("%s, %s", sessions(), commands())
		}
		h := w.place(c)
		p := h.begin(k)
		if sessions() != "running" || commands() != "running" { // its process starts
			t.Fatalf("%s, %s", sessions(), commands())
		}
		w.cancel(k)
		if commands() != "draining" {
			t.Fatal(commands())
		}
		p.ends(workerpb.CommandExit_END_CANCELLED, 0)
		p.drained = false
		h.exchange()
		if commands() != "draining" {
			t.Fatal(commands())
		}
		p.drained = true
		h.exchange()
		if commands() != "" {
			t.Fatal(commands())
		}
		_, err = w.turns.Cancel(t.Context(), w.env, w.by, s.SessionID, api.ControlRequest{})
		w.must(err)
		if got := sessions(); got != "draining" && got != "" {
			t.Fatal(got)
		}
		_, err = w.commands.SessionUsage(t.Context(), w.env, "01a00000-0000-7000-8000-000000000000", "", 50)
		w.wantCode(err, fault.ComputerNotFound)
	})
}

func TestUsagePages(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		var all []string
		for range 5 {
			all = append(all, w.exec(c, "x"))
		}
		var got []string
		for cursor := ""; ; {
			page, err := w.commands.CommandUsage(t.Context(), w.env, c, cursor, 2)
			w.must(err)
			for _, u := range page.Commands {
				got = append(got, u.ID)
			}
			if cursor = page.NextCursor; cursor == "" {
				break
			}
		}
		if strings.Join(got, " ") != strings.Join(all, " ") {
			t.Fatalf("%v, want %v", got, all)
		}
	})
}

func TestSpec_07_18_DeleteIsRefusedWhileInUse(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		k := w.exec(c, "x")
		w.wantCode(w.delete(c), fault.ComputerBusy)
		w.cancel(k)
		s, err := w.turns.CreateSession(t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "echo", Input: text("x"), ComputerID: c}, nil)
		w.must(err)
		w.wantCode(w.delete(c), fault.ComputerBusy)
		_, err = w.turns.Cancel(t.Context(), w.env, w.by, s.SessionID, api.ControlRequest{})
		w.must(err)
		w.must(w.delete(c))
		if got := w.computer(c).Status; got != "deleted" { // no Worker has it
			t.Fatal(got)
		}
		_, err = w.commands.Create(t.Context(), w.env, w.by, c, api.CommandCreateRequest{Command: []string{"x"}})
		w.wantCode(err, fault.ComputerNotFound)
		w.wantStatus(k, "cancelled") // 07.19: history stays
		if _, err := w.turns.Get(t.Context(), w.env, s.SessionID, s.TurnID); err != nil {
			t.Fatal(err)
		}
	})
}

func TestDeleteOfAResidentComputer(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		h := w.up(c)
		w.must(w.delete(c))
		if got := w.computer(c).Status; got != "deleting" {
			t.Fatal(got)
		}
		w.must(w.delete(c)) // again
		_, err := w.commands.Create(t.Context(), w.env, w.by, c, api.CommandCreateRequest{Command: []string{"x"}})
		w.wantCode(err, fault.ComputerDeleting)
		_, err = w.turns.CreateSession(t.Context(), w.env, w.by, api.SessionCreateRequest{Agent: "echo", Input: text("x"), ComputerID: c}, nil)
		w.wantCode(err, fault.ComputerDeleting)
		if h.exchange(); !h.stop || h.save != nil {
			t.Fatal("the Worker is not told to remove it at once")
		}
		h.phase = workerpb.Phase_PHASE_STOPPED
		h.exchange()
		if got := w.computer(c); got.Status != "deleted" || got.Residency != "cold" || !h.fenced {
			t.Fatalf("%+v", got)
		}
		w.wantCode(w.delete(c), fault.ComputerNotFound)
	})
}

func TestDeleteWhileStarting(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		w.cancel(w.exec(c, "x"))
		h := w.place(c)
		w.must(w.delete(c))
		h.phase = workerpb.Phase_PHASE_STARTING
		h.exchange()
		h.phase = workerpb.Phase_PHASE_RUNNING
		if h.exchange(); !h.stop {
			t.Fatal("a Computer that was started in vain is not stopped")
		}
		h.phase = workerpb.Phase_PHASE_LOST
		h.exchange()
		if got := w.computer(c).Status; got != "deleted" {
			t.Fatal(got)
		}
	})
}

func TestSpec_07_19_DeleteAfterUnused(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		kept, brief, used := w.newComputer("t"), w.newComputer("brief"), w.newComputer("brief")
		w.clock.advance(59 * time.Minute)
		w.cancel(w.exec(used, "x")) // its clock begins again
		w.run("command.unused-computers")
		if got := w.computer(brief).Status; got != "available" {
			t.Fatal(got)
		}
		w.clock.advance(2 * time.Minute)
		w.run("command.unused-computers")
		if w.computer(brief).Status != "deleted" || w.computer(used).Status != "available" || w.computer(kept).Status != "available" {
			t.Fatalf("%s %s %s", w.computer(brief).Status, w.computer(used).Status, w.computer(kept).Status)
		}
		k := w.exec(used, "x")
		w.clock.advance(2 * time.Hour)
		w.run("command.unused-computers")
		if got := w.computer(used).Status; got != "available" {
			t.Fatal("a Computer with an unfinished Command is deleted")
		}
		w.cancel(k)
		w.clock.advance(61 * time.Minute)
		w.run("command.unused-computers")
		if got := w.computer(used).Status; got != "deleted" {
			t.Fatal(got)
		}
	})
}

func TestSpec_01_07_OtherEnvironmentsAreInvisible(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		k := w.exec(c, "x")
		other := "01a00000-0000-7000-8000-000000000001"
		_, err := w.commands.Get(t.Context(), other, k)
		w.wantCode(err, fault.CommandNotFound)
		_, _, err = w.commands.Logs(t.Context(), other, k, "", 10)
		w.wantCode(err, fault.CommandNotFound)
		_, err = w.commands.Cancel(t.Context(), other, w.by, k, api.ControlRequest{})
		w.wantCode(err, fault.CommandNotFound)
		_, err = w.commands.Create(t.Context(), other, w.by, c, api.CommandCreateRequest{Command: []string{"x"}})
		w.wantCode(err, fault.ComputerNotFound)
		_, err = w.commands.DeleteComputer(t.Context(), other, w.by, c, "")
		w.wantCode(err, fault.ComputerNotFound)
		_, err = w.commands.CommandUsage(t.Context(), other, c, "", 10)
		w.wantCode(err, fault.ComputerNotFound)
	})
}

func TestSpec_16_07_AReceiptOutlivesItsTarget(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		req := api.CommandCreateRequest{Command: []string{"x"}, IdempotencyKey: "k"}
		first, err := w.commands.Create(t.Context(), w.env, w.by, c, req)
		w.must(err)
		cancelled, err := w.commands.Cancel(t.Context(), w.env, w.by, first.CommandID, api.ControlRequest{IdempotencyKey: "k"})
		w.must(err)
		deleted, err := w.commands.DeleteComputer(t.Context(), w.env, w.by, c, "k")
		w.must(err)
		if got := w.computer(c).Status; got != "deleted" {
			t.Fatalf("the Computer is %s", got)
		}
		again, err := w.commands.Create(t.Context(), w.env, w.by, c, req)
		if w.must(err); again != first {
			t.Errorf("create: %+v, before %+v", again, first)
		}
		if again, err := w.commands.Cancel(t.Context(), w.env, w.by, first.CommandID, api.ControlRequest{IdempotencyKey: "k"}); err != nil || again != cancelled {
			t.Errorf("cancel: %+v, %v, before %+v", again, err, cancelled)
		}
		if again, err := w.commands.DeleteComputer(t.Context(), w.env, w.by, c, "k"); err != nil || again != deleted {
			t.Errorf("delete: %+v, %v, before %+v", again, err, deleted)
		}
		_, err = w.commands.DeleteComputer(t.Context(), w.env, w.by, c, "another")
		w.wantCode(err, fault.ComputerNotFound)
		req.Command = []string{"y"}
		_, err = w.commands.Create(t.Context(), w.env, w.by, c, req)
		w.wantCode(err, fault.IdempotencyConflict)
	})
}
