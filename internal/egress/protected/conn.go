package protected

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// guarded is a connection that begins with what was already read of it, belongs to one origin, and is given up when its
// other end takes nothing for too long. It carries TLS, and gathers what comes and goes in a row: each system call costs
// about as much as the cryptography of its record, and the Computer's network takes large segments for far less.
type guarded struct {
	net.Conn
	read   []byte // came, and was not taken yet
	ahead  []byte // what read is in, once there was more than a record at once
	origin Origin
	done   func()
	once   sync.Once
	until  atomic.Int64 // a deadline that its user set for writing, in nanoseconds; 0 for none

	mu sync.Mutex
	// all below are guarded by mu
	held *[]byte // full records that are not sent yet
	due  *time.Timer
	err  error // of what was held
}

// fullRecord is the length from which on a record of TLS is one of several.
const fullRecord = 16 << 10

// holding lends what records are held in.
var holding = sync.Pool{New: func() any {
	b := make([]byte, 0, gather)
	return &b
}}

func (c *guarded) Read(p []byte) (int, error) {
	if len(c.read) == 0 {
		if len(p) < fullRecord {
			return c.Conn.Read(p)
		}
		if c.ahead == nil {
			c.ahead = make([]byte, gather)
		}
		n, err := c.Conn.Read(c.ahead)
		if n == 0 {
			return 0, err
		}
		c.read = c.ahead[:n]
	}
	n := copy(p, c.read)
	c.read = c.read[n:]
	return n, nil
}

// Write sends what it is given, with what was held. A full record is held for a moment, because more are likely to follow.
func (c *guarded) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	full := len(p) >= fullRecord
	if c.held == nil && !full {
		return c.send(p)
	}
	if c.held != nil && len(*c.held)+len(p) > gather {
		if err := c.sendHeldLocked(); err != nil {
			return 0, err
		}
	}
	c.holdLocked(p)
	if !full {
		if err := c.sendHeldLocked(); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func (c *guarded) holdLocked(p []byte) {
	if c.held == nil {
		c.held = holding.Get().(*[]byte)
		if c.due == nil {
			c.due = time.AfterFunc(gatherFor, c.sendDue)
		} else {
			c.due.Reset(gatherFor)
		}
	}
	*c.held = append(*c.held, p...)
}

// sendDue sends what was held long enough.
func (c *guarded) sendDue() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.sendHeldLocked() // the next Write has the error
}

// sendHeldLocked sends what is held.
func (c *guarded) sendHeldLocked() error {
	if c.held == nil {
		return nil
	}
	held := c.held
	c.held = nil
	c.due.Stop()
	_, c.err = c.send(*held)
	*held = (*held)[:0]
	holding.Put(held)
	return c.err
}

func (c *guarded) send(p []byte) (int, error) {
	end := time.Now().Add(stallTimeout)
	if until := c.until.Load(); until != 0 {
		end = time.Unix(0, min(end.UnixNano(), until))
	}
	if err := c.Conn.SetWriteDeadline(end); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

func (c *guarded) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.done)
	return err
}

// SetDeadline is SetReadDeadline and SetWriteDeadline.
func (c *guarded) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetWriteDeadline bounds writing beside the bound that each piece has.
func (c *guarded) SetWriteDeadline(t time.Time) error {
	if t.IsZero() {
		c.until.Store(0)
		return c.Conn.SetWriteDeadline(time.Now().Add(stallTimeout))
	}
	c.until.Store(t.UnixNano())
	return c.Conn.SetWriteDeadline(t)
}

// body is a request's body on its way. It ends in an error, so that the request is given up unfinished, when it has
// trailers or brings nothing for too long.
type body struct {
	io.ReadCloser
	request *http.Request

	mu sync.Mutex
	// control is guarded by mu. It is nil once the request was answered: a transport may read on for a moment, and the
	// connection is then another request's, or gone.
	control *http.ResponseController
}

func (b *body) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.control = nil
}

// until bounds the present read; the zero time takes the bound back. Without a control the connection's own bounds hold.
func (b *body) until(t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.control != nil {
		_ = b.control.SetReadDeadline(t)
	}
}

var errTrailers = errors.New("the request has trailers")

func (b *body) Read(p []byte) (int, error) {
	b.until(time.Now().Add(stallTimeout))
	n, err := b.ReadCloser.Read(p)
	// Taken back at once: the answer may take longer than the next piece is waited for.
	b.until(time.Time{})
	if errors.Is(err, io.EOF) && len(b.request.Trailer) > 0 {
		return n, errTrailers
	}
	return n, err
}

// handed is a listener of connections that were accepted elsewhere.
type handed struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *handed) hand(c net.Conn) bool {
	select {
	case l.conns <- c:
		return true
	case <-l.closed:
		return false
	}
}

func (l *handed) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *handed) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *handed) Addr() net.Addr { return &net.TCPAddr{} }
