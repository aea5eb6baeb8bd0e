package bundle

import (
	"strings"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/egress/policy"
	"helmr.dev/helmr/internal/fault"
)

func TestSpec_10_03_ManifestBindings(t *testing.T) {
	t.Parallel()
	with := func(bindings ...api.SecretBinding) *Manifest {
		m := valid()
		m.Plan.Templates[0].Secrets = bindings
		return m
	}
	listed := func(m *Manifest) *Manifest {
		m.Plan.Templates[0].Network = policy.Policy{AllowDomains: []policy.Entry{{Pattern: "b.example.com"}}}
		return m
	}
	env := func(name string) api.SecretBinding {
		return api.SecretBinding{Secret: "TOKEN", Env: &api.SecretEnv{Name: name, Mode: "raw"}}
	}
	m, err := Parse(encoded(t, with(env("TOKEN"), api.SecretBinding{Secret: "KEY", File: &api.SecretFile{Path: "/run/key"}})))
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Plan.Templates[0].Secrets; len(got) != 2 || got[0].Env.Name != "TOKEN" || got[1].File.Path != "/run/key" || m.Plan.Templates[1].Secrets != nil {
		t.Errorf("comes back as %+v", got)
	}
	for part, bad := range map[string]*Manifest{
		"plan.templates[0].secrets[0].env.name":          with(env("LD_PRELOAD")),
		`secrets[0].env.name is "PATH", which the image`: with(env("PATH")),
		"secrets[1].env.name":                            with(env("A"), env("A")),
		"secrets[0] has neither env nor file":            with(api.SecretBinding{Secret: "TOKEN"}),
		// TestSpec_09_19: the Template allows other domains only.
		"which no entry of allowDomains matches": listed(with(api.SecretBinding{Secret: "TOKEN",
			Env: &api.SecretEnv{Name: "TOKEN", Mode: "protected", AllowedOrigins: []string{"https://a.example.com"}}})),
	} {
		data, err := Canonical(bad)
		if err != nil {
			t.Fatal(err)
		}
		refusedManifest(t, data, fault.BadRequest, part)
	}
	// An unknown key of a binding, and an empty list, are other forms.
	for _, change := range [][2]string{{`"mode":"raw"`, `"mode":"raw","value":"x"`}, {`"env":{"mode":"raw","name":"TOKEN"},`, `"env":{"mode":"raw","name":"TOKEN"},"file":null,`}} {
		data := string(encoded(t, with(env("TOKEN"))))
		if !strings.Contains(data, change[0]) {
			t.Fatalf("%s is not in %s", change[0], data)
		}
		refusedManifest(t, []byte(strings.Replace(data, change[0], change[1], 1)), fault.BadRequest, "")
	}
}
