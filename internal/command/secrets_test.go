package command_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/secret"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// vault is a world with Secrets: A, B and C exist; Template "t" binds A as the variable A and B as the file /run/b.
type vault struct {
	*world
	secrets  *secret.Service
	resolver *computer.Resolver
}

func eachVault(t *testing.T, test func(v *vault)) {
	t.Helper()
	each(t, func(w *world) {
		root, err := secret.LocalRoot(bytes.Repeat([]byte{7}, secret.RootKeyBytes))
		w.must(err)
		keys, err := secret.OpenKeyring(w.t.Context(), w.d, root)
		w.must(err)
		v := &vault{world: w, secrets: secret.NewService(w.d, keys, w.clock.now)}
		v.resolver = computer.NewResolver(w.d, v.secrets, w.clock.now)
		for _, name := range []string{"A", "B", "C"} {
			_, err := v.secrets.Create(w.t.Context(), w.env, w.by, api.SecretCreateRequest{Name: name, Value: "value of " + name})
			w.must(err)
		}
		w.must(w.d.Write(w.t.Context(), func(tx *db.Tx) error {
			_, err := tx.Exec(`UPDATE template_definitions SET definition = ? WHERE template_id = 't'`,
				`{"image_config":{"env":["PATH=/bin"],"workdir":"/","user":""},"secrets":[{"secret":"A","env":{"name":"A","mode":"raw"}},{"secret":"B","file":{"path":"/run/b"}}]}`)
			return err
		}))
		test(v)
	})
}

func (v *vault) rotate(name, value string) {
	v.t.Helper()
	_, err := v.secrets.Rotate(v.t.Context(), v.env, v.by, name, api.SecretRotateRequest{Value: value, IdempotencyKey: id.New()})
	v.must(err)
}

func (v *vault) revoke(name string) {
	v.t.Helper()
	_, err := v.secrets.Revoke(v.t.Context(), v.env, v.by, name, api.SecretRevokeRequest{IdempotencyKey: id.New()})
	v.must(err)
}

func (v *vault) resolve(h *host) (*workerpb.ResolveSecretsResponse, error) {
	return v.resolver.Resolve(v.t.Context(), &workerpb.ResolveSecretsRequest{WorkerId: v.worker, ComputerId: h.computer, Epoch: h.epoch})
}

// delivered gives what a Worker is handed, as NAME=value and /path=value.
func (v *vault) delivered(h *host) string {
	v.t.Helper()
	resp, err := v.resolve(h)
	v.must(err)
	var out []string
	for _, e := range resp.GetVariables() {
		out = append(out, e.GetName()+"="+string(e.GetValue()))
	}
	for _, f := range resp.GetFiles() {
		out = append(out, f.GetPath()+"="+string(f.GetContent()))
	}
	return strings.Join(out, ", ")
}

func (v *vault) exposed(name string) string {
	v.t.Helper()
	page, err := v.computers.List(v.t.Context(), v.env, computer.Filter{Secret: name, Limit: 50})
	v.must(err)
	var out []string
	for _, c := range page.Computers {
		if c.Secrets != nil {
			v.t.Errorf("an item of a list has secrets: %+v", c)
		}
		out = append(out, c.ID+" "+c.SecretExposure)
	}
	return strings.Join(out, ", ")
}

func raw(name, variable string) api.SecretBinding {
	return api.SecretBinding{Secret: name, Env: &api.SecretEnv{Name: variable, Mode: "raw"}}
}

func TestSpec_07_03_RequestsAddBindings(t *testing.T) {
	t.Parallel()
	eachVault(t, func(v *vault) {
		create := func(bindings ...api.SecretBinding) (string, error) {
			r, err := v.computers.Create(v.t.Context(), v.env, v.by, api.ComputerCreateRequest{Template: "t", Secrets: bindings})
			return r.ComputerID, err
		}
		c, err := create(raw("C", "C"), api.SecretBinding{Secret: "A", File: &api.SecretFile{Path: "/etc/a"}})
		v.must(err)
		var got []string
		for _, b := range v.computer(c).Secrets {
			switch {
			case b.Env != nil:
				got = append(got, b.Secret+"="+b.Env.Name)
			default:
				got = append(got, b.Secret+"="+b.File.Path)
			}
		}
		if strings.Join(got, " ") != "A=A B=/run/b C=C A=/etc/a" {
			t.Errorf("bound: %v", got)
		}
		if other := v.computer(v.newComputer("brief")); other.Secrets == nil || len(other.Secrets) != 0 {
			t.Errorf("a Computer without Secrets shows %v", other.Secrets)
		}
		many := make([]api.SecretBinding, 63) // with the two of the Template one too many
		for i := range many {
			many[i] = raw("C", fmt.Sprintf("C%d", i))
		}
		_, err = create(many[:62]...)
		v.must(err)
		for what, bindings := range map[string][]api.SecretBinding{
			"a name of the Template":  {raw("C", "A")},
			"a path below one of its": {{Secret: "C", File: &api.SecretFile{Path: "/run/b/c"}}},
			"a name of the image":     {raw("C", "PATH")},
			"too many":                many,
			"a reserved name":         {raw("C", "LD_PRELOAD")},
		} {
			if _, err := create(bindings...); !fault.Is(err, fault.BadRequest) {
				t.Errorf("%s: %v", what, err)
			}
		}
		// TestSpec_10_08: an unknown Secret is refused, a revoked one is not.
		if _, err := create(raw("D", "D")); !fault.Is(err, fault.SecretUnavailable) || !strings.Contains(err.Error(), "D") {
			t.Errorf("unknown: %v", err)
		}
		v.revoke("C")
		_, err = create(raw("C", "C"))
		v.must(err)
	})
}

