package rpc

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	workerpb "helmr.dev/helmr/internal/worker/proto"
	"helmr.dev/helmr/internal/worker/proto/workerpbconnect"
)

// maxMessage bounds one call in either direction: operations of a Computer that waited for the server.
const maxMessage = 64 << 20

// credentialFor is how long a credential is good; a Worker asks for another one well before.
const credentialFor = time.Hour

// Credentials makes and checks what Workers on other machines show with each call: a short-lived credential for one
// Worker, signed with the installation's key, so that nothing secret is stored.
type Credentials struct {
	key []byte
	now func() time.Time
}

// NewCredentials uses the installation's HELMR_WORKER_HOST_CREDENTIAL_SIGNING_KEY.
func NewCredentials(key []byte, now func() time.Time) *Credentials {
	return &Credentials{key: key, now: now}
}

func (c *Credentials) sign(text string) string {
	m := hmac.New(sha256.New, c.key)
	_, _ = m.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

func (c *Credentials) credential(workerID string, until time.Time) string {
	claim := workerID + "." + strconv.FormatInt(until.Unix(), 10)
	return claim + "." + c.sign("worker credential v2 "+claim)
}

// worker gives the Worker that a credential belongs to, "" if it is not valid or is over.
func (c *Credentials) worker(credential string) string {
	workerID, rest, _ := strings.Cut(credential, ".")
	end, _, ok := strings.Cut(rest, ".")
	seconds, err := strconv.ParseInt(end, 10, 64)
	if !ok || err != nil || !hmac.Equal([]byte(credential), []byte(c.credential(workerID, time.Unix(seconds, 0)))) || !c.now().Before(time.Unix(seconds, 0)) {
		return ""
	}
	return workerID
}

// Handler gives the path and the handler under which Workers on other machines reach s.
func Handler(s *Service, c *Credentials) (string, http.Handler) {
	return workerpbconnect.NewWorkerServiceHandler(&guarded{s: s, c: c},
		connect.WithInterceptors(connect.UnaryInterceptorFunc(c.intercept)), connect.WithReadMaxBytes(maxMessage), connect.WithSendMaxBytes(maxMessage))
}

// identified is a request that says which Worker it is from.
type identified interface{ GetWorkerId() string }

// intercept lets a call pass only with the credential of the Worker it names, and gives errors their code.
func (c *Credentials) intercept(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if from, ok := req.Any().(identified); ok {
			workerID := c.worker(strings.TrimPrefix(req.Header().Get("Authorization"), "Bearer "))
			if workerID == "" || workerID != from.GetWorkerId() {
				return nil, coded(fault.New(fault.AuthenticationRequired, "the call needs the credential of its Worker"))
			}
		}
		resp, err := next(ctx, req)
		if err != nil {
			return nil, coded(err)
		}
		return resp, nil
	}
}

// coded turns an error into one that carries its public code over the wire.
func coded(err error) error {
	f := fault.From(err)
	if f.Code == fault.Internal && db.IsAway(err) {
		f = fault.New(fault.Unavailable, "the server cannot reach its database at present")
	}
	code := connect.CodeInternal
	switch f.Code {
	case fault.Unavailable:
		code = connect.CodeUnavailable
	case fault.AuthenticationRequired:
		code = connect.CodeUnauthenticated
	case fault.LeaseLost:
		code = connect.CodeAborted
	case fault.BadRequest, fault.WorkerResourceCustody:
		code = connect.CodeFailedPrecondition
	}
	out := connect.NewError(code, errors.New(f.Message))
	out.Meta().Set(workerpb.CodeHeader, string(f.Code))
	return out
}

// guarded is Service with enrollment.
type guarded struct {
	s *Service
	c *Credentials
}

// Register enrolls a Worker with a token, or gives one that is known another credential.
func (g *guarded) Register(ctx context.Context, r *workerpb.RegisterRequest) (*workerpb.RegisterResponse, error) {
	workerID, err := g.s.computers.EnrollWorker(ctx, r)
	if err != nil {
		return nil, err
	}
	return &workerpb.RegisterResponse{WorkerId: workerID, Credential: g.c.credential(workerID, g.c.now().Add(credentialFor)), CredentialMs: credentialFor.Milliseconds()}, nil
}

func (g *guarded) Control(ctx context.Context, r *workerpb.ControlRequest) (*workerpb.ControlResponse, error) {
	return g.s.Control(ctx, r)
}

// Heartbeat adds the address that the Worker is seen under, which its machine may not know.
func (g *guarded) Heartbeat(ctx context.Context, r *workerpb.HeartbeatRequest) (*workerpb.HeartbeatResponse, error) {
	if call, ok := connect.CallInfoForHandlerContext(ctx); ok {
		if from, err := netip.ParseAddrPort(call.Peer().Addr); err == nil {
			r.Addresses = append([]string{from.Addr().Unmap().String()}, r.GetAddresses()...)
		}
	}
	return g.s.Heartbeat(ctx, r)
}

func (g *guarded) Watch(ctx context.Context, r *workerpb.WatchRequest) (*workerpb.WatchResponse, error) {
	return g.s.Watch(ctx, r)
}

func (g *guarded) Exchange(ctx context.Context, r *workerpb.ExchangeRequest) (*workerpb.ExchangeResponse, error) {
	return g.s.Exchange(ctx, r)
}

func (g *guarded) PublishSave(ctx context.Context, r *workerpb.PublishSaveRequest) (*workerpb.PublishSaveResponse, error) {
	return g.s.PublishSave(ctx, r)
}

func (g *guarded) PublishCapture(ctx context.Context, r *workerpb.PublishCaptureRequest) (*workerpb.PublishCaptureResponse, error) {
	return g.s.PublishCapture(ctx, r)
}

func (g *guarded) StoreOutput(ctx context.Context, r *workerpb.StoreOutputRequest) (*workerpb.StoreOutputResponse, error) {
	return g.s.StoreOutput(ctx, r)
}

func (g *guarded) ReportNetwork(ctx context.Context, r *workerpb.ReportNetworkRequest) (*workerpb.ReportNetworkResponse, error) {
	return g.s.ReportNetwork(ctx, r)
}

func (g *guarded) ResolveSecrets(ctx context.Context, r *workerpb.ResolveSecretsRequest) (*workerpb.ResolveSecretsResponse, error) {
	return g.s.ResolveSecrets(ctx, r)
}

func (g *guarded) OpenProtection(ctx context.Context, r *workerpb.OpenProtectionRequest) (*workerpb.OpenProtectionResponse, error) {
	return g.s.OpenProtection(ctx, r)
}

func (g *guarded) ResolveProtected(ctx context.Context, r *workerpb.ResolveProtectedRequest) (*workerpb.ResolveProtectedResponse, error) {
	return g.s.ResolveProtected(ctx, r)
}
