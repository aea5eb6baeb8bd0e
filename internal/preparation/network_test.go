package preparation_test

import (
	"testing"
	"time"

	"helmr.dev/helmr/internal/command"
	"helmr.dev/helmr/internal/fault"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// tried reports what the callback tried on its network as the Worker does.
func (h *host) tried(names ...string) {
	h.w.t.Helper()
	req := &workerpb.ReportNetworkRequest{WorkerId: h.worker, ComputerId: h.computer, Epoch: h.epoch}
	for i, name := range names {
		req.Attempts = append(req.Attempts, &workerpb.NetworkAttempt{Kind: "dns", Name: name, Reason: "name_not_allowed", Count: 1, FirstMs: int64(i), LastMs: int64(i)})
	}
	h.w.must(h.w.computers.ReportNetwork(h.w.t.Context(), req))
}

func TestSpec_09_17_WhatAPreparationTriedIsKeptAsLongAsItsLog(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.deploy("p", define{id: "box", callback: "box"})
		w.want("box")
		w.settle()
		w.maker().lost()
		w.settle()
		h := w.maker()
		h.tried("first.example")
		h.exits(1)
		h.tried("first.example", "last.example") // its Computer is being deleted
		h.gone()
		w.settle()
		p := w.is("box", "failed", "needed")
		names := func() (out []string) {
			found, err := w.preparations.Network(t.Context(), w.env, p.ID)
			w.must(err)
			for _, a := range found.Attempts {
				out = append(out, a.Name+" "+a.Outcome+" "+a.Reason)
			}
			return out
		}
		if got := names(); len(got) != 2 || got[0] != "last.example refused name_not_allowed" || got[1] != "first.example refused name_not_allowed" {
			t.Fatalf("%q", got)
		}
		_, err := w.preparations.Network(t.Context(), "another", p.ID)
		w.wantCode(err, fault.NotFound)
		_, err = w.computers.Network(t.Context(), w.env, h.computer)
		w.wantCode(err, fault.ComputerNotFound)

		w.run("preparation.expire")
		if got := names(); len(got) != 2 {
			t.Fatalf("%q", got)
		}
		w.clock.advance(command.Retention + time.Hour)
		w.run("command.retention")
		w.run("preparation.expire")
		_, err = w.preparations.Network(t.Context(), w.env, p.ID)
		w.wantCode(err, fault.CommandResultExpired)
		if n := w.count(`SELECT COUNT(*) FROM computer_network`); n != 0 {
			t.Fatalf("%d lists are left", n)
		}
	})
}
