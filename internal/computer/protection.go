package computer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/egress/authority"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/secret"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// maxAsked bounds the placeholders of one request.
const maxAsked = 64

// Protected tells whether r has protected bindings.
func Protected(tx *db.Tx, r *Row) (bool, error) {
	if r.Secrets == 0 {
		return false, nil
	}
	var n int64
	if _, err := tx.Get([]any{&n}, sqlProtected, r.ID); err != nil {
		return false, fmt.Errorf("read bindings: %w", err)
	}
	return n > 0, nil
}

// guarded is a protected binding with what stands for its value.
type guarded struct {
	api.SecretBinding
	Placeholder string
}

func guardedOf(tx *db.Tx, computerID string) ([]guarded, error) {
	var out []guarded
	err := tx.Query(func(sc func(...any) error) error {
		var text string
		var g guarded
		if err := sc(&text, &g.Placeholder); err != nil {
			return err
		}
		err := json.Unmarshal([]byte(text), &g.SecretBinding)
		out = append(out, g)
		return err
	}, sqlGuarded, computerID)
	if err != nil {
		return nil, fmt.Errorf("read protected bindings: %w", err)
	}
	return out, nil
}

// placeholders gives what the variables of protected bindings hold.
func placeholders(tx *db.Tx, r *Row) (map[string]string, error) {
	if r.Secrets == 0 {
		return nil, nil
	}
	all, err := guardedOf(tx, r.ID)
	out := make(map[string]string, len(all))
	for _, g := range all {
		out[g.Env.Name] = g.Placeholder
	}
	return out, err
}

// OpenProtection gives the Worker that holds a Computer what its proxy works with. The Computer's authority is made by the
// first call and is the same for ever: programs in the Computer trust it, through restarts and moves. Errors: lease_lost.
func (s *Resolver) OpenProtection(ctx context.Context, req *workerpb.OpenProtectionRequest) (*workerpb.OpenProtectionResponse, error) {
	var out *workerpb.OpenProtectionResponse
	var sealed []byte
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		out, sealed = &workerpb.OpenProtectionResponse{}, nil
		r, err := LockLease(tx, req.GetComputerId(), req.GetWorkerId(), req.GetEpoch())
		if err != nil {
			return err
		}
		bindings, err := guardedOf(tx, r.ID)
		if err != nil || len(bindings) == 0 {
			return err
		}
		for _, g := range bindings {
			out.Bindings = append(out.Bindings, &workerpb.ProtectedBinding{Placeholder: g.Placeholder, Origins: g.Env.AllowedOrigins})
		}
		found, err := tx.Get([]any{&out.Certificate, &sealed}, sqlAuthority, r.ID)
		if err != nil {
			return fmt.Errorf("read authority: %w", err)
		}
		if found {
			return nil
		}
		now := s.now()
		var key []byte
		if out.Certificate, key, err = authority.Make(names(bindings), now); err != nil {
			return err
		}
		if sealed, err = s.secrets.Seal(secret.ComputerAuthority, r.ID, key); err != nil {
			return err
		}
		if _, err := tx.Exec(sqlAuthorityInsert, r.ID, out.Certificate, sealed, db.Millis(now)); err != nil {
			return fmt.Errorf("insert authority: %w", err)
		}
		return nil
	})
	if err != nil || sealed == nil {
		return out, err
	}
	out.Key, err = s.secrets.Unseal(secret.ComputerAuthority, req.GetComputerId(), sealed)
	return out, err
}

// names gives the hosts of all origins, each once.
func names(bindings []guarded) []string {
	var hosts []string
	for _, g := range bindings {
		for _, o := range g.Env.AllowedOrigins {
			host, _, _ := strings.Cut(strings.TrimPrefix(o, "https://"), ":")
			hosts = append(hosts, host)
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// ResolveProtected gives the present values behind placeholders of a Computer to the Worker that holds it, for one request
// to one origin. What the origin may not have is not opened. It only reads: a protected value is in no Computer, so that
// there is no exposure to record. Errors: lease_lost, bad_request.
func (s *Resolver) ResolveProtected(ctx context.Context, req *workerpb.ResolveProtectedRequest) (*workerpb.ResolveProtectedResponse, error) {
	asked := req.GetPlaceholders()
	if len(asked) > maxAsked {
		return nil, fault.New(fault.BadRequest, "a request has %d placeholders; at most %d are allowed", len(asked), maxAsked)
	}
	var environmentID string
	var out *workerpb.ResolveProtectedResponse
	var sealed []*secret.Sealed
	err := s.db.Read(ctx, func(tx *db.Tx) error {
		out, sealed = &workerpb.ResolveProtectedResponse{}, make([]*secret.Sealed, len(asked))
		var workerID *string
		var epoch int64
		found, err := tx.Get([]any{&environmentID, &workerID, &epoch}, sqlHeld, req.GetComputerId())
		if err != nil {
			return fmt.Errorf("read computer: %w", err)
		}
		if !found || workerID == nil || *workerID != req.GetWorkerId() || epoch != req.GetEpoch() {
			return fault.New(fault.LeaseLost, "computer %s is not held under epoch %d", req.GetComputerId(), req.GetEpoch())
		}
		for i, placeholder := range asked {
			v := &workerpb.ProtectedValue{}
			out.Values = append(out.Values, v)
			if v.State, sealed[i], err = behind(tx, environmentID, req.GetComputerId(), placeholder, req.GetOrigin()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i, v := range out.GetValues() {
		if v.GetState() != workerpb.ProtectedValue_STATE_VALUE {
			continue
		}
		if v.Value, err = s.secrets.Open(environmentID, sealed[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// behind finds what a placeholder of a Computer stands for at an origin.
func behind(tx *db.Tx, environmentID, computerID, placeholder, origin string) (workerpb.ProtectedValue_State, *secret.Sealed, error) {
	const none = workerpb.ProtectedValue_STATE_UNKNOWN
	var text string
	found, err := tx.Get([]any{&text}, sqlBehind, computerID, placeholder)
	if err != nil || !found {
		return none, nil, err
	}
	var b api.SecretBinding
	if err := json.Unmarshal([]byte(text), &b); err != nil {
		return none, nil, fmt.Errorf("decode binding: %w", err)
	}
	v, err := secret.Find(tx, environmentID, b.Secret)
	if err != nil {
		return none, nil, err
	}
	switch {
	case v == nil || v.Usable() != nil:
		return workerpb.ProtectedValue_STATE_REVOKED, nil, nil
	case !slices.Contains(b.Env.AllowedOrigins, origin):
		return workerpb.ProtectedValue_STATE_ELSEWHERE, nil, nil
	}
	return workerpb.ProtectedValue_STATE_VALUE, v, nil
}
