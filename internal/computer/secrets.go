package computer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/deployment"
	"helmr.dev/helmr/internal/egress/authority"
	"helmr.dev/helmr/internal/egress/policy"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/secret"
	"helmr.dev/helmr/internal/secret/binding"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// bindingsFor gives what a Computer of Template t is bound to: the Template's Secrets and those that the request adds.
func bindingsFor(tx *db.Tx, environmentID string, t *deployment.TemplateDefinition, added []api.SecretBinding) ([]api.SecretBinding, error) {
	if len(added) == 0 {
		return t.Secrets, nil
	}
	added, err := binding.Normalize("secrets", added)
	if err == nil {
		err = checkPolicy(added, t.Network)
	}
	if err != nil {
		return nil, refused(err)
	}
	var image struct {
		Env []string `json:"env"`
	}
	if err := json.Unmarshal(t.ImageConfig, &image); err != nil {
		return nil, fmt.Errorf("decode image config: %w", err)
	}
	if err := binding.CheckImage("secrets", added, image.Env); err != nil {
		return nil, refused(err)
	}
	all := append(append([]api.SecretBinding{}, t.Secrets...), added...)
	if all, err = binding.Normalize("secrets (those of the Template first)", all); err != nil {
		return nil, refused(err)
	}
	return all, secret.RequireExisting(tx, environmentID, "the request", binding.Names(added))
}

// checkPolicy refuses protected bindings that cannot work under the network of their Computer.
func checkPolicy(bindings []api.SecretBinding, network json.RawMessage) error {
	p := policy.Policy{BlockAll: true} // as a Worker takes one that is missing
	if len(network) > 0 {
		if err := json.Unmarshal(network, &p); err != nil {
			return fmt.Errorf("decode network: %w", err)
		}
	}
	return binding.CheckPolicy("secrets", bindings, p)
}

// refused gives a broken rule of bindings to the caller.
func refused(err error) error {
	if e, ok := errors.AsType[*binding.Error](err); ok {
		return fault.New(fault.BadRequest, "%s", e.Error()).With("field", e.Field)
	}
	return err
}

// bind keeps the bindings of a new Computer.
func bind(tx *db.Tx, computerID string, bindings []api.SecretBinding) error {
	for i, b := range bindings {
		text, err := json.Marshal(b)
		if err != nil {
			return fmt.Errorf("encode binding: %w", err)
		}
		var placeholder *string
		if b.Env != nil && b.Env.Mode == binding.Protected {
			placeholder = ptr(authority.NewPlaceholder())
		}
		if _, err := tx.Exec(sqlBind, computerID, i, b.Secret, string(text), placeholder); err != nil {
			return fmt.Errorf("insert binding: %w", err)
		}
	}
	return nil
}

// Bindings gives what r is bound to, never values.
func Bindings(tx *db.Tx, r *Row) ([]api.SecretBinding, error) {
	out := []api.SecretBinding{}
	if r.Secrets == 0 {
		return out, nil
	}
	err := tx.Query(func(sc func(...any) error) error {
		var text string
		if err := sc(&text); err != nil {
			return err
		}
		var b api.SecretBinding
		err := json.Unmarshal([]byte(text), &b)
		out = append(out, b)
		return err
	}, sqlBindings, r.ID)
	if err != nil {
		return nil, fmt.Errorf("read bindings: %w", err)
	}
	return out, nil
}

// RequireSecrets refuses to start, or to admit, what would be given a Secret that is revoked or too long for its variable:
// secret_unavailable.
func RequireSecrets(tx *db.Tx, r *Row) error {
	if r.Secrets == 0 {
		return nil
	}
	var suspects []api.SecretBinding
	err := tx.Query(func(sc func(...any) error) error {
		var text string
		if err := sc(&text); err != nil {
			return err
		}
		var b api.SecretBinding
		err := json.Unmarshal([]byte(text), &b)
		suspects = append(suspects, b)
		return err
	}, sqlSuspectBindings, r.ID, r.EnvironmentID, binding.MaxVariableBytes/2)
	if err != nil {
		return fmt.Errorf("read bindings: %w", err)
	}
	for _, b := range suspects {
		if _, err := deliverable(tx, r.EnvironmentID, b); err != nil {
			return err
		}
	}
	return nil
}

