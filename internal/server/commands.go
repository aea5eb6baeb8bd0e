package server

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/command"
	"helmr.dev/helmr/internal/fault"
)

var recordParam = param{name: "after", kind: "string", doc: "Cursor of the last record consumed."}

func (s *Server) commandRoutes() []route {
	const tag = "Commands"
	return []route{
		{method: http.MethodPost, path: "/computers/{computer_id}/commands", permission: "commands.create", operation: "createCommand", tag: tag,
			summary: "Run a program on a Computer", limit: limitCommand, tooLarge: fault.CommandTooLarge, key: keyOptional, status: http.StatusAccepted,
			handler: takes(s.createCommand)},
		{method: http.MethodGet, path: "/commands/{command_id}", permission: "commands.read", operation: "getCommand", tag: tag,
			summary: "Get a Command, at once or when its outcome is known or the wait is over", query: []param{waitParam}, handler: answers(s.getCommand)},
		{method: http.MethodGet, path: "/commands/{command_id}/logs", permission: "commands.read", operation: "listCommandLogs", tag: tag,
			summary: "Read output of a Command", query: paged(), handler: answers(s.listCommandLogs)},
		{method: http.MethodGet, path: "/commands/{command_id}/logs/stream", permission: "commands.read", operation: "streamCommandLogs", tag: tag,
			summary: "Follow the output of a Command: id is the cursor, event the kind, data the record; event: end after the last one",
			query:   []param{recordParam}, stream: eventStream, handler: handler{serve: s.streamCommandLogs}},
		{method: http.MethodPost, path: "/commands/{command_id}/cancel", permission: "commands.create", operation: "cancelCommand", tag: tag,
			summary: "Ask for the end of a Command", limit: limitManagement, key: keyOptional, handler: takes(s.cancelCommand)},
	}
}

func (s *Server) createCommand(c *call, in api.CommandCreateRequest) (api.CommandReceipt, error) {
	return s.deps.Command.Create(c.ctx(), c.env(), c.who.Actor, c.path("computer_id"), in)
}

func (s *Server) cancelCommand(c *call, in api.ControlRequest) (api.CommandCancelReceipt, error) {
	return s.deps.Command.Cancel(c.ctx(), c.env(), c.who.Actor, c.path("command_id"), in)
}

// getCommand answers the Command, with wait= once its outcome is known, the time is over or the server stops. A caller who
// leaves ends only the observation.
func (s *Server) getCommand(c *call) (api.Command, error) {
	wait, err := c.wait()
	if err != nil {
		return api.Command{}, err
	}
	commandID := c.path("command_id")
	if wait == 0 {
		return s.deps.Command.Get(c.ctx(), c.env(), commandID)
	}
	c.w.stream = true // its duration is the caller's choice and no measure of the server
	sub := s.deps.DB.Hub().Subscribe(command.Topic(commandID))
	defer sub.Close()
	defer s.metrics.streaming()()
	over := time.NewTimer(wait)
	defer over.Stop()
	for {
		k, err := s.deps.Command.Get(c.ctx(), c.env(), commandID)
		if err != nil || k.Terminal() {
			return k, err
		}
		select {
		case <-sub.C:
		case <-over.C:
			return s.deps.Command.Get(c.ctx(), c.env(), commandID)
		case <-s.stopping.Done():
			return k, nil
		case <-c.ctx().Done():
			return k, c.ctx().Err()
		}
	}
}

func (s *Server) listCommandLogs(c *call) (api.CommandLogPage, error) {
	cursor, limit, err := c.page()
	if err != nil {
		return api.CommandLogPage{}, err
	}
	page, _, err := s.deps.Command.Logs(c.ctx(), c.env(), c.path("command_id"), cursor, limit)
	return page, err
}

// streamCommandLogs follows the output of a Command.
func (s *Server) streamCommandLogs(c *call) error {
	commandID := c.path("command_id")
	return s.streamLogs(c, command.OutputTopic(commandID), func(after string) (api.CommandLogPage, bool, error) {
		return s.deps.Command.Logs(c.ctx(), c.env(), commandID, after, maxPage)
	}, fault.New(fault.CommandOutputUnavailable, "The rest of the output of command %s is not available: its Computer was lost or forgot it.", commandID))
}

// streamLogs follows what read gives, which topic announces. The first read settles whether there is a stream at all. No
// transaction is open while a batch is sent. unavailable ends a stream whose rest is lost.
func (s *Server) streamLogs(c *call, topic string, read func(after string) (api.CommandLogPage, bool, error), unavailable error) error {
	after := c.query.Get("after")
	if last := c.r.Header.Get("Last-Event-ID"); last != "" {
		after = last
	}
	sub := s.deps.DB.Hub().Subscribe(topic)
	defer sub.Close()
	heartbeat := time.NewTicker(s.config.Heartbeat)
	defer heartbeat.Stop()
	var out *eventWriter
	for {
		page, done, err := read(after)
		if err != nil && out != nil && c.ctx().Err() == nil {
			return out.fail(c, err) // its output expired while it was read, or the database is away
		}
		if err != nil {
			return err
		}
		if out == nil {
			out = newEventWriter(c.w)
			defer s.metrics.streaming()()
		}
		if c.r.Method == http.MethodHead { // the answer would have been a stream
			_ = out.flush()
			return nil
		}
		if err := out.records(page.Logs); err != nil {
			return err
		}
		if page.NextCursor != "" {
			after = page.NextCursor
		}
		switch {
		case done && page.OutputState == "unavailable":
			return out.fail(c, unavailable)
		case done:
			out.event(0, "end", []byte("{}"))
		}
		if out.flush() != nil || done {
			return nil
		}
		if len(page.Logs) == 0 && !s.idle(c, out, sub.C, heartbeat) {
			return nil
		}
	}
}

// records adds one event for each record.
func (e *eventWriter) records(logs []api.CommandLogRecord) error {
	for i := range logs {
		number, err := strconv.ParseInt(logs[i].Cursor, 10, 64)
		if err != nil {
			return err
		}
		if err := e.record(number, &logs[i]); err != nil {
			return err
		}
		if len(e.buf) > flushBytes {
			if err := e.flush(); err != nil {
				return nil // the caller left; the next flush says so again
			}
		}
	}
	return nil
}

// record adds one event. Content is written straight into the buffer: encoding/json would copy it several times.
func (e *eventWriter) record(number int64, r *api.CommandLogRecord) error {
	head := *r
	head.Content = nil
	data, err := json.Marshal(head)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	if r.Content == nil {
		e.event(number, r.Kind, data)
		return nil
	}
	e.event(number, r.Kind, data[:len(data)-1])
	e.buf = append(e.buf[:len(e.buf)-len("\n\n")], `,"content_base64":"`...)
	e.buf = base64.StdEncoding.AppendEncode(e.buf, r.Content)
	e.buf = append(e.buf, "\"}\n\n"...)
	return nil
}

// fail ends a stream that has begun with an error event.
func (e *eventWriter) fail(c *call, err error) error {
	f := fault.From(err)
	if jerr := e.json(0, "error", streamError{string(f.Code), f.Message, fault.Status(f.Code), c.w.requestID, f.Details}); jerr != nil {
		return jerr
	}
	_ = e.flush()
	if f.Code == fault.Internal {
		return err // logged; the answer has begun
	}
	return nil
}
