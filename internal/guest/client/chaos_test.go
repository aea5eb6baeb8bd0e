package client_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// Whenever the Worker program restarts, and however late, mixed, partial and repeated its acknowledgements are: every
// operation is seen, in order, and the process gets each answer once and in order (its exit code says so).
func TestChaosOfReconnectsLosesAndDoublesNothing(t *testing.T) {
	h := setup(t)
	const n = 3000
	random := rand.New(rand.NewPCG(2, 3))
	h.start("s", fmt.Sprintf("collect %d", n))
	durable := int64(0) // the highest operation that "the server" has
	var exited *op
	for hello := h.connected(); ; hello = h.reconnect() {
		if len(hello.Processes) == 1 && hello.Processes[0].FirstUnacked == n+2 {
			break
		}
		got := h.ops("s", 1)
		if first := got[0].Seq; first > durable+1 {
			t.Fatalf("the operations begin with %d after %d were durable", first, durable)
		}
		for i, o := range got {
			if o.Seq != got[0].Seq+int64(i) {
				t.Fatalf("operation %d at place %d after %d", o.Seq, i, got[0].Seq)
			}
			if o.Type == "exited" {
				exited = &o
			}
		}
		durable = max(durable, got[len(got)-1].Seq)
		seqs := []int64{got[0].Seq}
		for _, o := range got[1:] {
			if random.IntN(20) > 0 || random.IntN(2) == 0 {
				seqs = append(seqs, o.Seq)
			}
		}
		if random.IntN(2) == 0 { // what was asked in parallel may be answered in any order
			random.Shuffle(len(seqs), func(i, k int) { seqs[i], seqs[k] = seqs[k], seqs[i] })
		}
		h.ack("s", seqs...)
		if random.IntN(2) == 0 { // heard for sure, and said again
			h.ok(h.c.Ping(h.ctx))
			h.ack("s", seqs...)
		}
	}
	if exited == nil || exited.Seq != n+1 || exited.Code == nil || *exited.Code != 0 {
		t.Fatalf("%+v", exited)
	}
}
