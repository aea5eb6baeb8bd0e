package egress

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hostState is what is remembered of the host.
type hostState struct {
	Slot int `json:"slot"` // of the uplink's addresses
}

func (g *Gateway) hostPath() string { return filepath.Join(g.cfg.Dir, "host.json") }

// addresses lists the host's own addresses, and finds the devices of its default routes with their smallest MTU.
func (g *Gateway) addresses() (own []netip.Prefix, devices []string, mtu int, err error) {
	list, err := g.outer.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, nil, 0, fmt.Errorf("list the host's addresses: %w", err)
	}
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP.To4()); ok {
			own = append(own, netip.PrefixFrom(ip, 32))
		}
	}
	routes, err := g.outer.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: nil, Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, nil, 0, fmt.Errorf("list the host's routes: %w", err)
	}
	mtu = 1500
	for _, r := range routes {
		indexes := []int{r.LinkIndex}
		for _, hop := range r.MultiPath {
			indexes = append(indexes, hop.LinkIndex)
		}
		for _, index := range indexes {
			if index == 0 {
				continue
			}
			l, err := g.outer.LinkByIndex(index)
			if err != nil {
				return nil, nil, 0, fmt.Errorf("look for the device of the default route: %w", err)
			}
			if name := l.Attrs().Name; !slices.Contains(devices, name) {
				devices = append(devices, name)
				mtu = min(mtu, l.Attrs().MTU)
			}
		}
	}
	return own, devices, mtu, nil
}

// uplink connects gateway and host. It is made when the first Computer with an open policy comes, and made again or
// adjusted to changed routes of the host by every further call.
func (g *Gateway) uplink(devices []string) error {
	st, err := g.readHost()
	if err != nil {
		return err
	}
	if st.Slot == 0 {
		if st.Slot, err = g.freeUplink(); err != nil {
			return err
		}
	}
	if err := g.writeHost(st); err != nil {
		return err
	}
	unlock, err := lockHost()
	if err != nil {
		return err
	}
	defer unlock()
	for _, d := range devices {
		// Written down before the host is changed, so that it can be changed back.
		if g.forwarding(d) != "1" {
			if err := os.WriteFile(g.marker(d), nil, 0o600); err != nil {
				return fmt.Errorf("write what is changed on the host: %w", err)
			}
		}
	}
	if err := g.hostRules(st, devices); err != nil {
		return err
	}
	if err := g.linkHost(st); err != nil {
		return err
	}
	for _, d := range append(slices.Clone(devices), g.names.uplink) {
		if g.forwarding(d) == "1" {
			continue
		}
		if err := g.forward(d, "1"); err != nil {
			return err
		}
	}
	return nil
}

// shared is where the Workers of a host write down what they changed together.
const shared = "/run/helmr"

// marker says that a device of the host forwards because a Worker asked for it. Its name has the host's namespace.
func (g *Gateway) marker(device string) string {
	return filepath.Join(shared, fmt.Sprintf("forwarding-%d-%s", g.hostInode, device))
}

// markers lists the devices that have a marker.
func (g *Gateway) markers() ([]string, error) {
	prefix := g.marker("")
	found, err := filepath.Glob(prefix + "*")
	if err != nil {
		return nil, fmt.Errorf("read what was changed on the host: %w", err)
	}
	for i, path := range found {
		found[i] = strings.TrimPrefix(path, prefix)
	}
	return found, nil
}

