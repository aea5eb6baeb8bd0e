package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"golang.org/x/sys/unix"

	"helmr.dev/helmr/internal/egress/authority"
	"helmr.dev/helmr/internal/egress/policy"
	"helmr.dev/helmr/internal/egress/protected"
)

// Reasons for refusals beside those of policies.
const reasonUnguarded policy.Reason = "protection_not_ready" // the Worker has not opened the Computer's protection (again) yet

// shield is what stands before a Computer's protected origins.
type shield struct {
	origins []protected.Origin // fixed; nil for a Computer without any

	mu sync.Mutex
	// guard is guarded by mu; without one the origins cannot be reached.
	guard  *protected.Guard
	closed bool
}

func (s *shield) close() {
	s.mu.Lock()
	g := s.guard
	s.guard, s.closed = nil, true
	s.mu.Unlock()
	if g != nil {
		g.Close()
	}
}

func parseOrigins(list []string) []protected.Origin {
	var out []protected.Origin
	for _, text := range list {
		if o, ok := protected.ParseOrigin(text); ok && !slices.Contains(out, o) {
			out = append(out, o)
		}
	}
	return out
}

// caughtPorts are the elements of the set of ports that the proxy takes from a Computer under an open policy. Under an
// allowlist it takes 443 anyway.
func caughtPorts(c *computer) []nftables.SetElement {
	if !c.policy.Open() {
		return nil
	}
	var ports []uint16
	var out []nftables.SetElement
	for _, o := range c.shield.origins {
		if !slices.Contains(ports, o.Port) {
			ports = append(ports, o.Port)
			key := append(ifname(c.link()), binaryutil.BigEndian.PutUint16(o.Port)...)
			out = append(out, nftables.SetElement{Key: append(key, 0, 0)}) // parts of a key have whole words
		}
	}
	return out
}

// Protection is what a Computer's protected origins are reached with.
type Protection struct {
	Authority *authority.Authority
	Resolve   protected.Resolve
}

// Protect opens the way to a Computer's protected origins: from now on their requests are read, and placeholders in them
// resolved. Until then, and also after a restart, they are refused. A Computer without a network is no error.
func (g *Gateway) Protect(id string, p Protection) error {
	g.mu.RLock()
	c := g.computers[id]
	g.mu.RUnlock()
	if c == nil {
		return nil
	}
	if len(c.shield.origins) == 0 {
		return fmt.Errorf("network of computer %s: it was made without protected origins", id)
	}
	guard := protected.New(protected.Config{
		Computer: id, Authority: p.Authority, Resolve: p.Resolve, Roots: g.cfg.Roots, Log: g.cfg.Log.With(slog.String("part", "protected")),
		Dial: func(_ context.Context, name string, port uint16) (net.Conn, error) {
			conn, at, reason, err := g.connectTo(c, name, port)
			c.attempts.add(Attempt{Kind: "https", Name: name, Address: at, Reason: reason})
			if reason != "" {
				return nil, refusal(reason)
			}
			return conn, err
		},
		Refused: func(err error) string {
			var r refusal
			errors.As(err, &r)
			return string(r)
		},
		Verdict: func(name string, reason protected.Reason) {
			c.attempts.add(Attempt{Kind: "https", Name: name, Reason: policy.Reason(reason)})
		},
	})
	c.shield.mu.Lock()
	old := c.shield.guard
	if c.shield.closed {
		c.shield.mu.Unlock()
		guard.Close()
		return nil
	}
	c.shield.guard = guard
	c.shield.mu.Unlock()
	if old != nil {
		old.Close()
	}
	return nil
}

// shielded takes care of a TLS connection of a Computer that has protected origins. False: it is to be treated as any other
// under an allowlist.
func (g *Gateway) shielded(conn *guestConn, name string, read []byte, reason policy.Reason) bool {
	c := conn.computer
	to, err := originalDestination(conn.TCPConn)
	if err != nil {
		reset(conn.TCPConn)
		return true
	}
	o := protected.Origin{Name: name, Port: to.Port()}
	switch {
	case reason == "" && slices.Contains(c.shield.origins, o):
		g.guardedBy(conn, o, read)
		return true
	case !c.policy.Open():
		return false
	case reason == policy.ReasonProtocol && len(read) > 0 && read[0] != recordHandshake:
		reason = "" // no TLS at all: nothing that is asked of a protected origin
	}
	// An open policy: what is not for a protected origin goes where it was going. Without a name, or with an encrypted one,
	// it might be.
	if reason == "" {
		reason = c.policy.Permit("open.invalid", to.Addr(), g.installation())
	}
	c.attempts.add(Attempt{Kind: "tls", Name: name, Address: to, Reason: reason})
	if reason != "" {
		refuseTLS(conn.TCPConn)
		return true
	}
	up, err := g.dial(&net.Dialer{Timeout: dialTimeout, Cancel: c.ctx.Done()}, to)
	if err != nil {
		reset(conn.TCPConn)
		return true
	}
	defer up.Close()
	defer context.AfterFunc(c.ctx, func() { _ = up.Close() })()
	if _, err := up.Write(read); err != nil {
		reset(conn.TCPConn)
		return true
	}
	relay(conn.TCPConn, up.(*net.TCPConn))
	return true
}

// recordHandshake is the first byte of a TLS connection.
const recordHandshake = 22

// guardedBy gives a connection to the Computer's guard and waits for its end, so that it stays counted.
func (g *Gateway) guardedBy(conn *guestConn, o protected.Origin, read []byte) {
	c := conn.computer
	c.shield.mu.Lock()
	guard := c.shield.guard
	c.shield.mu.Unlock()
	if guard == nil {
		c.attempts.add(Attempt{Kind: "https", Name: o.Name, Reason: reasonUnguarded})
		reset(conn.TCPConn) // programs try again after a reset
		return
	}
	c.attempts.add(Attempt{Kind: "https", Name: o.Name})
	ended := make(chan struct{})
	if !guard.Serve(conn, read, o, func() { close(ended) }) {
		reset(conn.TCPConn)
		return
	}
	<-ended
}

// originalDestination is where a connection was going before the rules sent it here.
func originalDestination(c *net.TCPConn) (netip.AddrPort, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("look for the destination: %w", err)
	}
	var to *unix.IPv6Mreq // as long as the answer, a sockaddr_in: family, port and address
	var errOption error
	err = raw.Control(func(fd uintptr) {
		to, errOption = unix.GetsockoptIPv6Mreq(int(fd), unix.IPPROTO_IP, unix.SO_ORIGINAL_DST)
	})
	if err = errors.Join(err, errOption); err != nil {
		return netip.AddrPort{}, fmt.Errorf("look for the destination: %w", err)
	}
	b := to.Multiaddr
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:4])), nil
}
