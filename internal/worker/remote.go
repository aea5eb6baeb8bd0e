package worker

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"connectrpc.com/connect"

	"helmr.dev/helmr/internal/fault"
	workerpb "helmr.dev/helmr/internal/worker/proto"
	"helmr.dev/helmr/internal/worker/proto/workerpbconnect"
)

// maxMessage bounds one answer of the server.
const maxMessage = 64 << 20

// Remote gives the server at url as a Worker on another machine reaches it: over Connect, with the credential that
// Register gave. Errors carry the server's codes as faults.
func Remote(client *http.Client, url string) Server {
	r := &remote{}
	r.c = workerpbconnect.NewWorkerServiceClient(client, url, connect.WithInterceptors(connect.UnaryInterceptorFunc(r.intercept)), connect.WithReadMaxBytes(maxMessage))
	return r
}

type remote struct {
	c workerpbconnect.WorkerServiceClient

	mu sync.Mutex
	// credential is guarded by mu.
	credential string
}

func (r *remote) intercept(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
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
	r.credential = resp.GetCredential()
	r.mu.Unlock()
	return resp, nil
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
