package worker

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"helmr.dev/helmr/internal/fault"
	workerpb "helmr.dev/helmr/internal/worker/proto"
	"helmr.dev/helmr/internal/worker/proto/workerpbconnect"
)

// maxMessage bounds one answer of the server; renewEvery is the pause after a credential could not be renewed.
const (
	maxMessage = 64 << 20
	renewEvery = 10 * time.Second
)

// Remote gives the server at url as a Worker on another machine reaches it: over Connect, with the credential that
// Register gave and that is renewed in time. Errors carry the server's codes as faults.
func Remote(client *http.Client, url string) Server { return remoteOf(client, url) }

// Control asks the server at url about the Worker of a folder, as its own machine may: name and the secret in dir prove
// whose it is.
func Control(ctx context.Context, client *http.Client, url, name, dir string, req *workerpb.ControlRequest) (*workerpb.ControlResponse, error) {
	secret, err := readSecret(dir)
	if err != nil {
		return nil, err
	}
	r := remoteOf(client, url)
	resp, err := r.Register(ctx, &workerpb.RegisterRequest{Name: name, Secret: secret})
	if err != nil {
		return nil, err
	}
	req.WorkerId = resp.GetWorkerId()
	return r.Control(ctx, req)
}

func remoteOf(client *http.Client, url string) *remote {
	r := &remote{}
	r.c = workerpbconnect.NewWorkerServiceClient(client, url, connect.WithInterceptors(connect.UnaryInterceptorFunc(r.intercept)), connect.WithReadMaxBytes(maxMessage))
	return r
}

type remote struct {
	c workerpbconnect.WorkerServiceClient

	mu sync.Mutex
	// all below are guarded by mu
	credential string
	renewAt    time.Time
	// known is what makes the Worker known again: its name and secret.
	known *workerpb.RegisterRequest
}

func (r *remote) intercept(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if _, enrolls := req.Any().(*workerpb.RegisterRequest); !enrolls {
			r.renew(ctx)
		}
		r.mu.Lock()
		if r.credential != "" {
			req.Header().Set("Authorization", "Bearer "+r.credential)
		}
		r.mu.Unlock()
		resp, err := next(ctx, req)
		if e, ok := errors.AsType[*connect.Error](err); ok {
			if code := e.Meta().Get(workerpb.CodeHeader); code != "" {
				return nil, fault.New(fault.Code(code), "%s", e.Message())
			}
		}
		return resp, err
	}
}

func (r *remote) Register(ctx context.Context, req *workerpb.RegisterRequest) (*workerpb.RegisterResponse, error) {
	resp, err := r.c.Register(ctx, req)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.credential = resp.GetCredential()
	r.renewAt = time.Now().Add(time.Duration(resp.GetCredentialMs()) * time.Millisecond / 2)
	r.known = &workerpb.RegisterRequest{Name: req.GetName(), Secret: req.GetSecret()}
	return resp, nil
}

// renew asks for another credential when half the time of this one is over. Without a token that makes no lost Worker
// known again: it hears with its next heartbeat that it is lost. A failure is tried again with the next call.
func (r *remote) renew(ctx context.Context) {
	r.mu.Lock()
	known := r.known
	if known == nil || time.Now().Before(r.renewAt) {
		r.mu.Unlock()
		return
	}
	r.renewAt = time.Now().Add(renewEvery) // one call at a time
	r.mu.Unlock()
	_, _ = r.Register(ctx, known)
}

func (r *remote) Control(ctx context.Context, req *workerpb.ControlRequest) (*workerpb.ControlResponse, error) {
	return r.c.Control(ctx, req)
}

func (r *remote) Heartbeat(ctx context.Context, req *workerpb.HeartbeatRequest) (*workerpb.HeartbeatResponse, error) {
	return r.c.Heartbeat(ctx, req)
}

func (r *remote) Watch(ctx context.Context, req *workerpb.WatchRequest) (*workerpb.WatchResponse, error) {
	return r.c.Watch(ctx, req)
}

func (r *remote) Exchange(ctx context.Context, req *workerpb.ExchangeRequest) (*workerpb.ExchangeResponse, error) {
	return r.c.Exchange(ctx, req)
}

func (r *remote) PublishSave(ctx context.Context, req *workerpb.PublishSaveRequest) (*workerpb.PublishSaveResponse, error) {
	return r.c.PublishSave(ctx, req)
}

func (r *remote) PublishCapture(ctx context.Context, req *workerpb.PublishCaptureRequest) (*workerpb.PublishCaptureResponse, error) {
	return r.c.PublishCapture(ctx, req)
}

func (r *remote) StoreOutput(ctx context.Context, req *workerpb.StoreOutputRequest) (*workerpb.StoreOutputResponse, error) {
	return r.c.StoreOutput(ctx, req)
}

func (r *remote) ReportNetwork(ctx context.Context, req *workerpb.ReportNetworkRequest) (*workerpb.ReportNetworkResponse, error) {
	return r.c.ReportNetwork(ctx, req)
}

func (r *remote) ResolveSecrets(ctx context.Context, req *workerpb.ResolveSecretsRequest) (*workerpb.ResolveSecretsResponse, error) {
	return r.c.ResolveSecrets(ctx, req)
}

func (r *remote) OpenProtection(ctx context.Context, req *workerpb.OpenProtectionRequest) (*workerpb.OpenProtectionResponse, error) {
	return r.c.OpenProtection(ctx, req)
}

func (r *remote) ResolveProtected(ctx context.Context, req *workerpb.ResolveProtectedRequest) (*workerpb.ResolveProtectedResponse, error) {
	return r.c.ResolveProtected(ctx, req)
}
