package worker

import (
	"testing"

	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// TestAComputerIsStartedOnce: an answer with a spec may arrive when an earlier one has had its whole effect.
func TestAComputerIsStartedOnce(t *testing.T) {
	t.Parallel()
	c := newComputer(&Worker{}, "some-computer", 1)
	if !c.begin() {
		t.Fatal("the first answer does not start it")
	}
	for _, phase := range []workerpb.Phase{workerpb.Phase_PHASE_STARTING, workerpb.Phase_PHASE_RUNNING, workerpb.Phase_PHASE_START_FAILED,
		workerpb.Phase_PHASE_LOST, workerpb.Phase_PHASE_STOPPED} {
		c.phase = phase
		if c.begin() {
			t.Errorf("a late answer starts a Computer that is %v", phase)
		}
	}
}
