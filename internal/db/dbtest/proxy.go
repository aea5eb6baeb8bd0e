package dbtest

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// Proxy stands between a program and PostgreSQL and does to their connections what networks and databases do.
type Proxy struct {
	// URL is the database's, through the proxy.
	URL    string
	target string
	done   chan struct{}

	mu sync.Mutex
	// all below are guarded by mu
	conns map[*proxied]struct{}
	down  bool
	slow  time.Duration
	// open is closed while bytes may pass.
	open chan struct{}
	// skip commits are left alone, then the answers to lose of them are lost.
	skip, lose int
	lost       int
}

// proxied is one connection through a Proxy.
type proxied struct {
	client, server net.Conn
}

func (c *proxied) close() { _, _ = c.client.Close(), c.server.Close() }

// NewProxy makes a proxy on an address, such as 127.0.0.1:0, to the database at u; it goes when the test ends.
func NewProxy(t testing.TB, u, address string) *Proxy {
	t.Helper()
	to, err := url.Parse(u)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: to.Host, done: make(chan struct{}), conns: map[*proxied]struct{}{}, open: make(chan struct{})}
	close(p.open)
	to.Host = ln.Addr().String()
	p.URL = to.String()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		close(p.done)
		p.Cut()
		wg.Wait()
	})
	return p
}

// Up ends every fault.
func (p *Proxy) Up() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down, p.slow, p.skip, p.lose = false, 0, 0, 0
	select {
	case <-p.open:
	default:
		close(p.open)
	}
}

// Cut ends the connections of now.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.close()
	}
}

// Down is a database that is stopped: no connection lasts.
func (p *Proxy) Down() {
	p.mu.Lock()
	p.down = true
	p.mu.Unlock()
	p.Cut()
}

// Silent is a network that is cut: nothing passes, and nobody is told.
func (p *Proxy) Silent() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		p.open = make(chan struct{})
	default: // it is silent already
	}
}

// Slow delays each answer.
func (p *Proxy) Slow(by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slow = by
}

// LoseCommits leaves skip commits alone, and has the n after them done and their answers lost, with the connection.
func (p *Proxy) LoseCommits(skip, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.skip, p.lose = skip, n
}

// Lost tells how many answers to commits were lost so far.
func (p *Proxy) Lost() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

func (p *Proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	c := &proxied{client: client, server: server}
	defer c.close()
	p.mu.Lock()
	down := p.down
	p.conns[c] = struct{}{}
	p.mu.Unlock()
	if !down {
		var wg sync.WaitGroup
		wg.Go(func() { defer c.close(); p.questions(c) })
		wg.Go(func() { defer c.close(); p.answers(c) })
		wg.Wait()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// pass waits until bytes may pass, and for as long as they are delayed.
func (p *Proxy) pass(slow bool) {
	p.mu.Lock()
	open, by := p.open, p.slow
	p.mu.Unlock()
	select {
	case <-open:
	case <-p.done:
	}
	if slow && by > 0 {
		timer := time.NewTimer(by)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-p.done:
		}
	}
}

// questions hands on what the client says.
func (p *Proxy) questions(c *proxied) {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.client.Read(buf)
		if err != nil {
			return
		}
		p.pass(false)
		if _, err := c.server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// answers hands on what the database says. An answer to a commit that is to be lost is read to its end: it is done then.
func (p *Proxy) answers(c *proxied) {
	from := bufio.NewReader(c.server)
	losing := false
	for {
		message, err := readMessage(from)
		if err != nil {
			return
		}
		losing = losing || (string(message[5:]) == "COMMIT\x00" && message[0] == 'C' && p.loses())
		if losing {
			if message[0] == 'Z' {
				p.mu.Lock()
				p.lost++
				p.mu.Unlock()
				return
			}
			continue
		}
		if from.Buffered() == 0 {
			p.pass(true)
		}
		if _, err := c.client.Write(message); err != nil {
			return
		}
	}
}

// loses tells whether the answer to a commit is to be lost.
func (p *Proxy) loses() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.skip > 0:
		p.skip--
	case p.lose > 0:
		p.lose--
		return true
	}
	return false
}

// readMessage reads one message of PostgreSQL's protocol: its kind, its length without that, and what it says.
func readMessage(from io.Reader) ([]byte, error) {
	b := make([]byte, 5)
	if _, err := io.ReadFull(from, b); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(b[1:])) - 4
	if n < 0 || n > 1<<30 {
		return nil, fmt.Errorf("a message of %d bytes", n)
	}
	b = append(b, make([]byte, n)...)
	_, err := io.ReadFull(from, b[5:])
	return b, err
}
