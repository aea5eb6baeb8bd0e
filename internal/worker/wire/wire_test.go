package wire_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"helmr.dev/helmr/internal/fault"
	workerpb "helmr.dev/helmr/internal/worker/proto"
	"helmr.dev/helmr/internal/worker/proto/workerpbconnect"
	"helmr.dev/helmr/internal/worker/wire"
)

// answers is a service whose calls all end the same way.
type answers struct {
	workerpbconnect.WorkerServiceHandler
	err error
}

func (a answers) Heartbeat(_ context.Context, r *workerpb.HeartbeatRequest) (*workerpb.HeartbeatResponse, error) {
	return &workerpb.HeartbeatResponse{Leases: []*workerpb.Lease{{ComputerId: r.GetWorkerId(), Epoch: 7}}}, a.err
}

func setup(t *testing.T, err error) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(wire.Prefix+"/", wire.Handler(answers{err: err}, wire.Token([]byte("key"))))
	s := httptest.NewUnstartedServer(mux)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return s.URL
}

func TestCall(t *testing.T) {
	t.Parallel()
	c := wire.Client(setup(t, nil), wire.Token([]byte("key")))
	resp, err := c.Heartbeat(context.Background(), &workerpb.HeartbeatRequest{WorkerId: "w"})
	if err != nil {
		t.Fatal(err)
	}
	if l := resp.GetLeases(); len(l) != 1 || l[0].GetComputerId() != "w" || l[0].GetEpoch() != 7 {
		t.Fatalf("got %v", l)
	}
}

func TestFaultsKeepTheirCode(t *testing.T) {
	t.Parallel()
	c := wire.Client(setup(t, fault.New(fault.LeaseLost, "this Worker is lost")), wire.Token([]byte("key")))
	if _, err := c.Heartbeat(context.Background(), &workerpb.HeartbeatRequest{}); !fault.Is(err, fault.LeaseLost) {
		t.Fatalf("got %v", err)
	}
}

func TestInnerErrorsStayInside(t *testing.T) {
	t.Parallel()
	c := wire.Client(setup(t, errors.New("secret of the database")), wire.Token([]byte("key")))
	_, err := c.Heartbeat(context.Background(), &workerpb.HeartbeatRequest{})
	if f := fault.From(err); f.Code != fault.Internal || f.Message == "" {
		t.Fatalf("got %v", err)
	}
}

func TestAnotherTokenIsRefused(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"", "hlmr_wgt_x", wire.Token([]byte("other"))} {
		c := wire.Client(setup(t, nil), token)
		if _, err := c.Heartbeat(context.Background(), &workerpb.HeartbeatRequest{}); !fault.Is(err, fault.AuthenticationRequired) {
			t.Fatalf("token %q: got %v", token, err)
		}
	}
}