// lockHost lets one Worker at a time change the host.
func lockHost() (unlock func(), err error) {
	if err := os.MkdirAll(shared, 0o700); err != nil {
		return nil, fmt.Errorf("lock the host's network: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(shared, "network.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the host's network: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		_ = f.Close() // nothing was written
		return nil, fmt.Errorf("lock the host's network: %w", err)
	}
	return func() { _ = f.Close() }, nil // closing releases the lock
}

func (g *Gateway) linkHost(st hostState) error {
	hostSide, gatewaySide := subnet(uplinkRange, st.Slot)
	out, err := g.outer.LinkByName(g.names.uplink)
	if missing(err) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = g.names.uplink, g.mtu
		err = g.outer.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: uplinkInside, PeerNamespace: netlink.NsFd(g.ns.Fd())})
		if err == nil {
			out, err = g.outer.LinkByName(g.names.uplink)
		}
	}
	if err != nil {
		return fmt.Errorf("add the uplink: %w", err)
	}
	in, err := g.inner.LinkByName(uplinkInside)
	if err != nil {
		return fmt.Errorf("look for the uplink: %w", err)
	}
	_ = inside(g.cfg.HostNS, func() error { return setSysctl("net/ipv6/conf/"+g.names.uplink+"/disable_ipv6", "1") }) // absent without IPv6
	err = errors.Join(
		g.outer.AddrReplace(out, network(hostSide, 30)), g.inner.AddrReplace(in, network(gatewaySide, 30)),
		g.inner.LinkSetMTU(in, g.mtu), g.outer.LinkSetUp(out), g.inner.LinkSetUp(in),
	)
	if err == nil {
		err = g.inner.RouteReplace(&netlink.Route{LinkIndex: in.Attrs().Index, Dst: anywhere(), Gw: hostSide.AsSlice(), Priority: 1})
	}
	if err != nil {
		return fmt.Errorf("set the uplink up: %w", err)
	}
	return errors.Join(awaitUp(g.outer, g.names.uplink), awaitUp(g.inner, uplinkInside))
}

// freeUplink picks addresses that no other link of the host has.
func (g *Gateway) freeUplink() (int, error) {
	own, _, _, err := g.addresses()
	if err != nil {
		return 0, err
	}
	sum := sha256.Sum256([]byte(g.names.gateway))
	start := int(binary.BigEndian.Uint16(sum[:2]))
	for i := range maxSlots {
		slot := (start+i)%maxSlots + 1
		first, second := subnet(uplinkRange, slot)
		if !slices.Contains(own, netip.PrefixFrom(first, 32)) && !slices.Contains(own, netip.PrefixFrom(second, 32)) {
			return slot, nil
		}
	}
	return 0, errors.New("no addresses are left for the uplink")
}

// hostRules let packets of the gateway's one address through to the devices of the default routes and nowhere else:
// not to the host itself, and not to its other networks.
func (g *Gateway) hostRules(st hostState, devices []string) error {
	c, err := g.hostConn()
	if err != nil {
		return err
	}
	t := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: g.names.gateway}
	c.AddTable(t)
	accept := nftables.ChainPolicyAccept
	early := nftables.ChainPriorityRef(-10)
	base := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
		// The chain stays, and its rules are exchanged at once: a new chain beside an old one would, for a moment of some
		// packets, leave both without rules.
		chain := c.AddChain(&nftables.Chain{Table: t, Name: name, Type: kind, Hooknum: hook, Priority: priority, Policy: &accept})
		c.FlushChain(chain)
		return chain
	}
	arrive := base("arrive", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityMangle)
	input := base("input", nftables.ChainTypeFilter, nftables.ChainHookInput, early)
	forward := base("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, early)
	leave := base("leave", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	rule := func(chain *nftables.Chain, parts ...[]expr.Any) {
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: slices.Concat(parts...)})
	}
	_, gateway := subnet(uplinkRange, st.Slot)
	from, to := interfaceIs(expr.MetaKeyIIFNAME, g.names.uplink), interfaceIs(expr.MetaKeyOIFNAME, g.names.uplink)
	rule(arrive, from, sourceIs(gateway, expr.CmpOpNeq), verdict(expr.VerdictDrop))
	rule(input, from, verdict(expr.VerdictDrop))
	for _, d := range devices {
		rule(forward, from, interfaceIs(expr.MetaKeyOIFNAME, d), verdict(expr.VerdictAccept))
		rule(leave, sourceIs(gateway, expr.CmpOpEq), interfaceIs(expr.MetaKeyOIFNAME, d), []expr.Any{&expr.Masq{}})
	}
	rule(forward, from, verdict(expr.VerdictDrop))
	rule(forward, to, state(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), verdict(expr.VerdictAccept))
	rule(forward, to, verdict(expr.VerdictDrop))
	marked, err := g.markers()
	if err != nil {
		return err
	}
	for _, d := range marked {
		// The host did not forward what comes in here before, and does not begin to. Uplinks have rules of their own,
		// also those of other Workers.
		rule(forward, interfaceIs(expr.MetaKeyIIFNAME, d), load(expr.MetaKeyOIFNAME, 1),
			[]expr.Any{&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte(uplinkPrefix)}}, verdict(expr.VerdictDrop))
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("install the host's nftables rules: %w", err)
	}
	return nil
}

