package server

import (
	"net/http"
	"strconv"
	"time"
)

// answerDeadline bounds the sending of one ordinary answer and of one batch of a stream: a caller that reads nothing for
// so long is cut off.
const answerDeadline = 60 * time.Second

// answer is the ResponseWriter of every request. It remembers what was sent, for the log and the metrics.
type answer struct {
	http.ResponseWriter
	requestID string
	route     string // operation id, or what else answered
	status    int    // 0: nothing sent yet
	bytes     int64
	stream    bool
}

// WriteHeader sends the status once.
func (w *answer) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write sends a part of the body.
func (w *answer) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// Flush lets handlers that were mounted from elsewhere stream.
func (w *answer) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Unwrap lets http.ResponseController reach the connection.
func (w *answer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// send answers with a whole body.
func (w *answer) send(status int, contentType string, body []byte) {
	h := w.Header()
	if status != http.StatusNoContent {
		h.Set("Content-Type", contentType)
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	h.Set("Cache-Control", "no-store")
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(answerDeadline))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
