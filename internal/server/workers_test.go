package server_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/server/servertest"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

func TestSpec_16_04_WorkersAreForPeople(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		s := servertest.Start(t, d, nil)
		ctx := context.Background()
		owner := s.Client(s.OwnerToken)
		made, err := owner.CreateWorkerToken(ctx, api.WorkerTokenCreateRequest{Name: "rack 7"})
		if err != nil {
			t.Fatal(err)
		}
		enroll := func(name string) (string, error) {
			return s.Computer.EnrollWorker(ctx, &workerpb.RegisterRequest{Name: name, Secret: strings.Repeat(name, 32), EnrollmentToken: made.Token})
		}
		a, err := enroll("a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Computer.Beat(ctx, &workerpb.HeartbeatRequest{WorkerId: a, Capacity: &workerpb.Capacity{CpuMillis: 2000, MemoryMib: 1024, DiskMib: 4096}}); err != nil {
			t.Fatal(err)
		}
		if _, err := enroll("b"); err != nil {
			t.Fatal(err)
		}
		var names []string
		for cursor := ""; ; {
			page, err := owner.ListWorkers(ctx, cursor, 1)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range page.Workers {
				names = append(names, v.Name+" "+v.Status)
			}
			if cursor = page.NextCursor; cursor == "" {
				break
			}
		}
		if got := strings.Join(names, ", "); got != "a active, b registering" {
			t.Errorf("workers: %s", got)
		}
		v, err := owner.DrainWorker(ctx, a, api.WorkerDrainRequest{TimeoutMs: 60_000})
		if err != nil || v.Status != "termination_ready" {
			t.Errorf("drained: %+v, %v", v, err)
		}
		if v, err = owner.ActivateWorker(ctx, a); err != nil || v.Status != "active" {
			t.Errorf("activated: %+v, %v", v, err)
		}
		ask(t, s.OwnerToken, http.MethodPost, s.URL+"/api/workers/"+id.New()+"/drain", `{}`).want(t, http.StatusNotFound, "not_found")
		ask(t, s.OwnerToken, http.MethodPost, s.URL+"/api/workers/"+a+"/drain", `{"timeout_ms":-1}`).want(t, http.StatusBadRequest, "bad_request")
		ask(t, s.OwnerToken, http.MethodPost, s.URL+"/api/worker-tokens", `{"name":""}`).want(t, http.StatusBadRequest, "bad_request")
		tokens, err := owner.ListWorkerTokens(ctx, "", 0)
		if err != nil || len(tokens.Tokens) != 1 || tokens.Tokens[0].Token != "" || tokens.Tokens[0].Prefix == "" {
			t.Errorf("tokens: %+v, %v", tokens, err)
		}
		if err := owner.RevokeWorkerToken(ctx, made.ID); err != nil {
			t.Error(err)
		}
		if _, err := enroll("c"); err == nil {
			t.Error("a revoked token enrolls")
		}
	})
}

func TestSpec_15_07_OwnerTokens(t *testing.T) {
	t.Parallel()
	s := servertest.New(t, nil)
	ctx := context.Background()
	me, err := s.Client(s.OwnerToken).Me(ctx)
	if err != nil || me.Actor.Kind != "user" || me.EnvironmentID != "" || !strings.Contains(strings.Join(me.Permissions, " "), "workers.manage") {
		t.Errorf("me: %+v, %v", me, err)
	}
	// It is a person's, and of no Environment.
	if _, err := s.Client(s.OwnerToken).ListSessions(ctx, client.SessionFilter{}); err == nil {
		t.Error("/v1 takes an owner token")
	}
	for what, token := range map[string]string{
		"another key": access.NewOwnerToken([]byte("another"), time.Now().Add(time.Hour)),
		"over":        access.NewOwnerToken(s.Access.OwnerKey, time.Now().Add(-time.Second)),
		"changed":     s.OwnerToken[:len(s.OwnerToken)-2] + "AA",
		"cut":         s.OwnerToken[:40],
	} {
		ask(t, token, http.MethodGet, s.URL+"/api/workers", "").want(t, http.StatusUnauthorized, "authentication_required")
		if strings.Contains(s.Log.String(), token) {
			t.Errorf("%s: the log has the token", what)
		}
	}
}