// deliverable gives the present version of a bound Secret, unless it must not or cannot be delivered.
func deliverable(tx *db.Tx, environmentID string, b api.SecretBinding) (*secret.Sealed, error) {
	v, err := secret.Find(tx, environmentID, b.Secret)
	if err == nil && v == nil {
		err = fmt.Errorf("secret %s, which is bound, does not exist", b.Secret)
	}
	if err == nil {
		err = v.Usable()
	}
	if err == nil && !binding.Fits(b, v.Size) {
		err = secret.TooLong(v, b.Env.Name)
	}
	return v, err
}

// BoundName gives the first of the names (of variables) that a binding of r sets, "" if none does.
func BoundName(tx *db.Tx, r *Row, names map[string]string) (string, error) {
	if len(names) == 0 {
		return "", nil
	}
	bindings, err := Bindings(tx, r)
	if err != nil {
		return "", err
	}
	for _, b := range bindings {
		if b.Env == nil {
			continue
		}
		if _, ok := names[b.Env.Name]; ok {
			return b.Env.Name, nil
		}
	}
	return "", nil
}

// Resolver hands Workers the values that processes of their Computers are started with. It is apart from Service, as only
// what answers Workers needs values.
type Resolver struct {
	db      *db.DB
	secrets *secret.Service
	now     func() time.Time
}

// NewResolver makes a Resolver. now is the clock.
func NewResolver(d *db.DB, secrets *secret.Service, now func() time.Time) *Resolver {
	return &Resolver{db: d, secrets: secrets, now: now}
}

// Resolve gives the present values of a Computer's raw and file bindings to the Worker that holds it, for one process that
// is about to start, and placeholders for protected ones. That the Computer receives values is on record before they leave.
// Errors: lease_lost, secret_unavailable.
func (s *Resolver) Resolve(ctx context.Context, req *workerpb.ResolveSecretsRequest) (*workerpb.ResolveSecretsResponse, error) {
	var environmentID string
	var bindings []api.SecretBinding
	var sealed []*secret.Sealed
	var guarded map[string]string
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		sealed = nil
		r, err := LockLease(tx, req.GetComputerId(), req.GetWorkerId(), req.GetEpoch())
		if err != nil {
			return err
		}
		environmentID = r.EnvironmentID
		if bindings, err = Bindings(tx, r); err != nil {
			return err
		}
		if guarded, err = placeholders(tx, r); err != nil {
			return err
		}
		now := db.Millis(s.now())
		for _, b := range bindings {
			v, err := deliverable(tx, environmentID, b)
			if err != nil {
				return err
			}
			sealed = append(sealed, v)
			if b.Env != nil && b.Env.Mode != binding.Raw {
				continue
			}
			if err := secret.Expose(tx, environmentID, v, r.ID, secret.Received, now); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := &workerpb.ResolveSecretsResponse{}
	for i, b := range bindings {
		if b.Env != nil && b.Env.Mode != binding.Raw {
			out.Variables = append(out.Variables, &workerpb.SecretVariable{Name: b.Env.Name, Value: []byte(guarded[b.Env.Name])})
			continue
		}
		value, err := s.secrets.Open(environmentID, sealed[i])
		if err != nil {
			return nil, err
		}
		if b.File != nil {
			out.Files = append(out.Files, &workerpb.SecretFile{Path: b.File.Path, Content: value})
		} else {
			out.Variables = append(out.Variables, &workerpb.SecretVariable{Name: b.Env.Name, Value: value})
		}
	}
	return out, nil
}

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
