package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"sync"
	"time"

	"helmr.dev/helmr/internal/egress/policy"
)

const (
	helloTimeout  = 10 * time.Second
	dialTimeout   = 10 * time.Second
	maxHello      = 128 << 10 // bytes read of a connection before its name is known
	extensionECH  = 0xfe0d
	maxHeaderSize = 64 << 10
)

// guestConn is a connection that a Computer made to the gateway. It ends with the Computer's network.
type guestConn struct {
	*net.TCPConn
	computer *computer
	end      context.CancelFunc
	give     func()
	once     sync.Once
}

func newGuestConn(tcp *net.TCPConn, c *computer, give func()) *guestConn {
	ctx, end := context.WithCancel(c.ctx)
	context.AfterFunc(ctx, func() { _ = tcp.Close() })
	return &guestConn{TCPConn: tcp, computer: c, end: end, give: give}
}

func (c *guestConn) Close() error {
	err := c.TCPConn.Close()
	c.once.Do(func() {
		c.end()
		c.give()
	})
	return err
}

func (g *Gateway) serveTLS(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go g.relayTLS(conn.(*guestConn))
	}
}

// relayTLS connects a TLS connection, unread but for its first message, to where its name says.
func (g *Gateway) relayTLS(conn *guestConn) {
	defer conn.Close()
	c := conn.computer
	_ = conn.SetReadDeadline(time.Now().Add(helloTimeout))
	name, hello, reason := readHello(conn)
	_ = conn.SetReadDeadline(time.Time{})
	if c.policy.Open() || c.shield.origins != nil {
		if handled := g.shielded(conn, name, hello, reason); handled {
			return
		}
	}
	if reason != "" {
		c.attempts.add(Attempt{Kind: "tls", Name: name, Reason: reason})
		refuseTLS(conn.TCPConn)
		return
	}
	up, at, reason, err := g.connectTo(c, name, 443)
	c.attempts.add(Attempt{Kind: "tls", Name: name, Address: at, Reason: reason})
	if reason != "" {
		refuseTLS(conn.TCPConn)
		return
	}
	if err != nil {
		reset(conn.TCPConn)
		return
	}
	defer up.Close()
	defer context.AfterFunc(c.ctx, func() { _ = up.Close() })()
	if _, err := up.Write(hello); err != nil {
		reset(conn.TCPConn)
		return
	}
	relay(conn.TCPConn, up.(*net.TCPConn))
}

// relay copies both ways until both have ended, or one has broken.
func relay(a, b *net.TCPConn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		pass(a, b)
	}()
	pass(b, a)
	<-done
}

func pass(to, from *net.TCPConn) {
	_, err := io.Copy(to, from)
	if err != nil {
		reset(to) // a broken connection is not passed on as one that ended well
		reset(from)
		return
	}
	_ = to.CloseWrite()
}

// refuseTLS ends a connection with the alert access_denied, which TLS libraries report as such.
func refuseTLS(c *net.TCPConn) {
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = c.Write([]byte{21, 3, 3, 0, 2, 2, 49})
	_ = c.CloseWrite()
	// What was sent meanwhile has to be read, or the kernel resets the connection before the alert is seen.
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	_, _ = io.CopyN(io.Discard, c, maxHello)
}

// readHello reads the first message of a TLS client: the name in it, in normal form, and everything that was read.
func readHello(r io.Reader) (name string, read []byte, reason policy.Reason) {
	seen := &recorder{r: io.LimitReader(r, maxHello)}
	var hello *tls.ClientHelloInfo
	enough := errors.New("enough")
	// The standard library reads the message; it is stopped before it would answer.
	err := tls.Server(seen, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		hello = h
		return nil, enough
	}}).Handshake()
	switch {
	case hello == nil || !errors.Is(err, enough):
		return "", seen.read.Bytes(), policy.ReasonProtocol
	case slices.Contains(hello.Extensions, extensionECH):
		return hello.ServerName, nil, policy.ReasonECH
	case hello.ServerName == "":
		return "", nil, policy.ReasonNoName
	}
	name, ok := policy.NormalizeName(hello.ServerName)
	if !ok {
		return hello.ServerName, nil, policy.ReasonInvalid
	}
	return name, seen.read.Bytes(), ""
}

// recorder is a connection that is only read from, and keeps what was read.
type recorder struct {
	net.Conn // nil: nothing else is called
	r        io.Reader
	read     bytes.Buffer
}

func (r *recorder) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.read.Write(p[:n])
	return n, err
}

