package deployment_test

import (
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/build/bundle"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/egress/policy"
	"helmr.dev/helmr/internal/fault"
)

// preparing gives the bundle with a changed Template.
func preparing(t *testing.T, b testBundle, change func(*bundle.Template)) testBundle {
	t.Helper()
	m, err := bundle.Parse(b.manifest)
	if err != nil {
		t.Fatal(err)
	}
	change(&m.Plan.Templates[0])
	if b.manifest, err = m.Encode(); err != nil {
		t.Fatal(err)
	}
	b.digest = bundle.Digest(b.manifest)
	return b
}

func TestSpec_09_23_TemplatesShowTheirResolvedPreparation(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		const box = `{"allowDomains":["run.example"]}`
		run, err := policy.Parse([]byte(box))
		if err != nil {
			t.Fatal(err)
		}
		for name, test := range map[string]struct {
			change func(*bundle.Template)
			want   string
		}{
			"no callback":           {func(*bundle.Template) {}, `{"blockAll":true}`},
			"refresh alone":         {func(p *bundle.Template) { every := int64(1); p.RefreshEveryMs = &every }, `{"blockAll":true}`},
			"as at run time":        {func(p *bundle.Template) { p.Prepare = "box" }, box},
			"a policy of its own":   {func(p *bundle.Template) { p.Prepare, p.PrepareNetwork = "box", &policy.Policy{} }, `{"blockAll":false}`},
			"blocked for the phase": {func(p *bundle.Template) { p.Prepare, p.PrepareNetwork = "box", &policy.Policy{BlockAll: true} }, `{"blockAll":true}`},
		} {
			dep := w.finalize(t, preparing(t, makeBundle(t, "fixer"), func(p *bundle.Template) { p.Network = run; test.change(p) }), name)
			info, err := w.Template(t.Context(), w.env, "box", dep.ID)
			if err != nil {
				t.Fatal(err)
			}
			if string(info.Network) != box || string(info.PrepareNetwork) != test.want || string(info.PrepareSecrets) != "[]" || info.DeploymentID != dep.ID || info.Template != "box" {
				t.Errorf("%s: %+v: %s %s %s", name, info, info.Network, info.PrepareNetwork, info.PrepareSecrets)
			}
			page, err := w.Templates(t.Context(), w.env, dep.ID, "", 10)
			if err != nil || page.DeploymentID != dep.ID || len(page.Templates) != 1 || page.Templates[0].DeploymentID != "" || string(page.Templates[0].PrepareNetwork) != test.want {
				t.Errorf("%s: %+v, %v", name, page, err)
			}
		}
	})
}

func TestSpec_10_08_FinalizationNeedsTheSecretsOfThePreparation(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		b := preparing(t, makeBundle(t, "fixer"), func(p *bundle.Template) {
			p.Prepare, p.PrepareSecrets = "box", []api.SecretBinding{{Secret: "TOKEN", File: &api.SecretFile{Path: "/run/token"}}}
		})
		w.upload(t, b)
		_, err := w.Finalize(t.Context(), w.env, w.by, api.FinalizeRequest{BundleDigest: b.digest, IdempotencyKey: "k"}, func(string) {})
		if !fault.Is(err, fault.SecretUnavailable) {
			t.Fatal(err)
		}
	})
}
