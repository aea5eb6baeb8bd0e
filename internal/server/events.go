package server

import (
	"net/http"
	"time"

	"helmr.dev/helmr/client/api"
)

func (s *Server) listEvents(c *call) (api.EventPage, error) {
	after, err := sequence("after", c.query.Get("after"))
	if err != nil {
		return api.EventPage{}, err
	}
	limit, err := c.number("limit", defaultBatch, 1, maxBatch)
	if err != nil {
		return api.EventPage{}, err
	}
	page, _, err := s.deps.Session.Events(c.ctx(), c.env(), c.path("session_id"), after, limit)
	return page, err
}

// How many events one read of a stream takes, and how many bytes gather before they are sent.
const (
	streamBatch = 250
	flushBytes  = 256 << 10
)

// streamEvents follows a Session's events: from the database until it has caught up, then from the feed it shares with
// the Session's other streams. The first read settles whether there is a stream at all. No transaction is open while a batch is sent. A caller who left or stopped
// reading is no failure: sending errors end the stream quietly.
func (s *Server) streamEvents(c *call) error {
	sessionID := c.path("session_id")
	after, err := sequence("after", c.query.Get("after"))
	if err != nil {
		return err
	}
	if last := c.r.Header.Get("Last-Event-ID"); last != "" {
		if after, err = sequence("Last-Event-ID", last); err != nil {
			return err
		}
	}
	var out *eventWriter
	heartbeat := time.NewTicker(s.config.Heartbeat)
	defer heartbeat.Stop()
	for {
		page, ended, err := s.deps.Session.Events(c.ctx(), c.env(), sessionID, after, streamBatch)
		if err != nil {
			return err
		}
		if out == nil {
			out = newEventWriter(c.w)
			defer s.metrics.streaming()()
		}
		if c.r.Method == http.MethodHead { // the answer would have been a stream
			_ = out.flush()
			return nil
		}
		for i := range page.Records {
			if err := out.json(page.Records[i].Sequence, page.Records[i].Kind, &page.Records[i]); err != nil {
				return err
			}
			if len(out.buf) > flushBytes {
				if out.flush() != nil {
					return nil
				}
			}
		}
		after = page.NextAfter
		if ended && !page.HasMore {
			out.event(0, "end", []byte("{}"))
			_ = out.flush()
			return nil
		}
		if out.flush() != nil {
			return nil
		}
		if !page.HasMore {
			var over bool
			if after, over = s.followFeed(c, out, sessionID, after, heartbeat); over {
				return nil
			}
		}
	}
}

// followFeed sends what the Session's feed brings to a stream that has caught up. It returns when the stream is over, or
// has fallen so far behind that it has to read from the database again.
func (s *Server) followFeed(c *call, out *eventWriter, sessionID string, after int64, heartbeat *time.Ticker) (position int64, over bool) {
	feed, leave := s.feeds.follow(c.env(), sessionID, after)
	defer leave()
	for {
		blocks, last, ended, behind, changed := feed.since(after)
		if behind {
			return after, false
		}
		for _, b := range blocks {
			out.buf = append(out.buf, b...)
			if len(out.buf) > flushBytes && out.flush() != nil {
				return after, true
			}
		}
		after = last
		if ended {
			out.event(0, "end", []byte("{}"))
		}
		if len(out.buf) > 0 && out.flush() != nil || ended {
			return after, true
		}
		if !s.idle(c, out, changed, heartbeat) {
			return after, true
		}
	}
}

// idle waits until a stream has to look again. It is false when the stream is over.
func (s *Server) idle(c *call, out *eventWriter, changed <-chan struct{}, heartbeat *time.Ticker) bool {
	for {
		select {
		case <-changed:
			return true
		case <-heartbeat.C:
			out.comment()
			if out.flush() != nil {
				return false
			}
		case <-s.stopping.Done():
			return false
		case <-c.ctx().Done():
			return false
		}
	}
}
