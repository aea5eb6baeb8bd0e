package access_test

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
)

type world struct {
	*access.Service
	db    *db.DB
	first access.Bootstrap
	now   time.Time
}

func setup(t *testing.T, d *db.DB) *world {
	t.Helper()
	w := &world{Service: access.NewService(d), db: d, now: time.Now()}
	w.Now = func() time.Time { return w.now }
	b, err := w.Bootstrap(t.Context(), access.BootstrapOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.first = b
	return w
}

// owner is a person with every scope.
func (w *world) owner() access.Principal {
	p := access.Principal{Actor: api.Actor{Kind: "user", ID: w.first.UserID}, Scopes: map[string]bool{}}
	for _, s := range access.Scopes() {
		p.Scopes[s] = true
	}
	return p
}

func (w *world) refused(t *testing.T, raw, word string) {
	t.Helper()
	_, err := w.Authenticate(t.Context(), raw)
	if !fault.Is(err, fault.AuthenticationRequired) || !strings.Contains(err.Error(), word) {
		t.Errorf("Authenticate: %v; want authentication_required with %q", err, word)
	}
	if len(raw) > 20 && err != nil && strings.Contains(err.Error(), raw) {
		t.Errorf("the error shows the credential: %v", err)
	}
}

func TestSpec_21_01_BootstrapMakesEverythingOnce(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		first := w.first
		if !first.Created || first.APIKey == "" {
			t.Fatalf("first call: %+v", first)
		}
		for _, s := range []string{first.OrganizationID, first.ProjectID, first.EnvironmentID, first.UserID} {
			if !id.Valid(s) {
				t.Fatalf("%q is no id", s)
			}
		}
		again, err := w.Bootstrap(t.Context(), access.BootstrapOptions{Email: "another@example.org"})
		if err != nil {
			t.Fatal(err)
		}
		want := first
		want.Created, want.APIKey = false, ""
		if again != want {
			t.Fatalf("second call %+v, want %+v", again, want)
		}
		p, err := w.Authenticate(t.Context(), first.APIKey)
		if err != nil {
			t.Fatal(err)
		}
		if p.OrganizationID != first.OrganizationID || p.ProjectID != first.ProjectID || p.EnvironmentID != first.EnvironmentID || p.Actor.Kind != "api_key" || !id.Valid(p.Actor.ID) {
			t.Fatalf("principal %+v", p)
		}
		for _, perm := range access.Permissions {
			if p.Can(perm.Name) == perm.HumanOnly {
				t.Errorf("Can(%q) = %v", perm.Name, p.Can(perm.Name))
			}
		}
	})
}

func TestBootstrapRunsOnceWhenCalledTogether(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		s := access.NewService(d)
		var mu sync.Mutex
		var wg sync.WaitGroup
		made, envs := 0, map[string]bool{}
		for range 8 {
			wg.Go(func() {
				b, err := s.Bootstrap(t.Context(), access.BootstrapOptions{})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				envs[b.EnvironmentID] = true
				if b.Created {
					made++
				}
			})
		}
		wg.Wait()
		if made != 1 || len(envs) != 1 {
			t.Fatalf("made %d times, %d environments", made, len(envs))
		}
	})
}

func TestBootstrapKeepsAKeyThatWasChosenBefore(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		raw := access.NewRawKey()
		for i, want := range []string{raw, ""} {
			b, err := w.Bootstrap(t.Context(), access.BootstrapOptions{APIKey: raw})
			if err != nil {
				t.Fatal(err)
			}
			if b.Created || b.APIKey != want || b.EnvironmentID != w.first.EnvironmentID {
				t.Fatalf("call %d: %+v", i, b)
			}
		}
		if _, err := w.Authenticate(t.Context(), raw); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Bootstrap(t.Context(), access.BootstrapOptions{APIKey: "hlmr_sk_short"}); err == nil || strings.Contains(err.Error(), "short") {
			t.Fatalf("malformed key: %v", err)
		}
	})
}

