package server_test

import (
	"bytes"
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
	"helmr.dev/helmr/internal/server"
	"helmr.dev/helmr/internal/server/servertest"
)

func TestSpec_16_02_RequestsAreStrict(t *testing.T) {
	t.Parallel()
	w := newWorld(t, dbtest.New(t, db.SQLite))
	session := "/sessions/" + w.mine["session_id"]
	create := func(rest string) string { return `{"agent":"mine","input":` + hello + rest + `}` }
	for name, test := range map[string]struct {
		method, path, body string
		headers            []string
		detail, value      string
	}{
		"unknown field":           {"POST", "/sessions", create(`,"slack":{"channel_id":"C1"}`), nil, "field", "slack"},
		"other case":              {"POST", "/sessions", create(`,"Key":"k"`), nil, "field", "Key"},
		"no body":                 {"POST", "/sessions", "", []string{"Content-Type", "application/json"}, "field", "agent"},
		"trailing data":           {"POST", "/sessions", create("") + "{}", nil, "field", "body"},
		"content type":            {"POST", "/sessions", create(""), []string{"Content-Type", "text/plain"}, "header", "Content-Type"},
		"charset":                 {"POST", "/sessions", create(""), []string{"Content-Type", "application/json; charset=latin1"}, "header", "Content-Type"},
		"invalid UTF-8":           {"POST", "/sessions", create(",\"key\":\"\xff\""), nil, "field", "body"},
		"empty key":               {"POST", "/sessions", create(`,"key":""`), nil, "field", "key"},
		"NUL in key":              {"POST", "/sessions", create(`,"key":"\u0000"`), nil, "field", "key"},
		"agent":                   {"POST", "/sessions", `{"agent":"a b","input":` + hello + `}`, nil, "field", "agent"},
		"no input":                {"POST", session + "/enqueue", `{}`, nil, "field", "input"},
		"field of another route":  {"POST", session + "/close", `{"hold_id":"x"}`, nil, "field", "hold_id"},
		"hold":                    {"POST", session + "/resume", `{"hold_id":"x"}`, nil, "field", "hold_id"},
		"unknown parameter":       {"GET", "/sessions?stauts=open", "", nil, "parameter", "stauts"},
		"parameter on POST":       {"POST", "/sessions?wait=1s", create(""), nil, "parameter", "wait"},
		"parameter twice":         {"GET", "/sessions?agent_id=a&agent_id=b", "", nil, "parameter", "agent_id"},
		"empty parameter":         {"GET", "/sessions?cursor=", "", nil, "parameter", "cursor"},
		"malformed escape":        {"GET", "/sessions?key=%zz", "", nil, "parameter", "query"},
		"NUL in parameter":        {"GET", "/computers?key=%00", "", nil, "parameter", "key"},
		"parameter not UTF-8":     {"GET", "/computers?key=%ff", "", nil, "parameter", "key"},
		"status":                  {"GET", "/sessions?status=opened", "", nil, "parameter", "status"},
		"id":                      {"GET", "/sessions?parent_session_id=x", "", nil, "parameter", "parent_session_id"},
		"key without agent":       {"GET", "/sessions?key=k", "", nil, "parameter", "key"},
		"key with limit":          {"GET", "/sessions?agent_id=mine&key=k&limit=1", "", nil, "parameter", "limit"},
		"key with cursor":         {"GET", "/computers?key=k&cursor=c", "", nil, "parameter", "cursor"},
		"limit 0":                 {"GET", "/sessions?limit=0", "", nil, "parameter", "limit"},
		"limit 101":               {"GET", "/sessions?limit=101", "", nil, "parameter", "limit"},
		"limit as a word":         {"GET", session + "/turns?limit=ten", "", nil, "parameter", "limit"},
		"event limit 1001":        {"GET", session + "/events?limit=1001", "", nil, "parameter", "limit"},
		"negative after":          {"GET", session + "/events?after=-1", "", nil, "parameter", "after"},
		"after as a word":         {"GET", session + "/events/stream?after=x", "", nil, "parameter", "after"},
		"Last-Event-ID":           {"GET", session + "/events/stream", "", []string{"Last-Event-ID", "x"}, "parameter", "Last-Event-ID"},
		"scope":                   {"GET", "/agents?scope=mine", "", nil, "parameter", "scope"},
		"scope with deployment":   {"GET", "/agents?scope=all&deployment_id=" + w.mine["deployment_id"], "", nil, "parameter", "deployment_id"},
		"wait without a unit":     {"GET", session + "/turns/" + w.mine["turn_id"] + "?wait=30", "", nil, "parameter", "wait"},
		"negative wait":           {"GET", session + "/turns/" + w.mine["turn_id"] + "?wait=-1s", "", nil, "parameter", "wait"},
		"upload without a size":   {"PUT", "/deployment-bundles/objects/" + w.mine["digest"], "x", nil, "parameter", "size"},
		"upload of another size":  {"PUT", "/deployment-bundles/objects/" + w.mine["digest"] + "?size=2", "x", nil, "parameter", "size"},
		"plan without a manifest": {"POST", "/deployment-bundles/upload-plan", "", nil, "field", "body"},
		"finalize without a key":  {"POST", "/deployment-bundles/finalize", `{"bundle_digest":"` + w.mine["digest"] + `"}`, nil, "field", "idempotency_key"},
		"finalize of no digest":   {"POST", "/deployment-bundles/finalize", `{"bundle_digest":"x","idempotency_key":"k"}`, nil, "field", "bundle_digest"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := ask(t, w.Key, test.method, w.URL+"/v1"+test.path, test.body, test.headers...)
			r.want(t, http.StatusBadRequest, "bad_request")
			if r.Details[test.detail] != test.value {
				t.Errorf("details = %v, want %s %q", r.Details, test.detail, test.value)
			}
		})
	}
	r := ask(t, w.Key, http.MethodGet, w.URL+"/v1/sessions?cursor=x", "")
	r.want(t, http.StatusBadRequest, "invalid_cursor")
	r = ask(t, w.Key, http.MethodGet, w.URL+"/v1/sessions?computer_id=x", "")
	r.want(t, http.StatusBadRequest, "invalid_computer_reference")
	r = ask(t, w.Key, http.MethodPost, w.URL+"/v1/sessions", create(`,"computer_id":"x"`))
	r.want(t, http.StatusBadRequest, "invalid_computer_reference")
	r = ask(t, w.Key, http.MethodPost, w.URL+"/v1"+session+"/close", "")
	r.want(t, http.StatusOK, "") // a request without required fields needs no body
}

