package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/server"
	"helmr.dev/helmr/internal/server/servertest"
)

// patience bounds what must happen at once; it only matters when a test fails.
const patience = 2 * time.Minute

// frame is one event or comment of a stream.
type frame struct{ id, event, data, comment string }

// stream opens an event stream.
func stream(t testing.TB, key, url string, headers ...string) (next func() (frame, error), end func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" || !id.Valid(res.Header.Get("X-Request-Id")) {
		t.Fatalf("stream: %s %v", res.Status, res.Header)
	}
	t.Cleanup(func() { cancel(); _ = res.Body.Close() })
	r := bufio.NewReader(res.Body)
	return func() (frame, error) {
		var f frame
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return f, err
			}
			name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			switch name {
			case "":
				if value != "" {
					f.comment = value
				} else if f != (frame{}) {
					return f, nil
				}
			case "id":
				f.id = value
			case "event":
				f.event = value
			case "data":
				f.data = value
			}
		}
	}, cancel
}

// expect reads one event, past heartbeats.
func expect(t testing.TB, next func() (frame, error), sequence int, kind string) frame {
	t.Helper()
	f, err := next()
	for err == nil && f.event == "" {
		f, err = next() // a heartbeat
	}
	if err != nil {
		t.Fatalf("want event %d %s: %v", sequence, kind, err)
	}
	var e api.Event
	if err := json.Unmarshal([]byte(f.data), &e); err != nil {
		t.Fatalf("data of %+v: %v", f, err)
	}
	if f.id != fmt.Sprint(sequence) || f.event != kind || e.Sequence != int64(sequence) || e.Kind != kind {
		t.Fatalf("event %+v, want %d %s", f, sequence, kind)
	}
	return f
}

func TestSpec_18_05_StreamFollowsResumesAndEnds(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := newWorld(t, d)
		c, ctx, sessionID := w.Client(w.Key), context.Background(), w.mine["session_id"]
		events := w.URL + "/v1/sessions/" + sessionID + "/events/stream"
		next, _ := stream(t, w.Key, events)
		expect(t, next, 1, "turn.queued")
		if _, err := c.Enqueue(ctx, sessionID, api.EnqueueRequest{Input: json.RawMessage(`[{"type":"text","text":"a\nb"}]`)}); err != nil {
			t.Fatal(err)
		}
		expect(t, next, 2, "turn.queued")
		// A second connection goes on where the first has got to; Last-Event-ID counts before after.
		resumed, _ := stream(t, w.Key, events+"?after=0", "Last-Event-ID", "1")
		expect(t, resumed, 2, "turn.queued")
		if _, err := c.CancelSession(ctx, sessionID, api.ControlRequest{}); err != nil {
			t.Fatal(err)
		}
		for _, next := range []func() (frame, error){next, resumed} {
			for n, kind := range []string{"session.cancel", "turn.cancelled", "turn.cancelled", "session.cancelled"} {
				expect(t, next, 3+n, kind)
			}
			if f, err := next(); err != nil || f.event != "end" || f.id != "" {
				t.Errorf("after the last event: %+v, %v", f, err)
			}
			if f, err := next(); err != io.EOF {
				t.Errorf("after the end: %+v, %v", f, err)
			}
		}
		late, _ := stream(t, w.Key, events+"?after=6")
		if f, err := late(); err != nil || f.event != "end" {
			t.Errorf("stream of an ended session: %+v, %v", f, err)
		}
		ask(t, w.Key, http.MethodGet, events+"?after=7", "").want(t, http.StatusBadRequest, "invalid_cursor")
		ask(t, w.Key, http.MethodGet, w.URL+"/v1/sessions/"+sessionID+"/events?after=7", "").want(t, http.StatusBadRequest, "invalid_cursor")
		page, err := c.ListEvents(ctx, sessionID, 2, 3)
		if err != nil || len(page.Records) != 3 || !page.HasMore || page.NextAfter != 5 {
			t.Errorf("page = %+v, %v", page, err)
		}
	})
}

func TestSpec_16_11_StreamsSendHeartbeats(t *testing.T) {
	t.Parallel()
	w := &world{Server: servertest.New(t, func(c *server.Config) { c.Heartbeat = 5 * time.Millisecond })}
	servertest.Deploy(t, w.Client(w.Key), "mine")
	receipt, err := w.Client(w.Key).CreateSession(context.Background(), api.SessionCreateRequest{Agent: "mine", Input: json.RawMessage(hello)})
	if err != nil {
		t.Fatal(err)
	}
	next, _ := stream(t, w.Key, w.URL+"/v1/sessions/"+receipt.SessionID+"/events/stream?after=1")
	for range 3 {
		if f, err := next(); err != nil || f.comment == "" || f.event != "" {
			t.Fatalf("want a comment, got %+v, %v", f, err)
		}
	}
}

func TestSlowReaderHoldsUpNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, dbtest.New(t, db.SQLite))
	c, ctx, sessionID := w.Client(w.Key), context.Background(), w.mine["session_id"]
	path := "/v1/sessions/" + sessionID + "/events/stream"
	// This one never reads.
	u, _ := url.Parse(w.URL)
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.(*net.TCPConn).SetReadBuffer(64 << 10)
	_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", path, w.Key)
	next, _ := stream(t, w.Key, w.URL+path)
	expect(t, next, 1, "turn.queued")
	input := json.RawMessage(`[{"type":"text","text":"` + strings.Repeat("x", 200<<10) + `"}]`)
	for n := range 30 { // more than any buffer between
		if _, err := c.Enqueue(ctx, sessionID, api.EnqueueRequest{Input: input}); err != nil {
			t.Fatal(err)
		}
		expect(t, next, 2+n, "turn.queued")
	}
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	lines := bufio.NewReader(res.Body)
	for got < 31 { // it has lost nothing either
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("after %d events: %v", got, err)
		}
		if strings.HasPrefix(line, "id: ") {
			got++
			if want := fmt.Sprintf("id: %d\n", got); line != want {
				t.Fatalf("%q, want %q", line, want)
			}
		}
	}
}

