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
	"strings"
	"time"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/egress"
	"helmr.dev/helmr/internal/sandbox"
)

// lookUpWithin bounds one question for the addresses of a service.
const lookUpWithin = 5 * time.Second

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
	for _, host := range hostsOf(services...) {
		found, err := addressesOf(ctx, host)
		if err != nil {
			log.Warn("the address of a service is not known and not denied to computers by itself; name it in HELMR_WORKER_NETWORK_BLOCKED_IPV4_CIDRS", "host", host, "error", err)
		}
		for _, a := range found {
			cfg.Blocked = append(cfg.Blocked, netip.PrefixFrom(a, 32))
		}
	}
	return cfg, nil
}

// hostsOf gives the hosts of services by their URLs; files have none.
func hostsOf(services ...string) (hosts []string) {
	for _, service := range services {
		if strings.HasPrefix(service, "postgres") {
			hosts = append(hosts, db.Hosts(service)...)
		} else if u, err := url.Parse(service); err == nil && u.Hostname() != "" && u.Scheme != "s3" {
			hosts = append(hosts, u.Hostname())
		}
	}
	return hosts
}

func addressesOf(ctx context.Context, host string) ([]netip.Addr, error) {
	limited, cancel := context.WithTimeout(ctx, lookUpWithin)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(limited, "ip4", host)
	for i := range found {
		found[i] = found[i].Unmap()
	}
	return found, err
}

// ownAddresses finds the addresses of this machine and of services, as far as they are known now.
func ownAddresses(services []string) func(context.Context) []netip.Addr {
	return func(ctx context.Context) (list []netip.Addr) {
		for _, host := range hostsOf(services...) {
			found, _ := addressesOf(ctx, host) // one that is not answered now was, or will be
			list = append(list, found...)
		}
		own, _ := net.InterfaceAddrs()
		for _, a := range own {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
				list = append(list, p.Addr())
			}
		}
		return list
	}
}
