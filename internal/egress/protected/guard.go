package protected

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"sync/atomic"
	"time"

	"helmr.dev/helmr/internal/egress/authority"
)

// Config says what the proxy of a Computer works with. All fields but Roots, Verdict and Refused are required.
type Config struct {
	// Computer names it in logs.
	Computer string
	// Authority signs what the Computer is answered with.
	Authority *authority.Authority
	// Resolve gives values.
	Resolve Resolve
	// Dial connects to a name and port as the Computer's policy permits. An error of the kind Refused tells is the policy's.
	Dial func(ctx context.Context, name string, port uint16) (net.Conn, error)
	// Refused gives the policy's reason behind an error of Dial; "" if it is another error.
	Refused func(error) string
	// Verdict is told of each request that is refused, with the origin's name.
	Verdict func(name string, reason Reason)
	// Roots verify origins; nil is the host's.
	Roots *x509.CertPool
	Log   *slog.Logger
}

// Guard is the proxy of one Computer. Close ends it.
type Guard struct {
	cfg         Config
	requests    chan struct{} // a place for each active one
	resolutions chan struct{}
	connections chan struct{}
	upstream    *http.Transport
	server      *http.Server
	listener    *handed
	buffers     buffers
	complained  atomic.Int64
}

// New starts the proxy of a Computer.
func New(cfg Config) *Guard {
	if cfg.Verdict == nil {
		cfg.Verdict = func(string, Reason) {}
	}
	if cfg.Refused == nil {
		cfg.Refused = func(error) string { return "" }
	}
	g := &Guard{cfg: cfg, requests: make(chan struct{}, MaxRequests), resolutions: make(chan struct{}, MaxResolutions), connections: make(chan struct{}, MaxConnections),
		listener: &handed{conns: make(chan net.Conn), closed: make(chan struct{})}}
	g.upstream = g.transport()
	g.server = &http.Server{
		Handler:           http.HandlerFunc(g.serve),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          log.New(io.Discard, "", 0), // what Computers send wrong is no matter of the operator's
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: MaxStreams, MaxReceiveBufferPerConnection: windowUpload, MaxReceiveBufferPerStream: windowUpload},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, originKey{}, c.(*tls.Conn).NetConn().(*guarded).origin)
		},
	}
	go func() { _ = g.server.Serve(g.listener) }() // ends with Close
	return g
}

// Close ends all connections and forgets what is kept.
func (g *Guard) Close() {
	_ = g.server.Close()
	g.upstream.CloseIdleConnections()
}

type originKey struct{}

// Serve takes over a connection of the Computer whose first message, already read, names the origin. done is called when it
// has ended. False says that there are too many: the connection is still the caller's.
func (g *Guard) Serve(conn net.Conn, read []byte, o Origin, done func()) bool {
	select {
	case g.connections <- struct{}{}:
	default:
		g.cfg.Verdict(o.Name, ReasonLimit)
		return false
	}
	inner := &guarded{Conn: conn, read: read, origin: o, done: func() {
		<-g.connections
		done()
	}}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			// The message was read once before, to find the origin: both readings have to say the same.
			if !Origin.is(Origin{o.Name, 443}, trimDot(h.ServerName)) {
				return nil, errors.New("another name")
			}
			return g.cfg.Authority.Leaf(o.Name)
		},
		SessionTicketsDisabled: true, // a session is not carried from one origin to another
	}
	if !g.listener.hand(tls.Server(inner, config)) {
		_ = inner.Close()
	}
	return true
}

func trimDot(s string) string {
	if n := len(s); n > 0 && s[n-1] == '.' {
		return s[:n-1]
	}
	return s
}

