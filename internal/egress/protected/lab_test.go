package protected

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"helmr.dev/helmr/internal/egress/authority"
)

const (
	apiName  = "api.example.com"
	sideName = "side.example.com"
	secret   = "sk-live-0123456789-the-value"
)

// lab is a guard between a client and origins, all on this machine.
type lab struct {
	*testing.T
	g           *Guard
	authority   *authority.Authority
	entrance    map[Origin]string // where the client connects for an origin
	placeholder string
	other       string // bound to the other origin
	upstream    string

	mu sync.Mutex
	// all below are guarded by mu
	value    Value
	asked    int
	verdicts []Reason
	seen     []request
	held     chan struct{} // a resolution waits for it
	logs     bytes.Buffer
}

// request is what an origin received.
type request struct {
	Proto, Method, Host, URI, Body string
	Header                         http.Header
	TransferEncoding               []string
	Name                           string // SNI
}

// setup makes a lab whose origins answer with handler, nil for one that shows the request.
func setup(t *testing.T, handler http.Handler) *lab {
	t.Helper()
	l := &lab{T: t, placeholder: authority.NewPlaceholder(), other: authority.NewPlaceholder(), entrance: map[Origin]string{}, value: Value{State: Known, Text: []byte(secret)}}
	names := []string{apiName, sideName}
	origins, key, err := authority.Make(names, time.Now())
	l.must(err)
	public, err := authority.Open(origins, key, nil)
	l.must(err)
	if handler == nil {
		handler = http.HandlerFunc(l.show)
	}
	srv := httptest.NewUnstartedServer(handler)
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.TLS = &tls.Config{NextProtos: []string{"h2", "http/1.1"}, GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return public.Leaf(h.ServerName) }}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	l.upstream = srv.Listener.Addr().String()
	cert, key, err := authority.Make(names, time.Now())
	l.must(err)
	l.authority, err = authority.Open(cert, key, nil)
	l.must(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(public.PEM())
	l.g = New(Config{Computer: "test", Authority: l.authority, Roots: roots, Resolve: l.resolve, Log: slog.New(slog.NewTextHandler(&l.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Verdict: func(_ string, r Reason) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.verdicts = append(l.verdicts, r)
		},
		Dial: func(ctx context.Context, name string, port uint16) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", l.upstream)
		}})
	t.Cleanup(l.g.Close)
	for _, o := range []Origin{{apiName, 443}, {sideName, 443}, {apiName, 8443}} {
		l.enter(o)
	}
	return l
}

func (l *lab) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

func (l *lab) enter(o Origin) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	l.must(err)
	l.Cleanup(func() { ln.Close() })
	l.entrance[o] = ln.Addr().String()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if !l.g.Serve(c, nil, o, func() {}) {
				c.Close()
			}
		}
	}()
}

func (l *lab) resolve(_ context.Context, origin string, placeholders []string) ([]Value, error) {
	l.mu.Lock()
	held := l.held
	l.asked++
	l.mu.Unlock()
	if held != nil {
		<-held
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Value
	for _, p := range placeholders {
		switch {
		case p == l.placeholder && strings.HasPrefix(origin, "https://"+apiName):
			out = append(out, Value{l.value.State, bytes.Clone(l.value.Text)})
		case p == l.placeholder || p == l.other:
			out = append(out, Value{State: Elsewhere})
		default:
			out = append(out, Value{})
		}
	}
	return out, nil
}

func (l *lab) show(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	q := request{Proto: r.Proto, Method: r.Method, Host: r.Host, URI: r.RequestURI, Header: r.Header.Clone(), Body: string(body), TransferEncoding: r.TransferEncoding, Name: r.TLS.ServerName}
	l.mu.Lock()
	l.seen = append(l.seen, q)
	l.mu.Unlock()
	_ = json.NewEncoder(w).Encode(q)
}

// arrived gives the requests that came to an origin.
func (l *lab) arrived() []request {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]request{}, l.seen...)
}

func (l *lab) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(l.authority.PEM())
	return pool
}

// client makes an HTTP client of the Computer.
func (l *lab) client(http2 bool) *http.Client {
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: l.roots()}, ForceAttemptHTTP2: http2,
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			o, ok := ParseOrigin("https://" + trimPort(addr))
			if !ok || l.entrance[o] == "" {
				return nil, fmt.Errorf("no way to %s", addr)
			}
			return new(net.Dialer).DialContext(ctx, "tcp", l.entrance[o])
		}}
	if !http2 {
		tr.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	l.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// do sends a request and gives status and body of the answer.
func (l *lab) do(c *http.Client, r *http.Request) (int, string) {
	l.Helper()
	resp, err := c.Do(r)
	l.must(err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	l.must(err)
	return resp.StatusCode, string(b)
}

func newRequest(t *testing.T, method, url string, body io.Reader, header ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

// raw makes a TLS connection to an origin as the Computer does it, with protocols for ALPN.
func (l *lab) raw(o Origin, config *tls.Config) (*tls.Conn, error) {
	c, err := net.Dial("tcp", l.entrance[o])
	l.must(err)
	l.Cleanup(func() { c.Close() })
	l.must(c.SetDeadline(time.Now().Add(time.Minute))) // turns a hang into a failure
	if config.RootCAs == nil {
		config.RootCAs = l.roots()
	}
	t := tls.Client(c, config)
	return t, t.Handshake()
}

// say sends text over HTTP/1.1 and gives everything that comes back.
func (l *lab) say(text string) string {
	l.Helper()
	c, err := l.raw(Origin{apiName, 443}, &tls.Config{ServerName: apiName})
	l.must(err)
	_, err = io.WriteString(c, text)
	l.must(err)
	var all bytes.Buffer
	r := bufio.NewReader(io.TeeReader(c, &all))
	if resp, err := http.ReadResponse(r, nil); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
	}
	_ = c.CloseWrite() // not before: who closes is taken to have left
	_, _ = io.Copy(io.Discard, r)
	return all.String()
}

func status(answer string) string {
	line, _ := bufio.NewReader(strings.NewReader(answer)).ReadString('\n')
	return strings.TrimSpace(line)
}

func protocols(t *testing.T, test func(t *testing.T, http2 bool)) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", h2), func(t *testing.T) {
			t.Parallel()
			test(t, h2)
		})
	}
}
