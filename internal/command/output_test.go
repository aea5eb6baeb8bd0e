package command_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"helmr.dev/helmr/internal/command"
	"helmr.dev/helmr/internal/fault"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// text gives what one stream of a Command wrote, as its records have it.
func (w *world) written(commandID, stream string) string {
	w.t.Helper()
	var b strings.Builder
	for _, r := range w.logs(commandID).Logs {
		if r.Stream == stream {
			if r.Kind == "gap" {
				fmt.Fprintf(&b, "[%s-%s]", r.FromSequence, r.ThroughSequence)
			}
			b.Write(r.Content)
		}
	}
	return b.String()
}

func TestSpec_08_18_OutputIsStoredOnceInOrder(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		h := w.up(c)
		k := w.exec(c, "x")
		p := h.begin(k)
		h.write(k, 1, 1, "a", "b\xff\x00", "\xe2\x82")
		h.write(k, 2, 1, "E")
		// The same again, cut in another way, with more.
		if got := h.write(k, 1, 2, "b\xff\x00", "\xe2\x82", "\xac"); got.GetStdoutThrough() != 4 || got.GetStderrThrough() != 1 {
			t.Fatalf("%v", got)
		}
		h.write(k, 1, 1, "a")
		p.ends(exited, 0) // the outcome may be known before the last output
		p.drained = false
		h.exchange()
		if w.wantStatus(k, "exited"); w.logs(k).OutputState != "open" {
			t.Fatal("output is closed before all of it came")
		}
		h.write(k, 1, 5, "last")
		p.drained = true
		h.exchange()
		if out, err := w.written(k, "stdout"), w.written(k, "stderr"); out != "ab\xff\x00\xe2\x82\xaclast" || err != "E" || w.logs(k).OutputState != "closed" {
			t.Fatalf("%q %q %s", out, err, w.logs(k).OutputState)
		}
		// What comes after that has no effect, but the guest lets go of it.
		if got := h.write(k, 1, 6, "more", "more"); got.GetStdoutThrough() != 7 {
			t.Fatalf("%v", got)
		}
		if out := w.written(k, "stdout"); strings.Contains(out, "more") {
			t.Fatalf("%q", out)
		}
	})
}

func TestLostChunksBecomeAGap(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		h := w.up(c)
		k := w.exec(c, "x")
		h.begin(k)
		h.write(k, 1, 1, "a")
		h.write(k, 1, 5, "e")
		if got := w.written(k, "stdout"); got != "a[2-4]e" {
			t.Fatalf("%q", got)
		}
	})
}

func TestOutputNeedsTheLease(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		h := w.up(c)
		k := w.exec(c, "x")
		h.begin(k)
		_, err := w.commands.StoreOutput(t.Context(), &workerpb.StoreOutputRequest{WorkerId: w.worker, ComputerId: c, Epoch: h.epoch + 1,
			Output: []*workerpb.Output{{CommandId: k, Stream: 1, First: 1, Lengths: []int32{1}, Data: []byte("x")}}})
		w.wantCode(err, fault.LeaseLost)
		for _, o := range []*workerpb.Output{
			{CommandId: k, Stream: 3, First: 1, Lengths: []int32{1}, Data: []byte("x")},
			{CommandId: k, Stream: 1, First: 0, Lengths: []int32{1}, Data: []byte("x")},
			{CommandId: k, Stream: 1, First: 1, Lengths: []int32{2}, Data: []byte("x")},
			{CommandId: k, Stream: 1, First: 1, Lengths: []int32{-1, 2}, Data: []byte("x")},
			{CommandId: k, Stream: 1, First: 1},
			{CommandId: k, Stream: 1, First: 1, Lengths: []int32{command.MaxRecord + 1}, Data: make([]byte, command.MaxRecord+1)},
		} {
			_, err := w.commands.StoreOutput(t.Context(), &workerpb.StoreOutputRequest{WorkerId: w.worker, ComputerId: c, Epoch: h.epoch, Output: []*workerpb.Output{o}})
			w.wantCode(err, fault.BadRequest)
		}
		// Output of a Command of another Computer is not taken.
		other := w.newComputer("t")
		o := w.up(other)
		o.write(k, 1, 1, "forged")
		if got := w.written(k, "stdout"); got != "" {
			t.Fatalf("%q", got)
		}
	})
}

func TestSpec_08_19_PagesAndCursors(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		h := w.up(c)
		k := w.exec(c, "x")
		h.begin(k)
		page, done, err := w.commands.Logs(t.Context(), w.env, k, "", 10)
		w.must(err)
		if done || page.OutputState != "open" || len(page.Logs) != 0 || page.NextCursor != "" {
			t.Fatalf("%+v", page)
		}
		for i := range 5 {
			h.write(k, 1, int64(i+1), fmt.Sprint(i))
		}
		page, _, err = w.commands.Logs(t.Context(), w.env, k, "", 3)
		w.must(err)
		if len(page.Logs) != 3 || page.NextCursor != page.Logs[2].Cursor {
			t.Fatalf("%+v", page)
		}
		page, done, err = w.commands.Logs(t.Context(), w.env, k, page.NextCursor, 3)
		w.must(err)
		if len(page.Logs) != 2 || string(page.Logs[1].Content) != "4" || done {
			t.Fatalf("%+v", page)
		}
		for _, cursor := range []string{"x", "-1", "01", "6", "1.0", strings.Repeat("1", 4097)} {
			_, _, err := w.commands.Logs(t.Context(), w.env, k, cursor, 3)
			w.wantCode(err, fault.InvalidCursor)
		}
		// A page of large records is closed early, but has one.
		big := bytes.Repeat([]byte("x"), command.MaxRecord)
		for i := range 20 {
			h.write(k, 2, int64(i+1), string(big))
		}
		page, _, err = w.commands.Logs(t.Context(), w.env, k, "5", 100)
		w.must(err)
		if len(page.Logs) != 16 || len(w.logs(k).Logs) != 25 {
			t.Fatalf("%d records on the page, %d in all", len(page.Logs), len(w.logs(k).Logs))
		}
	})
}

// TestRandomDeliveriesKeepOrder cuts two streams at random, loses answers and repeats from what was acknowledged.
func TestRandomDeliveriesKeepOrder(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		c := w.newComputer("t")
		h := w.up(c)
		k := w.exec(c, "x")
		p := h.begin(k)
		rnd := rand.New(rand.NewPCG(1, 2))
		var chunks [3][]string
		var want [3]string
		for stream := 1; stream <= 2; stream++ {
			for i := range 200 {
				s := fmt.Sprintf("<%d:%d>", stream, i)
				chunks[stream] = append(chunks[stream], s)
				want[stream] += s
			}
		}
		acked := [3]int64{}
		for acked[1] < 200 || acked[2] < 200 {
			stream := int32(1 + rnd.IntN(2))
			from := acked[stream]
			if from >= 200 {
				continue
			}
			through := from + 1 + rnd.Int64N(min(20, 200-from))
			got := h.write(k, stream, from+1, chunks[stream][from:through]...)
			if rnd.IntN(3) > 0 { // otherwise the answer is lost
				acked[1], acked[2] = max(acked[1], got.GetStdoutThrough()), max(acked[2], got.GetStderrThrough())
			}
		}
		p.ends(exited, 0)
		h.exchange()
		if w.written(k, "stdout") != want[1] || w.written(k, "stderr") != want[2] {
			t.Fatal("output differs")
		}
	})
}
