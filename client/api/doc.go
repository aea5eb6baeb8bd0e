// Package api holds the bodies of helmr's REST API: what the server answers and what clients send. The rooms fill these
// types, the server sends them, the Go client and the CLI read them: each field exists once. It holds no behaviour
// beyond its JSON form.
package api

import (
	"encoding/json"
	"time"
)

// Time is a point in time as the API writes it: RFC 3339, UTC, milliseconds.
type Time struct{ time.Time }

// layout always has three digits after the second.
const layout = "2006-01-02T15:04:05.000Z"

// At gives the time of ms milliseconds since 1970.
func At(ms int64) Time { return Time{time.UnixMilli(ms).UTC()} }

// AtOpt is At for a column that may be null.
func AtOpt(ms *int64) *Time {
	if ms == nil {
		return nil
	}
	t := At(*ms)
	return &t
}

// MarshalJSON writes the time with three digits after the second.
func (t Time) MarshalJSON() ([]byte, error) { return json.Marshal(t.UTC().Format(layout)) }

// UnmarshalJSON reads any RFC 3339 time.
func (t *Time) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	v, err := time.Parse(time.RFC3339Nano, s)
	t.Time = v.UTC()
	return err
}

// Actor is who did something: a person, an API key, or the platform itself.
type Actor struct {
	Kind string `json:"kind" enum:"user,api_key,platform"`
	ID   string `json:"id,omitempty"`
}

// String is the form under which idempotency keys of this caller are kept.
func (a Actor) String() string { return a.Kind + ":" + a.ID }

// Problem is an RFC 9457 error document.
type Problem struct {
	Type      string         `json:"type"`
	Title     string         `json:"title"`
	Status    int            `json:"status"`
	Detail    string         `json:"detail"`
	Code      string         `json:"code"`
	RequestID string         `json:"request_id"`
	Details   map[string]any `json:"details,omitempty"`
}