func TestSpec_16_03_BodiesHaveLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, dbtest.New(t, db.SQLite))
	pad := func(body string, size int) string { return body + strings.Repeat(" ", size-len(body)) }
	control := w.URL + "/v1/sessions/" + w.mine["session_id"] + "/close"
	ask(t, w.Key, http.MethodPost, control, pad("{}", 64<<10)).want(t, http.StatusOK, "")
	ask(t, w.Key, http.MethodPost, control, pad("{}", 64<<10+1)).want(t, http.StatusRequestEntityTooLarge, "request_too_large")
	// Without a length announced, the limit is met while reading.
	req, _ := http.NewRequest(http.MethodPost, control, io.MultiReader(strings.NewReader(pad("{}", 64<<10+1))))
	req.Header.Set("Authorization", "Bearer "+w.Key)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("unannounced: %s", res.Status)
	}
	plan := w.URL + "/v1/deployment-bundles/upload-plan"
	ask(t, w.Key, http.MethodPost, plan, pad("{}", 16<<20+1)).want(t, http.StatusRequestEntityTooLarge, "request_too_large")
	ask(t, w.Key, http.MethodPost, plan, pad("{}", 16<<20)).want(t, http.StatusBadRequest, "bad_request")
	// The general limit is met by what is announced, before anything of the body is read.
	big, _ := http.NewRequest(http.MethodPost, w.URL+"/v1/sessions", io.LimitReader(zeros{}, 128<<20+1))
	big.ContentLength = 128<<20 + 1
	big.Header.Set("Authorization", "Bearer "+w.Key)
	big.Header.Set("Content-Type", "application/json")
	if res, err = http.DefaultClient.Do(big); err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("above the general limit: %s", res.Status)
	}
	padded := pad(`{"agent":"mine","input":`+hello+`}`, 65<<20) // more than any other call may have
	ask(t, w.Key, http.MethodPost, w.URL+"/v1/sessions", padded).want(t, http.StatusOK, "")
	object := w.URL + "/v1/deployment-bundles/objects/" + w.mine["digest"] + "?size=4294967297"
	ask(t, w.Key, http.MethodPut, object, "").want(t, http.StatusRequestEntityTooLarge, "request_too_large")
}

