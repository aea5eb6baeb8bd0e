package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/server/servertest"
)

const patience = 2 * time.Minute

var hello = json.RawMessage(`[{"type":"text","text":"hello"}]`)

// cutter is a TCP relay in front of a server that can cut its connections and stop taking new ones.
type cutter struct {
	url    string
	target string
	mu     sync.Mutex
	open   map[net.Conn]bool
	down   bool
	taken  chan struct{} // one for each connection taken
	ln     net.Listener
}

func newCutter(t *testing.T, target string) *cutter {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{url: "http://" + ln.Addr().String(), target: strings.TrimPrefix(target, "http://"), open: map[net.Conn]bool{},
		taken: make(chan struct{}, 1000), ln: ln}
	go c.run()
	t.Cleanup(func() { _ = ln.Close(); c.cut() })
	return c
}

func (c *cutter) run() {
	for {
		in, err := c.ln.Accept()
		if err != nil {
			return
		}
		c.mu.Lock()
		down := c.down
		if !down {
			c.open[in] = true
		}
		c.mu.Unlock()
		c.taken <- struct{}{}
		if down {
			_ = in.Close()
			continue
		}
		out, err := net.Dial("tcp", c.target)
		if err != nil {
			_ = in.Close()
			continue
		}
		go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
		go func() { _, _ = io.Copy(in, out); _ = in.Close(); _ = out.Close() }()
	}
}

// cut ends every connection at once.
func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}
	clear(c.open)
}

func (c *cutter) setDown(down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = down
}

func createSession(t *testing.T, c *client.Client) api.SessionCreateReceipt {
	t.Helper()
	servertest.Deploy(t, c, "agent")
	r, err := c.CreateSession(context.Background(), api.SessionCreateRequest{Agent: "agent", Input: hello})
	if err != nil {
		t.Fatalf("create session: %v", err)
	}
	return r
}

