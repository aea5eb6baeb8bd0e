package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// eventWriter sends one server-sent event stream. It belongs to one goroutine. Events gather in a buffer until flush, so
// that a batch costs one write; a write that a caller does not take within answerDeadline fails the stream.
type eventWriter struct {
	w       *answer
	control *http.ResponseController
	buf     []byte
}

// newEventWriter begins the stream: the status is sent with the first flush.
func newEventWriter(w *answer) *eventWriter {
	h := w.Header()
	h.Set("Content-Type", eventStream)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // proxies that understand it pass each event on at once
	w.stream = true
	return &eventWriter{w: w, control: http.NewResponseController(w.ResponseWriter)}
}

// event adds one event; id 0 means none. data must be JSON without line breaks, which encoding/json gives.
func (e *eventWriter) event(id int64, name string, data []byte) {
	if id > 0 {
		e.buf = append(e.buf, "id: "...)
		e.buf = strconv.AppendInt(e.buf, id, 10)
		e.buf = append(e.buf, '\n')
	}
	e.buf = append(append(append(e.buf, "event: "...), name...), "\ndata: "...)
	e.buf = append(append(e.buf, data...), "\n\n"...)
}

// json adds one event with v as data.
func (e *eventWriter) json(id int64, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s event: %w", name, err)
	}
	e.event(id, name, data)
	return nil
}

// comment adds a heartbeat, which clients skip.
func (e *eventWriter) comment() { e.buf = append(e.buf, ": heartbeat\n\n"...) }

// flush sends what has gathered.
func (e *eventWriter) flush() error {
	_ = e.control.SetWriteDeadline(time.Now().Add(answerDeadline))
	if len(e.buf) > 0 {
		if _, err := e.w.Write(e.buf); err != nil {
			return fmt.Errorf("send events: %w", err)
		}
		e.buf = e.buf[:0]
	} else if e.w.status == 0 {
		e.w.WriteHeader(http.StatusOK)
	}
	if err := e.control.Flush(); err != nil {
		return fmt.Errorf("send events: %w", err)
	}
	return nil
}