func (g *Gateway) hostConn() (*nftables.Conn, error) {
	var options []nftables.ConnOption
	if g.cfg.HostNS != nil {
		options = append(options, nftables.WithNetNSFd(int(g.cfg.HostNS.Fd())))
	}
	c, err := nftables.New(options...)
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, nil
}

// restoreHost takes everything of this Worker away from the host. Repeating it is fine.
func (g *Gateway) restoreHost() error {
	if _, err := os.Stat(g.hostPath()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	unlock, err := lockHost()
	if err != nil {
		return err
	}
	defer unlock()
	if l, err := g.outer.LinkByName(g.names.uplink); err == nil {
		if err := g.outer.LinkDel(l); err != nil {
			return fmt.Errorf("remove the uplink: %w", err)
		}
	}
	if err := g.stopForwarding(); err != nil {
		return err
	}
	c, err := g.hostConn()
	if err != nil {
		return err
	}
	t := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: g.names.gateway}
	c.AddTable(t)
	c.DelTable(t)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove the host's nftables rules: %w", err)
	}
	if err := os.Remove(g.hostPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("forget the host: %w", err)
	}
	return nil
}

// stopForwarding puts devices back to how they were, unless another Worker of the host has an uplink.
func (g *Gateway) stopForwarding() error {
	links, err := g.outer.LinkList()
	if err != nil {
		return fmt.Errorf("list the host's links: %w", err)
	}
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, uplinkPrefix) {
			return nil
		}
	}
	marked, err := g.markers()
	if err != nil {
		return err
	}
	for _, d := range marked {
		if err := g.forward(d, "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.Remove(g.marker(d)); err != nil {
			return fmt.Errorf("forget what was changed on the host: %w", err)
		}
	}
	return nil
}

func (g *Gateway) forward(device, value string) error {
	return inside(g.cfg.HostNS, func() error { return setSysctl("net/ipv4/conf/"+device+"/forwarding", value) })
}

func (g *Gateway) forwarding(device string) (value string) {
	_ = inside(g.cfg.HostNS, func() error { value = sysctl("net/ipv4/conf/" + device + "/forwarding"); return nil })
	return value
}

func (g *Gateway) readHost() (st hostState, err error) {
	b, err := os.ReadFile(g.hostPath())
	if errors.Is(err, os.ErrNotExist) {
		return st, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &st)
	}
	if err != nil {
		return st, fmt.Errorf("read what was changed on the host: %w", err)
	}
	return st, nil
}

func (g *Gateway) writeHost(st hostState) error {
	b, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("write what is changed on the host: %w", err)
	}
	return replaceFile(g.hostPath(), b)
}

// dial connects from the host to an address that was permitted. The host itself is no destination, whatever the lists
// say: its routes decide what its addresses are.
func (g *Gateway) dial(d *net.Dialer, to netip.AddrPort) (conn net.Conn, err error) {
	routes, err := g.outer.RouteGet(to.Addr().AsSlice())
	if err != nil {
		return nil, fmt.Errorf("no route to %s: %w", to, err)
	}
	for _, r := range routes {
		if r.Type != unix.RTN_UNICAST {
			return nil, fmt.Errorf("%s is an address of the host", to)
		}
	}
	return g.dialHost(d, "tcp4", to)
}

func (g *Gateway) dialHost(d *net.Dialer, network string, to netip.AddrPort) (conn net.Conn, err error) {
	err = inside(g.cfg.HostNS, func() error {
		conn, err = d.Dial(network, to.String())
		return err
	})
	return conn, err
}