func TestSpec_07_09_FindsWhoWasHandedASecret(t *testing.T) {
	t.Parallel()
	eachVault(t, func(v *vault) {
		first, second, never := v.newComputer("t"), v.newComputer("t"), v.newComputer("t")
		for _, c := range []string{first, second} {
			v.exec(c, "true")
			h := v.place(c)
			h.exchange()
			v.delivered(h)
		}
		want := second + " received, " + first + " received" // latest first, as in any list
		if got := v.exposed("A"); got != want || strings.Contains(got, never) {
			t.Fatalf("handed A: %s, want %s", got, want)
		}
		// Neither rotation nor revocation takes a copy back.
		v.rotate("A", "another")
		v.revoke("A")
		if got := v.exposed("A"); got != want {
			t.Fatalf("after rotation and revocation: %s", got)
		}
		page, err := v.computers.List(v.t.Context(), v.env, computer.Filter{Secret: "A", Limit: 1})
		v.must(err)
		if len(page.Computers) != 1 || page.Computers[0].ID != second || page.NextCursor != second {
			t.Fatalf("%+v", page)
		}
		page, err = v.computers.List(v.t.Context(), v.env, computer.Filter{Secret: "A", Limit: 1, Cursor: page.NextCursor})
		v.must(err)
		if len(page.Computers) != 1 || page.Computers[0].ID != first || page.NextCursor != "" {
			t.Fatalf("%+v", page)
		}
		if c := v.computer(first); c.SecretExposure != "" || len(c.Secrets) == 0 {
			t.Errorf("a Computer alone: %+v", c)
		}
		// A Computer that is deleted has no copy any more.
		deleted, err := v.computers.Create(v.t.Context(), v.env, v.by, api.ComputerCreateRequest{Template: "t"})
		v.must(err)
		v.must(v.d.Write(v.t.Context(), func(tx *db.Tx) error {
			_, err := tx.Exec(`UPDATE computers SET status = 'deleted', worker_id = NULL, residency = 'cold' WHERE id = ?`, second)
			return err
		}))
		if got := v.exposed("A"); got != first+" received" {
			t.Errorf("with %s deleted and %s new: %s", second, deleted.ComputerID, got)
		}
	})
}

func TestSpec_10_16_ValuesAreChosenWhenAProcessIsAdmitted(t *testing.T) {
	t.Parallel()
	eachVault(t, func(v *vault) {
		c, quiet := v.newComputer("t"), v.newComputer("brief")
		v.exec(c, "true")
		v.exec(quiet, "true")
		h := v.place(c)
		first := h.exchange().GetCommands()[0]
		if !first.GetSecrets() || len(first.GetEnv()) != 0 {
			t.Errorf("the Worker is told %v", first)
		}
		if v.exposed("A") != "" || v.exposed("B") != "" {
			t.Error("exposed before anything is handed out")
		}
		if got := v.delivered(h); got != "A=value of A, /run/b=value of B" {
			t.Errorf("delivered: %s", got)
		}
		v.rotate("A", "second of A")
		if got := v.delivered(h); got != "A=second of A, /run/b=value of B" {
			t.Errorf("after a rotation: %s", got)
		}
		if want := c + " received"; v.exposed("A") != want || v.exposed("B") != want || v.exposed("C") != "" {
			t.Errorf("exposed: %s; %s; %s", v.exposed("A"), v.exposed("B"), v.exposed("C"))
		}
		if _, err := v.computers.List(v.t.Context(), v.env, computer.Filter{Secret: "D", Limit: 50}); !fault.Is(err, fault.NotFound) {
			t.Errorf("exposure of an unknown Secret: %v", err)
		}
		if q := v.place(quiet); q.exchange().GetCommands()[0].GetSecrets() || v.delivered(q) != "" {
			t.Error("a Computer without bindings is given something")
		}
		// A Worker without the lease gets nothing.
		h.epoch++
		if _, err := v.resolve(h); !fault.Is(err, fault.LeaseLost) {
			t.Errorf("without the lease: %v", err)
		}
	})
}

