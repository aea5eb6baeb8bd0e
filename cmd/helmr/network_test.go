package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// The server, the database and the object store that a process knows of are denied to Computers by themselves, others by
// the setting; what is not known is said.
func TestSpec_21_06_KnownServicesAreDenied(t *testing.T) {
	t.Parallel()
	settings := map[string]string{"HELMR_WORKER_NETWORK_BLOCKED_IPV4_CIDRS": `["10.9.0.0/16"]`, "HELMR_BUSINESS_IPV4_CIDRS": `["10.0.0.0/8"]`, "HELMR_WORKER_NETWORK_RESOLVER_IPV4": "9.9.9.9"}
	var log bytes.Buffer
	cfg, err := networkConfig(t.Context(), t.TempDir(), func(name string) string { return settings[name] },
		[]string{"https://93.184.216.34:8080", "postgres://user:hush@93.184.216.35/helmr", "http://localhost:9000", "sqlite:/var/lib/helmr.db", "", "https://none.invalid"}, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(cfg.Blocked); got != "[10.9.0.0/16 93.184.216.34/32 93.184.216.35/32 127.0.0.1/32]" {
		t.Errorf("denied are %s", got)
	}
	if fmt.Sprint(cfg.Business, cfg.Resolvers) != "[10.0.0.0/8] [9.9.9.9:53]" {
		t.Errorf("%v, %v", cfg.Business, cfg.Resolvers)
	}
	if !strings.Contains(log.String(), "none.invalid") || strings.Contains(log.String(), "hush") {
		t.Errorf("the log: %s", &log)
	}
	for name := range settings {
		_, err := networkConfig(t.Context(), t.TempDir(), func(n string) string { return map[string]string{name: `["10.0.0.1/8"]`}[n] }, nil, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A server finds what it uses and where it is itself; that its database has several machines is known too.
func TestSpec_21_06_AServerFindsItsOwn(t *testing.T) {
	t.Parallel()
	hosts := hostsOf("https://helmr.example:8443", "postgres://u:p@10.0.0.1,10.0.0.2:5433/d", "postgres:///d?host=/run/postgresql", "sqlite:/a", "file:/b", "s3://bucket/prefix", "http://10.0.0.3:9000", "")
	if got := fmt.Sprint(hosts); got != "[helmr.example 10.0.0.1 10.0.0.2 10.0.0.3]" {
		t.Errorf("hosts: %s", got)
	}
	found := fmt.Sprint(ownAddresses([]string{"http://93.184.216.34", "http://none.invalid"})(t.Context()))
	if !strings.HasPrefix(found, "[93.184.216.34 ") || !strings.Contains(found, "127.0.0.1") {
		t.Errorf("addresses: %s", found)
	}
}