// zeros never end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestSpec_16_04_MethodsAndPaths(t *testing.T) {
	t.Parallel()
	s := servertest.New(t, nil)
	r := ask(t, s.Key, http.MethodDelete, s.URL+"/v1/sessions", "")
	r.want(t, http.StatusMethodNotAllowed, "method_not_allowed")
	if got := r.header.Get("Allow"); got != "GET, HEAD, POST" {
		t.Errorf("Allow = %q", got)
	}
	ask(t, "", http.MethodPost, s.URL+"/healthz", "{}").want(t, http.StatusMethodNotAllowed, "method_not_allowed")
	for _, path := range []string{"/", "/v1", "/v1/", "/v1/sessions/", "//v1/sessions", "/v1/../v1/sessions", "/v1/nothing", "/api/nothing"} {
		ask(t, s.Key, http.MethodGet, s.URL+path, "").want(t, http.StatusNotFound, "not_found")
	}
	servertest.Deploy(t, s.Client(s.Key), "mine")
	receipt, err := s.Client(s.Key).CreateSession(context.Background(), api.SessionCreateRequest{Agent: "mine", Input: json.RawMessage(hello)})
	if err != nil {
		t.Fatal(err)
	}
	if r := ask(t, s.Key, http.MethodHead, s.URL+"/v1/sessions/"+receipt.SessionID+"/events/stream", ""); r.status != http.StatusOK || r.body != "" {
		t.Errorf("HEAD of a stream: %d %q", r.status, r.body)
	}
	if r := ask(t, s.Key, http.MethodHead, s.URL+"/v1/sessions", ""); r.status != http.StatusOK || r.body != "" {
		t.Errorf("HEAD: %d %q", r.status, r.body)
	}
}

func TestCredentialHeaderIsRead(t *testing.T) {
	t.Parallel()
	s := servertest.New(t, nil)
	for header, want := range map[string]int{"Bearer " + s.Key: 200, "bearer  " + s.Key: 200, s.Key: 401, "Basic " + s.Key: 401, "Bearer": 401, "Bearer ": 401} {
		if r := ask(t, "", http.MethodGet, s.URL+"/v1/sessions", "", "Authorization", header); r.status != want {
			t.Errorf("Authorization: %.12s...: %d, want %d", header, r.status, want)
		}
	}
}

