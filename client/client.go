// Package client is the Go client of helmr's REST API: one method per route, errors as *Error, events as an iterator
// that reconnects. It knows the wire only (its bodies are in client/api) and holds no state but its connections. It is
// not the place where projects are built: the CLI does that and uses this package to talk to a server.
package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Client talks to one server with one API key. It is safe for concurrent use.
type Client struct {
	base      string
	key       string
	http      *http.Client
	patience  time.Duration
	userAgent string
}

// Option changes a Client.
type Option func(*Client)

// WithHTTPClient uses h instead of a client of its own. It must not have a Timeout: streams and waits last.
func WithHTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

// WithPatience sets how long StreamEvents and WaitTurn go on trying while no server answers; two minutes by default.
func WithPatience(d time.Duration) Option { return func(c *Client) { c.patience = d } }

// WithUserAgent names the program in requests.
func WithUserAgent(name string) Option { return func(c *Client) { c.userAgent = name } }

// New makes a client of the server at baseURL ("http://127.0.0.1:8080"). A baseURL that is none fails at the first call.
func New(baseURL, apiKey string, opts ...Option) *Client {
	c := &Client{base: strings.TrimRight(baseURL, "/"), key: apiKey, patience: 2 * time.Minute, userAgent: "helmr-go"}
	for _, o := range opts {
		o(c)
	}
	if c.http == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.ResponseHeaderTimeout = 5 * time.Minute
		t.MaxIdleConnsPerHost = 32
		c.http = &http.Client{Transport: t}
	}
	return c
}

// request is one call of the API.
type request struct {
	method      string
	path        string
	query       url.Values
	body        any // JSON, or []byte as it is
	contentType string
	header      http.Header
	keyed       bool // has an idempotency key: may be sent again like a GET
}

// attempts bounds how often a request that may be repeated is sent when the connection fails.
const attempts = 4

// do sends a request and reads the JSON answer into out (nil: there is none to read).
func (c *Client) do(ctx context.Context, r request, out any) error {
	res, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if out == nil {
		_, err = io.Copy(io.Discard, res.Body)
	} else {
		err = json.NewDecoder(res.Body).Decode(out)
	}
	if err != nil {
		return fmt.Errorf("read the answer to %s %s: %w", r.method, r.path, err)
	}
	return nil
}

// send sends a request and gives the answer if it is a success. It repeats the request after a failure of the
// connection if a repetition cannot have a second effect.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	body, contentType, err := encode(r)
	if err != nil {
		return nil, err
	}
	repeatable := r.keyed || r.method == http.MethodGet
	for n := 1; ; n++ {
		res, err := c.once(ctx, r, body, contentType)
		if err == nil || ctx.Err() != nil {
			return res, err
		}
		if _, refused := errors.AsType[*Error](err); refused {
			return nil, err
		}
		if n == attempts || !(repeatable || neverSent(err)) {
			return nil, err
		}
		if err := pause(ctx, backoff(n)); err != nil {
			return nil, err
		}
	}
}

func encode(r request) (body []byte, contentType string, err error) {
	switch b := r.body.(type) {
	case nil:
		return nil, "", nil
	case []byte:
		return b, r.contentType, nil
	}
	body, err = json.Marshal(r.body)
	if err != nil {
		return nil, "", fmt.Errorf("encode request: %w", err)
	}
	return body, "application/json", nil
}

// once sends a request one time. An answer that is no success becomes an *Error.
func (c *Client) once(ctx context.Context, r request, body []byte, contentType string) (*http.Response, error) {
	target := c.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, reader)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	c.sign(req)
	res, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		defer func() { _ = res.Body.Close() }()
		return nil, readError(res)
	}
	return res, nil
}

func (c *Client) sign(req *http.Request) {
	req.Header.Set("Authorization", "Bearer "+c.key)
	req.Header.Set("User-Agent", c.userAgent)
}

// neverSent tells whether err happened before a byte of the request left: it could not connect.
func neverSent(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// backoff gives the pause after the nth failure: 50 ms doubling to 2 s, spread by half so that clients part.
func backoff(n int) time.Duration {
	d := 50 * time.Millisecond << min(n-1, 6)
	d = min(d, 2*time.Second)
	spread, err := rand.Int(rand.Reader, big.NewInt(int64(d/2)))
	if err != nil {
		return d
	}
	return d/2 + time.Duration(spread.Int64())
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// segment escapes a variable part of a path.
func segment(s string) string { return url.PathEscape(s) }

// values makes a query of name-value pairs; empty values are left out.
func values(pairs ...string) url.Values {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return q
}

// number writes n for a query; zero means leave out.
func number[T int | int64](n T) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(int64(n), 10)
}
