package deployment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/blob"
	"helmr.dev/helmr/internal/build/bundle"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/secret"
	"helmr.dev/helmr/internal/secret/binding"
)

// UploadPlan checks a manifest, keeps it, and names the objects that the object store lacks. The URL of an upload is
// empty: the caller fills in where it takes objects for PutObject.
func (s *Service) UploadPlan(ctx context.Context, environmentID string, manifest []byte) (api.UploadPlan, error) {
	m, err := bundle.Parse(manifest)
	if err != nil {
		return api.UploadPlan{}, err
	}
	digest := bundle.Digest(manifest)
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		now := db.Millis(s.Now())
		n, err := tx.Exec(sqlBundleInsert, environmentID, digest, string(manifest), now)
		if err != nil || n == 0 {
			return err
		}
		for _, o := range m.Objects {
			if _, err := tx.Exec(sqlObjectInsert, environmentID, o.Digest, digest, o.SizeBytes); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return api.UploadPlan{}, fmt.Errorf("keep bundle manifest: %w", err)
	}
	plan := api.UploadPlan{BundleDigest: digest, Uploads: []api.Upload{}}
	for _, o := range m.Objects {
		have, err := s.hasObject(ctx, o)
		if err != nil {
			return api.UploadPlan{}, err
		}
		if !have {
			plan.Uploads = append(plan.Uploads, api.Upload{
				Digest: o.Digest, Method: "PUT", Headers: map[string]string{"Content-Type": o.MediaType}, SizeBytes: o.SizeBytes,
			})
		}
	}
	return plan, nil
}

// hasObject tells whether the object store holds o. An object only gets there verified (blob.Store.PutObject), so its
// presence with the right size is proof of its digest; one of another size was damaged later and counts as missing.
func (s *Service) hasObject(ctx context.Context, o bundle.Object) (bool, error) {
	size, found, err := s.objects.Size(ctx, blob.ObjectKey(o.Digest))
	if err != nil {
		return false, fmt.Errorf("look for bundle object: %w", err)
	}
	return found && size == o.SizeBytes, nil
}

// PutObject takes one object that a bundle of the Environment has announced with this size. Content with another size
// or digest is refused and leaves nothing.
func (s *Service) PutObject(ctx context.Context, environmentID, digest string, size int64, r io.Reader) error {
	var announced int64
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		_, err := tx.Get([]any{&announced}, sqlObjectFind, environmentID, digest, size)
		return err
	})
	if err != nil {
		return fmt.Errorf("find announced object: %w", err)
	}
	if announced == 0 {
		return fault.New(fault.NotFound, "No bundle of this Environment has an object with this digest and a size of %d bytes; ask for an upload plan first.", size)
	}
	switch err := s.objects.PutObject(ctx, digest, size, r); {
	case errors.Is(err, blob.ErrMismatch):
		return fault.New(fault.BadRequest, "The uploaded bytes are not the object %s of %d bytes that the bundle names; send it again.", digest, size).Because(err)
	case errors.Is(err, blob.ErrFull):
		return fault.New(fault.Unavailable, "The server's object store is full; its operator must free some space.").Because(err)
	case err != nil:
		return fmt.Errorf("store bundle object: %w", err)
	}
	return nil
}