func TestSpec_10_08_ARevokedSecretStopsAdmission(t *testing.T) {
	t.Parallel()
	eachVault(t, func(v *vault) {
		c := v.newComputer("t")
		r, err := v.turns.CreateSession(v.t.Context(), v.env, v.by, api.SessionCreateRequest{Agent: "echo", Input: []byte(`[{"type":"text","text":"x"}]`), ComputerID: c}, nil)
		v.must(err)
		v.revoke("B")
		_, err = v.commands.Create(v.t.Context(), v.env, v.by, c, api.CommandCreateRequest{Command: []string{"true"}})
		v.wantCode(err, fault.SecretUnavailable)
		_, err = v.turns.Enqueue(v.t.Context(), v.env, v.by, r.SessionID, api.EnqueueRequest{Input: []byte(`[{"type":"text","text":"x"}]`)})
		v.wantCode(err, fault.SecretUnavailable)
		_, err = v.turns.CreateSession(v.t.Context(), v.env, v.by, api.SessionCreateRequest{Agent: "echo", Input: []byte(`[{"type":"text","text":"x"}]`)}, nil)
		v.wantCode(err, fault.SecretUnavailable)
		if page, err := v.computers.List(v.t.Context(), v.env, computer.Filter{Limit: 50}); err != nil || len(page.Computers) != 1 {
			t.Errorf("a refused Session left its Computer: %+v, %v", page, err)
		}

		// What was admitted before finds no value: its process fails until a hold says so.
		h := v.place(c)
		for range 4 {
			if p := h.exchange().GetProcesses(); len(p) != 0 {
				t.Fatalf("a process is started: %v", p)
			}
		}
		if _, err := v.resolve(h); !fault.Is(err, fault.SecretUnavailable) {
			t.Errorf("resolved: %v", err)
		}
		s, err := v.sessions.Get(v.t.Context(), v.env, r.SessionID)
		v.must(err)
		if len(s.Holds) != 1 || s.Holds[0].Reason != "process_failures" {
			t.Errorf("holds: %+v", s.Holds)
		}
		page, _, err := v.sessions.Events(v.t.Context(), v.env, r.SessionID, 0, 100)
		v.must(err)
		if e := page.Records[1]; e.Kind != "session.process_failed" || !strings.Contains(string(e.Data), `\"B\" is revoked`) {
			t.Errorf("event: %s %s", e.Kind, e.Data)
		}
		if v.exposed("B") != "" {
			t.Error("B was handed out")
		}
	})
}

func TestSpec_10_08_ARevokedSecretEndsCommandsThatWait(t *testing.T) {
	t.Parallel()
	eachVault(t, func(v *vault) {
		c := v.newComputer("t")
		waiting := v.exec(c, "true")
		other := v.newComputer("t")
		given := v.exec(other, "true")
		h := v.place(other)
		h.exchange()
		v.wantStatus(given, "starting")
		v.revoke("A")
		// The Worker was refused the values, so the guest has not begun it.
		if _, err := v.resolve(h); !fault.Is(err, fault.SecretUnavailable) {
			t.Errorf("resolved: %v", err)
		}
		clear(h.guest)
		h.exchange()
		if k := v.wantStatus(given, "failed"); k.Outcome.Failure.Reason != "guest_failure" || !strings.Contains(k.Outcome.Failure.Message, "revoked") {
			t.Errorf("%+v", k.Outcome.Failure)
		}
		v.place(c).exchange()
		if k := v.wantStatus(waiting, "failed"); k.Outcome.Failure.Reason != "placement_failed" || !k.ProcessReconciled || !strings.Contains(k.Outcome.Failure.Message, "revoked") {
			t.Errorf("%+v", k.Outcome.Failure)
		}
	})
}

func TestSpec_08_04_ABoundNameMayNotBeSet(t *testing.T) {
	t.Parallel()
	eachVault(t, func(v *vault) {
		c := v.newComputer("t")
		_, err := v.commands.Create(v.t.Context(), v.env, v.by, c, api.CommandCreateRequest{Command: []string{"true"}, Env: map[string]string{"A": "x", "Z": "y"}})
		v.wantCode(err, fault.InvalidComputerCommand)
		_, err = v.commands.Create(v.t.Context(), v.env, v.by, c, api.CommandCreateRequest{Command: []string{"true"}, Env: map[string]string{"a": "x", "B": "y"}})
		v.must(err)
	})
}

func TestAValueTooLongForItsVariableIsSaid(t *testing.T) {
	t.Parallel()
	eachVault(t, func(v *vault) {
		c := v.newComputer("t")
		v.rotate("A", strings.Repeat("x", 128<<10-3))
		v.exec(c, "true")
		v.rotate("A", strings.Repeat("x", 128<<10-2))
		_, err := v.commands.Create(v.t.Context(), v.env, v.by, c, api.CommandCreateRequest{Command: []string{"true"}})
		v.wantCode(err, fault.SecretUnavailable)
		if !strings.Contains(err.Error(), "bind it as a file") || strings.Contains(err.Error(), "xxx") {
			t.Errorf("%.200s", err)
		}
		v.rotate("B", strings.Repeat("y", 1<<20)) // a file takes it
		v.rotate("A", "short")
		v.exec(c, "true")
	})
}
