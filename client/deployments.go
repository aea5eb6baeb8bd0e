package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"helmr.dev/helmr/client/api"
)

const manifestType = "application/vnd.helmr.deployment-bundle.v0+json"

// ListDeployments gives one page of Deployments, latest first.
func (c *Client) ListDeployments(ctx context.Context, cursor string, limit int) (api.DeploymentPage, error) {
	var out api.DeploymentPage
	err := c.do(ctx, request{method: http.MethodGet, path: "/v1/deployments", query: values("cursor", cursor, "limit", number(limit))}, &out)
	return out, err
}

// GetDeployment gives a Deployment with its Agents and Templates.
func (c *Client) GetDeployment(ctx context.Context, deploymentID string) (api.Deployment, error) {
	var out api.Deployment
	err := c.do(ctx, request{method: http.MethodGet, path: "/v1/deployments/" + segment(deploymentID)}, &out)
	return out, err
}

// CurrentDeployment gives the current Deployment of the Environment.
func (c *Client) CurrentDeployment(ctx context.Context) (api.Deployment, error) {
	return c.GetDeployment(ctx, "current")
}

// ListDeploymentEvents gives one page of what happened to a Deployment, oldest first.
func (c *Client) ListDeploymentEvents(ctx context.Context, deploymentID, cursor string, limit int) (api.DeploymentEventPage, error) {
	var out api.DeploymentEventPage
	err := c.do(ctx, request{method: http.MethodGet, path: "/v1/deployments/" + segment(deploymentID) + "/events", query: values("cursor", cursor, "limit", number(limit))}, &out)
	return out, err
}

// Promote makes a Deployment current.
func (c *Client) Promote(ctx context.Context, deploymentID string, req api.PromoteRequest) (api.Promotion, error) {
	var out api.Promotion
	err := c.do(ctx, request{method: http.MethodPost, path: "/v1/deployments/" + segment(deploymentID) + "/promote", body: req, keyed: req.IdempotencyKey != ""}, &out)
	return out, err
}

// UploadPlan sends a bundle's manifest, byte for byte, and gives the uploads of the objects that the server lacks.
func (c *Client) UploadPlan(ctx context.Context, manifest []byte) (api.UploadPlan, error) {
	var out api.UploadPlan
	// Planning twice plans the same.
	err := c.do(ctx, request{method: http.MethodPost, path: "/v1/deployment-bundles/upload-plan", body: manifest, contentType: manifestType, keyed: true}, &out)
	return out, err
}

// UploadObject sends one object of a plan. open gives its size bytes from the start, once per attempt; progress (may be
// nil) is told the number of bytes sent so far, from one goroutine at a time. A failed connection is tried again.
func (c *Client) UploadObject(ctx context.Context, u api.Upload, size int64, open func() (io.ReadCloser, error), progress func(sent int64)) error {
	for n := 1; ; n++ {
		err := c.uploadOnce(ctx, u, size, open, progress)
		if err == nil || ctx.Err() != nil || n == attempts {
			return err
		}
		if e, ok := errors.AsType[*Error](err); ok && !e.passing() {
			return err
		}
		if err := pause(ctx, backoff(n)); err != nil {
			return err
		}
	}
}

func (c *Client) uploadOnce(ctx context.Context, u api.Upload, size int64, open func() (io.ReadCloser, error), progress func(int64)) error {
	body, err := open()
	if err != nil {
		return fmt.Errorf("open object %s: %w", u.Digest, err)
	}
	defer func() { _ = body.Close() }()
	target, own := u.URL, strings.HasPrefix(u.URL, "/")
	if own {
		target = c.base + u.URL
	}
	reader := io.Reader(body)
	if progress != nil {
		progress(0)
		reader = &progressReader{r: body, tell: progress}
	}
	if size == 0 {
		reader = http.NoBody
	}
	req, err := http.NewRequestWithContext(ctx, u.Method, target, reader)
	if err != nil {
		return fmt.Errorf("upload object %s: %w", u.Digest, err)
	}
	req.ContentLength = size
	for name, value := range u.Headers {
		req.Header.Set(name, value)
	}
	if own { // the key goes to its server only, never to an object store
		c.sign(req)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("upload object %s: %w", u.Digest, err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return readError(res)
	}
	_, err = io.Copy(io.Discard, res.Body)
	return err
}

// progressReader counts what was read of an upload.
type progressReader struct {
	r    io.Reader
	sent int64
	tell func(int64)
}

// Read reads and counts.
func (p *progressReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if n > 0 {
		p.sent += int64(n)
		p.tell(p.sent)
	}
	return n, err
}

// Finalize registers an uploaded bundle as a Deployment. verified (may be nil) is told the digest of each object as the
// server has checked it. A lost connection is tried again: the idempotency key keeps it from registering twice.
func (c *Client) Finalize(ctx context.Context, req api.FinalizeRequest, verified func(digest string)) (api.Deployment, error) {
	for n := 1; ; n++ {
		d, err := c.finalizeOnce(ctx, req, verified)
		if err == nil || ctx.Err() != nil || n == attempts {
			return d, err
		}
		if _, refused := errors.AsType[*Error](err); refused {
			return d, err
		}
		if err := pause(ctx, backoff(n)); err != nil {
			return d, err
		}
	}
}

func (c *Client) finalizeOnce(ctx context.Context, req api.FinalizeRequest, verified func(string)) (api.Deployment, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watchdog := time.AfterFunc(silence, cancel) // the server pings every 15 s
	defer watchdog.Stop()
	res, err := c.send(ctx, request{method: http.MethodPost, path: "/v1/deployment-bundles/finalize", body: req, keyed: true})
	if err != nil {
		return api.Deployment{}, err
	}
	defer func() { _ = res.Body.Close() }()
	stream := newEventReader(res.Body, func() { watchdog.Reset(silence) })
	for {
		name, data, err := stream.next()
		if err != nil {
			return api.Deployment{}, fmt.Errorf("finalize: the connection was lost: %w", err)
		}
		switch name {
		case "object_verified":
			var v struct {
				Digest string `json:"digest"`
			}
			if json.Unmarshal(data, &v) == nil && verified != nil {
				verified(v.Digest)
			}
		case "error":
			var p finalizeError
			if err := json.Unmarshal(data, &p); err != nil {
				return api.Deployment{}, fmt.Errorf("finalize: read error: %w", err)
			}
			return api.Deployment{}, p.error()
		case "complete":
			var d api.Deployment
			if err := json.Unmarshal(data, &d); err != nil {
				return d, fmt.Errorf("finalize: read the deployment: %w", err)
			}
			return d, nil
		}
	}
}

// finalizeError is the data of a finalize stream's error event.
type finalizeError struct {
	Code      string         `json:"code"`
	Message   string         `json:"message"`
	Status    int            `json:"status"`
	RequestID string         `json:"request_id"`
	Details   map[string]any `json:"details"`
}

func (p finalizeError) error() *Error {
	return &Error{Status: p.Status, Code: p.Code, Message: p.Message, RequestID: p.RequestID, Details: p.Details}
}
