package build

import (
	"fmt"
	"time"
)

// The kinds of an Event.
const (
	EventStart   = "start"   // a step begins
	EventEnd     = "end"     // it succeeded; a step that fails has no end, Run returns the error
	EventLog     = "log"     // one line of what goes on inside it
	EventWarning = "warning" // something that does not stop the build but that its author should know
)

// Step names a part of a build.
type Step string

// The steps of a build in their order; install is left out when there is nothing to install.
const (
	StepCapture Step = "capture"
	StepConfig  Step = "config"
	StepInstall Step = "install"
	StepIndex   Step = "index"
	StepImages  Step = "images"
	StepBundle  Step = "bundle"
)

// Event is one piece of progress.
type Event struct {
	Kind    string `json:"kind"`
	Step    Step   `json:"step"`
	Message string `json:"message,omitempty"`
	// DurationMs is how long the step took; only in an end.
	DurationMs int64 `json:"duration_ms,omitempty"`
}

// Progress is told what a build does. It is called from one goroutine at a time; nil is allowed in Options.
type Progress func(Event)

// reporter sends the events of one step.
type reporter struct {
	progress Progress
	step     Step
}

func (r reporter) log(format string, args ...any) {
	r.progress(Event{Kind: EventLog, Step: r.step, Message: fmt.Sprintf(format, args...)})
}

func (r reporter) warn(format string, args ...any) {
	r.progress(Event{Kind: EventWarning, Step: r.step, Message: fmt.Sprintf(format, args...)})
}

// step runs work between a start and an end. What work returns is what the end says.
func (p Progress) step(step Step, title string, work func(reporter) (string, error)) error {
	started := time.Now()
	p(Event{Kind: EventStart, Step: step, Message: title})
	summary, err := work(reporter{progress: p, step: step})
	if err != nil {
		return err
	}
	p(Event{Kind: EventEnd, Step: step, Message: summary, DurationMs: time.Since(started).Milliseconds()})
	return nil
}
