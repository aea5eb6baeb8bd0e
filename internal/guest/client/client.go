package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"helmr.dev/helmr/internal/guest/proto"
)

// Errors of requests. A request that was not answered (ErrDisconnected) may or may not have been carried out; every
// request may be repeated.
var (
	// ErrDisconnected: there is no connection to the guest, or it was lost before the answer.
	ErrDisconnected = errors.New("guest is not connected")
	// ErrClosed: the Client was closed or released.
	ErrClosed = errors.New("guest client is closed")
	// ErrWrongEpoch: the guest has another epoch of the Session.
	ErrWrongEpoch = errors.New("guest has another epoch of the session")
	// ErrUnknown: the guest has no such process or Command.
	ErrUnknown = errors.New("guest has no such process")
	// ErrNotReady: the process is starting, serving another Turn, stopping or exited.
	ErrNotReady = errors.New("process is not ready")
	// ErrBusy: an older epoch has not ended, or something is unacknowledged, or the guest has too many processes.
	ErrBusy = errors.New("guest is busy")
	// ErrInvalid: the guest refused the request itself.
	ErrInvalid = errors.New("guest refused the request")
)

// Handler gets what the guest says, one call at a time. Between Connected and the Disconnected that follows it all
// calls concern one connection. A call that blocks holds up the guest, not the caller of requests; it may itself
// send requests.
type Handler interface {
	// Connected begins a connection. Operations come from FirstUnacked of each process on.
	Connected(Hello)
	// Ops hands over operations of one process in order, numbers without gaps.
	Ops(sessionID string, epoch int64, ops []Op)
	// Log hands over output of a process, best effort.
	Log(Log)
	// Disconnected ends a connection and says why.
	Disconnected(error)
}

// CommandHandler gets what Commands do. Events come again after a reconnect until acknowledged with AckCommand.
type CommandHandler interface {
	CommandStarted(commandID string)
	CommandOutput(commandID string, stream proto.Stream, seq int64, data []byte)
	CommandExited(CommandExit)
}

// Options are optional parts of a Client.
type Options struct {
	Log *slog.Logger
	// Commands gets the events of Commands; without it they are dropped.
	Commands CommandHandler
	// WriteTimeout is how long the guest may take to read one frame. Default 10 s.
	WriteTimeout time.Duration
	// HelloTimeout is how long the guest may take to say Hello. Default 10 s.
	HelloTimeout time.Duration
}

// Stats counts what came from the guest and was not believed, since Listen.
type Stats struct {
	// Connections counts accepted connections, Violations those ended for breaking the protocol, Slow those ended
	// because the guest did not read.
	Connections, Violations, Slow int64
	// UnknownEvents counts events about processes or Commands that the Worker does not know of, or of no known kind;
	// UnknownReplies counts replies to no request.
	UnknownEvents, UnknownReplies int64
}

// Client listens for one guest. Make it with Listen.
type Client struct {
	path     string
	handler  Handler
	opts     Options
	log      *slog.Logger
	listener *net.UnixListener
	// wait counts the goroutines that Close waits for.
	wait sync.WaitGroup

	connections, violations, slow, unknownEvents, unknownReplies atomic.Int64

	mu     sync.Mutex
	closed bool
	// link is the newest connection; greeted once it said Hello.
	link *link
}

// Listen makes the folder of path (mode 0700) and listens there, in place of a socket file left behind by an earlier
// Worker program. Only one Client may listen at a path. The path may be longer than a socket address allows.
func Listen(path string, h Handler, opts Options) (*Client, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.WriteTimeout == 0 {
		opts.WriteTimeout = 10 * time.Second
	}
	if opts.HelloTimeout == 0 {
		opts.HelloTimeout = 10 * time.Second
	}
	listener, err := listen(path)
	if err != nil {
		return nil, fmt.Errorf("listen for a guest at %s: %w", path, err)
	}
	c := &Client{path: path, handler: h, opts: opts, log: opts.Log, listener: listener}
	c.wait.Add(1)
	go c.accept()
	return c, nil
}

func listen(path string) (*net.UnixListener, error) {
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(folder, 0o700); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	// A socket address holds 107 bytes; through its open folder a socket of any path can be named.
	dir, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	address := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: address, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		_ = listener.Close()
		return nil, err
	}
	return listener, nil
}

// briefly is how short a connection is worth a pause, and pause how long: a guest that only dials costs little.
const (
	briefly = 100 * time.Millisecond
	pause   = 20 * time.Millisecond
)

// accept takes connections; a newer one replaces an older one, which ends, Disconnected included, before the newer
// one begins.
func (c *Client) accept() {
	defer c.wait.Done()
	var old *link
	for {
		raw, err := c.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			c.log.Warn("accept a guest", "path", c.path, "err", err)
			time.Sleep(pause)
			continue
		}
		c.connections.Add(1)
		if old != nil {
			old.fail(errReplaced)
			<-old.over
			if old.lasted < briefly {
				time.Sleep(pause)
			}
		}
		l := newLink(c, raw)
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			_ = raw.Close()
			return
		}
		c.link = l
		c.wait.Add(1)
		c.mu.Unlock()
		old = l
		go func() {
			defer c.wait.Done()
			l.run()
		}()
	}
}

var errReplaced = errors.New("replaced by a newer connection")

// current gives the connection that has said Hello.
func (c *Client) current() (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	if c.link == nil || !c.link.ready() {
		return nil, ErrDisconnected
	}
	return c.link, nil
}

// gone forgets a connection that has ended.
func (c *Client) gone(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == l {
		c.link = nil
	}
}

// Stats gives the counters.
func (c *Client) Stats() Stats {
	return Stats{
		Connections: c.connections.Load(), Violations: c.violations.Load(), Slow: c.slow.Load(),
		UnknownEvents: c.unknownEvents.Load(), UnknownReplies: c.unknownReplies.Load(),
	}
}

// shut stops accepting and removes the socket file; the connection, if any, stays.
func (c *Client) shut() *link {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	l := c.link
	c.mu.Unlock()
	if first {
		_ = os.Remove(c.path)
		_ = c.listener.Close()
	}
	return l
}

// Close stops listening, ends the connection and waits until the Handler has been told. The guest and its processes
// go on; another Listen at the same path finds them. It must not be called by the Handler.
func (c *Client) Close() {
	if l := c.shut(); l != nil {
		l.fail(ErrClosed)
	}
	c.wait.Wait()
}

// Release makes the guest let go of the connection, as a checkpoint needs: it removes the socket, asks the guest, and
// waits for the end of the connection. Afterwards the Client is closed, also on an error; Listen again to go on,
// whether the checkpoint was taken or not. It must not be called by the Handler.
func (c *Client) Release(ctx context.Context) error {
	l := c.shut()
	defer c.Close()
	if l == nil || !l.ready() {
		return nil
	}
	l.send(&proto.Request{Kind: &proto.Request_Release{Release: &proto.Release{}}})
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("release the guest: %w", ctx.Err())
	}
}