// Finalize registers an uploaded bundle as the next Deployment of the Environment. verified is called with the digest
// of each object once it is proven to be complete, before anything is registered. A repeated idempotency key gives the
// first Deployment again; an equal bundle under another key becomes another version.
func (s *Service) Finalize(ctx context.Context, environmentID string, by api.Actor, req api.FinalizeRequest, verified func(digest string)) (api.Deployment, error) {
	if err := access.CheckIdempotencyKey(req.IdempotencyKey); err != nil {
		return api.Deployment{}, err
	}
	key := access.Request{
		EnvironmentID: environmentID, Caller: by.String(), Operation: "deployment.finalize", Key: req.IdempotencyKey,
		Body: map[string]any{"bundle_digest": req.BundleDigest},
	}
	manifest, first, err := s.beginFinalize(ctx, key, req.BundleDigest)
	if err != nil || first != nil {
		return deref(first), err
	}
	for _, o := range manifest.Objects {
		have, err := s.hasObject(ctx, o)
		if err != nil {
			return api.Deployment{}, err
		}
		if !have {
			return api.Deployment{}, fault.New(fault.BadRequest, "The bundle's object %s has not been uploaded; ask for an upload plan and send what it names.", o.Digest).With("digest", o.Digest)
		}
		verified(o.Digest)
	}
	var out api.Deployment
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		out = api.Deployment{}
		return access.Idempotent(tx, key, &out, func() (err error) {
			out, err = s.register(tx, environmentID, by, req.BundleDigest, manifest)
			return err
		})
	})
	if err != nil {
		return api.Deployment{}, fmt.Errorf("finalize: %w", err)
	}
	return out, nil
}

// beginFinalize gives the manifest to finalize, or the Deployment that the key has already made: no object is looked
// at twice, and the answer stays the same when objects are gone by now.
func (s *Service) beginFinalize(ctx context.Context, key access.Request, digest string) (m *bundle.Manifest, first *api.Deployment, err error) {
	var manifest string
	var have api.Deployment
	errNew := errors.New("key is new")
	err = s.db.Read(ctx, func(tx *db.Tx) error {
		if err := access.Idempotent(tx, key, &have, func() error { return errNew }); !errors.Is(err, errNew) {
			first = &have
			return err
		}
		found, err := tx.Get([]any{&manifest}, sqlBundleGet, key.EnvironmentID, digest)
		if err == nil && !found {
			return fault.New(fault.NotFound, "bundle_digest names no bundle of this Environment; send its manifest for an upload plan first.")
		}
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("finalize: %w", err)
	}
	if first != nil {
		return nil, first, nil
	}
	if m, err = bundle.Parse([]byte(manifest)); err != nil {
		return nil, nil, fmt.Errorf("finalize: %w", err)
	}
	return m, nil, nil
}

func deref(d *api.Deployment) api.Deployment {
	if d == nil {
		return api.Deployment{}
	}
	return *d
}

// register writes the rows of a new Deployment.
func (s *Service) register(tx *db.Tx, environmentID string, by api.Actor, digest string, m *bundle.Manifest) (api.Deployment, error) {
	if err := lockEnvironment(tx, environmentID); err != nil {
		return api.Deployment{}, err
	}
	for _, t := range m.Plan.Templates {
		if err := secret.RequireExisting(tx, environmentID, fmt.Sprintf("Template %q", t.ID), binding.Names(slices.Concat(t.Secrets, t.PrepareSecrets))); err != nil {
			return api.Deployment{}, err
		}
	}
	var version int64
	if _, err := tx.Get([]any{&version}, sqlLastVersion, environmentID); err != nil {
		return api.Deployment{}, fmt.Errorf("read last version: %w", err)
	}
	version++
	deploymentID, now := id.New(), db.Millis(s.Now())
	if _, err := tx.Exec(sqlDeploymentInsert, deploymentID, environmentID, version, digest, m.Program.Digest, m.Program.Entry, now); err != nil {
		return api.Deployment{}, fmt.Errorf("write deployment: %w", err)
	}
	if err := writeDefinitions(tx, environmentID, deploymentID, now, m); err != nil {
		return api.Deployment{}, err
	}
	if err := addEvent(tx, deploymentID, "deployment.finalized", by, "", now); err != nil {
		return api.Deployment{}, err
	}
	return readDetail(tx, environmentID, deploymentID)
}

// lockEnvironment makes this transaction the only one that changes the Environment's versions and current Deployment.
func lockEnvironment(tx *db.Tx, environmentID string) error {
	var have string
	found, err := tx.Get([]any{&have}, sqlLockEnvironment, environmentID)
	if err != nil {
		return fmt.Errorf("lock environment: %w", err)
	}
	if !found {
		return fault.New(fault.NotFound, "The Environment does not exist.")
	}
	return nil
}
