package server

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"syscall"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
)

// statusClientGone is what the log shows when the caller left before the answer; nobody receives it.
const statusClientGone = 499

// problemOf gives the public document of err.
func problemOf(f *fault.Error, requestID string) api.Problem {
	status := fault.Status(f.Code)
	return api.Problem{
		Type:      "urn:helmr:problem:" + string(f.Code),
		Title:     http.StatusText(status),
		Status:    status,
		Detail:    f.Message,
		Code:      string(f.Code),
		RequestID: requestID,
		Details:   f.Details,
	}
}

// fail answers err as a problem document, unless the answer has begun already or nobody waits for it any more. What the
// document does not say goes to the log.
func (s *Server) fail(w *answer, r *http.Request, err error) {
	if r.Context().Err() != nil && errors.Is(err, context.Canceled) {
		w.status = statusClientGone
		return
	}
	f := fault.From(err)
	if f.Code == fault.Internal && (db.IsFull(err) || errors.Is(err, syscall.ENOSPC)) {
		f = fault.New(fault.Unavailable, "A disk of the server is full, so nothing was changed. Free some space there and try again.").Because(err)
	}
	if f.Code == fault.Internal && db.IsAway(err) {
		f = fault.New(fault.Unavailable, "helmr cannot reach its database or its object store at present. What you asked for may be done or not: ask again, with the same idempotency key.").Because(err)
	}
	if f.Code == fault.Internal || f.Cause != nil {
		level := slog.LevelWarn
		if fault.Status(f.Code) >= 500 {
			level = slog.LevelError
		}
		s.log.LogAttrs(r.Context(), level, "request failed", slog.String("request_id", w.requestID),
			slog.String("route", w.route), slog.String("code", string(f.Code)), slog.String("error", err.Error()))
	}
	if w.status != 0 {
		return
	}
	status := fault.Status(f.Code)
	body, merr := json.Marshal(problemOf(f, w.requestID))
	if merr != nil { // details that are not JSON: a defect of the room that made them
		f.Details = nil
		body, _ = json.Marshal(problemOf(f, w.requestID))
	}
	h := w.Header()
	switch status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="helmr"`)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if h.Get("Retry-After") == "" {
			h.Set("Retry-After", retryAfter(f))
		}
	}
	w.send(status, "application/problem+json", body)
}

// retryAfter gives the seconds after which a caller may try again: the detail of that name, or one.
func retryAfter(f *fault.Error) string {
	if n, ok := f.Details["retry_after_seconds"].(int); ok && n > 0 {
		return strconv.Itoa(n)
	}
	return "1"
}
