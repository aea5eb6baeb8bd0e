package command_test

import (
	"math/rand/v2"
	"testing"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// BenchmarkStoreOutput measures how fast output becomes durable, in batches as a Worker sends them.
func BenchmarkStoreOutput(b *testing.B) {
	for _, kind := range []db.Kind{db.SQLite, db.PostgreSQL} {
		b.Run(string(kind), func(b *testing.B) {
			w := setup(b, dbtest.New(b, kind))
			c := w.newComputer("t")
			h := w.up(c)
			k := w.exec(c, "x")
			h.begin(k)
			const block, blocks = 256 << 10, 8
			rnd := rand.New(rand.NewPCG(1, 2))
			data := make([]byte, block)
			for i := range data {
				data[i] = byte(rnd.Uint32())
			}
			b.SetBytes(block * blocks)
			next := int64(1)
			for b.Loop() {
				req := &workerpb.StoreOutputRequest{WorkerId: w.worker, ComputerId: c, Epoch: h.epoch}
				for range blocks {
					req.Output = append(req.Output, &workerpb.Output{CommandId: k, Stream: 1, First: next, Lengths: eighths(block), Data: data})
					next += 8
				}
				if _, err := w.commands.StoreOutput(b.Context(), req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// eighths gives the lengths of eight equal chunks.
func eighths(total int32) []int32 {
	lengths := make([]int32, 8)
	for i := range lengths {
		lengths[i] = total / 8
	}
	return lengths
}
