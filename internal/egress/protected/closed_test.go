package protected

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"helmr.dev/helmr/internal/egress/authority"
)

func TestSpec_10_12_WhatIsNotSupportedFailsClosed(t *testing.T) {
	t.Parallel()
	l := setup(t, nil)
	key := "Authorization: " + l.placeholder + "\r\n"
	for what, c := range map[string]struct{ text, status string }{
		"a WebSocket":                 {"GET / HTTP/1.1\r\nHost: " + apiName + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" + key + "\r\n", "400 Bad Request"},
		"an upgrade without a name":   {"GET / HTTP/1.1\r\nHost: " + apiName + "\r\nConnection: keep-alive, upgrade\r\n" + key + "\r\n", "400 Bad Request"},
		"h2c":                         {"GET / HTTP/1.1\r\nHost: " + apiName + "\r\nConnection: HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n" + key + "\r\n", "400 Bad Request"},
		"CONNECT":                     {"CONNECT " + apiName + ":443 HTTP/1.1\r\nHost: " + apiName + "\r\n" + key + "\r\n", "400 Bad Request"},
		"CONNECT elsewhere":           {"CONNECT evil.example.com:443 HTTP/1.1\r\nHost: " + apiName + "\r\n" + key + "\r\n", "400 Bad Request"},
		"announced trailers":          {"POST / HTTP/1.1\r\nHost: " + apiName + "\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n" + key + "\r\n1\r\na\r\n0\r\nX-T: 1\r\n\r\n", "400 Bad Request"},
		"another Host":                {"GET / HTTP/1.1\r\nHost: " + sideName + "\r\n" + key + "\r\n", "421 Misdirected Request"},
		"another port":                {"GET / HTTP/1.1\r\nHost: " + apiName + ":8443\r\n" + key + "\r\n", "421 Misdirected Request"},
		"two Hosts":                   {"GET / HTTP/1.1\r\nHost: " + apiName + "\r\nHost: " + sideName + "\r\n" + key + "\r\n", "400 Bad Request"},
		"no Host":                     {"GET / HTTP/1.0\r\n" + key + "\r\n", "421 Misdirected Request"},
		"an empty Host":               {"GET / HTTP/1.1\r\nHost:\r\n" + key + "\r\n", "421 Misdirected Request"},
		"a Host with a user":          {"GET / HTTP/1.1\r\nHost: x@" + apiName + "\r\n" + key + "\r\n", "400 Bad Request"},
		"an absolute target":          {"GET https://" + sideName + "/ HTTP/1.1\r\nHost: " + apiName + "\r\n" + key + "\r\n", "400 Bad Request"},
		"an absolute target of ours":  {"GET https://" + apiName + "/ HTTP/1.1\r\nHost: " + apiName + "\r\n" + key + "\r\n", "400 Bad Request"},
		"an opaque target":            {"GET x:y HTTP/1.1\r\nHost: " + apiName + "\r\n" + key + "\r\n", "400 Bad Request"},
		"a folded header":             {"GET / HTTP/1.1\r\nHost: " + apiName + "\r\nX-A: a\r\n " + l.placeholder + "\r\n" + key + "\r\n", "200 OK"}, // one header to every reader
		"a space before a colon":      {"GET / HTTP/1.1\r\nHost: " + apiName + "\r\nTransfer-Encoding : chunked\r\n" + key + "\r\n", "400 Bad Request"},
		"two lengths":                 {"POST / HTTP/1.1\r\nHost: " + apiName + "\r\nContent-Length: 3\r\nContent-Length: 5\r\n" + key + "\r\nabcde", "400 Bad Request"},
		"two encodings":               {"POST / HTTP/1.1\r\nHost: " + apiName + "\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n" + key + "\r\n0\r\n\r\n", "501 Not Implemented"},
		"an odd encoding":             {"POST / HTTP/1.1\r\nHost: " + apiName + "\r\nTransfer-Encoding: xchunked\r\n" + key + "\r\n0\r\n\r\n", "501 Not Implemented"},
		"a header of another request": {"GET / HTTP/1.1\r\nHost: " + apiName + "\r\nX-A: a\rX-B: b\r\n" + key + "\r\n", "400 Bad Request"},
		"huge headers":                {"GET / HTTP/1.1\r\nHost: " + apiName + "\r\nX-A: " + strings.Repeat("a", 80<<10) + "\r\n" + key + "\r\n", "431 Request Header Fields Too Large"},
	} {
		got := l.say(c.text)
		if s := status(got); !strings.HasPrefix(s, "HTTP/1.1 "+c.status) && !strings.HasPrefix(s, "HTTP/1.0 "+c.status) {
			t.Errorf("%s: %q, want %s", what, status(got), c.status)
		}
		if strings.Contains(got, secret) && c.status != "200 OK" {
			t.Errorf("%s: the answer has the value", what)
		}
	}
	for _, r := range l.arrived() {
		if r.Header.Get("X-A") == "" {
			t.Errorf("forwarded: %+v", r)
		}
	}
	for what, config := range map[string]*tls.Config{
		"no name":             {InsecureSkipVerify: true},
		"another name":        {ServerName: sideName, InsecureSkipVerify: true},
		"a protocol not HTTP": {ServerName: apiName, NextProtos: []string{"acme-tls/1"}},
		"an old TLS":          {ServerName: apiName, MaxVersion: tls.VersionTLS11},
	} {
		if _, err := l.raw(Origin{apiName, 443}, config); err == nil {
			t.Errorf("%s: the handshake succeeds", what)
		}
	}
	if c, err := l.raw(Origin{apiName, 443}, &tls.Config{ServerName: apiName, NextProtos: []string{"spdy/3", "http/1.1"}}); err != nil || c.ConnectionState().NegotiatedProtocol != "http/1.1" {
		t.Errorf("the control: %v", err)
	}
}

// TestSpec_10_12_HiddenTrailersAreNotForwarded sends trailers that no header announced.
func TestSpec_10_12_HiddenTrailersAreNotForwarded(t *testing.T) {
	t.Parallel()
	l := setup(t, nil)
	got := l.say("POST / HTTP/1.1\r\nHost: " + apiName + "\r\nTransfer-Encoding: chunked\r\nAuthorization: " + l.placeholder + "\r\n\r\n1\r\na\r\n0\r\nX-Late: " + l.placeholder + "\r\n\r\n")
	if status(got) != "HTTP/1.1 502 Bad Gateway" {
		t.Errorf("answered %q", got)
	}
	if seen := l.arrived(); len(seen) > 0 {
		t.Errorf("it was completed: %+v", seen)
	}
	l.raw2(func(f *http2.Framer, head func(fields ...string) []byte) {
		l.must(f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true, BlockFragment: head(":method", "POST", ":scheme", "https", ":authority", apiName, ":path", "/", "authorization", l.placeholder)}))
		l.must(f.WriteData(1, false, []byte("a")))
		l.must(f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true, EndStream: true, BlockFragment: head("x-late", l.placeholder)}))
	})
	for _, r := range l.arrived() {
		if strings.Contains(fmt.Sprint(r), "X-Late") || strings.Contains(fmt.Sprint(r.Header["X-Late"]), "hlmr") {
			t.Errorf("trailers arrived: %+v", r)
		}
	}
}