func TestSpec_05_12_WaitAnswersWhenTheTurnIsTerminal(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := newWorld(t, d)
		turnURL := w.URL + "/v1/sessions/" + w.mine["session_id"] + "/turns/" + w.mine["turn_id"]
		for _, wait := range []string{"61s", "60001ms", "2m", "60.5s", "1h"} {
			r := ask(t, w.Key, http.MethodGet, turnURL+"?wait="+wait, "")
			r.want(t, http.StatusBadRequest, "bad_request")
		}
		r := ask(t, w.Key, http.MethodGet, turnURL+"?wait=1ms", "")
		r.want(t, http.StatusOK, "")
		if !strings.Contains(r.body, `"status":"queued"`) {
			t.Errorf("after the time is over: %s", r.body)
		}
		// Requests that wait are told at once; they are in the handler when their session has as many subscribers.
		done := make(chan reply, 4)
		for range cap(done) {
			go func() { done <- ask(t, w.Key, http.MethodGet, turnURL+"?wait=60s", "") }()
		}
		if _, err := w.Client(w.Key).CancelSession(context.Background(), w.mine["session_id"], api.ControlRequest{}); err != nil {
			t.Fatal(err)
		}
		for range cap(done) {
			select {
			case r := <-done:
				r.want(t, http.StatusOK, "")
				if !strings.Contains(r.body, `"status":"cancelled"`) {
					t.Errorf("answer = %s", r.body)
				}
			case <-time.After(patience):
				t.Fatal("a wait was not ended")
			}
		}
	})
}

func TestStopEndsStreamsAndWaitsWithoutLosingAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, dbtest.New(t, db.SQLite))
	base := w.URL + "/v1/sessions/" + w.mine["session_id"]
	next, _ := stream(t, w.Key, base+"/events/stream")
	expect(t, next, 1, "turn.queued")
	waiting := make(chan reply, 1)
	go func() { waiting <- ask(t, w.Key, http.MethodGet, base+"/turns/"+w.mine["turn_id"]+"?wait=60s", "") }()
	// The wait counts as begun once its request shows in what the server has open; until then Stop might win the race.
	w.WaitOpen(t, 2)
	if err := w.Stop(); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	if f, err := next(); err != io.EOF {
		t.Errorf("stream after the stop: %+v, %v; want its plain end", f, err)
	}
	r := <-waiting
	r.want(t, http.StatusOK, "")
	if !strings.Contains(r.body, `"status":"queued"`) {
		t.Errorf("answer = %s", r.body)
	}
}

func TestStopEndsLongPollsOfMountedHandlers(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{})
	s := servertest.New(t, func(c *server.Config) {
		c.Mounts = map[string]http.Handler{"/poll": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			close(entered)
			<-r.Context().Done()
			_, _ = io.WriteString(w, "over")
		})}
	})
	done := make(chan reply, 1)
	go func() { done <- ask(t, "", http.MethodGet, s.URL+"/poll", "") }()
	<-entered
	if err := s.Stop(); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	if r := <-done; r.body != "over" {
		t.Errorf("answer = %q; the stop waited for drainPeriod and cut it", r.body)
	}
}

func TestSpec_13_09_FinalizeTellsAsItGoes(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		s := servertest.Start(t, d, nil)
		c, ctx := s.Client(s.Key), context.Background()
		b := servertest.NewBundle(t, "a", "b")
		plan, err := c.UploadPlan(ctx, b.Manifest)
		if err != nil || plan.BundleDigest != b.Digest || len(plan.Uploads) != 2 {
			t.Fatalf("plan = %+v, %v", plan, err)
		}
		finalize := func(key string) string {
			r := ask(t, s.Key, http.MethodPost, s.URL+"/v1/deployment-bundles/finalize", `{"bundle_digest":"`+b.Digest+`","idempotency_key":"`+key+`"}`)
			r.want(t, http.StatusOK, "")
			return r.body
		}
		if got := finalize("early"); !strings.HasPrefix(got, "event: started\n") || !strings.Contains(got, `event: error`) ||
			!strings.Contains(got, `"code":"bad_request"`) || !strings.Contains(got, `"message":`) {
			t.Errorf("finalize before the upload: %s", got)
		}
		// Wrong bytes of the right size are refused.
		u := plan.Uploads[0]
		r := ask(t, s.Key, u.Method, s.URL+u.URL, strings.Repeat("x", len(b.Objects[u.Digest])))
		r.want(t, http.StatusBadRequest, "bad_request")
		// A key of another Environment cannot fill this one's objects.
		ask(t, s.OtherKey, u.Method, s.URL+u.URL, string(b.Objects[u.Digest])).want(t, http.StatusNotFound, "not_found")
		servertest.Upload(t, c, b)
		if plan, err = c.UploadPlan(ctx, b.Manifest); err != nil || len(plan.Uploads) != 0 {
			t.Errorf("plan after the upload = %+v, %v", plan, err)
		}
		got := finalize("k")
		if strings.Count(got, "event: object_verified\ndata: {\"digest\":") != 2 || !strings.Contains(got, "event: complete\ndata: {\"id\":") {
			t.Errorf("finalize: %s", got)
		}
		again := finalize("k")
		if got[strings.Index(got, "event: complete"):] != again[strings.Index(again, "event: complete"):] {
			t.Errorf("finalize again: %s, want %s", again, got)
		}
	})
}