func TestErrorsHaveWhatTheProblemSays(t *testing.T) {
	t.Parallel()
	s := servertest.New(t, nil)
	_, err := s.Client(s.KeyWithout(t, "sessions:read")).GetSession(context.Background(), id.New())
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Status != 403 || e.Code != "permission_required" || e.Details["permission"] != "sessions.read" || !id.Valid(e.RequestID) || e.Message == "" {
		t.Errorf("error = %#v", err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	other := &http.Server{Handler: http.NotFoundHandler()}
	go func() { _ = other.Serve(ln) }()
	defer func() { _ = other.Close() }()
	_, err = client.New("http://"+ln.Addr().String(), "k").GetSession(context.Background(), id.New())
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != "unexpected_answer" || e.Status != 404 {
		t.Errorf("error of another program = %v", err)
	}
}

func TestSpec_18_05_StreamReconnectsFromTheLastEvent(t *testing.T) {
	t.Parallel()
	s := servertest.New(t, nil)
	direct := s.Client(s.Key)
	relay := newCutter(t, s.URL)
	r := createSession(t, direct)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var got []int64
	for e, err := range client.New(relay.url, s.Key).StreamEvents(ctx, r.SessionID, 0) {
		if err != nil {
			t.Fatalf("after %v: %v", got, err)
		}
		got = append(got, e.Sequence)
		switch {
		case e.Sequence < 20:
			relay.cut()
			if _, err := direct.Enqueue(ctx, r.SessionID, api.EnqueueRequest{Input: hello}); err != nil {
				t.Fatal(err)
			}
		case e.Sequence == 20:
			if _, err := direct.CancelSession(ctx, r.SessionID, api.ControlRequest{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, n := range got {
		if n != int64(i+1) {
			t.Fatalf("events %v are not gapless", got)
		}
	}
	if len(got) != 42 { // 20 queued, cancel, 20 cancelled, cancelled
		t.Errorf("%d events: %v", len(got), got)
	}
}

func TestStreamOutlivesARestartOfTheServer(t *testing.T) {
	t.Parallel()
	s := servertest.New(t, nil)
	direct := s.Client(s.Key)
	relay := newCutter(t, s.URL)
	r := createSession(t, direct)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	events := make(chan api.Event)
	go func() {
		defer close(events)
		for e, err := range client.New(relay.url, s.Key).StreamEvents(ctx, r.SessionID, 0) {
			if err != nil {
				t.Errorf("stream: %v", err)
				return
			}
			events <- e
		}
	}()
	<-events
	relay.setDown(true)
	relay.cut()
	for range 4 { // it keeps trying
		<-relay.taken
	}
	if _, err := direct.CancelSession(ctx, r.SessionID, api.ControlRequest{}); err != nil {
		t.Fatal(err)
	}
	relay.setDown(false)
	n := 1
	for e := range events {
		n++
		if e.Sequence != int64(n) {
			t.Errorf("event %d after %d", e.Sequence, n-1)
		}
	}
	if n != 4 {
		t.Errorf("%d events", n)
	}
}

func TestStreamEndsWithRefusalsAndWithItsContext(t *testing.T) {
	t.Parallel()
	s := servertest.New(t, nil)
	c := s.Client(s.Key)
	r := createSession(t, c)
	count := 0
	for _, err := range c.StreamEvents(context.Background(), id.New(), 0) {
		count++
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != "not_found" {
			t.Errorf("stream of an unknown session: %v", err)
		}
	}
	if count != 1 {
		t.Errorf("%d items", count)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var last error
	for _, err := range c.StreamEvents(ctx, r.SessionID, 0) {
		last = err
		cancel()
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("stream ended with %v", last)
	}
	for _, err := range c.StreamEvents(context.Background(), r.SessionID, 0) {
		if err != nil {
			t.Error(err)
		}
		break // and a consumer may stop
	}
	nobody := client.New("http://127.0.0.1:1", s.Key, client.WithPatience(time.Millisecond))
	for _, err := range nobody.StreamEvents(context.Background(), r.SessionID, 0) {
		if err == nil {
			t.Error("no error from no server")
		}
	}
}

func TestSpec_05_13_WaitTurn(t *testing.T) {
	t.Parallel()
	s := servertest.New(t, nil)
	c := s.Client(s.Key)
	relay := newCutter(t, s.URL)
	r := createSession(t, c)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := c.WaitTurn(ctx, r.SessionID, r.TurnID); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait that is over: %v", err)
	}
	if _, err := c.WaitTurn(context.Background(), r.SessionID, id.New()); err == nil {
		t.Error("waited for a turn that does not exist")
	}
	done := make(chan error, 1)
	go func() {
		turn, err := client.New(relay.url, s.Key).WaitTurn(context.Background(), r.SessionID, r.TurnID)
		if err == nil && turn.Status != "cancelled" {
			err = errors.New("status " + turn.Status)
		}
		done <- err
	}()
	<-relay.taken
	s.WaitOpen(t, 1)
	relay.cut() // it asks again
	<-relay.taken
	if _, err := c.CancelSession(context.Background(), r.SessionID, api.ControlRequest{}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("the wait did not end")
	}
}

// breaking fails the answers of the first requests after the server has handled them.
type breaking struct {
	left  atomic.Int32
	calls atomic.Int32
}

func (b *breaking) RoundTrip(r *http.Request) (*http.Response, error) {
	b.calls.Add(1)
	res, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && b.left.Add(-1) >= 0 {
		_ = res.Body.Close()
		return nil, io.ErrUnexpectedEOF
	}
	return res, err
}

func TestOnlyRepeatableRequestsAreRepeated(t *testing.T) {
	t.Parallel()
	s := servertest.New(t, nil)
	ctx := context.Background()
	r := createSession(t, s.Client(s.Key))
	broken := func(n int32) (*client.Client, *breaking) {
		b := &breaking{}
		b.left.Store(n)
		return client.New(s.URL, s.Key, client.WithHTTPClient(&http.Client{Transport: b})), b
	}
	c, b := broken(2)
	receipt, err := c.Enqueue(ctx, r.SessionID, api.EnqueueRequest{Input: hello, IdempotencyKey: "k"})
	if err != nil || receipt.Sequence != 2 || b.calls.Load() != 3 {
		t.Errorf("keyed: %+v, %v, %d calls", receipt, err, b.calls.Load())
	}
	c, b = broken(1)
	if _, err := c.Enqueue(ctx, r.SessionID, api.EnqueueRequest{Input: hello}); err == nil || b.calls.Load() != 1 {
		t.Errorf("without a key: %v, %d calls", err, b.calls.Load())
	}
	c, b = broken(3)
	if _, err := c.GetSession(ctx, r.SessionID); err != nil || b.calls.Load() != 4 {
		t.Errorf("GET: %v, %d calls", err, b.calls.Load())
	}
	c, b = broken(100)
	if _, err := c.GetSession(ctx, r.SessionID); err == nil || b.calls.Load() != 4 {
		t.Errorf("GET that never works: %v, %d calls", err, b.calls.Load())
	}
	page, err := s.Client(s.Key).ListTurns(ctx, r.SessionID, "", 0)
	if err != nil || len(page.Turns) != 3 { // the first, the keyed one once, the unkeyed one whose answer was lost
		t.Errorf("turns = %+v, %v", page, err)
	}
}

func TestUploadTellsProgressAndTriesAgain(t *testing.T) {
	t.Parallel()
	s := servertest.New(t, nil)
	ctx := context.Background()
	bundle := servertest.NewBundle(t, "agent")
	b := &breaking{}
	c := client.New(s.URL, s.Key, client.WithHTTPClient(&http.Client{Transport: b}))
	plan, err := c.UploadPlan(ctx, bundle.Manifest)
	if err != nil || len(plan.Uploads) != 2 {
		t.Fatalf("plan = %+v, %v", plan, err)
	}
	for _, u := range plan.Uploads {
		data, opened, sent := bundle.Objects[u.Digest], 0, int64(-1)
		b.left.Store(1)
		err := c.UploadObject(ctx, u, int64(len(data)), func() (io.ReadCloser, error) {
			opened++
			return io.NopCloser(bytes.NewReader(data)), nil
		}, func(n int64) { sent = n })
		if err != nil || opened != 2 || sent != int64(len(data)) {
			t.Errorf("upload: %v, opened %d times, %d of %d bytes sent", err, opened, sent, len(data))
		}
	}
	b.left.Store(2)
	var verified []string
	d, err := c.Finalize(ctx, api.FinalizeRequest{BundleDigest: bundle.Digest, IdempotencyKey: "k"}, func(digest string) { verified = append(verified, digest) })
	if err != nil || d.Version != 1 {
		t.Errorf("finalize = %+v, %v", d, err)
	}
	_, err = c.Finalize(ctx, api.FinalizeRequest{BundleDigest: strings.Repeat("ab", 32), IdempotencyKey: "other"}, nil)
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Code != "not_found" || e.Status != 404 || e.RequestID == "" {
		t.Errorf("finalize of an unknown bundle = %#v", err)
	}
}
