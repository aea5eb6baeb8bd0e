package computer

import (
	"context"
	"fmt"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/deployment"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
)

// MaxKey bounds the key of a Computer, in bytes.
const MaxKey = 512

// Create makes a Computer from a Template of the current Deployment. It stays cold until work comes. Errors:
// no_current_deployment, not_found (the Template), computer_key_conflict, admission_unavailable (storage_limit), and
// bad_request or secret_unavailable for Secret bindings.
func (s *Service) Create(ctx context.Context, environmentID string, by api.Actor, req api.ComputerCreateRequest) (api.ComputerReceipt, error) {
	var out api.ComputerReceipt
	switch {
	case !id.Declared(req.Template):
		return out, fault.New(fault.BadRequest, "template must be the id of a Template: a letter or digit, then up to 127 of letters, digits, '.', '_' and '-'").With("field", "template")
	case len(req.Key) > MaxKey:
		return out, fault.New(fault.BadRequest, "key must be at most %d bytes", MaxKey).With("field", "key")
	}
	body := req
	body.IdempotencyKey = ""
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		out = api.ComputerReceipt{}
		scope := access.Request{EnvironmentID: environmentID, Caller: by.String(), Operation: "computer.create", Key: req.IdempotencyKey, Body: body}
		return access.Idempotent(tx, scope, &out, func() error {
			r, err := s.create(tx, environmentID, req)
			if err != nil {
				return err
			}
			out.ComputerID = r.ID
			return Reserve(tx, environmentID, r.DiskMiB)
		})
	})
	return out, err
}

func (s *Service) create(tx *db.Tx, environmentID string, req api.ComputerCreateRequest) (*Row, error) {
	deploymentID, err := deployment.Current(tx, environmentID)
	if err != nil {
		return nil, err
	}
	t, err := deployment.FindTemplate(tx, deploymentID, req.Template)
	if err != nil {
		return nil, err
	}
	if t == nil {
		return nil, fault.New(fault.NotFound, "Template %q is not in the current Deployment; `helmr template list` shows those that are", req.Template)
	}
	if req.Key != "" {
		taken, err := one(tx, sqlByKey, environmentID, req.Key)
		if err != nil {
			return nil, err
		}
		if taken != nil {
			return nil, fault.New(fault.ComputerKeyConflict, "computer %s has the key %q", taken.ID, req.Key).With("computer_id", taken.ID)
		}
	}
	bindings, err := bindingsFor(tx, environmentID, t, req.Secrets)
	if err != nil {
		return nil, err
	}
	return Create(tx, db.Millis(s.now()), New{EnvironmentID: environmentID, Key: req.Key, TemplateID: t.TemplateID, DeploymentID: deploymentID,
		MilliCPU: t.MilliCPU, MemoryMiB: t.MemoryMiB, DiskMiB: t.DiskMiB, ImageDigest: t.ImageDigest, Secrets: bindings, Prepared: t.Prepared()})
}

// Delete begins the deletion of a locked Computer that nobody uses: it takes no new work, and is deleted once no Worker
// has it.
func Delete(tx *db.Tx, r *Row, now int64) error {
	if r.Status != "available" {
		return nil
	}
	if r.Purpose == ForUse { // those of a preparation go with its log
		if err := ForgetNetwork(tx, r.ID); err != nil {
			return err
		}
	}
	r.Status, r.WorkWanted, r.ExecutionWait, r.RetryAt = "deleting", false, nil, nil
	r.touch(now)
	r.endDeletion()
	SignalWorker(tx, r)
	return nil
}

// endDeletion makes a Computer that is being deleted deleted, if no Worker has it.
func (r *Row) endDeletion() {
	if r.Status == "deleting" && !r.Resident() {
		r.Status = "deleted"
	}
}

// RequireRunnable refuses what cannot wait on an unavailable Computer, with the code of its error.
func (r *Row) RequireRunnable() error {
	if err := r.RequireWork(); err != nil || r.Residency != Unavailable {
		return err
	}
	why := ""
	if r.ErrorMessage != nil {
		why = ": " + *r.ErrorMessage
	}
	return fault.New(fault.Code(*r.ErrorCode), "computer %s cannot run%s", r.ID, why)
}

// ResidencyOf gives the residency of a Computer of an Environment, deleted ones included; computer_not_found without one.
func ResidencyOf(tx *db.Tx, environmentID, computerID string) (Residency, error) {
	var residency Residency
	found, err := tx.Get([]any{&residency}, sqlResidency, environmentID, computerID)
	if err != nil {
		return "", fmt.Errorf("read computer: %w", err)
	}
	if !found {
		return "", fault.New(fault.ComputerNotFound, "computer %s does not exist in this Environment", computerID)
	}
	return residency, nil
}
