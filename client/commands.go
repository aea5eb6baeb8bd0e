package client

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"time"

	"helmr.dev/helmr/client/api"
)

// CreateComputer makes a Computer from a Template of the current Deployment.
func (c *Client) CreateComputer(ctx context.Context, req api.ComputerCreateRequest) (api.ComputerReceipt, error) {
	var out api.ComputerReceipt
	err := c.do(ctx, request{method: http.MethodPost, path: "/v1/computers", body: req, keyed: req.IdempotencyKey != ""}, &out)
	return out, err
}

// DeleteComputer begins the deletion of a Computer that nobody uses.
func (c *Client) DeleteComputer(ctx context.Context, computerID string, req api.ControlRequest) (api.ComputerReceipt, error) {
	var out api.ComputerReceipt
	err := c.do(ctx, request{method: http.MethodDelete, path: computerPath(computerID), body: req, keyed: req.IdempotencyKey != ""}, &out)
	return out, err
}

// GetComputerNetwork gives what a Computer tried on its network lately, latest first.
func (c *Client) GetComputerNetwork(ctx context.Context, computerID string) (api.ComputerNetwork, error) {
	var out api.ComputerNetwork
	err := c.do(ctx, request{method: http.MethodGet, path: computerPath(computerID) + "/network"}, &out)
	return out, err
}

// ListComputerSessions gives one page of the Sessions that occupy a Computer now, oldest first.
func (c *Client) ListComputerSessions(ctx context.Context, computerID, cursor string, limit int) (api.ComputerSessionPage, error) {
	var out api.ComputerSessionPage
	err := c.do(ctx, request{method: http.MethodGet, path: computerPath(computerID) + "/sessions", query: values("cursor", cursor, "limit", number(limit))}, &out)
	return out, err
}

// ListComputerCommands gives one page of the Commands that occupy a Computer now, oldest first.
func (c *Client) ListComputerCommands(ctx context.Context, computerID, cursor string, limit int) (api.ComputerCommandPage, error) {
	var out api.ComputerCommandPage
	err := c.do(ctx, request{method: http.MethodGet, path: computerPath(computerID) + "/commands", query: values("cursor", cursor, "limit", number(limit))}, &out)
	return out, err
}

// CreateCommand runs a program on a Computer; it answers when the Command is admitted, which is before it runs.
func (c *Client) CreateCommand(ctx context.Context, computerID string, req api.CommandCreateRequest) (api.CommandReceipt, error) {
	var out api.CommandReceipt
	err := c.do(ctx, request{method: http.MethodPost, path: computerPath(computerID) + "/commands", body: req, keyed: req.IdempotencyKey != ""}, &out)
	return out, err
}

// GetCommand gives a Command as it is.
func (c *Client) GetCommand(ctx context.Context, commandID string) (api.Command, error) {
	return c.command(ctx, commandID, 0)
}

// WaitCommand gives the Command once its outcome is known. The end of ctx ends only the observation; the error is then
// ctx's. While no server answers it goes on trying for the client's patience.
func (c *Client) WaitCommand(ctx context.Context, commandID string) (api.Command, error) {
	return wait(ctx, c, api.Command.Terminal, func(step time.Duration) (api.Command, error) { return c.command(ctx, commandID, step) })
}

func (c *Client) command(ctx context.Context, commandID string, wait time.Duration) (api.Command, error) {
	q := values()
	if wait > 0 {
		q.Set("wait", strconv.FormatInt(wait.Milliseconds(), 10)+"ms")
	}
	var out api.Command
	err := c.do(ctx, request{method: http.MethodGet, path: commandPath(commandID), query: q}, &out)
	return out, err
}

// CancelCommand asks for the end of a Command. The answer does not say that it has ended.
func (c *Client) CancelCommand(ctx context.Context, commandID string, req api.ControlRequest) (api.CommandCancelReceipt, error) {
	var out api.CommandCancelReceipt
	err := c.do(ctx, request{method: http.MethodPost, path: commandPath(commandID) + "/cancel", body: req, keyed: true}, &out) // again is as once
	return out, err
}