func TestSpec_15_13_RevocationTakesEffectWithTheNextRequest(t *testing.T) {
	t.Parallel()
	s := servertest.New(t, nil)
	key := s.KeyWithout(t)
	me, err := s.Client(key).Me(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if me.EnvironmentID != s.EnvironmentID || me.Actor.Kind != "api_key" || len(me.Permissions) < 15 {
		t.Errorf("me = %+v", me)
	}
	if err := s.Access.RevokeAPIKey(context.Background(), s.EnvironmentID, me.Actor.ID); err != nil {
		t.Fatal(err)
	}
	ask(t, key, http.MethodGet, s.URL+"/api/me", "").want(t, http.StatusUnauthorized, "authentication_required")
}

func TestSpec_16_06_IdempotencyKeyInBodyOrHeader(t *testing.T) {
	t.Parallel()
	w := newWorld(t, dbtest.New(t, db.SQLite))
	post := func(body, header string) reply {
		var headers []string
		if header != "" {
			headers = []string{"Idempotency-Key", header}
		}
		return ask(t, w.Key, http.MethodPost, w.URL+"/v1/sessions", body, headers...)
	}
	plain, keyed := `{"agent":"mine","input":`+hello+`}`, `{"agent":"mine","input":`+hello+`,"idempotency_key":"k1"}`
	first := post(keyed, "")
	first.want(t, http.StatusOK, "")
	for name, again := range map[string]reply{"body": post(keyed, ""), "header": post(plain, "k1"), "both": post(keyed, "k1")} {
		if again.body != first.body {
			t.Errorf("repeated with the key in %s: %s, want %s", name, again.body, first.body)
		}
	}
	post(keyed, "k2").want(t, http.StatusBadRequest, "invalid_idempotency_key")
	post(plain, strings.Repeat("x", 513)).want(t, http.StatusBadRequest, "invalid_idempotency_key")
	post(plain, strings.Repeat("x", 512)).want(t, http.StatusOK, "")
	post(strings.Replace(keyed, "k1", " k1", 1), "").want(t, http.StatusBadRequest, "invalid_idempotency_key")
	post(strings.Replace(keyed, "hello", "bye", 1), "").want(t, http.StatusConflict, "idempotency_conflict")
}

func TestSpec_16_04_CreateWithATakenKeyNeedsSend(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := newWorld(t, d)
		creator, sender := w.KeyWithout(t, "sessions:send"), w.KeyWithout(t, "sessions:create")
		body := `{"agent":"mine","key":"one","input":` + hello + `}`
		r := ask(t, sender, http.MethodPost, w.URL+"/v1/sessions", body)
		r.want(t, http.StatusForbidden, "permission_required")
		if r.Details["permission"] != "sessions.create" {
			t.Errorf("details = %v", r.Details)
		}
		ask(t, creator, http.MethodPost, w.URL+"/v1/sessions", body).want(t, http.StatusOK, "")
		r = ask(t, creator, http.MethodPost, w.URL+"/v1/sessions", body)
		r.want(t, http.StatusForbidden, "permission_required")
		if r.Details["permission"] != "sessions.send" {
			t.Errorf("details = %v", r.Details)
		}
		r = ask(t, sender, http.MethodPost, w.URL+"/v1/sessions", body)
		r.want(t, http.StatusOK, "")
		if !strings.Contains(r.body, `"created":false`) {
			t.Errorf("answer = %s", r.body)
		}
		ask(t, sender, http.MethodPost, w.URL+"/v1/sessions", bodies["createSession"]).want(t, http.StatusForbidden, "permission_required")
	})
}

func TestSpec_16_05_PanicAndUnknownErrorsStayInside(t *testing.T) {
	t.Parallel()
	s := servertest.New(t, func(c *server.Config) {
		c.Mounts = map[string]http.Handler{
			"/mounted/": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "late") {
					_, _ = io.WriteString(w, "half")
					_ = http.NewResponseController(w).Flush()
				}
				panic("the secret is sesame")
			}),
		}
	})
	r := ask(t, "", http.MethodPost, s.URL+"/mounted/x", "{}")
	r.want(t, http.StatusInternalServerError, "internal")
	if strings.Contains(r.body, "sesame") {
		t.Errorf("the answer tells: %s", r.body)
	}
	if log := s.Log.String(); !strings.Contains(log, "the secret is sesame") || !strings.Contains(log, r.RequestID) {
		t.Errorf("the log does not tell: %s", log)
	}
	res, err := http.Get(s.URL + "/mounted/late")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if text, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("a cut answer looks whole: %q", text)
	}
}

func TestSpec_21_07_LogsNameRequestsAndHoldNoBodies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, dbtest.New(t, db.SQLite))
	r := ask(t, w.Key, http.MethodPost, w.URL+"/v1/sessions", `{"agent":"mine","input":[{"type":"text","text":"very-private"}],"key":"private-key"}`)
	ask(t, w.Key, http.MethodGet, w.URL+"/v1/sessions?agent_id=mine&key=private-key", "")
	if err := w.Stop(); err != nil { // every request is logged by then
		t.Fatal(err)
	}
	log := w.Log.String()
	if strings.Contains(log, "private") || strings.Contains(log, w.Key) {
		t.Errorf("the log tells too much: %s", log)
	}
	for line := range strings.Lines(log) {
		var l struct {
			RequestID string  `json:"request_id"`
			Route     string  `json:"route"`
			Status    int     `json:"status"`
			Took      float64 `json:"duration_ms"`
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("log line %q: %v", line, err)
		}
		if l.RequestID == r.header.Get("X-Request-Id") && l.Route == "createSession" && l.Status == 200 && l.Took > 0 {
			return
		}
	}
	t.Errorf("no line for %s: %s", r.header.Get("X-Request-Id"), log)
}