// raw2 speaks HTTP/2 frame by frame, and gives the status of the first answer, "" when the stream or connection is ended.
func (l *lab) raw2(send func(f *http2.Framer, head func(fields ...string) []byte)) string {
	l.Helper()
	c, err := l.raw(Origin{apiName, 443}, &tls.Config{ServerName: apiName, NextProtos: []string{"h2"}})
	l.must(err)
	_, err = io.WriteString(c, http2.ClientPreface)
	l.must(err)
	f := http2.NewFramer(c, c)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	l.must(f.WriteSettings())
	var block strings.Builder
	enc := hpack.NewEncoder(&block)
	send(f, func(fields ...string) []byte {
		block.Reset()
		for i := 0; i < len(fields); i += 2 {
			l.must(enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
		}
		return []byte(block.String())
	})
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return ""
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			return frame.PseudoValue("status")
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return ""
		}
	}
}

func TestSpec_10_12_HTTP2CannotSayWhatHTTP1Would(t *testing.T) {
	t.Parallel()
	l := setup(t, nil)
	base := []string{":method", "GET", ":scheme", "https", ":authority", apiName, ":path", "/"}
	with := func(fields ...string) []string { return append(append([]string{}, base...), fields...) }
	replaced := func(name, value string) []string {
		out := append([]string{}, base...)
		for i := 0; i < len(out); i += 2 {
			if out[i] == name {
				out[i+1] = value
			}
		}
		return append(out, "authorization", l.placeholder)
	}
	if got := l.raw2(one(with("authorization", l.placeholder))); got != "200" || len(l.arrived()) != 1 {
		t.Fatalf("the control: %q %+v", got, l.arrived())
	}
	for what, fields := range map[string][]string{
		"another authority":        replaced(":authority", sideName),
		"no authority":             {":method", "GET", ":scheme", "https", ":path", "/", "authorization", l.placeholder},
		"another host beside":      with("host", sideName, "authorization", l.placeholder),
		"a line break in a value":  with("x-a", "a\r\nx-b: b", "authorization", l.placeholder),
		"a line break in a name":   with("x-a\r\nx-b", "b", "authorization", l.placeholder),
		"upper case":               with("X-A", "a", "authorization", l.placeholder),
		"an encoding":              with("transfer-encoding", "chunked", "authorization", l.placeholder),
		"a connection header":      with("connection", "close", "authorization", l.placeholder),
		"an upgrade":               with("upgrade", "websocket", "authorization", l.placeholder),
		"a path with a request":    replaced(":path", "/ HTTP/1.1"),
		"a path with line breaks":  replaced(":path", "/ HTTP/1.1\r\nHost: "+sideName+"\r\n\r\n"),
		"a path that is a URL":     replaced(":path", "https://"+sideName+"/"),
		"a method with a request":  replaced(":method", "GET / HTTP/1.1\r\nX: y\r\n\r\nGET"),
		"CONNECT":                  {":method", "CONNECT", ":authority", sideName + ":443", "authorization", l.placeholder},
		"extended CONNECT":         {":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":authority", apiName, ":path", "/", "authorization", l.placeholder},
		"a pseudo header late":     with("authorization", l.placeholder, ":path", "/other"),
		"an unknown pseudo header": with(":secret", l.placeholder),
		"announced trailers":       with("trailer", "x-t", "authorization", l.placeholder),
	} {
		if got := l.raw2(one(fields)); got == "200" {
			t.Errorf("%s: answered %q", what, got)
		}
	}
	if got := l.raw2(one(with("x-a", strings.Repeat("a", 80<<10)))); got == "200" {
		t.Errorf("huge headers: %q", got)
	}
	if seen := l.arrived(); len(seen) != 1 {
		t.Errorf("forwarded: %+v", seen[1:])
	}
}

// one sends one request without a body, split in frames when it is long.
func one(fields []string) func(f *http2.Framer, head func(fields ...string) []byte) {
	return func(f *http2.Framer, head func(fields ...string) []byte) {
		block := head(fields...)
		first := block[:min(len(block), 16<<10)]
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: len(first) == len(block), EndStream: true, BlockFragment: first})
		for block = block[len(first):]; len(block) > 0; {
			n := min(len(block), 16<<10)
			_ = f.WriteContinuation(1, n == len(block), block[:n]) // the other end may have had enough
			block = block[n:]
		}
	}
}

