package command_test

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"strings"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/egress/authority"
	"helmr.dev/helmr/internal/fault"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

func guardedBinding(name, variable string, origins ...string) api.SecretBinding {
	return api.SecretBinding{Secret: name, Env: &api.SecretEnv{Name: variable, Mode: "protected", AllowedOrigins: origins}}
}

// network changes the policy of the Template.
func (v *vault) network(policy string) {
	v.t.Helper()
	v.must(v.d.Write(v.t.Context(), func(tx *db.Tx) error {
		_, err := tx.Exec(`UPDATE template_definitions SET definition = ? WHERE template_id = 't'`,
			`{"image_config":{"env":["PATH=/bin"],"workdir":"/","user":""},"network":`+policy+`}`)
		return err
	}))
}

func (v *vault) bound(bindings ...api.SecretBinding) (string, error) {
	v.t.Helper()
	r, err := v.computers.Create(v.t.Context(), v.env, v.by, api.ComputerCreateRequest{Template: "t", Secrets: bindings})
	return r.ComputerID, err
}

func TestSpec_09_19_BindingsOfARequestFitThePolicy(t *testing.T) {
	t.Parallel()
	eachVault(t, func(v *vault) {
		for _, c := range []struct {
			policy, origin, problem string
		}{
			{`{"blockAll":true}`, "https://api.example.com", "blocks all connections"},
			{`{"allowDomains":[]}`, "https://api.example.com", "no entry of allowDomains"},
			{`{"allowDomains":["*.example.com"]}`, "https://example.com", "no entry of allowDomains"},
			{`{"allowDomains":["*.example.com"]}`, "https://api.example.com:8443", "only port 443"},
			{`{"allowDomains":["*.example.com"]}`, "https://api.example.com", ""},
			{`{"blockAll":false}`, "https://api.example.com:8443", ""},
		} {
			v.network(c.policy)
			_, err := v.bound(guardedBinding("A", "A", c.origin))
			if c.problem == "" && err != nil || c.problem != "" && (!fault.Is(err, fault.BadRequest) || !strings.Contains(err.Error(), c.problem)) {
				t.Errorf("%s under %s: %v", c.origin, c.policy, err)
			}
		}
	})
}

func (v *vault) open(h *host) (*workerpb.OpenProtectionResponse, error) {
	return v.resolver.OpenProtection(v.t.Context(), &workerpb.OpenProtectionRequest{WorkerId: v.worker, ComputerId: h.computer, Epoch: h.epoch})
}

// behind asks for placeholders at an origin, and gives STATE=value of each.
func (v *vault) behind(worker, computer string, epoch int64, origin string, placeholders ...string) (string, error) {
	resp, err := v.resolver.ResolveProtected(v.t.Context(), &workerpb.ResolveProtectedRequest{WorkerId: worker, ComputerId: computer, Epoch: epoch, Origin: origin, Placeholders: placeholders})
	var out []string
	for _, p := range resp.GetValues() {
		out = append(out, strings.TrimPrefix(p.GetState().String(), "STATE_")+"="+string(p.GetValue()))
	}
	return strings.Join(out, " "), err
}

func TestSpec_10_15_TheNextRequestUsesTheNewValue(t *testing.T) {
	t.Parallel()
	eachVault(t, func(v *vault) {
		v.network(`{"blockAll":false}`)
		one, err := v.bound(guardedBinding("A", "KEY", "https://api.example.com", "https://api.example.com:8443"), guardedBinding("B", "OTHER", "https://other.example.com"), raw("C", "C"))
		v.must(err)
		two, err := v.bound(guardedBinding("A", "KEY", "https://api.example.com"))
		v.must(err)
		v.exec(one, "true")
		v.exec(two, "true")
		h, second := v.place(one), v.place(two)
		first, err := v.open(h)
		v.must(err)
		again, err := v.open(h)
		v.must(err)
		if len(first.GetBindings()) != 2 || !bytes.Equal(first.GetCertificate(), again.GetCertificate()) || !bytes.Equal(first.GetKey(), again.GetKey()) {
			t.Fatalf("%v, then %v", first.GetBindings(), again.GetBindings())
		}
		if _, err := authority.Open(first.GetCertificate(), first.GetKey(), nil); err != nil {
			t.Error(err)
		}
		cert, err := x509.ParseCertificate(first.GetCertificate())
		v.must(err)
		// TestSpec_10_10: ten years, for the names of the origins alone.
		if years := cert.NotAfter.Year() - v.clock.now().Year(); years != 10 || fmt.Sprint(cert.PermittedDNSDomains) != "[api.example.com other.example.com]" {
			t.Errorf("%d years for %v", years, cert.PermittedDNSDomains)
		}
		key, other := first.GetBindings()[0].GetPlaceholder(), first.GetBindings()[1].GetPlaceholder()
		others, err := v.open(second)
		v.must(err)
		foreign := others.GetBindings()[0].GetPlaceholder()
		if bytes.Equal(others.GetCertificate(), first.GetCertificate()) || foreign == key || len(key) != authority.PlaceholderLength {
			t.Errorf("another Computer has %s too", foreign)
		}
		if got := v.delivered(h); got != "KEY="+key+", OTHER="+other+", C=value of C" {
			t.Errorf("delivered: %s", got)
		}
		if v.exposed("A") != "" || v.exposed("B") != "" {
			t.Error("a protected value counts as exposed")
		}
		want := func(origin, want string, placeholders ...string) {
			t.Helper()
			if got, err := v.behind(v.worker, h.computer, h.epoch, origin, placeholders...); err != nil || got != want {
				t.Errorf("%s: %q, %v; want %q", origin, got, err, want)
			}
		}
		want("https://api.example.com", "VALUE=value of A ELSEWHERE= UNKNOWN= UNKNOWN=", key, other, foreign, "x")
		want("https://api.example.com:8443", "VALUE=value of A", key)
		want("https://api.example.com:9443", "ELSEWHERE=", key)
		want("https://other.example.com", "VALUE=value of B", other)
		v.rotate("A", "second of A")
		want("https://api.example.com", "VALUE=second of A", key)
		for what, call := range map[string]func() (string, error){
			"another epoch": func() (string, error) {
				return v.behind(v.worker, h.computer, h.epoch+1, "https://api.example.com", key)
			},
			"another Worker": func() (string, error) {
				return v.behind("somebody", h.computer, h.epoch, "https://api.example.com", key)
			},
			"another Computer": func() (string, error) { return v.behind(v.worker, "nothing", h.epoch, "https://api.example.com", key) },
		} {
			if got, err := call(); !fault.Is(err, fault.LeaseLost) || got != "" {
				t.Errorf("%s: %q, %v", what, got, err)
			}
		}
		if _, err := v.behind(v.worker, h.computer, h.epoch, "https://api.example.com", make([]string, 65)...); !fault.Is(err, fault.BadRequest) {
			t.Errorf("too many: %v", err)
		}
		if _, err := v.resolver.OpenProtection(t.Context(), &workerpb.OpenProtectionRequest{WorkerId: v.worker, ComputerId: h.computer, Epoch: h.epoch + 1}); !fault.Is(err, fault.LeaseLost) {
			t.Errorf("open under another epoch: %v", err)
		}
		v.revoke("A")
		want("https://api.example.com", "REVOKED= ELSEWHERE=", key, other)
		// TestSpec_10_08: no further work is admitted.
		if _, err := v.commands.Create(t.Context(), v.env, v.by, two, api.CommandCreateRequest{Command: []string{"true"}}); !fault.Is(err, fault.SecretUnavailable) {
			t.Errorf("a Command with a revoked Secret: %v", err)
		}
	})
}
