package main

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// goodServer are settings of a server that are complete.
func goodServer(dir string) map[string]string {
	key := base64.StdEncoding.EncodeToString(make([]byte, 32))
	return map[string]string{
		"HELMR_DATABASE_URL": "sqlite:" + filepath.Join(dir, "helmr.db"), "HELMR_BLOB_URL": "file:" + filepath.Join(dir, "blobs"), "HELMR_AUTH_KEY": key, "HELMR_ENCRYPTION_KEY": key,
		"HELMR_WORKER_HOST_CREDENTIAL_SIGNING_KEY": key, "HELMR_COMPUTER_FENCING_KEY": key, "HELMR_ADDR": "127.0.0.1:0",
	}
}

func TestSpec_21_05_SettingsAreCheckedAtStart(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{
		"HELMR_DATABASE_URL": "mysql://hidden-value", "HELMR_BLOB_URL": "hidden-value", "HELMR_AUTH_KEY": "hidden-value", "HELMR_ENCRYPTION_KEY": "aGlkZGVuLXZhbHVl",
		"HELMR_ADDR": "hidden-value", "HELMR_PUBLIC_URL": "hidden-value", "HELMR_EMAIL_PROVIDER": "hidden-value", "HELMR_BUSINESS_IPV4_CIDRS": `["hidden-value"]`,
		"HELMR_ENVIRONMENT_MAX_CPU_MILLIS": "hidden-value",
	} {
		w := &world{env: goodServer(t.TempDir())}
		w.env[name] = value
		for _, args := range [][]string{{"server", "check-config"}, {"server"}} {
			r := w.run(t, args...)
			if r.status != 1 || !strings.Contains(r.stderr, name+" is malformed") || strings.Contains(r.stderr, value) || strings.Contains(r.stderr, "hidden") {
				t.Errorf("%s: %+v", name, r)
			}
		}
	}
	w := &world{env: map[string]string{}}
	r := w.run(t, "server", "check-config")
	if r.status != 1 {
		t.Errorf("%+v", r)
	}
	contains(t, "all missing settings", r.stderr, "HELMR_DATABASE_URL is missing", "HELMR_BLOB_URL is missing", "HELMR_AUTH_KEY is missing", "HELMR_COMPUTER_FENCING_KEY is missing")
	if r := w.run(t, "worker"); r.status != 1 || !strings.Contains(r.stderr, "HELMR_SERVER_URL is missing") {
		t.Errorf("%+v", r)
	}
	w.env = goodServer(t.TempDir())
	contains(t, "check-config", w.ok(t, "server", "check-config"), "complete and well formed")
	w.env["HELMR_OIDC_ISSUER"] = "https://login.example.com"
	contains(t, "check-config", w.ok(t, "server", "check-config"), "HELMR_OIDC_ISSUER does nothing yet")
}

func TestSpec_21_03_ServerWantsACurrentSchema(t *testing.T) {
	t.Parallel()
	w := &world{env: goodServer(t.TempDir())}
	r := w.run(t, "server")
	if r.status != 1 || !strings.Contains(r.stderr, "helmr migrate") {
		t.Fatalf("%+v", r)
	}
	contains(t, "migrate", w.ok(t, "migrate"), "0001_begin")
	contains(t, "second migrate", w.ok(t, "migrate"), "up to date")
	// The first organization is made once.
	made := w.object(t, "server", "bootstrap")
	if key, _ := made["api_key"].(string); !strings.HasPrefix(key, "hlmr_sk_") {
		t.Errorf("bootstrap printed %v", made)
	}
	if r := w.run(t, "server", "bootstrap"); r.status != 1 || !strings.Contains(r.stderr, "already") {
		t.Errorf("second bootstrap: %+v", r)
	}
	contains(t, "worker-token", w.ok(t, "server", "worker-token"), "hlmr_wgt_")
}

// Every setting has a form, so that a malformed one is told from a good one.
func TestSettingsTable(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, s := range settingsTable {
		if seen[s.name] || !strings.HasPrefix(s.name, "HELMR_") || s.want == "" || !(s.server || s.worker || s.migrate) {
			t.Errorf("%+v", s.name)
		}
		seen[s.name] = true
		if s.fallback != "" && s.check != nil {
			if err := s.check(s.fallback); err != nil {
				t.Errorf("%s: the default is refused: %v", s.name, err)
			}
		}
	}
}

// TestSpec_21_05_EverySetting leaves each required setting out and gives each one that has a form a bad value: the process
// names it and shows no value.
func TestSpec_21_05_EverySetting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good := goodServer(dir)
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("hlmr_wgt_x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"HELMR_SERVER_URL": "https://helmr.example.com", "HELMR_WORKER_NAME": "one", "HELMR_WORKER_ENROLLMENT_TOKEN_FILE": token,
		"HELMR_CHECKPOINT_ENCRYPTION_KEY": good["HELMR_AUTH_KEY"]} {
		good[name] = value
	}
	for process, of := range map[string]process{"server": serverSettings, "worker": workerSettings, "migrate": migrateSettings} {
		read := func(name, value string) error {
			_, _, err := readSettings(func(n string) string {
				if n == name {
					return value
				}
				return good[n]
			}, of)
			return err
		}
		if err := read("", ""); err != nil {
			t.Errorf("%s: good settings are refused: %v", process, err)
		}
		for _, s := range settingsTable {
			if !of(s) {
				continue
			}
			if err := read(s.name, ""); s.required != (err != nil && strings.Contains(err.Error(), s.name+" is missing")) {
				t.Errorf("%s without %s: %v", process, s.name, err)
			}
			if s.check == nil {
				continue
			}
			const bad = "hidden value\x01"
			if err := read(s.name, bad); err == nil || !strings.Contains(err.Error(), s.name+" is malformed") || strings.Contains(err.Error(), "hidden") {
				t.Errorf("%s with a bad %s: %v", process, s.name, err)
			}
		}
	}
}
