package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/fault"
)

const manifestType = "application/vnd.helmr.deployment-bundle.v0+json"

var (
	sizeParam      = param{name: "size", kind: "integer", doc: "Size of the object in bytes."}
	uploadPlanType = reflect.TypeFor[api.UploadPlan]()
	finalizeType   = reflect.TypeFor[api.FinalizeRequest]()
)

// planUpload takes a manifest as it is: its bytes are what the bundle digest is made of.
func (s *Server) planUpload(c *call) error {
	manifest, err := c.body(manifestType, "application/json")
	if err != nil {
		return err
	}
	if len(manifest) == 0 {
		return badField("", "The body must be the bundle's manifest.")
	}
	plan, err := s.deps.Bundle.UploadPlan(c.ctx(), c.env(), manifest)
	if err != nil {
		return err
	}
	for i := range plan.Uploads {
		if u := &plan.Uploads[i]; u.URL == "" { // not signed by the object store: this server takes it
			u.Method = http.MethodPut
			u.URL = "/v1/deployment-bundles/objects/" + u.Digest + "?size=" + strconv.FormatInt(u.SizeBytes, 10)
		}
	}
	return c.answer(http.StatusOK, plan)
}

// uploadObject streams one object into the object store, which keeps it only if size and digest are right.
func (s *Server) uploadObject(c *call) error {
	size, err := strconv.ParseInt(c.query.Get("size"), 10, 64)
	if err != nil || size < 0 {
		return badParam("size", "size is required: the object's size in bytes, as the upload plan gives it.")
	}
	if size > limitObject {
		return tooLarge("", limitObject)
	}
	if c.r.ContentLength >= 0 && c.r.ContentLength != size {
		return badParam("size", "size is %d but the body has %d bytes.", size, c.r.ContentLength)
	}
	control := http.NewResponseController(c.w.ResponseWriter)
	body := &uploadReader{r: http.MaxBytesReader(c.w.ResponseWriter, c.r.Body, size), control: control}
	err = s.deps.Bundle.PutObject(c.ctx(), c.env(), c.path("digest"), size, body)
	_ = control.SetReadDeadline(time.Time{})
	if err != nil {
		if body.err != nil && fault.From(err).Code == fault.Internal {
			return bodyError(body.err, "", size)
		}
		return err
	}
	c.w.send(http.StatusNoContent, "", nil)
	return nil
}

// uploadReader gives the caller bodyDeadline for each part of the body and remembers how the body ended.
type uploadReader struct {
	r       io.Reader
	control *http.ResponseController
	until   time.Time
	err     error // other than io.EOF
}

// Read reads a part of the upload.
func (u *uploadReader) Read(p []byte) (int, error) {
	if now := time.Now(); now.Add(bodyDeadline / 2).After(u.until) {
		u.until = now.Add(bodyDeadline)
		_ = u.control.SetReadDeadline(u.until)
	}
	n, err := u.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		u.err = err
	}
	return n, err
}

// finalize registers a bundle and tells of it as it goes: started, object_verified for each object, ping while nothing
// happens, and then complete with the Deployment or error. The work ends with the caller: finalizing again goes on from
// what is stored, and the idempotency key keeps it from registering twice.
func (s *Server) finalize(c *call) error {
	var in api.FinalizeRequest
	if err := c.decode(&in); err != nil {
		return err
	}
	if err := checkBody(checkDigest, "bundle_digest", in.BundleDigest); err != nil {
		return err
	}
	type outcome struct {
		deployment api.Deployment
		err        error
	}
	ctx, cancel := context.WithCancel(c.ctx())
	defer cancel()
	verified, done := make(chan string), make(chan outcome, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- outcome{err: fmt.Errorf("finalize panicked: %v", p)}
			}
		}()
		d, err := s.deps.Bundle.Finalize(ctx, c.env(), c.who.Actor, in, func(digest string) {
			select {
			case verified <- digest:
			case <-ctx.Done():
			}
		})
		done <- outcome{d, err}
	}()
	out := newEventWriter(c.w)
	defer s.metrics.streaming()()
	out.event(0, "started", []byte("{}"))
	heartbeat := time.NewTicker(s.config.Heartbeat)
	defer heartbeat.Stop()
	for {
		if err := out.flush(); err != nil {
			cancel()
			<-done
			return nil
		}
		select {
		case digest := <-verified:
			if err := out.json(0, "object_verified", map[string]string{"digest": digest}); err != nil {
				return err
			}
		case <-heartbeat.C:
			out.event(0, "ping", []byte("{}"))
		case o := <-done:
			return s.endFinalize(c, out, o.deployment, o.err)
		}
	}
}

// streamError is the data of the error event that ends a finalize stream: a problem under the names of events.
type streamError struct {
	Code      string         `json:"code"`
	Message   string         `json:"message"`
	Status    int            `json:"status"`
	RequestID string         `json:"request_id"`
	Details   map[string]any `json:"details,omitempty"`
}

// endFinalize sends the last event of a finalize stream.
func (s *Server) endFinalize(c *call, out *eventWriter, d api.Deployment, err error) error {
	if err == nil {
		if err := out.json(0, "complete", d); err != nil {
			return err
		}
		_ = out.flush()
		return nil
	}
	f := fault.From(err)
	if jerr := out.json(0, "error", streamError{string(f.Code), f.Message, fault.Status(f.Code), c.w.requestID, f.Details}); jerr != nil {
		return jerr
	}
	_ = out.flush()
	if f.Code == fault.Internal {
		return err // logged; the answer has begun
	}
	return nil
}
