// Package fault is the one error type that crosses helmr's layers: a stable code for machines and a sentence for
// people. It knows nothing of HTTP beyond the table that maps a code to a status; it never carries a Secret value.
package fault

import (
	"errors"
	"fmt"
)

// Code is the stable machine name of an error, as it appears in REST answers.
type Code string

// Error is an error that may be shown to a caller. Message says what is wrong and what is allowed; Details is
// optional structured data of the problem document. Cause stays inside: it is logged, never sent.
type Error struct {
	Code    Code
	Message string
	Details map[string]any
	Cause   error
}

// Error gives the public sentence with its code.
func (e *Error) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Message, e.Cause)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Cause }

// New makes an error with a code and a formatted public sentence.
func New(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// With returns a copy with one more detail of the problem document.
func (e *Error) With(key string, value any) *Error {
	c := *e
	c.Details = make(map[string]any, len(e.Details)+1)
	for k, v := range e.Details {
		c.Details[k] = v
	}
	c.Details[key] = value
	return &c
}

// Because returns a copy that keeps cause for the log.
func (e *Error) Because(cause error) *Error {
	c := *e
	c.Cause = cause
	return &c
}

// From gives the public form of err: the Error it wraps, or an Internal one whose text says nothing of the cause.
func From(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Code: Internal, Message: "Something went wrong inside helmr. The server's log has the request id.", Cause: err}
}

// Is tells whether err carries code.
func Is(err error, code Code) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == code
}
