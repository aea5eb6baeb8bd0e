package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"time"

	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/fault"
)

// bodyDeadline bounds the arrival of a JSON body; an upload gets it anew for each part that arrives.
const bodyDeadline = 60 * time.Second

// call is one request that has passed authentication, permission and the checks of its path and query.
type call struct {
	server *Server
	route  *route
	w      *answer
	r      *http.Request
	who    access.Principal
	query  url.Values
}

func (c *call) ctx() context.Context    { return c.r.Context() }
func (c *call) env() string             { return c.who.EnvironmentID }
func (c *call) path(name string) string { return c.r.PathValue(name) }

// handler is what a route does, with the types that the OpenAPI document shows.
type handler struct {
	in, out reflect.Type // nil: no JSON body, no JSON answer
	serve   func(c *call) error
}

// answers makes the handler of a route without a body.
func answers[Out any](fn func(c *call) (Out, error)) handler {
	return handler{out: reflect.TypeFor[Out](), serve: func(c *call) error {
		out, err := fn(c)
		if err != nil {
			return err
		}
		return c.answer(http.StatusOK, out)
	}}
}

// takes makes the handler of a route with a JSON body.
func takes[In, Out any](fn func(c *call, in In) (Out, error)) handler {
	return handler{in: reflect.TypeFor[In](), out: reflect.TypeFor[Out](), serve: func(c *call) error {
		var in In
		if err := c.decode(&in); err != nil {
			return err
		}
		out, err := fn(c, in)
		if err != nil {
			return err
		}
		return c.answer(c.route.success(), out)
	}}
}

// success is the status of a success with a body.
func (rt *route) success() int {
	if rt.status != 0 {
		return rt.status
	}
	return http.StatusOK
}

// answer sends v as JSON.
func (c *call) answer(status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode answer of %s: %w", c.route.operation, err)
	}
	c.w.send(status, "application/json", body)
	return nil
}

// decode reads the JSON body into dst and settles its idempotency key. A request type without required fields may be
// sent without a body.
func (c *call) decode(dst any) error {
	body, err := c.body("application/json")
	if err != nil {
		return err
	}
	if len(body) == 0 {
		body = []byte("{}")
	}
	if err := decodeBody(body, dst); err != nil {
		return err
	}
	return c.settleIdempotencyKey(dst)
}

// body reads the whole body within the route's limit. A body must have one of the media types.
func (c *call) body(mediaTypes ...string) ([]byte, error) {
	if c.r.ContentLength == 0 {
		return nil, nil
	}
	if c.r.ContentLength > c.route.limit {
		return nil, tooLarge(c.route.tooLarge, c.route.limit)
	}
	control := http.NewResponseController(c.w.ResponseWriter)
	_ = control.SetReadDeadline(time.Now().Add(bodyDeadline))
	body, err := readAll(http.MaxBytesReader(c.w.ResponseWriter, c.r.Body, c.route.limit), c.r.ContentLength)
	// Cleared, because the connection is watched for the caller's leaving while the request is handled.
	_ = control.SetReadDeadline(time.Time{})
	if err != nil {
		return nil, bodyError(err, c.route.tooLarge, c.route.limit)
	}
	if len(body) == 0 {
		return nil, nil
	}
	return body, checkMediaType(c.r.Header.Get("Content-Type"), mediaTypes)
}

// readAll reads r into one buffer of the announced size (-1: unknown).
func readAll(r io.Reader, size int64) ([]byte, error) {
	if size < 0 || size > 1<<20 { // beyond that the buffer grows with what really arrives
		return io.ReadAll(r)
	}
	body := make([]byte, size)
	n, err := io.ReadFull(r, body)
	return body[:n], err
}

// bodyError names what went wrong while a body arrived.
func bodyError(err error, code fault.Code, limit int64) error {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooLarge(code, limit)
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	return fault.New(fault.BadRequest, "The body did not arrive whole.").With("field", "body")
}

// tooLarge refuses a body above a limit, with the route's own code if it has one.
func tooLarge(code fault.Code, limit int64) error {
	if code == "" {
		code = fault.RequestTooLarge
	}
	return fault.New(code, "The body is larger than this route's limit of %d bytes.", limit).With("limit_bytes", limit)
}

// checkMediaType refuses a body that is not one of mediaTypes in UTF-8.
func checkMediaType(header string, mediaTypes []string) error {
	got, params, err := mime.ParseMediaType(header)
	charset := params["charset"]
	if err == nil && contains(mediaTypes, got) && (charset == "" || strings.EqualFold(charset, "utf-8")) {
		return nil
	}
	return fault.New(fault.BadRequest, "Content-Type must be %s (UTF-8).", strings.Join(mediaTypes, " or ")).With("header", "Content-Type")
}

// settleIdempotencyKey puts the key of the header into the body's field, where the rooms look for it. Given twice the
// keys must be equal.
func (c *call) settleIdempotencyKey(dst any) error {
	if c.route.key == keyNone {
		return nil
	}
	field := reflect.ValueOf(dst).Elem().FieldByName("IdempotencyKey")
	for _, header := range c.r.Header.Values("Idempotency-Key") {
		if have := field.String(); have != "" && have != header {
			return fault.New(fault.InvalidIdempotencyKey, "idempotency_key and the Idempotency-Key header are both given and differ; send one of them.")
		}
		if err := access.CheckIdempotencyKey(header); err != nil {
			return err
		}
		field.SetString(header)
	}
	key := field.String()
	if key == "" && c.route.key == keyRequired {
		return badField("idempotency_key", "idempotency_key is required, in the body or as the Idempotency-Key header.")
	}
	if key == "" {
		return nil
	}
	return access.CheckIdempotencyKey(key)
}
