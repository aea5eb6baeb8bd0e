package deployment_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/build/bundle"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/deployment"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/secret"
)

// bind gives the bundle with bindings on its one Template.
func bind(t *testing.T, b testBundle, bindings ...api.SecretBinding) testBundle {
	t.Helper()
	m, err := bundle.Parse(b.manifest)
	if err != nil {
		t.Fatal(err)
	}
	m.Plan.Templates[0].Secrets = bindings
	if b.manifest, err = m.Encode(); err != nil {
		t.Fatal(err)
	}
	b.digest = bundle.Digest(b.manifest)
	return b
}

func TestSpec_10_08_FinalizationNeedsTheSecretsThatAreBound(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		root, err := secret.LocalRoot(make([]byte, secret.RootKeyBytes))
		if err != nil {
			t.Fatal(err)
		}
		keys, err := secret.OpenKeyring(t.Context(), d, root)
		if err != nil {
			t.Fatal(err)
		}
		secrets := secret.NewService(d, keys, time.Now)
		bindings := []api.SecretBinding{{Secret: "TOKEN", Env: &api.SecretEnv{Name: "TOKEN", Mode: "raw"}}, {Secret: "KEY", File: &api.SecretFile{Path: "/run/key"}}}
		b := bind(t, makeBundle(t, "fixer"), bindings...)
		w.upload(t, b)
		finalize := func() (api.Deployment, error) {
			return w.Finalize(t.Context(), w.env, w.by, api.FinalizeRequest{BundleDigest: b.digest, IdempotencyKey: "k"}, func(string) {})
		}
		if _, err := finalize(); !fault.Is(err, fault.SecretUnavailable) || !strings.Contains(err.Error(), `Template "box"`) || !strings.Contains(err.Error(), `["KEY" "TOKEN"]`) {
			t.Fatalf("without Secrets: %v", err)
		}
		if page, err := w.List(t.Context(), w.env, "", 0); err != nil || len(page.Deployments) != 0 {
			t.Errorf("registered: %+v, %v", page, err)
		}
		for _, name := range []string{"TOKEN", "KEY"} {
			if _, err := secrets.Create(t.Context(), w.env, w.by, api.SecretCreateRequest{Name: name, Value: "v"}); err != nil {
				t.Fatal(err)
			}
		}
		// A revoked one is accepted, and the same idempotency key too: the first call registered nothing.
		if _, err := secrets.Revoke(t.Context(), w.env, w.by, "KEY", api.SecretRevokeRequest{IdempotencyKey: id.New()}); err != nil {
			t.Fatal(err)
		}
		registered, err := finalize()
		if err != nil {
			t.Fatal(err)
		}
		var found *deployment.TemplateDefinition
		err = d.Read(t.Context(), func(tx *db.Tx) (err error) {
			found, err = deployment.FindTemplate(tx, registered.ID, "box")
			return err
		})
		if err != nil || !slices.EqualFunc(found.Secrets, bindings, func(x, y api.SecretBinding) bool { return x.Secret == y.Secret && (x.File == nil) == (y.File == nil) }) {
			t.Errorf("pinned: %+v, %v", found, err)
		}
	})
}

func TestBundlesWithoutSecretsKeepTheirForm(t *testing.T) {
	t.Parallel()
	if b := makeBundle(t, "fixer"); bytes.Contains(b.manifest, []byte("secrets")) {
		t.Errorf("the manifest names secrets: %s", b.manifest)
	}
}