// TestSpec_10_12_SmuggledRequestsAreOne shows that what the proxy read as one request reaches an origin as one.
func TestSpec_10_12_SmuggledRequestsAreOne(t *testing.T) {
	t.Parallel()
	l := setup(t, nil)
	inner := "GET /smuggled HTTP/1.1\r\nHost: " + apiName + "\r\nAuthorization: " + l.placeholder + "\r\n\r\n"
	l.say(fmt.Sprintf("POST /outer HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", apiName, 4, len(inner), inner))
	l.say(fmt.Sprintf("POST /outer HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n%s", apiName, len(inner), inner))
	seen := l.arrived()
	if len(seen) != 2 {
		t.Fatalf("arrived: %+v", seen)
	}
	for _, r := range seen {
		if r.URI != "/outer" || r.Body != inner {
			t.Errorf("arrived: %s with %q", r.URI, r.Body)
		}
	}
}

// TestOriginsAreVerified has an origin show certificates that are not good enough.
func TestOriginsAreVerified(t *testing.T) {
	t.Parallel()
	l := setup(t, nil)
	l.g.upstream.TLSClientConfig.RootCAs = x509.NewCertPool() // nobody is trusted
	code, body := l.do(l.client(true), newRequest(t, "GET", "https://"+apiName+"/", nil, "Authorization", l.placeholder))
	if code != 502 || !strings.Contains(body, "certificate") || len(l.arrived()) != 0 {
		t.Errorf("%d %s %v", code, body, l.arrived())
	}
}

