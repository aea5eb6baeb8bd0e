package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
)

// A queued Turn that is followed says why it waits after queuedPatience, and again when the reason changes.
const (
	queuedPatience = 2 * time.Second
	queuedAgain    = 5 * time.Second
)

// holdReasons says what each reason of a hold means.
var holdReasons = map[string]string{
	"interrupt":           "it was interrupted",
	"process_failures":    "its process failed three times in a row",
	"cancellation_failed": "a turn did not stop when it was told to",
	"computer_lost":       "its computer was lost",
}

// waitReasons says what a Computer waits for.
var waitReasons = map[string]string{
	"scheduling":        "no worker has room for its computer",
	"environment_limit": "the environment's limits of computers, CPUs and memory leave no room for its computer; close sessions that are done with `helmr session close ID`",
	"saving":            "its computer is being saved",
}

// waitReason says what a Computer waits for: also that it is the preparation of its Template.
func waitReason(ctx context.Context, c *client.Client, m api.Computer) string {
	if m.Residency == "cold" && *m.ExecutionWait == "scheduling" {
		p, err := c.LastPreparation(ctx, m.Template, m.DeploymentID)
		if err == nil && p.TerminalAt == nil {
			return fmt.Sprintf("the disk of its computer is being prepared; see helmr template logs %s --follow", m.Template)
		}
	}
	return waitReasons[*m.ExecutionWait] + " (" + *m.ExecutionWait + ")"
}

// held gives the error that ends the following of a Turn that no time will start: its Session is held. It is nil if the
// Turn is not queued or nothing holds it.
func (f *follower) held(ctx context.Context) error {
	t, err := f.client.GetTurn(ctx, f.sessionID, f.turnID)
	if err != nil || t.Status != "queued" {
		return nil // the stream of events says what it is instead
	}
	s, err := f.client.GetSession(ctx, f.sessionID)
	if err != nil || len(s.Holds) == 0 {
		return nil
	}
	var why, do []string
	for _, h := range s.Holds {
		reason := h.Reason
		if text := holdReasons[h.Reason]; text != "" {
			reason = text + " (" + h.Reason + ")"
		}
		of := "the session is held: "
		if h.SessionID != s.ID {
			of = "session " + h.SessionID + " above it is held: "
		}
		why = append(why, of+reason)
		do = append(do, "helmr session resume "+h.SessionID+" --hold "+h.ID)
	}
	return hinted{fmt.Errorf("turn %d stays queued: %s", t.Sequence, strings.Join(why, "; ")),
		"let it go on:\n    " + strings.Join(do, "\n    ") + "\n  then look again:\n    helmr session events " + f.sessionID + " --follow --after " + strconv.FormatInt(f.after, 10)}
}

// waitsFor says in a sentence what a queued Turn waits for, "" if that is unknown or no wait at all.
func (f *follower) waitsFor(ctx context.Context) string {
	t, err := f.client.GetTurn(ctx, f.sessionID, f.turnID)
	if err != nil || t.Status != "queued" {
		return ""
	}
	before := f.turnBefore(ctx, t)
	if before == "running" || before == "finalizing" {
		return fmt.Sprintf("turn %d is still queued: turn %d is %s", t.Sequence, t.Sequence-1, before)
	}
	s, err := f.client.GetSession(ctx, f.sessionID)
	if err != nil {
		return ""
	}
	m, err := f.client.GetComputer(ctx, s.ComputerID)
	if err != nil {
		return ""
	}
	why := ""
	switch {
	case m.Error != nil:
		why = "its computer cannot run: " + clean(m.Error.Code+": "+m.Error.Message)
	case m.ExecutionWait != nil && waitReasons[*m.ExecutionWait] != "":
		why = waitReason(ctx, f.client, m)
	case m.ExecutionWait != nil:
		why = "its computer waits (" + *m.ExecutionWait + ")"
	case m.Residency == "running" && before == "queued":
		why = "others are queued before it"
	case m.Residency == "running":
		why = "the session's process is starting"
	default:
		why = "its computer is " + m.Residency
	}
	return fmt.Sprintf("turn %d is still queued: %s; see helmr computer get %s", t.Sequence, why, m.ID)
}

// turnBefore gives the status of the Turn before t, "" if there is none or it is unknown.
func (f *follower) turnBefore(ctx context.Context, t api.Turn) string {
	if t.Sequence < 2 {
		return ""
	}
	cursor := ""
	if t.Sequence > 2 {
		cursor = strconv.FormatInt(t.Sequence-2, 10)
	}
	page, err := f.client.ListTurns(ctx, f.sessionID, cursor, 1)
	if err != nil || len(page.Turns) != 1 || page.Turns[0].Sequence != t.Sequence-1 {
		return ""
	}
	return page.Turns[0].Status
}
