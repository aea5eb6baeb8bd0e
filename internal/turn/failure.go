package turn

import (
	"cmp"
	"fmt"

	"helmr.dev/helmr/internal/session"
)

// exited records the end of u's process: as it was told, or as a failure that counts. A Turn that it was serving ends.
func (x *exchange) exited(u *unit, e exit) error {
	u.lost = true
	if u.busy() && *u.head.ProcessEpoch == u.p.Epoch {
		if err := x.exitedServing(u, e); err != nil {
			return err
		}
	}
	p := u.p
	stopped, recovery, failure := "", "process_failed", "process_exited"
	switch {
	case p.FailureReason != nil:
		failure = *p.FailureReason
	case p.StopReason != nil && *p.StopReason == session.HoldCancellationFailed:
		stopped, recovery = *p.StopReason, *p.StopReason
	case p.StopReason != nil && e.Cause == "stop_deadline", p.StopReason != nil && x.now >= *p.StoppingAt+(StopDeadline+killGrace).Milliseconds():
		failure = "stop_deadline"
	case p.StopReason != nil:
		stopped = *p.StopReason
		if stopped == AbortDeadline || stopped == AbortShutdown {
			recovery = stopped
		}
	}
	epoch := p.Epoch
	if err := x.endProcess(u, session.ProcessEnded); err != nil {
		return err
	}
	u.s.RecoveryReason = &recovery
	u.s.Touch(x.now)
	if stopped != "" {
		if _, err := x.event(u, "", "session.process_stopped", map[string]any{"epoch": epoch, "reason": stopped}); err != nil {
			return err
		}
		if stopped == session.HoldCancellationFailed && !u.s.Terminal() {
			if err := x.hold(u, session.HoldCancellationFailed); err != nil {
				return err
			}
		}
		return x.settle(u)
	}
	why := ""
	if text := cmp.Or(e.Detail, e.Stderr); text != "" {
		why = message(lastLines(text), "")
	}
	return x.failed(u, epoch, failure, why)
}

// exitedServing ends the Turn of a process that went away.
func (x *exchange) exitedServing(u *unit, e exit) error {
	t := u.head
	if t.AbortReason == nil {
		text := "the Session process ended while the Turn ran"
		if why := cmp.Or(e.Detail, e.Stderr); why != "" {
			text += ": " + message(lastLines(why), "")
		}
		return x.end(u, Interrupted, CodeProcessLost, text)
	}
	// It was aborted and did not answer: it overran its cleanup, or died in it.
	reason := *t.AbortReason
	if err := x.endAborted(u); err != nil {
		return err
	}
	if u.p.StopReason == nil {
		why := session.HoldCancellationFailed
		if reason == AbortDeadline || reason == AbortShutdown {
			why = reason
			u.p.FailWith("stop_deadline")
		}
		return u.p.Stop(why, x.now)
	}
	return nil
}

// failed counts a process failure; the third in a row places a hold.
func (x *exchange) failed(u *unit, epoch int64, reason, why string) error {
	u.s.ConsecutiveFailures++
	data := map[string]any{"epoch": epoch, "reason": reason, "consecutive_failures": u.s.ConsecutiveFailures}
	if why != "" {
		data["message"] = why
	}
	if _, err := x.event(u, "", "session.process_failed", data); err != nil {
		return err
	}
	if u.s.ConsecutiveFailures >= session.FailuresBeforeHold && !u.s.Terminal() {
		own, err := session.OwnHold(x.tx, u.s.ID, session.HoldProcessFailures)
		if err != nil {
			return fmt.Errorf("read hold: %w", err)
		}
		if own == "" { // other holds are no substitute: releasing them must not send the next process
			if err := x.hold(u, session.HoldProcessFailures); err != nil {
				return err
			}
		}
	}
	return x.settle(u)
}

// lastLines gives the end of what a process wrote to stderr.
func lastLines(s string) string {
	const most = 1024
	if len(s) > most {
		s = s[len(s)-most:]
	}
	return s
}