// TestSpec_10_12_NoClientCertificate: an origin that insists on one ends the handshake, and nothing is sent.
func TestSpec_10_12_NoClientCertificate(t *testing.T) {
	t.Parallel()
	l := setup(t, nil)
	cert, key, err := authority.Make([]string{apiName}, time.Now())
	l.must(err)
	public, err := authority.Open(cert, key, nil)
	l.must(err)
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{ClientAuth: tls.RequireAnyClientCert,
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return public.Leaf(h.ServerName) }})
	l.must(err)
	t.Cleanup(func() { ln.Close() })
	received := make(chan int, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		n, _ := c.Read(make([]byte, 1024))
		received <- n
	}()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(public.PEM())
	l.upstream = ln.Addr().String()
	l.g.upstream.TLSClientConfig.RootCAs = roots
	code, _ := l.do(l.client(false), newRequest(t, "GET", "https://"+apiName+"/", nil, "Authorization", l.placeholder))
	if n := <-received; code != 502 || n != 0 {
		t.Errorf("%d, and the origin read %d bytes", code, n)
	}
}

func TestLimitsOfSpec_10_14(t *testing.T) {
	t.Parallel()
	l := setup(t, nil)
	if MaxConnections != 256 || MaxRequests != 256 || MaxResolutions != 64 || MaxStreams != 4 {
		t.Fatal("the limits are others")
	}
	l.mu.Lock()
	l.held = make(chan struct{})
	l.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// Clients of HTTP/2 with four streams each: 64 connections bring 256 requests.
	type answer struct {
		code int
		err  error
	}
	answers := make(chan answer, MaxRequests+8)
	ask := func(c *http.Client) {
		r, err := http.NewRequestWithContext(ctx, "GET", "https://"+apiName+"/", nil)
		l.must(err)
		r.Header.Set("Authorization", l.placeholder)
		resp, err := c.Do(r)
		if err != nil {
			answers <- answer{err: err}
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		answers <- answer{code: resp.StatusCode}
	}
	for range MaxRequests / MaxStreams {
		c := l.client(true)
		for range MaxStreams {
			go ask(c)
		}
	}
	for len(l.g.requests) < MaxRequests || len(l.g.resolutions) < MaxResolutions {
		select {
		case a := <-answers:
			t.Fatalf("answered before its time: %+v", a)
		case <-time.After(time.Millisecond):
		}
	}
	l.mu.Lock()
	asked := l.asked
	l.mu.Unlock()
	if asked != MaxResolutions {
		t.Errorf("%d resolutions at once", asked)
	}
	code, body := l.do(l.client(false), newRequest(t, "GET", "https://"+apiName+"/", nil, "Authorization", l.placeholder))
	if code != 503 || !strings.Contains(body, "too many requests") {
		t.Errorf("one more: %d %s", code, body)
	}
	close(l.held)
	for range MaxRequests {
		if a := <-answers; a.err != nil || a.code != 200 {
			t.Fatalf("%+v", a)
		}
	}
	// A fifth stream of one connection is refused or ends it, as HTTP/2 has it; it is never served beside four.
	if got := l.raw2(func(f *http2.Framer, head func(fields ...string) []byte) {
		for i := range uint32(MaxStreams + 1) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, EndHeaders: true,
				BlockFragment: head(":method", "POST", ":scheme", "https", ":authority", apiName, ":path", "/")})
		}
	}); got == "200" {
		t.Error("five streams are served")
	}
}

func TestSpec_10_14_ConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	l := setup(t, nil)
	o := Origin{apiName, 443}
	for i := range MaxConnections {
		if _, err := l.raw(o, &tls.Config{ServerName: apiName}); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	if _, err := l.raw(o, &tls.Config{ServerName: apiName}); err == nil {
		t.Error("one more is served")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.verdicts) != 1 || l.verdicts[0] != ReasonLimit {
		t.Errorf("told of %v", l.verdicts)
	}
}

// TestValuesStayOutOfErrors fails requests in every way and looks for the value in what is said of them.
func TestValuesStayOutOfErrors(t *testing.T) {
	t.Parallel()
	l := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }))
	c := l.client(true)
	r := newRequest(t, "GET", "https://"+apiName+"/", nil, "Authorization", l.placeholder)
	resp, err := c.Do(r)
	var all string
	if err == nil {
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		all = resp.Status + fmt.Sprint(resp.Header) + string(b)
	} else {
		all = err.Error()
	}
	l.g.cfg.Dial = nil
	all += l.logs.String()
	if strings.Contains(all, secret) || strings.Contains(all, l.placeholder) {
		t.Errorf("it says %s", all)
	}
	if err == nil && resp.StatusCode != 502 {
		t.Errorf("answered %s", resp.Status)
	}
	if errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