func (r *recorder) Write(p []byte) (int, error)      { return len(p), nil }
func (r *recorder) Close() error                     { return nil }
func (r *recorder) SetDeadline(time.Time) error      { return nil }
func (r *recorder) SetReadDeadline(time.Time) error  { return nil }
func (r *recorder) SetWriteDeadline(time.Time) error { return nil }
func (r *recorder) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (r *recorder) LocalAddr() net.Addr              { return &net.TCPAddr{} }

// connectTo resolves a name for a Computer and connects to the first address that answers. The reason says what the
// policy has against it.
func (g *Gateway) connectTo(c *computer, name string, port uint16) (net.Conn, netip.AddrPort, policy.Reason, error) {
	ctx, cancel := context.WithTimeout(c.ctx, dialTimeout)
	defer cancel()
	found, reason, err := g.resolve(ctx, c, name)
	if reason != "" || err != nil {
		return nil, netip.AddrPort{}, reason, err
	}
	err = errors.New("the name has no address")
	for i, a := range found.addresses {
		to := netip.AddrPortFrom(a, port)
		deadline, _ := ctx.Deadline()
		left := time.Until(deadline) / time.Duration(len(found.addresses)-i)
		var conn net.Conn
		if conn, err = g.dial(&net.Dialer{Timeout: max(left, time.Millisecond), Cancel: ctx.Done()}, to); err == nil {
			return conn, to, "", nil
		}
	}
	g.cfg.Log.Debug("a permitted destination did not answer", "computer", c.ID, "error", err)
	return nil, netip.AddrPort{}, "", err
}

type connKey struct{}

// webServer is the proxy of plain HTTP. Every request is read, judged by its Host and written anew, so that no two
// readers can disagree about where one ends.
func (g *Gateway) webServer() *http.Server {
	return &http.Server{
		Handler:           http.HandlerFunc(g.serveHTTP),
		ReadHeaderTimeout: helloTimeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    maxHeaderSize,
		ErrorLog:          log.New(io.Discard, "", 0), // what Computers send wrong is no matter of the operator's
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn.(*guestConn).computer)
		},
	}
}

func (g *Gateway) serveHTTP(w http.ResponseWriter, r *http.Request) {
	c := r.Context().Value(connKey{}).(*computer)
	name, reason := requestName(r)
	if reason == "" && !c.policy.PermitsName(name) {
		reason = policy.ReasonName
	}
	if reason != "" {
		c.attempts.add(Attempt{Kind: "http", Name: name, Reason: reason})
		refuseHTTP(w, reason)
		return
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", name+":80", r.Host
			if _, ok := p.In.Header["User-Agent"]; !ok {
				p.Out.Header["User-Agent"] = nil // none is added
			}
			for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
				if v, ok := p.In.Header[h]; ok {
					p.Out.Header[h] = v // it is the guest's own
				}
			}
		},
		Transport:     c.web,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			var refused refusal
			if errors.As(err, &refused) {
				refuseHTTP(w, policy.Reason(refused))
				return
			}
			http.Error(w, "the destination did not answer", http.StatusBadGateway)
		},
	}
	proxy.ServeHTTP(w, r)
}

// requestName gives the name that a request is for, in normal form.
func requestName(r *http.Request) (string, policy.Reason) {
	if r.Method == http.MethodConnect || (r.URL.Scheme != "" && r.URL.Scheme != "http") {
		return "", policy.ReasonProtocol
	}
	host := r.Host
	if h, port, err := net.SplitHostPort(host); err == nil {
		if port != "80" {
			return h, policy.ReasonProtocol
		}
		host = h
	}
	if host == "" {
		return "", policy.ReasonNoName
	}
	name, ok := policy.NormalizeName(host)
	if !ok {
		return host, policy.ReasonInvalid
	}
	return name, ""
}

func refuseHTTP(w http.ResponseWriter, reason policy.Reason) {
	w.Header().Set("X-Helmr-Network", string(reason))
	w.Header().Set("Connection", "close")
	http.Error(w, "helmr: the network policy of this Computer refuses this request: "+string(reason), http.StatusForbidden)
}

// refusal is a reason as an error.
type refusal policy.Reason

func (r refusal) Error() string { return string(r) }

// transport carries the plain HTTP requests of one Computer. Its connections are shared with no other Computer and are
// made to permitted addresses only.
func (g *Gateway) transport(c *computer) *http.Transport {
	return &http.Transport{
		DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
			name, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			conn, at, reason, err := g.connectTo(c, name, 80)
			c.attempts.add(Attempt{Kind: "http", Name: name, Address: at, Reason: reason})
			if reason != "" {
				return nil, refusal(reason)
			}
			return conn, err
		},
		DisableCompression:     true,
		MaxConnsPerHost:        maxConnections,
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        30 * time.Second,
		MaxResponseHeaderBytes: maxHeaderSize,
	}
}