// serve answers one request.
func (g *Guard) serve(w http.ResponseWriter, r *http.Request) {
	o := r.Context().Value(originKey{}).(Origin)
	select {
	case g.requests <- struct{}{}:
		defer func() { <-g.requests }()
	default:
		w.Header().Set("Retry-After", "1")
		g.refuse(w, r, o, &refusal{http.StatusServiceUnavailable, ReasonLimit, "too many requests at once; try again"})
		return
	}
	if refused := judge(o, r); refused != nil {
		g.refuse(w, r, o, refused)
		return
	}
	if refused := g.substitute(r.Context(), o, r.Header); refused != nil {
		g.refuse(w, r, o, refused)
		return
	}
	if r.Body != nil && r.Body != http.NoBody {
		control := http.NewResponseController(w)
		// Without this the server of HTTP/1.1 waits for the end of the request before the answer begins.
		if err := control.EnableFullDuplex(); err != nil && r.ProtoMajor == 1 {
			g.failed(w, r, o, err)
			return
		}
		upload := &body{ReadCloser: r.Body, request: r, control: control}
		defer upload.end()
		r.Body = upload
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(p *httputil.ProxyRequest) { rewrite(p, o) },
		Transport:     g.upstream,
		FlushInterval: -1,
		BufferPool:    &g.buffers,
		ErrorLog:      log.New(io.Discard, "", 0),
		ModifyResponse: func(resp *http.Response) error {
			resp.Header.Del("Alt-Svc") // another protocol or host would be no way for the placeholder
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) { g.failed(w, r, o, err) },
	}
	proxy.ServeHTTP(w, r)
}

// rewrite makes the request to the origin: the guest's own but for what belongs to its connection.
func rewrite(p *httputil.ProxyRequest, o Origin) {
	p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "https", o.address(), p.In.Host
	p.Out.URL.RawQuery, p.Out.URL.ForceQuery = p.In.URL.RawQuery, p.In.URL.ForceQuery // as it came, also when it is unusual
	p.Out.Header.Del("Host")
	if _, ok := p.In.Header["User-Agent"]; !ok {
		p.Out.Header["User-Agent"] = nil // none is added
	}
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := p.In.Header[h]; ok {
			p.Out.Header[h] = v // it is the guest's own
		}
	}
}

func (g *Guard) failed(w http.ResponseWriter, r *http.Request, o Origin, err error) {
	var refused *refusal
	switch {
	case errors.As(err, &refused):
	case g.cfg.Refused(err) != "":
		refused = &refusal{http.StatusForbidden, Reason(g.cfg.Refused(err)), "the network policy of this Computer refuses " + o.String() + ": " + g.cfg.Refused(err)}
	default:
		g.cfg.Log.Debug("a protected origin was not reached", "computer", g.cfg.Computer, "origin", o.String(), "kind", kind(err))
		refused = &refusal{http.StatusBadGateway, ReasonUpstream, kind(err)}
	}
	g.refuse(w, r, o, refused)
}

// kind says what went wrong with an origin, in words of our own: an error's text may hold parts of a request.
func kind(err error) string {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var verify *tls.CertificateVerificationError
	var timeout net.Error
	switch {
	case errors.As(err, &unknown), errors.As(err, &host), errors.As(err, &invalid), errors.As(err, &verify):
		return "the certificate of the origin is not valid"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "the origin did not answer in time"
	}
	return "the connection to the origin failed"
}

func (g *Guard) refuse(w http.ResponseWriter, r *http.Request, o Origin, refused *refusal) {
	g.cfg.Verdict(o.Name, refused.reason)
	w.Header().Set("X-Helmr-Network", string(refused.reason))
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close") // the rest of a refused request is not looked at
	}
	http.Error(w, "helmr: "+refused.text, refused.status)
}

// transport makes the connections to origins. They are shared with no other Computer.
func (g *Guard) transport() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			o, ok := ParseOrigin("https://" + trimPort(addr))
			if !ok {
				return nil, errors.New("the destination has no name")
			}
			conn, err := g.cfg.Dial(ctx, o.Name, o.Port)
			if err != nil {
				return nil, err
			}
			return &guarded{Conn: conn, origin: o, done: func() {}}, nil
		},
		// Without a client certificate: an origin that insists on one ends the handshake.
		TLSClientConfig:        &tls.Config{RootCAs: g.cfg.Roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    handshakeTimeout,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{MaxReceiveBufferPerStream: windowDownload},
		DisableCompression:     true,
		MaxConnsPerHost:        MaxConnections,
		MaxIdleConnsPerHost:    upstreamIdleEach,
		IdleConnTimeout:        upstreamIdle,
		MaxResponseHeaderBytes: maxResponseHeader,
		ExpectContinueTimeout:  time.Second,
		ReadBufferSize:         bufferSize,
		WriteBufferSize:        bufferSize,
	}
}

// trimPort takes the default port off an address.
func trimPort(addr string) string {
	if name, port, err := net.SplitHostPort(addr); err == nil && port == "443" {
		return name
	}
	return addr
}

const bufferSize = 64 << 10

// buffers lends what bodies are copied through.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, bufferSize)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
