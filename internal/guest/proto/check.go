package proto

import (
	"errors"
	"fmt"
)

// ErrInvalid is a message that breaks the protocol's bounds or rules.
var ErrInvalid = errors.New("invalid guest message")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// CheckID says whether id can be an id: 1 to MaxID printable ASCII characters without space.
func CheckID(id string) error {
	if id == "" || len(id) > MaxID {
		return invalid("an id has %d bytes, allowed are 1 to %d", len(id), MaxID)
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return invalid("id %q has a character outside of printable ASCII", id)
		}
	}
	return nil
}

// CheckProcess says whether a Session id and a process epoch can name a process.
func CheckProcess(sessionID string, epoch int64) error {
	if epoch < 1 {
		return invalid("epoch %d is below 1", epoch)
	}
	return CheckID(sessionID)
}

// CheckHello says whether h is within the bounds and consistent in itself.
func CheckHello(h *Hello) error {
	if h.GetVersion() != Version {
		return invalid("protocol version %d, this side speaks %d", h.GetVersion(), Version)
	}
	if err := CheckID(h.GetBootId()); err != nil {
		return fmt.Errorf("boot id: %w", err)
	}
	if len(h.GetProcesses()) > MaxProcesses || len(h.GetCommands()) > MaxProcesses {
		return invalid("%d processes and %d commands, allowed are %d each", len(h.GetProcesses()), len(h.GetCommands()), MaxProcesses)
	}
	seen := make(map[string]bool, len(h.GetProcesses()))
	for _, p := range h.GetProcesses() {
		if err := checkHelloProcess(p); err != nil {
			return err
		}
		key := fmt.Sprintf("%s/%d", p.GetSessionId(), p.GetEpoch())
		if seen[key] {
			return invalid("process %s is listed twice", key)
		}
		seen[key] = true
	}
	for _, c := range h.GetCommands() {
		if err := CheckID(c.GetCommandId()); err != nil {
			return fmt.Errorf("command id: %w", err)
		}
	}
	return nil
}

func checkHelloProcess(p *Process) error {
	if err := CheckProcess(p.GetSessionId(), p.GetEpoch()); err != nil {
		return err
	}
	if s := p.GetState(); s < ProcessState_PROCESS_STATE_STARTING || s > ProcessState_PROCESS_STATE_EXITED {
		return invalid("process state %d", s)
	}
	if first, last := p.GetFirstUnackedSeq(), p.GetLastSeq(); first < 1 || last < 0 || first > last+1 {
		return invalid("operations from %d to %d", first, last)
	}
	if n := len(p.GetTurnIds()); n > MaxHelloTurns {
		return invalid("%d turn ids, allowed are %d", n, MaxHelloTurns)
	}
	for _, id := range p.GetTurnIds() {
		if err := CheckID(id); err != nil {
			return fmt.Errorf("turn id: %w", err)
		}
	}
	return nil
}

// CheckOps says whether the operations are within the bounds and numbered next, next+1, ...
func CheckOps(ops []*Op, next int64) error {
	for _, op := range ops {
		if op.GetSeq() != next {
			return invalid("operation %d where %d is due", op.GetSeq(), next)
		}
		// The exited operation, made by the guest, is far below the bound too.
		if n := len(op.GetPayload()); n == 0 || n > MaxLine {
			return invalid("operation %d has %d bytes, allowed are 1 to %d", op.GetSeq(), n, MaxLine)
		}
		next++
	}
	return nil
}
