package egress

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"helmr.dev/helmr/internal/egress/policy"
)

// MaxTold bounds the addresses that Deny takes.
const MaxTold = 1024

func (g *Gateway) toldPath() string { return filepath.Join(g.cfg.Dir, "told.json") }

// Deny replaces the addresses that are denied under every policy because the installation says so, beside Config.Blocked
// and the host's own. They stay denied after a restart, until Deny is called again. What is forwarded to one of them ends;
// a connection that a proxy has made goes on. What is no IPv4 address, or beyond MaxTold, is named in the error while the
// rest is denied.
func (g *Gateway) Deny(list []netip.Addr) error {
	var told []netip.Prefix
	var bad error
	for _, a := range list {
		p := netip.PrefixFrom(a, 32)
		switch {
		case !p.IsValid() || !a.Is4():
			bad = errors.Join(bad, fmt.Errorf("deny addresses: %q is no IPv4 address", a))
		case slices.Contains(told, p):
		case len(told) == MaxTold:
			return errors.Join(fmt.Errorf("deny addresses: %d are too many, the most is %d", len(list), MaxTold), g.deny(told))
		default:
			told = append(told, p)
		}
	}
	slices.SortFunc(told, netip.Prefix.Compare)
	return errors.Join(bad, g.deny(told))
}

func (g *Gateway) deny(told []netip.Prefix) error {
	g.changing.Lock()
	defer g.changing.Unlock()
	if slices.Equal(told, g.told) && g.toldKept {
		return nil
	}
	b, err := json.Marshal(told)
	if err != nil {
		return fmt.Errorf("deny addresses: %w", err)
	}
	err = replaceFile(g.toldPath(), b)
	g.told, g.toldKept = told, err == nil
	return errors.Join(err, g.refreshLocked())
}

// readTold takes up what an earlier process was told.
func (g *Gateway) readTold() error {
	b, err := os.ReadFile(g.toldPath())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	g.toldKept = true
	if err == nil {
		err = json.Unmarshal(b, &g.told)
	}
	if err != nil {
		return fmt.Errorf("read what the installation denies: %w", err)
	}
	return nil
}

// Addresses gives the host's own addresses that are not of the host alone, as they were seen lately.
func (g *Gateway) Addresses() []netip.Addr {
	g.mu.RLock()
	defer g.mu.RUnlock()
	var list []netip.Addr
	for _, p := range g.own {
		if a := p.Addr(); policy.Public(a) || a.IsPrivate() {
			list = append(list, a)
		}
	}
	return list
}
