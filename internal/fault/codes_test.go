package fault

import (
	"strconv"
	"strings"
	"testing"
)

// The table of the contract, as far as its areas are carried over; 500 is for what is not in it.
const contract = `
400 bad_request invalid_computer_reference invalid_command_reference invalid_computer_command invalid_idempotency_key invalid_cursor
401 authentication_required
403 permission_required human_required root_session_required
404 not_found deployment_not_found computer_not_found computer_command_not_found
405 method_not_allowed
409 admission_unavailable no_current_deployment agent_not_in_current_deployment agent_not_in_pinned_deployment agent_deleted session_not_open
409 session_terminal computer_mismatch message_closed hold_not_active
409 computer_busy computer_deleting computer_key_conflict computer_recovery_required computer_preparation_exhausted computer_start_failed
409 secret_unavailable secret_exists question_already_responded question_cancelled idempotency_conflict worker_resource_custody
410 cursor_expired command_result_expired idempotency_expired
413 content_limit_exceeded computer_stdin_too_large computer_command_request_too_large request_too_large
422 content_kind_unsupported answer_invalid
429 rate_limited
503 unavailable not_ready
500 internal something_new`

func TestSpec_16_05_EachCodeHasItsStatus(t *testing.T) {
	t.Parallel()
	seen := map[Code]bool{InvalidArguments: true, LeaseLost: true, CommandOutputUnavailable: true} // of processes, Workers and streams
	for line := range strings.Lines(strings.TrimSpace(contract)) {
		fields := strings.Fields(line)
		for _, code := range fields[1:] {
			seen[Code(code)] = true
			if got := Status(Code(code)); strconv.Itoa(got) != fields[0] {
				t.Errorf("%s has status %d, want %s", code, got, fields[0])
			}
		}
	}
	for code := range statuses {
		if !seen[code] {
			t.Errorf("%s is in no row of the contract's table", code)
		}
	}
}
