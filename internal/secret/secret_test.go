package secret_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/secret"
)

type world struct {
	*secret.Service
	db  *db.DB
	env string
	by  api.Actor
	now func() time.Time
}

func each(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		keys, err := secret.OpenKeyring(t.Context(), d, root(t, 1))
		if err != nil {
			t.Fatal(err)
		}
		test(t, setupOn(t, d, keys))
	})
}

func setupOn(t *testing.T, d *db.DB, keys *secret.Keyring) *world {
	t.Helper()
	b, err := access.NewService(d).Bootstrap(t.Context(), access.BootstrapOptions{})
	if err != nil {
		t.Fatal(err)
	}
	at := time.UnixMilli(1_700_000_000_000)
	now := func() time.Time { return at }
	return &world{Service: secret.NewService(d, keys, now), db: d, env: b.EnvironmentID, by: api.Actor{Kind: "user", ID: b.UserID}, now: now}
}

func (w *world) create(t testing.TB, name, value string) api.Secret {
	t.Helper()
	s, err := w.Create(context.Background(), w.env, w.by, api.SecretCreateRequest{Name: name, Value: value})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (w *world) exec(t *testing.T, query string) {
	t.Helper()
	err := w.db.Write(t.Context(), func(tx *db.Tx) error {
		_, err := tx.Exec(query)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) find(t *testing.T, name string) (v *secret.Sealed) {
	t.Helper()
	err := w.db.Read(t.Context(), func(tx *db.Tx) (err error) {
		v, err = secret.Find(tx, w.env, name)
		return err
	})
	if err != nil || v == nil {
		t.Fatalf("find %s: %v", name, err)
	}
	return v
}

func (w *world) open(t *testing.T, name string) string {
	t.Helper()
	value, err := w.Open(w.env, w.find(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(value)
}

func refused(t *testing.T, err error, code fault.Code) {
	t.Helper()
	if !fault.Is(err, code) {
		t.Errorf("error is %v, want code %s", err, code)
	}
}

func TestSpec_10_02_CreateRotateRevoke(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		s := w.create(t, "TOKEN", "first")
		if s.ID != "TOKEN" || s.Name != "TOKEN" || s.Status != "active" || s.RotatedAt != nil || s.RevokedAt != nil || s.CreatedAt.UnixMilli() != 1_700_000_000_000 {
			t.Errorf("created: %+v", s)
		}
		_, err := w.Create(ctx, w.env, w.by, api.SecretCreateRequest{Name: "TOKEN", Value: "first"})
		refused(t, err, fault.SecretExists)

		s, err = w.Rotate(ctx, w.env, w.by, "TOKEN", api.SecretRotateRequest{Value: "second", IdempotencyKey: "r"})
		if err != nil || s.Status != "active" || s.RotatedAt == nil || w.open(t, "TOKEN") != "second" {
			t.Errorf("rotated: %+v, %v", s, err)
		}
		before := w.find(t, "TOKEN")
		s, err = w.Revoke(ctx, w.env, w.by, "TOKEN", api.SecretRevokeRequest{IdempotencyKey: "v"})
		if err != nil || s.Status != "revoked" || s.RevokedAt == nil {
			t.Errorf("revoked: %+v, %v", s, err)
		}
		_, err = w.Open(w.env, w.find(t, "TOKEN"))
		refused(t, err, fault.SecretUnavailable)
		if _, err := w.Open(w.env, before); err != nil {
			t.Errorf("what was resolved before the revocation: %v", err)
		}
		_, err = w.Rotate(ctx, w.env, w.by, "TOKEN", api.SecretRotateRequest{Value: "third", IdempotencyKey: "r2"})
		refused(t, err, fault.SecretUnavailable)
		again, err := w.Revoke(ctx, w.env, w.by, "TOKEN", api.SecretRevokeRequest{IdempotencyKey: "v2"})
		if err != nil || again.RevokedAt == nil || again.RevokedAt.UnixMilli() != s.RevokedAt.UnixMilli() {
			t.Errorf("revoked again: %+v, %v", again, err)
		}
		// Its name stays taken: what is revoked is no other Secret later.
		_, err = w.Create(ctx, w.env, w.by, api.SecretCreateRequest{Name: "TOKEN", Value: "new"})
		refused(t, err, fault.SecretExists)
		for what, err := range map[string]error{
			"get":    second(w.Get(ctx, w.env, "OTHER")),
			"rotate": second(w.Rotate(ctx, w.env, w.by, "OTHER", api.SecretRotateRequest{Value: "x", IdempotencyKey: "k"})),
			"revoke": second(w.Revoke(ctx, w.env, w.by, "OTHER", api.SecretRevokeRequest{IdempotencyKey: "k"})),
		} {
			if !fault.Is(err, fault.NotFound) {
				t.Errorf("%s of an unknown Secret: %v", what, err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestSpec_10_01_FormerValuesStaySealed(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		values := []string{"first value of it", "second value of it", "third value of it"}
		w.create(t, "TOKEN", values[0])
		for _, v := range values[1:] {
			if _, err := w.Rotate(t.Context(), w.env, w.by, "TOKEN", api.SecretRotateRequest{Value: v, IdempotencyKey: v}); err != nil {
				t.Fatal(err)
			}
		}
		var versions int
		err := w.db.Read(t.Context(), func(tx *db.Tx) error {
			return tx.Query(func(scan func(...any) error) error {
				var version, size int64
				var sealed []byte
				var kind, actor string
				if err := scan(&version, &sealed, &size, &kind, &actor); err != nil {
					return err
				}
				versions++
				value := values[version-1]
				if bytes.Contains(sealed, []byte(value)) || size != int64(len(value)) || kind != "user" || actor != w.by.ID {
					t.Errorf("version %d: %q, %d bytes, by %s %s", version, sealed, size, kind, actor)
				}
				return nil
			}, `SELECT version, sealed, size_bytes, actor_kind, actor_id FROM secret_versions`)
		})
		if err != nil || versions != 3 {
			t.Fatalf("%d versions, %v", versions, err)
		}
	})
}

func TestSpec_10_01_NoValueIsInTheDatabaseFile(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t, db.SQLite)
	d := dbtest.Open(t, url)
	if _, err := d.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	keys, err := secret.OpenKeyring(t.Context(), d, root(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	w := setupOn(t, d, keys)
	values := []string{"hunter2-hunter2", "correct horse", "battery staple"}
	create := api.SecretCreateRequest{Name: "TOKEN", Value: values[0], IdempotencyKey: "a-key-that-is-there"}
	if _, err := w.Create(t.Context(), w.env, w.by, create); err != nil {
		t.Fatal(err)
	}
	for _, v := range values[1:] {
		if _, err := w.Rotate(t.Context(), w.env, w.by, "TOKEN", api.SecretRotateRequest{Value: v, IdempotencyKey: hex.EncodeToString([]byte(v[:3]))}); err != nil {
			t.Fatal(err)
		}
	}
	path := strings.TrimPrefix(url, "sqlite:")
	var all []byte
	for _, name := range []string{path, path + "-wal"} {
		raw, err := os.ReadFile(name)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		all = append(all, raw...)
	}
	if !bytes.Contains(all, []byte("a-key-that-is-there")) {
		t.Fatal("the scan does not find what is there")
	}
	for _, v := range values {
		// Neither the value nor a plain hash of it or of its request, from which a short value could be guessed.
		body, _ := json.Marshal(map[string]string{"name": "TOKEN", "value": v})
		for _, trace := range []string{v, sum(v), sum(string(body)), sum(fmt.Sprintf(`{"value":%q}`, v))} {
			if bytes.Contains(all, []byte(trace)) {
				t.Errorf("%q is in the database", trace)
			}
		}
	}
}

func sum(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}

func TestSpec_16_07_IdempotencyOfSecrets(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		create := api.SecretCreateRequest{Name: "TOKEN", Value: "first", IdempotencyKey: "c"}
		first, err := w.Create(ctx, w.env, w.by, create)
		if err != nil {
			t.Fatal(err)
		}
		rotate := api.SecretRotateRequest{Value: "second", IdempotencyKey: "r"}
		rotated, err := w.Rotate(ctx, w.env, w.by, "TOKEN", rotate)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Rotate(ctx, w.env, w.by, "TOKEN", api.SecretRotateRequest{Value: "third", IdempotencyKey: "r3"}); err != nil {
			t.Fatal(err)
		}
		if s, err := w.Create(ctx, w.env, w.by, create); err != nil || s.RotatedAt != nil || s.CreatedAt != first.CreatedAt {
			t.Errorf("creation again: %+v, %v", s, err)
		}
		if s, err := w.Rotate(ctx, w.env, w.by, "TOKEN", rotate); err != nil || *s.RotatedAt != *rotated.RotatedAt || w.open(t, "TOKEN") != "third" {
			t.Errorf("rotation again: %+v, %v, opens as %s", s, err, w.open(t, "TOKEN"))
		}
		create.Value, rotate.Value = "another", "another"
		refused(t, second(w.Create(ctx, w.env, w.by, create)), fault.IdempotencyConflict)
		refused(t, second(w.Rotate(ctx, w.env, w.by, "TOKEN", rotate)), fault.IdempotencyConflict)
		// TestSpec_16_08: rotation and revocation need a key.
		refused(t, second(w.Rotate(ctx, w.env, w.by, "TOKEN", api.SecretRotateRequest{Value: "x"})), fault.InvalidIdempotencyKey)
		refused(t, second(w.Revoke(ctx, w.env, w.by, "TOKEN", api.SecretRevokeRequest{})), fault.InvalidIdempotencyKey)
	})
}

func TestSpec_23_01_NamesAndValues(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		for name, code := range map[string]fault.Code{"": fault.BadRequest, "-a": fault.BadRequest, "a b": fault.BadRequest, strings.Repeat("n", 129): fault.BadRequest, "ü": fault.BadRequest} {
			refused(t, second(w.Create(t.Context(), w.env, w.by, api.SecretCreateRequest{Name: name, Value: "v"})), code)
		}
		for value, code := range map[string]fault.Code{"": fault.BadRequest, "a\x00b": fault.BadRequest, "a\xffb": fault.BadRequest, strings.Repeat("v", secret.MaxValueBytes+1): fault.RequestTooLarge} {
			err := second(w.Create(t.Context(), w.env, w.by, api.SecretCreateRequest{Name: "N", Value: value}))
			refused(t, err, code)
			if value != "" && strings.Contains(err.Error(), value) {
				t.Errorf("the error shows the value: %.100s", err)
			}
		}
		longest := strings.Repeat("v", secret.MaxValueBytes)
		w.create(t, strings.Repeat("n", 128), longest)
		if w.open(t, strings.Repeat("n", 128)) != longest {
			t.Error("the longest value comes back otherwise")
		}
	})
}

func TestSpec_16_09_SecretsAreListedByName(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		for _, name := range []string{"c", "a", "B", "d"} {
			w.create(t, name, "v")
		}
		var got []string
		for cursor := ""; ; {
			page, err := w.List(t.Context(), w.env, secret.Filter{Cursor: cursor, Limit: 3})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range page.Secrets {
				got = append(got, s.Name)
			}
			if cursor = page.NextCursor; cursor == "" {
				break
			}
		}
		if strings.Join(got, " ") != "B a c d" {
			t.Errorf("listed: %v", got)
		}
		for name, want := range map[string]int{"a": 1, "x": 0} {
			if page, err := w.List(t.Context(), w.env, secret.Filter{Name: name, Limit: 50}); err != nil || len(page.Secrets) != want {
				t.Errorf("named %s: %+v, %v", name, page, err)
			}
		}
	})
}

func TestSpec_01_04_TheNameIsTheID(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		s := w.create(t, "Model.Key-1", "v")
		if s.ID != "Model.Key-1" || s.Name != s.ID {
			t.Fatalf("%+v", s)
		}
		w.create(t, "model.key-1", "case counts")
		again := func() {
			t.Helper()
			if _, err := w.Create(t.Context(), w.env, w.by, api.SecretCreateRequest{Name: "Model.Key-1", Value: "v"}); !fault.Is(err, fault.SecretExists) {
				t.Fatalf("the name a second time: %v", err)
			}
		}
		again()
		if _, err := w.Revoke(t.Context(), w.env, w.by, "Model.Key-1", api.SecretRevokeRequest{IdempotencyKey: "k"}); err != nil {
			t.Fatal(err)
		}
		again() // a revoked one keeps it
	})
}