func TestSpec_15_10_KeysAreStoredAsHashesOnly(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		raw, key, err := w.CreateAPIKey(t.Context(), access.CreateAPIKeyRequest{
			EnvironmentID: w.first.EnvironmentID, Name: "ci", Scopes: []string{"sessions:read", "deployments:write", "sessions:read"}, By: w.owner(),
		})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(raw, "hlmr_sk_") || key.Prefix != raw[:16] || key.CreatedBy != w.first.UserID || key.ExpiresAt != nil {
			t.Fatalf("raw %d characters, key %+v", len(raw), key)
		}
		var row string
		err = d.Read(t.Context(), func(tx *db.Tx) error {
			_, err := tx.Get([]any{&row}, `SELECT id || name || key_prefix || key_hash || scopes FROM api_keys WHERE id = ?`, key.ID)
			return err
		})
		if err != nil || row == "" || strings.Contains(row, raw[16:]) {
			t.Fatalf("row %q, %v", row, err)
		}
		p, err := w.Authenticate(t.Context(), raw)
		if err != nil {
			t.Fatal(err)
		}
		if have := slices.Sorted(maps.Keys(p.Scopes)); !slices.Equal(have, []string{"deployments:write", "sessions:read"}) {
			t.Fatalf("scopes %v", have)
		}
		if !p.Can("sessions.read") || p.Can("sessions.create") || p.Can("sessions:read") || p.Can("") || p.Can("api_keys.manage") {
			t.Fatal("permissions are wrong")
		}
	})
}

func TestUnknownCredentialsAreRefused(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		for _, raw := range []string{"", "x", "hlmr_sk_", w.first.APIKey + "A", w.first.APIKey[:50], strings.ToUpper(w.first.APIKey), " " + w.first.APIKey} {
			w.refused(t, raw, "not an API key")
		}
		w.refused(t, access.NewRawKey(), "not known")
	})
}

func TestSpec_15_11_KeysExpire(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		days := 30
		raw, key, err := w.CreateAPIKey(t.Context(), access.CreateAPIKeyRequest{
			EnvironmentID: w.first.EnvironmentID, Name: strings.Repeat("ü", 64), Scopes: []string{"agents:read"}, ExpiresInDays: &days, By: w.owner(),
		})
		if err != nil {
			t.Fatal(err)
		}
		end := db.Time(*key.ExpiresAt)
		w.now = end.Add(-time.Millisecond)
		if _, err := w.Authenticate(t.Context(), raw); err != nil {
			t.Fatalf("just before its end: %v", err)
		}
		w.now = end
		w.refused(t, raw, "expired")
		if key.Status(w.now) != access.KeyExpired {
			t.Fatalf("status %s", key.Status(w.now))
		}
	})
}

func TestSpec_15_13_RevocationCountsAtOnce(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		raw, key, err := w.CreateAPIKey(t.Context(), access.CreateAPIKeyRequest{
			EnvironmentID: w.first.EnvironmentID, Name: "ci", Scopes: []string{"agents:read"}, By: w.owner(),
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Authenticate(t.Context(), raw); err != nil {
			t.Fatal(err)
		}
		if err := w.RevokeAPIKey(t.Context(), id.New(), key.ID); !fault.Is(err, fault.NotFound) {
			t.Fatalf("from another environment: %v", err)
		}
		for range 2 {
			if err := w.RevokeAPIKey(t.Context(), w.first.EnvironmentID, key.ID); err != nil {
				t.Fatal(err)
			}
			w.refused(t, raw, "revoked")
		}
	})
}

