package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"

	"helmr.dev/helmr/internal/egress"
	"helmr.dev/helmr/internal/sandbox"
)

const networkFix = "give this process the right to make network namespaces and nftables rules (root with CAP_NET_ADMIN and CAP_SYS_ADMIN; in a container, run it privileged), and the kernel nf_tables, nat and veth"

// networkProblem tells what this machine lacks for holding network policies against Computers; nil if nothing.
func networkProblem(ctx context.Context) []sandbox.Problem {
	if err := egress.Check(ctx); err != nil {
		return []sandbox.Problem{{What: fmt.Sprintf("Computers cannot have networks here: %v", err), Fix: networkFix, Fatal: true}}
	}
	return nil
}

// openNetwork opens the network of the Computers of the Worker in dir. get gives the settings, "" for one that is not
// set. What is at the hosts of the services, URLs, is denied to Computers.
func openNetwork(ctx context.Context, dir string, get func(string) string, services []string, log *slog.Logger) (*egress.Gateway, error) {
	cfg, err := networkConfig(ctx, dir, get, services, log)
	if err != nil {
		return nil, err
	}
	return egress.Open(ctx, cfg)
}

// networkConfig reads the settings of a network.
func networkConfig(ctx context.Context, dir string, get func(string) string, services []string, log *slog.Logger) (egress.Config, error) {
	cfg := egress.Config{Dir: filepath.Join(dir, "network"), Log: log}
	for name, list := range map[string]*[]netip.Prefix{"HELMR_WORKER_NETWORK_BLOCKED_IPV4_CIDRS": &cfg.Blocked, "HELMR_BUSINESS_IPV4_CIDRS": &cfg.Business} {
		text := get(name)
		if text == "" {
			continue
		}
		if err := cidrs(text); err != nil {
			return cfg, settingsError(fmt.Errorf("%s is malformed: %w", name, err))
		}
		if err := json.Unmarshal([]byte(text), list); err != nil {
			return cfg, settingsError(fmt.Errorf("%s is malformed: %w", name, err))
		}
	}
	if text := get("HELMR_WORKER_NETWORK_RESOLVER_IPV4"); text != "" {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return cfg, settingsError(fmt.Errorf("HELMR_WORKER_NETWORK_RESOLVER_IPV4 is malformed: %w", err))
		}
		cfg.Resolvers = []netip.AddrPort{netip.AddrPortFrom(a, 53)}
	}
	for _, service := range services {
		u, err := url.Parse(service)
		if err != nil || u.Hostname() == "" {
			continue // a file
		}
		found, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", u.Hostname())
		if err != nil {
			log.Warn("the address of a service is not known and not denied to computers by itself; name it in HELMR_WORKER_NETWORK_BLOCKED_IPV4_CIDRS", "host", u.Hostname(), "error", err)
		}
		for _, a := range found {
			cfg.Blocked = append(cfg.Blocked, netip.PrefixFrom(a.Unmap(), 32))
		}
	}
	return cfg, nil
}
