package command_test

import (
	"testing"

	"helmr.dev/helmr/internal/db"
)

// Computers that find no room, however many and however old, keep none that does from its place.
func TestSpec_21_10_ThoseWithoutRoomKeepNobodyBack(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.must(w.d.Write(w.t.Context(), func(tx *db.Tx) error {
			if _, err := tx.Exec(`UPDATE environments SET max_reserved_storage_bytes = 1099511627776000 WHERE id = ?`, w.env); err != nil {
				return err
			}
			_, err := tx.Exec(`INSERT INTO template_definitions (deployment_id, template_id, milli_cpu, memory_mib, image_digest, definition)
				SELECT deployment_id, 'huge', 33000, 512, 'img', '{}' FROM current_deployments WHERE environment_id = ?`, w.env)
			return err
		}))
		var huge []string
		for range 130 {
			huge = append(huge, w.newComputer("huge"))
			w.exec(huge[len(huge)-1], "true")
		}
		small := w.newComputer("t")
		w.exec(small, "true")
		w.run("computer.dispatch")
		if c := w.computer(small); c.Residency != "starting" {
			t.Errorf("the small Computer is %s (waits for %v), want starting", c.Residency, c.ExecutionWait)
		}
		for _, id := range huge {
			if c := w.computer(id); c.Residency != "cold" || c.ExecutionWait == nil || *c.ExecutionWait != "environment_limit" {
				t.Fatalf("a Computer beyond the limit is %s and waits for %v", c.Residency, c.ExecutionWait)
			}
		}
	})
}
