package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"helmr.dev/helmr/internal/guest/proto"
)

const (
	// maxQueuedOut bounds what waits to be written to a guest in bytes; a guest that lets more gather is too slow.
	maxQueuedOut = 64 << 20
	// maxQueuedIn bounds what waits for the Handler in bytes; beyond it the guest is not read.
	maxQueuedIn = 32 << 20
	// frameTarget is where a frame is closed; one request more still fits below proto.MaxFrame.
	frameTarget = 1 << 20
)

type key struct {
	session string
	epoch   int64
}

// link is one connection of a guest.
type link struct {
	client *Client
	raw    net.Conn
	// done is closed when the connection has ended, over when the Handler knows; lasted is set before.
	done   chan struct{}
	over   chan struct{}
	began  time.Time
	lasted time.Duration
	wake   chan struct{}

	mu      sync.Mutex
	greeted bool
	err     error
	nextID  uint64
	waiting map[uint64]chan *proto.Reply
	out     []*proto.Request
	outSize int
	// processes is what the Worker knows of on this connection: from the Hello and from StartProcess.
	processes map[key]*position
	commands  map[string]bool

	// in waits for the Handler; arrived and taken are signalled when it grows and shrinks.
	in     []delivery
	inSize int
	moved  *sync.Cond
}

// position is where the operations of a process stand.
type position struct {
	// next is the sequence that is due, acked the highest that the Worker acknowledged.
	next, acked int64
}

// delivery is one call of the Handler.
type delivery struct {
	call func()
	size int
}

func newLink(c *Client, raw net.Conn) *link {
	l := &link{
		client: c, raw: raw, done: make(chan struct{}), over: make(chan struct{}), began: time.Now(),
		wake: make(chan struct{}, 1), waiting: map[uint64]chan *proto.Reply{},
		processes: map[key]*position{}, commands: map[string]bool{},
	}
	l.moved = sync.NewCond(&l.mu)
	return l
}

// ready says whether the guest has said Hello and is still there.
func (l *link) ready() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.greeted && l.err == nil
}

// fail ends the connection; the first reason counts.
func (l *link) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = err
	switch {
	case errors.Is(err, proto.ErrInvalid), errors.Is(err, proto.ErrFrameTooLarge):
		l.client.violations.Add(1)
	case errors.Is(err, errSlow):
		l.client.slow.Add(1)
	}
	_ = l.raw.Close()
	close(l.done)
	l.moved.Broadcast()
}

// run carries one connection to its end.
func (l *link) run() {
	go l.write()
	go l.readAll()
	l.handle()
	l.client.gone(l)
	l.lasted = time.Since(l.began)
	close(l.over)
}

func (l *link) readAll() {
	l.fail(l.read())
}

func (l *link) read() error {
	_ = l.raw.SetReadDeadline(time.Now().Add(l.client.opts.HelloTimeout))
	r := bufio.NewReaderSize(l.raw, 64<<10)
	for {
		var frame proto.ToWorker
		if err := proto.ReadFrame(r, &frame); err != nil {
			return err
		}
		for _, e := range frame.GetEvents() {
			if err := l.event(e); err != nil {
				return err
			}
		}
	}
}

// handle calls the Handler for one delivery after the other until the connection has ended. What is still queued
// then is dropped: the guest will send it again.
func (l *link) handle() {
	connected := false
	for {
		l.mu.Lock()
		for len(l.in) == 0 && l.err == nil {
			l.moved.Wait()
		}
		if l.err != nil {
			l.mu.Unlock()
			if connected {
				l.client.handler.Disconnected(l.err)
			}
			return
		}
		batch := l.in
		l.in, l.inSize = nil, 0
		l.moved.Broadcast()
		l.mu.Unlock()
		for _, d := range batch {
			d.call()
			connected = true // the first delivery is the Hello
			if l.failed() {
				break
			}
		}
	}
}

func (l *link) failed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil
}

// deliverLocked queues a call of the Handler and waits for room first.
func (l *link) deliverLocked(size int, call func()) {
	for l.inSize >= maxQueuedIn && l.err == nil {
		l.moved.Wait()
	}
	l.in = append(l.in, delivery{call, size})
	l.inSize += size
	l.moved.Broadcast()
}

var errSlow = errors.New("guest does not read fast enough")

// send queues a request; it never blocks.
func (l *link) send(r *proto.Request) {
	size := requestSize(r)
	l.mu.Lock()
	tooMuch := l.outSize+size > maxQueuedOut
	if !tooMuch && l.err == nil {
		l.out = append(l.out, r)
		l.outSize += size
	}
	l.mu.Unlock()
	if tooMuch {
		l.fail(errSlow)
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// requestSize is about how many bytes a request takes.
func requestSize(r *proto.Request) int {
	n := 256 + len(r.GetStartProcess().GetStart()) + len(r.GetDeliverTurn().GetLine()) + len(r.GetControl().GetLine()) +
		len(r.GetExecCommand().GetStdin())
	for _, a := range r.GetAcks().GetAcks() {
		n += 16 + len(a.GetLine())
	}
	for _, list := range [][]string{r.GetStartProcess().GetArgv(), r.GetStartProcess().GetEnv(), r.GetExecCommand().GetArgv(), r.GetExecCommand().GetEnv()} {
		for _, s := range list {
			n += len(s) + 4
		}
	}
	return n
}

// write sends queued requests, as many as fit a frame at a time.
func (l *link) write() {
	var buf []byte
	for {
		requests := l.due()
		if len(requests) == 0 {
			select {
			case <-l.wake:
				continue
			case <-l.done:
				return
			}
		}
		var err error
		if buf, err = proto.AppendFrame(buf[:0], &proto.ToGuest{Requests: requests}); err != nil {
			l.fail(err)
			return
		}
		_ = l.raw.SetWriteDeadline(time.Now().Add(l.client.opts.WriteTimeout))
		if _, err := l.raw.Write(buf); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				err = errSlow
			}
			l.fail(fmt.Errorf("write to the guest: %w", err))
			return
		}
		if cap(buf) > 2*frameTarget {
			buf = nil
		}
	}
}

// due takes the requests of the next frame.
func (l *link) due() []*proto.Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, size := 0, 0
	for n < len(l.out) && size < frameTarget {
		size += requestSize(l.out[n])
		n++
	}
	requests := l.out[:n:n]
	l.out = l.out[n:]
	l.outSize -= size
	return requests
}

// call sends a request and waits for its reply.
func (l *link) call(ctx context.Context, r *proto.Request) (*proto.Reply, error) {
	reply := make(chan *proto.Reply, 1)
	l.mu.Lock()
	l.nextID++
	r.Id = l.nextID
	l.waiting[r.GetId()] = reply
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.waiting, r.GetId())
	}()
	l.send(r)
	select {
	case got := <-reply:
		return got, nil
	case <-l.done:
		return nil, ErrDisconnected
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