func TestSpec_15_11_BadKeysAreNotMade(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		week := 7
		good := access.CreateAPIKeyRequest{EnvironmentID: w.first.EnvironmentID, Name: "ci", Scopes: []string{"agents:read"}, By: w.owner()}
		for name, c := range map[string]struct {
			change func(r *access.CreateAPIKeyRequest)
			code   fault.Code
			word   string
		}{
			"no name":        {func(r *access.CreateAPIKeyRequest) { r.Name = "" }, fault.BadRequest, "name"},
			"long name":      {func(r *access.CreateAPIKeyRequest) { r.Name = strings.Repeat("ü", 65) }, fault.BadRequest, "name"},
			"control":        {func(r *access.CreateAPIKeyRequest) { r.Name = "a\tb" }, fault.BadRequest, "name"},
			"no scope":       {func(r *access.CreateAPIKeyRequest) { r.Scopes = nil }, fault.BadRequest, "scopes"},
			"unknown scope":  {func(r *access.CreateAPIKeyRequest) { r.Scopes = []string{"agents:fly"} }, fault.BadRequest, "agents:fly"},
			"human scope":    {func(r *access.CreateAPIKeyRequest) { r.Scopes = []string{"agents:delete"} }, fault.BadRequest, "agents:delete"},
			"days":           {func(r *access.CreateAPIKeyRequest) { r.ExpiresInDays = &week }, fault.BadRequest, "expires_in_days"},
			"not held":       {func(r *access.CreateAPIKeyRequest) { r.By = access.Principal{} }, fault.PermissionRequired, "agents:read"},
			"no environment": {func(r *access.CreateAPIKeyRequest) { r.EnvironmentID = id.New() }, fault.NotFound, "Environment"},
		} {
			req := good
			c.change(&req)
			raw, _, err := w.CreateAPIKey(t.Context(), req)
			if !fault.Is(err, c.code) || !strings.Contains(err.Error(), c.word) || raw != "" {
				t.Errorf("%s: %v; want %s with %q", name, err, c.code, c.word)
			}
		}
	})
}

func TestSpec_15_12_ScopesArePermissionsOfKeys(t *testing.T) {
	t.Parallel()
	want := strings.Fields(`deployments:read deployments:write deployments:promote agents:read sessions:read sessions:create sessions:send
		sessions:interrupt sessions:resume sessions:close sessions:cancel questions:respond computers:read computers:create computers:delete
		commands:create commands:read secrets:read secrets:write triggers:read`)
	have := access.Scopes()
	slices.Sort(want)
	slices.Sort(have)
	if !slices.Equal(have, want) {
		t.Fatalf("scopes %v, want %v", have, want)
	}
}

func TestRolesHoldWhatTheTableSays(t *testing.T) {
	t.Parallel()
	counts := map[access.Role]int{access.RoleOwner: 29, access.RoleAdmin: 28, access.RoleDeveloper: 19, access.RoleOperator: 14, access.RoleViewer: 6, "none": 0}
	for role, want := range counts {
		n := 0
		for _, p := range access.Permissions {
			if p.HeldBy(role) {
				n++
			}
		}
		if n != want {
			t.Errorf("%s holds %d permissions, want %d", role, n, want)
		}
	}
}

func TestSpec_13_16_LimitsAreCopiedIntoTheEnvironment(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		limits, err := access.LimitsFrom(func(name string) (string, bool) {
			return "7", name == "HELMR_ENVIRONMENT_MAX_RESIDENT_COMPUTERS" || name == "HELMR_ENVIRONMENT_ADMISSION_BURST"
		})
		if err != nil {
			t.Fatal(err)
		}
		want := access.DefaultLimits()
		want.MaxResidentComputers, want.AdmissionBurst = 7, 7
		if limits != want {
			t.Fatalf("limits %+v", limits)
		}
		b, err := access.NewService(d).Bootstrap(t.Context(), access.BootstrapOptions{Limits: limits})
		if err != nil {
			t.Fatal(err)
		}
		err = d.Read(t.Context(), func(tx *db.Tx) error {
			e, err := access.ReadEnvironment(tx, b.EnvironmentID)
			if e.Limits != want || e.Slug != "development" || e.ProjectID != b.ProjectID || e.HistoryRetentionMode != "keep" || e.HistoryRetentionSeconds != nil {
				t.Errorf("environment %+v", e)
			}
			if _, err := access.ReadEnvironment(tx, id.New()); !fault.Is(err, fault.NotFound) {
				t.Errorf("unknown environment: %v", err)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func TestSpec_21_05_BadLimitsAreNamedWithoutTheirValue(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "0", "-5", "12x", "99999999999999999999"} {
		_, err := access.LimitsFrom(func(name string) (string, bool) { return bad, name == "HELMR_ENVIRONMENT_MAX_CPU_MILLIS" })
		if err == nil || !strings.Contains(err.Error(), "HELMR_ENVIRONMENT_MAX_CPU_MILLIS") || bad != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