func TestHealthReadyAndMetrics(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		s := servertest.Start(t, d, nil)
		if r := ask(t, "", http.MethodGet, s.URL+"/healthz", ""); r.status != 200 || r.body != `{"status":"ok"}` {
			t.Errorf("healthz: %d %s", r.status, r.body)
		}
		for range 2 { // the probe leaves nothing behind
			if r := ask(t, "", http.MethodGet, s.URL+"/readyz", ""); r.status != 200 || r.body != `{"status":"ready"}` {
				t.Errorf("readyz: %d %s", r.status, r.body)
			}
		}
		ask(t, "", http.MethodGet, s.URL+"/v1/sessions", "")
		r := ask(t, "", http.MethodGet, s.URL+"/metrics", "")
		for _, want := range []string{`helmr_http_requests_total{method="GET",route="listSessions",status="401"} 1`, "helmr_http_request_duration_seconds_bucket",
			"helmr_http_streams 0", "go_goroutines"} {
			if !strings.Contains(r.body, want) {
				t.Errorf("metrics lack %s", want)
			}
		}
		err := d.Write(context.Background(), func(tx *db.Tx) error {
			_, err := tx.Exec("DELETE FROM schema_migrations")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		r = ask(t, "", http.MethodGet, s.URL+"/readyz", "")
		r.want(t, http.StatusServiceUnavailable, "not_ready")
		if r.header.Get("Retry-After") == "" || strings.Contains(r.body, "0001") {
			t.Errorf("readyz without a schema: %v %s", r.header, r.body)
		}
	})
}

func TestUnencryptedHTTP2SharesTheListener(t *testing.T) {
	t.Parallel()
	s := servertest.New(t, func(c *server.Config) {
		c.Mounts = map[string]http.Handler{"/mounted": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) })}
	})
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	c := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	defer c.CloseIdleConnections()
	for path, want := range map[string]string{"/mounted": "HTTP/2.0", "/healthz": `{"status":"ok"}`} {
		res, err := c.Get(s.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if string(text) != want {
			t.Errorf("GET %s = %q, want %q", path, text, want)
		}
	}
}

func TestBodyThatNeverArrivesIsRefused(t *testing.T) {
	t.Parallel()
	s := servertest.New(t, nil)
	u, _ := url.Parse(s.URL)
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	_, _ = fmt.Fprintf(conn, "POST /v1/sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", s.Key)
	_ = conn.(*net.TCPConn).CloseWrite()
	text, _ := io.ReadAll(conn)
	if !bytes.Contains(text, []byte("400 Bad Request")) || !bytes.Contains(text, []byte("bad_request")) {
		t.Errorf("answer to half a body: %s", text)
	}
}

func TestReadsAndPages(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := newWorld(t, d)
		c, ctx := w.Client(w.Key), context.Background()
		for range 4 {
			if _, err := c.Enqueue(ctx, w.mine["session_id"], api.EnqueueRequest{Input: json.RawMessage(hello)}); err != nil {
				t.Fatal(err)
			}
		}
		var sequences []int64
		cursor := ""
		for {
			page, err := c.ListTurns(ctx, w.mine["session_id"], cursor, 2)
			if err != nil {
				t.Fatal(err)
			}
			for _, turn := range page.Turns {
				sequences = append(sequences, turn.Sequence)
			}
			if cursor = page.NextCursor; cursor == "" {
				break
			}
		}
		if fmt.Sprint(sequences) != "[1 2 3 4 5]" {
			t.Errorf("turns = %v", sequences)
		}
		if d, err := c.CurrentDeployment(ctx); err != nil || d.ID != w.mine["deployment_id"] || !d.Current {
			t.Errorf("current deployment = %+v, %v", d, err)
		}
		if a, err := c.GetAgent(ctx, "mine", ""); err != nil || a.Definition == nil || a.Definition.Template != "box" {
			t.Errorf("agent = %+v, %v", a, err)
		}
		if p, err := c.GetTemplate(ctx, "box", w.mine["deployment_id"]); err != nil || p.Resources.MemoryMiB != 512 {
			t.Errorf("template = %+v, %v", p, err)
		}
		if m, err := c.GetComputer(ctx, w.mine["computer_id"]); err != nil || m.Template != "box" {
			t.Errorf("computer = %+v, %v", m, err)
		}
		events, err := c.ListDeploymentEvents(ctx, w.mine["deployment_id"], "", 0)
		if err != nil || len(events.Events) != 2 {
			t.Errorf("deployment events = %+v, %v", events, err)
		}
	})
}
