package server_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/server/servertest"
)

// BenchmarkFrame measures what the server adds to a room: routing, authentication, checks, encoding, log and metrics.
func BenchmarkFrame(b *testing.B) {
	s := servertest.New(b, nil)
	ctx, c := context.Background(), s.Client(s.Key)
	servertest.Deploy(b, c, "mine")
	r, err := c.CreateSession(ctx, api.SessionCreateRequest{Agent: "mine", Input: json.RawMessage(hello)})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("get_turn_route", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			req := httptest.NewRequest(http.MethodGet, "/v1/sessions/"+r.SessionID+"/turns/"+r.TurnID, nil)
			req.Header.Set("Authorization", "Bearer "+s.Key)
			s.Handler().ServeHTTP(httptest.NewRecorder(), req)
		}
	})
	b.Run("get_turn_room", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Turn.Get(ctx, s.EnvironmentID, r.SessionID, r.TurnID); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("authenticate_room", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Access.Authenticate(ctx, s.Key); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("enqueue_refused_route", func(b *testing.B) { // everything up to the room, which refuses the content
		b.ReportAllocs()
		for b.Loop() {
			req := httptest.NewRequest(http.MethodPost, "/v1/sessions/"+r.SessionID+"/enqueue", strings.NewReader(`{"input":1}`))
			req.Header.Set("Authorization", "Bearer "+s.Key)
			req.Header.Set("Content-Type", "application/json")
			s.Handler().ServeHTTP(httptest.NewRecorder(), req)
		}
	})
}
