package rpc

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/id"
	workerpb "helmr.dev/helmr/internal/worker/proto"
	"helmr.dev/helmr/internal/worker/proto/workerpbconnect"
)

func TestSpec_21_08_ShortLivedCredentials(t *testing.T) {
	t.Parallel()
	now := time.Now()
	c := NewCredentials([]byte("key"), func() time.Time { return now })
	w := id.New()
	good := c.credential(w, now.Add(time.Minute))
	if got := c.worker(good); got != w {
		t.Fatalf("a good credential is of %q", got)
	}
	for what, bad := range map[string]string{
		"of another key": NewCredentials([]byte("other"), time.Now).credential(w, now.Add(time.Minute)),
		"over":           c.credential(w, now.Add(-time.Second)),
		"later end":      strings.Replace(good, ".", ".9", 1),
		"other worker":   id.New() + strings.TrimPrefix(good, w),
		"cut":            good[:len(good)-1],
		"empty":          "", "dots": "..", "no end": w + ".x.y",
	} {
		if got := c.worker(bad); got != "" {
			t.Errorf("%s: taken for %q", what, got)
		}
	}
}

// TestSpec_21_08_CallsNeedTheCredentialOfTheirWorker goes over the wire.
func TestSpec_21_08_CallsNeedTheCredentialOfTheirWorker(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t, db.SQLite)
	computers := computer.NewService(d, time.Now)
	service := New(d.Hub(), computers, nil, nil, nil)
	path, handler := Handler(service, NewCredentials([]byte("key"), time.Now))
	mux := http.NewServeMux()
	mux.Handle(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RemoteAddr = "93.184.216.34:1234"
		handler.ServeHTTP(w, r)
	}))
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	ctx := context.Background()
	token, err := computers.CreateWorkerToken(ctx, "", api.WorkerTokenCreateRequest{Name: "t"})
	if err != nil {
		t.Fatal(err)
	}
	call := func(credential string) workerpbconnect.WorkerServiceClient {
		client := &http.Client{Transport: bearer(credential)}
		return workerpbconnect.NewWorkerServiceClient(client, srv.URL)
	}
	enroll := func(name, token string) (*workerpb.RegisterResponse, error) {
		return call("").Register(ctx, &workerpb.RegisterRequest{Name: name, Secret: strings.Repeat(name, 32), EnrollmentToken: token})
	}
	if _, err := enroll("a", "hlmr_wgt_wrong"); err == nil {
		t.Fatal("a wrong token enrolls")
	}
	a, err := enroll("a", token.Token)
	if err != nil || a.GetCredential() == "" || a.GetCredentialMs() <= 0 {
		t.Fatalf("%+v, %v", a, err)
	}
	b, err := enroll("b", token.Token)
	if err != nil {
		t.Fatal(err)
	}
	beat, err := call(a.GetCredential()).Heartbeat(ctx, &workerpb.HeartbeatRequest{WorkerId: a.GetWorkerId(), Addresses: []string{"10.9.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	// Where it is seen and where it says it is, from where Computers are kept (21.6).
	if got := strings.Join(slices.Sorted(slices.Values(beat.GetDenied())), " "); got != "10.9.0.1 93.184.216.34" {
		t.Errorf("denied to Computers: %q", got)
	}
	for _, credential := range []string{"", "x", b.GetCredential()} {
		if _, err := call(credential).Heartbeat(ctx, &workerpb.HeartbeatRequest{WorkerId: a.GetWorkerId()}); err == nil || !strings.Contains(err.Error(), "credential") {
			t.Errorf("with %q: %v", credential, err)
		}
		if _, err := call(credential).Control(ctx, &workerpb.ControlRequest{WorkerId: a.GetWorkerId(), Action: workerpb.ControlRequest_ACTION_DRAIN}); err == nil {
			t.Errorf("with %q the Worker was drained", credential)
		}
	}
	// Known again by its secret alone, also after the token was revoked.
	if err := computers.RevokeWorkerToken(ctx, token.ID); err != nil {
		t.Fatal(err)
	}
	again, err := enroll("a", "")
	if err != nil || again.GetWorkerId() != a.GetWorkerId() {
		t.Fatalf("%+v, %v", again, err)
	}
	resp, err := call(again.GetCredential()).Control(ctx, &workerpb.ControlRequest{WorkerId: a.GetWorkerId()})
	if err != nil || !strings.Contains(string(resp.GetWorker()), `"status":"registering"`) {
		t.Fatalf("%s, %v", resp.GetWorker(), err)
	}
}

// bearer adds a credential to requests.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if b != "" {
		r.Header.Set("Authorization", "Bearer "+string(b))
	}
	return http.DefaultTransport.RoundTrip(r)
}
