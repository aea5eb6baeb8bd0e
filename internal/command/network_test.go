package command_test

import (
	"fmt"
	"strings"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/fault"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

func (w *world) network(computerID string) []api.NetworkAttempt {
	w.t.Helper()
	n, err := w.computers.Network(w.t.Context(), w.env, computerID)
	w.must(err)
	return n.Attempts
}

func (h *host) report(attempts ...*workerpb.NetworkAttempt) error {
	return h.w.computers.ReportNetwork(h.w.t.Context(), &workerpb.ReportNetworkRequest{WorkerId: h.w.worker, ComputerId: h.computer, Epoch: h.epoch, Attempts: attempts})
}

func tried(name string, first, last, count int64, reason string) *workerpb.NetworkAttempt {
	return &workerpb.NetworkAttempt{Kind: "tls", Name: name, Address: "93.184.216.34", Port: 443, Reason: reason, Count: count, FirstMs: first, LastMs: last}
}

func TestNetworkAttempts(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		computerID := w.newComputer("t")
		if got := w.network(computerID); got == nil || len(got) != 0 {
			t.Fatalf("of a new Computer: %v", got)
		}
		w.exec(computerID, "true")
		h := w.place(computerID)
		h.exchange()
		first := []*workerpb.NetworkAttempt{tried("a.example", 1000, 1000, 1, ""), tried("b.example\x00\xff", 1000, 2000, 3, "name_not_allowed")}
		for range 2 { // a report that is repeated changes nothing
			w.must(h.report(first...))
			got := w.network(computerID)
			if len(got) != 2 || got[0].Name != "b.example\x00\uFFFD" || got[0].Outcome != "refused" || got[0].Count != 3 || got[1].Outcome != "allowed" || got[1].Port != 443 {
				t.Fatalf("%+v", got)
			}
		}
		// The same thing goes on, at another address; and a Worker that restarted begins anew.
		again := tried("a.example", 1000, 5000, 9, "")
		again.Address = "93.184.216.35"
		w.must(h.report(again))
		w.must(h.report(tried("a.example", 7000, 8000, 2, "")))
		got := w.network(computerID)
		if len(got) != 3 || got[0].Count != 2 || got[1].Count != 9 || got[1].Address != "93.184.216.35" || got[2].Reason != "name_not_allowed" {
			t.Fatalf("%+v", got)
		}
		// Bounded, whatever a Worker sends.
		var many []*workerpb.NetworkAttempt
		for i := range int64(1000) {
			many = append(many, tried(strings.Repeat("x", 10000)+fmt.Sprint(i), 10000+i, 10000+i, 1, ""))
		}
		w.must(h.report(many...))
		if got = w.network(computerID); len(got) != 100 || len(got[0].Name) != 253 || got[0].FirstAt.UnixMilli() != 10999 {
			t.Fatalf("%d, %+v", len(got), got[0])
		}
		h.epoch++
		w.wantCode(h.report(first...), fault.LeaseLost)
		_, err := w.computers.Network(t.Context(), "another", computerID)
		w.wantCode(err, fault.ComputerNotFound)
	})
}
