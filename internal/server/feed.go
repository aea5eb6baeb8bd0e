package server

import (
	"context"
	"sync"
	"time"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/session"
)

// Bounds of what one feed keeps for its streams; a stream that is further behind reads from the database.
const (
	feedEntries = 1024
	feedBytes   = 4 << 20
)

// feeds shares the reading of new events among the streams of a Session: each event is read and written as text once,
// however many watch. A feed lives while a stream follows it.
type feeds struct {
	hub  *db.Hub
	read Sessions
	stop context.Context

	mu sync.Mutex
	// open is guarded by mu, and so are the feeds' refs.
	open map[string]*feed
}

func newFeeds(stop context.Context, hub *db.Hub, read Sessions) *feeds {
	return &feeds{hub: hub, read: read, stop: stop, open: map[string]*feed{}}
}

// feed holds the latest events of one Session, ready to send.
type feed struct {
	refs   int
	cancel context.CancelFunc

	mu sync.Mutex
	// All below are guarded by mu. Events up to last have been seen; those after last-len(blocks) are in blocks.
	last    int64
	blocks  [][]byte
	size    int
	ended   bool
	changed chan struct{} // closed and replaced at each change
}

// follow joins the feed of a Session for a stream that has sent everything up to after. leave ends it.
func (f *feeds) follow(environmentID, sessionID string, after int64) (fd *feed, leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fd = f.open[sessionID]
	if fd == nil {
		ctx, cancel := context.WithCancel(f.stop)
		fd = &feed{cancel: cancel, last: after, changed: make(chan struct{})}
		f.open[sessionID] = fd
		sub := f.hub.Subscribe(session.Topic(sessionID))
		go func() {
			defer sub.Close()
			fd.run(ctx, f.read, environmentID, sessionID, sub.C)
		}()
	}
	fd.refs++
	return fd, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if fd.refs--; fd.refs == 0 {
			delete(f.open, sessionID)
			fd.cancel()
		}
	}
}

// run reads what is new whenever the Session is signalled, until nobody follows or its events have ended.
func (fd *feed) run(ctx context.Context, read Sessions, environmentID, sessionID string, signalled <-chan struct{}) {
	for {
		more, err := fd.look(ctx, read, environmentID, sessionID)
		if err == nil && more {
			continue
		}
		var again <-chan time.Time
		if err != nil {
			again = time.After(time.Second) // the database is away: streams wait with their heartbeat
		}
		select {
		case <-ctx.Done():
			return
		case <-signalled:
		case <-again:
		}
	}
}

func (fd *feed) look(ctx context.Context, read Sessions, environmentID, sessionID string) (more bool, err error) {
	page, ended, err := read.Events(ctx, environmentID, sessionID, fd.last, streamBatch) // only run writes last
	if err != nil {
		return false, err
	}
	blocks := make([][]byte, 0, len(page.Records))
	for i := range page.Records {
		w := eventWriter{}
		if err := w.json(page.Records[i].Sequence, page.Records[i].Kind, &page.Records[i]); err != nil {
			return false, err
		}
		blocks = append(blocks, w.buf)
	}
	ended = ended && !page.HasMore
	if len(blocks) == 0 && !ended {
		return false, nil
	}
	fd.mu.Lock()
	defer fd.mu.Unlock()
	for _, b := range blocks {
		fd.size += len(b)
	}
	fd.blocks = append(fd.blocks, blocks...)
	for len(fd.blocks) > feedEntries || (fd.size > feedBytes && len(fd.blocks) > len(blocks)) {
		fd.size -= len(fd.blocks[0])
		fd.blocks[0] = nil
		fd.blocks = fd.blocks[1:]
	}
	fd.last, fd.ended = page.NextAfter, ended
	close(fd.changed)
	fd.changed = make(chan struct{})
	return page.HasMore, nil
}

// since gives the events after a position, ready to send, and what to wait on when there is none. behind tells that the
// feed does not have them all any more.
func (fd *feed) since(after int64) (blocks [][]byte, last int64, ended, behind bool, changed <-chan struct{}) {
	fd.mu.Lock()
	defer fd.mu.Unlock()
	if after >= fd.last {
		return nil, after, fd.ended && after == fd.last, false, fd.changed
	}
	first := fd.last - int64(len(fd.blocks))
	if after < first {
		return nil, after, false, true, fd.changed
	}
	return fd.blocks[after-first:], fd.last, fd.ended, false, fd.changed
}
