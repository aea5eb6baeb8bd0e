package egress

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/miekg/dns"

	"helmr.dev/helmr/internal/egress/policy"
)

// listen binds resolver and proxies in the gateway's namespace.
func (g *Gateway) listen() error {
	var packets net.PacketConn
	var questions, tls, web net.Listener
	resolver := netip.AddrPortFrom(resolverAddress, portDNS).String()
	err := inside(g.ns, func() (err error) {
		if packets, err = net.ListenPacket("udp4", resolver); err != nil {
			return err
		}
		g.closers = append(g.closers, packets.Close)
		for where, l := range map[string]*net.Listener{resolver: &questions, any4(portTLS): &tls, any4(portHTTP): &web} {
			if *l, err = net.Listen("tcp4", where); err != nil {
				return err
			}
			g.closers = append(g.closers, (*l).Close)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("listen in the gateway: %w", err)
	}
	handler := dns.HandlerFunc(g.ServeDNS)
	g.serve("dns", func() error {
		return (&dns.Server{PacketConn: packets, Handler: handler, UDPSize: 1232}).ActivateAndServe()
	})
	g.serve("dns over tcp", func() error {
		return (&dns.Server{Listener: &admitted{Listener: questions, g: g}, Handler: handler, MaxTCPQueries: 16, ReadTimeout: 5 * time.Second,
			IdleTimeout: func() time.Duration { return 5 * time.Second }}).ActivateAndServe()
	})
	g.serve("tls", func() error { return g.serveTLS(&admitted{Listener: tls, g: g}) })
	server := g.webServer()
	g.closers = append(g.closers, server.Close)
	g.serve("http", func() error { return server.Serve(&admitted{Listener: web, g: g}) })
	return nil
}

func any4(port int) string { return net.JoinHostPort("0.0.0.0", strconv.Itoa(port)) }

func (g *Gateway) serve(what string, run func() error) {
	g.running.Go(func() {
		if err := run(); err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, http.ErrServerClosed) {
			g.cfg.Log.Error("the gateway stopped serving", "what", what, "error", err)
		}
	})
}

// admitted accepts connections of Computers, up to the bound of each. It closes others at once.
type admitted struct {
	net.Listener
	g *Gateway
}

func (l *admitted) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		var temporary interface{ Temporary() bool }
		if errors.As(err, &temporary) && temporary.Temporary() { // out of file descriptors, for example
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if err != nil {
			return nil, err
		}
		tcp := conn.(*net.TCPConn)
		c := l.g.at(remote(conn))
		if c == nil || c.ctx.Err() != nil {
			reset(tcp)
			continue
		}
		give, ok := take(c.connections)
		if !ok {
			c.attempts.add(Attempt{Kind: "tcp", Reason: policy.ReasonLimit})
			reset(tcp)
			continue
		}
		return newGuestConn(tcp, c, give), nil
	}
}

func remote(conn net.Conn) netip.Addr {
	a, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
	return a.Addr()
}

// reset ends a connection at once: whoever waits for it fails now and not later.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
