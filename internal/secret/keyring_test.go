package secret_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/secret"
)

func root(t testing.TB, fill byte) secret.RootKey {
	t.Helper()
	r, err := secret.LocalRoot(bytes.Repeat([]byte{fill}, secret.RootKeyBytes))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// sealedKeys gives what the database holds of the installation's keys: root id and sealed bytes by purpose.
func sealedKeys(t *testing.T, d *db.DB) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := d.Read(t.Context(), func(tx *db.Tx) error {
		return tx.Query(func(scan func(...any) error) error {
			var purpose, rootID string
			var sealed []byte
			err := scan(&purpose, &rootID, &sealed)
			out[purpose] = rootID + " " + string(sealed)
			return err
		}, `SELECT purpose, root_id, sealed FROM encryption_keys`)
	})
	if err != nil || len(out) != 2 {
		t.Fatalf("%d keys, %v", len(out), err)
	}
	return out
}

func TestRootKeyRotation(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		w.create(t, "TOKEN", "the value")
		before := sealedKeys(t, w.db)
		old, next := root(t, 1), root(t, 2)

		if _, err := secret.OpenKeyring(t.Context(), w.db, next); !errors.Is(err, secret.ErrOtherKey) {
			t.Fatalf("another root key opens it: %v", err)
		}
		if _, err := secret.OpenKeyring(t.Context(), w.db, next, old); err != nil {
			t.Fatal(err)
		}
		for purpose, sealed := range sealedKeys(t, w.db) {
			if sealed == before[purpose] || !bytes.HasPrefix([]byte(sealed), []byte(next.ID())) {
				t.Errorf("%s is still sealed under the old root key", purpose)
			}
		}
		if _, err := secret.OpenKeyring(t.Context(), w.db, old); !errors.Is(err, secret.ErrOtherKey) {
			t.Fatalf("the old root key still opens it: %v", err)
		}
		keys, err := secret.OpenKeyring(t.Context(), w.db, next)
		if err != nil {
			t.Fatal(err)
		}
		if got := (&world{db: w.db, env: w.env, Service: secret.NewService(w.db, keys, w.now)}).open(t, "TOKEN"); got != "the value" {
			t.Errorf("opens as %q", got)
		}
		// A server that runs meanwhile goes on.
		if got := w.open(t, "TOKEN"); got != "the value" {
			t.Errorf("opens as %q", got)
		}
		w.create(t, "LATER", "another")
		w2 := &world{db: w.db, env: w.env, Service: secret.NewService(w.db, keys, w.now)}
		if got := w2.open(t, "LATER"); got != "another" {
			t.Errorf("opens as %q", got)
		}
	})
}

func TestServersThatBeginAtOnceShareTheKeys(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		rings := make([]*secret.Keyring, 8)
		var wg sync.WaitGroup
		for i := range rings {
			wg.Go(func() {
				var err error
				if rings[i], err = secret.OpenKeyring(t.Context(), d, root(t, 1)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		w := setupOn(t, d, rings[0])
		w.create(t, "TOKEN", "the value")
		for _, ring := range rings {
			if got := (&world{db: d, env: w.env, Service: secret.NewService(d, ring, w.now)}).open(t, "TOKEN"); got != "the value" {
				t.Errorf("opens as %q", got)
			}
		}
	})
}

func TestDamagedKeysAreRefused(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		w.exec(t, `UPDATE encryption_keys SET sealed = (SELECT k.sealed FROM encryption_keys k WHERE k.purpose = 'secret-values') WHERE purpose = 'secret-fingerprints'`)
		if _, err := secret.OpenKeyring(t.Context(), w.db, root(t, 1)); err == nil || errors.Is(err, secret.ErrOtherKey) {
			t.Errorf("a key of another purpose is taken: %v", err)
		}
	})
	if _, err := secret.LocalRoot(make([]byte, 16)); err == nil {
		t.Error("a root key of 16 bytes is taken")
	}
}

func TestSpec_10_01_ASealedValueIsBoundToItsPlace(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		w.create(t, "A", "value of A")
		w.create(t, "B", "value of B")
		if _, err := w.Rotate(t.Context(), w.env, w.by, "A", api.SecretRotateRequest{Value: "second of A", IdempotencyKey: "k"}); err != nil {
			t.Fatal(err)
		}
		move := func(from string) {
			w.exec(t, `UPDATE secret_versions SET sealed = (SELECT v.sealed FROM secret_versions v WHERE v.secret || v.version = '`+from+`') WHERE secret = 'B'`)
			v := w.find(t, "B")
			if value, err := w.Open(w.env, v); err == nil {
				t.Errorf("%s moved to B opens as %q", from, value)
			}
		}
		move("A1")
		move("A2")
	})
}
