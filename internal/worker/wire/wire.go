// Package wire carries the Worker calls between machines, over Connect. It checks the token that a Worker holds and
// takes faults across with their codes. It is not used in helmr dev, where a Worker calls the service directly, and it
// knows nothing of what the calls do.
package wire

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/worker/proto/workerpbconnect"
)

// Prefix is the path under which a server mounts Handler.
const Prefix = "/rpc"

const (
	tokenMark  = "hlmr_wgt_"
	codeHeader = "Helmr-Code" // error metadata: the fault's code
	maxMessage = 64 << 20     // a batch of operations is far smaller
)

// Token gives the enrollment token of an installation, derived from the signing key that its servers share. Whoever
// holds it can host Computers of the installation.
func Token(signingKey []byte) string {
	mac := hmac.New(sha256.New, signingKey)
	_, _ = mac.Write([]byte("helmr worker enrollment v1")) // a hash does not fail
	return tokenMark + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Handler serves the Worker calls of svc below Prefix to whoever sends token.
func Handler(svc workerpbconnect.WorkerServiceHandler, token string) http.Handler {
	_, calls := workerpbconnect.NewWorkerServiceHandler(svc, connect.WithInterceptors(serverErrors()), connect.WithReadMaxBytes(maxMessage))
	want := sha256.Sum256([]byte("Bearer " + token))
	return http.StripPrefix(Prefix, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		have := sha256.Sum256([]byte(r.Header.Get("Authorization")))
		if subtle.ConstantTimeCompare(have[:], want[:]) != 1 {
			err := toConnect(fault.New(fault.AuthenticationRequired, "the enrollment token of this Worker is not the installation's"))
			_ = connect.NewErrorWriter().Write(w, r, err) // the caller is gone
			return
		}
		calls.ServeHTTP(w, r)
	}))
}

// Client gives the Worker calls of the server at baseURL.
func Client(baseURL, token string) workerpbconnect.WorkerServiceClient {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	if strings.HasPrefix(baseURL, "http:") {
		protocols.SetHTTP1(false)
		protocols.SetUnencryptedHTTP2(true)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Protocols = protocols
	return workerpbconnect.NewWorkerServiceClient(&http.Client{Transport: transport}, strings.TrimRight(baseURL, "/")+Prefix,
		connect.WithInterceptors(clientErrors(token)), connect.WithReadMaxBytes(maxMessage))
}

func serverErrors() connect.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			resp, err := next(ctx, req)
			if err != nil {
				return nil, toConnect(err)
			}
			return resp, nil
		}
	})
}

func clientErrors(token string) connect.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			req.Header().Set("Authorization", "Bearer "+token)
			resp, err := next(ctx, req)
			if err != nil {
				return nil, fromConnect(err)
			}
			return resp, nil
		}
	})
}

// toConnect gives the public form of an error; what is inside it stays here.
func toConnect(err error) *connect.Error {
	if errors.Is(err, context.Canceled) {
		return connect.NewError(connect.CodeCanceled, err)
	}
	f := fault.From(err)
	c := connect.NewError(connectCode(f.Code), errors.New(f.Message))
	c.Meta().Set(codeHeader, string(f.Code))
	return c
}

func connectCode(code fault.Code) connect.Code {
	switch fault.Status(code) {
	case http.StatusBadRequest:
		return connect.CodeInvalidArgument
	case http.StatusUnauthorized:
		return connect.CodeUnauthenticated
	case http.StatusNotFound:
		return connect.CodeNotFound
	case http.StatusConflict:
		return connect.CodeFailedPrecondition
	case http.StatusServiceUnavailable:
		return connect.CodeUnavailable
	}
	return connect.CodeInternal
}

// fromConnect gives the fault that the server sent, or err as it is.
func fromConnect(err error) error {
	c, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return err
	}
	if code := c.Meta().Get(codeHeader); code != "" {
		return fault.New(fault.Code(code), "%s", c.Message()).Because(err)
	}
	return err
}

var _ workerpbconnect.WorkerServiceHandler = (workerpbconnect.WorkerServiceClient)(nil)