// ListCommandLogs gives output of a Command after a cursor ("": from the start); limit 0 means the server's default.
func (c *Client) ListCommandLogs(ctx context.Context, commandID, cursor string, limit int) (api.CommandLogPage, error) {
	var out api.CommandLogPage
	err := c.do(ctx, request{method: http.MethodGet, path: commandPath(commandID) + "/logs", query: values("cursor", cursor, "limit", number(limit))}, &out)
	return out, err
}

// StreamCommandLogs follows the output of a Command after a cursor ("": from the start), each record exactly once, over as
// many connections as it takes. It ends after the last record of an output that is closed, or with an error: a refusal by
// the server, *Error with code command_output_unavailable when the rest is lost, no server for longer than the client's
// patience, or the end of ctx.
func (c *Client) StreamCommandLogs(ctx context.Context, commandID, after string) iter.Seq2[api.CommandLogRecord, error] {
	return c.streamLogs(ctx, commandPath(commandID)+"/logs/stream", after)
}

func (c *Client) streamLogs(ctx context.Context, path, after string) iter.Seq2[api.CommandLogRecord, error] {
	return func(yield func(api.CommandLogRecord, error) bool) {
		err := c.follow(ctx, func() (bool, bool, error) {
			before := after
			done, err := c.followLogs(ctx, path, &after, yield)
			return done, after != before, err
		})
		if err != nil {
			yield(api.CommandLogRecord{}, err)
		}
	}
}

// followLogs follows over one connection, as followOnce does.
func (c *Client) followLogs(ctx context.Context, path string, after *string, yield func(api.CommandLogRecord, error) bool) (done bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watchdog := time.AfterFunc(silence, cancel)
	defer watchdog.Stop()
	r := request{method: http.MethodGet, path: path, header: http.Header{"Accept": {"text/event-stream"}}}
	if *after != "" {
		r.header.Set("Last-Event-ID", *after)
	}
	res, err := c.once(ctx, r, nil, "")
	if err != nil {
		return false, err
	}
	defer func() { _ = res.Body.Close() }()
	stream := newEventReader(res.Body, func() { watchdog.Reset(silence) })
	for {
		name, data, err := stream.next()
		switch {
		case err != nil:
			return false, nil // lost: connect again from the last record
		case name == "end":
			return true, nil
		case name == "error":
			return false, streamFailure(data)
		}
		record, err := decodeRecord(data)
		if err != nil {
			return false, fmt.Errorf("read output after %q: %w", *after, err)
		}
		*after = record.Cursor
		watchdog.Stop() // whoever takes the record may take its time
		more := yield(record, nil)
		watchdog.Reset(silence)
		if !more {
			return true, nil
		}
	}
}

// decodeRecord reads a record. Its content is taken out first: encoding/json takes ten times as long for it.
func decodeRecord(data []byte) (api.CommandLogRecord, error) {
	var record api.CommandLogRecord
	const field = `"content_base64":"`
	start := bytes.Index(data, []byte(field)) + len(field)
	length := bytes.IndexByte(data[start:], '"')
	if start < len(field) || length < 0 {
		return record, json.Unmarshal(data, &record)
	}
	if err := json.Unmarshal(slices.Concat(data[:start], data[start+length:]), &record); err != nil {
		return record, err
	}
	var err error
	record.Content, err = base64.StdEncoding.AppendDecode(nil, data[start:start+length])
	return record, err
}

// streamFailure reads the error event that ends a stream.
func streamFailure(data []byte) error {
	var e struct {
		Code      string         `json:"code"`
		Message   string         `json:"message"`
		Status    int            `json:"status"`
		RequestID string         `json:"request_id"`
		Details   map[string]any `json:"details"`
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf("read the end of a stream: %w", err)
	}
	return &Error{Status: e.Status, Code: e.Code, RequestID: e.RequestID, Details: e.Details, Message: e.Message}
}

func computerPath(computerID string) string { return "/v1/computers/" + segment(computerID) }

func commandPath(commandID string) string { return "/v1/commands/" + segment(commandID) }
