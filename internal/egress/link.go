package egress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The addresses of the gateway's own links. The range is reserved for measurements inside of a network, so that no real
// destination is hidden by it; nothing of it is seen outside of the gateway and the host.
var (
	// resolverAddress is the same for every Computer on every Worker: programs remember it, also in a checkpoint.
	resolverAddress = netip.MustParseAddr("198.18.0.1")
	computerRange   = netip.MustParsePrefix("198.18.0.0/16") // a /30 for each; the first holds the resolver
	uplinkRange     = netip.MustParsePrefix("198.19.0.0/16") // a /30 for each Worker on the host
)

const (
	uplinkInside = "up0"  // the gateway's end of the link to the host
	uplinkPrefix = "hlmr" // the host's ends, of every Worker on it
	maxSlots     = 1<<14 - 1
)

// subnet gives the two host addresses of the n-th /30 of a range.
func subnet(r netip.Prefix, n int) (first, second netip.Addr) {
	b := r.Addr().As4()
	base := binary.BigEndian.Uint32(b[:]) + uint32(n)*4
	at := func(i uint32) netip.Addr {
		binary.BigEndian.PutUint32(b[:], base+i)
		return netip.AddrFrom4(b)
	}
	return at(1), at(2)
}

func network(a netip.Addr, bits int) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, 32)}}
}

// handle opens netlink in a namespace; nil is the process's own.
func handle(ns *os.File) (*netlink.Handle, error) {
	var h *netlink.Handle
	var err error
	if ns == nil {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER)
	} else {
		h, err = netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER)
	}
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return h, nil
}

func missing(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound)
}

// prepareGateway sets up what the gateway's namespace has without any Computer. Repeating it is fine.
func (g *Gateway) prepareGateway() error {
	err := inside(g.ns, func() error {
		for name, value := range map[string]string{
			"net/ipv4/ip_forward": "1", "net/ipv4/conf/all/rp_filter": "1", "net/ipv4/conf/default/rp_filter": "1",
			"net/ipv4/conf/all/accept_redirects": "0", "net/ipv4/conf/all/send_redirects": "0", "net/ipv4/conf/default/send_redirects": "0",
			"net/ipv4/conf/all/accept_source_route": "0", "net/ipv4/icmp_ratelimit": "0", "net/ipv4/conf/all/arp_ignore": "1",
		} {
			if err := setSysctl(name, value); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	lo, err := g.inner.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("look for lo: %w", err)
	}
	if err := g.inner.AddrReplace(lo, network(resolverAddress, 32)); err != nil {
		return fmt.Errorf("set the resolver's address: %w", err)
	}
	if err := g.inner.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	// A last route, so that the rules see and refuse what has no other: without one the kernel's own answer is
	// "unreachable", and rationed. The rules let nothing leave by it.
	route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: anywhere(), Priority: 1 << 20, Scope: netlink.SCOPE_LINK}
	if err := g.inner.RouteReplace(route); err != nil {
		return fmt.Errorf("set the last route: %w", err)
	}
	return nil
}

func anywhere() *net.IPNet { return &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)} }

// gatewayMAC is the same on every link: what a checkpoint remembers stays true.
var gatewayMAC = net.HardwareAddr{0x02, 0x68, 0x6c, 0x6d, 0x72, 0x01}

// connect makes the link between a Computer's namespace and the gateway.
func (g *Gateway) connect(c *computer, ns *os.File) error {
	mac := net.HardwareAddr{0x02, 0x68, 0x6c, 0x6d, byte(c.Slot >> 8), byte(c.Slot)}
	gateway, address := c.gateway(), c.address()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = c.link(), g.mtu, gatewayMAC
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerHardwareAddr: mac, PeerNamespace: netlink.NsFd(ns.Fd())}
	if err := g.inner.LinkAdd(veth); err != nil {
		return fmt.Errorf("add link: %w", err)
	}
	outer, err := g.inner.LinkByName(c.link())
	if err != nil {
		return fmt.Errorf("look for link: %w", err)
	}
	in, err := handle(ns)
	if err != nil {
		return err
	}
	defer in.Close()
	inner, err := in.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("look for eth0: %w", err)
	}
	lo, err := in.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("look for lo: %w", err)
	}
	if err := in.LinkSetMTU(inner, g.mtu); err != nil {
		return fmt.Errorf("set MTU: %w", err)
	}
	// Neighbours are fixed on both ends: nothing that is said over ARP changes them.
	neighbour := func(l netlink.Link, a netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
		return &netlink.Neigh{LinkIndex: l.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac}
	}
	err = errors.Join(
		g.inner.AddrAdd(outer, network(gateway, 30)), in.AddrAdd(inner, network(address, 30)),
		g.inner.LinkSetUp(outer), in.LinkSetUp(inner), in.LinkSetUp(lo),
		g.inner.NeighSet(neighbour(outer, address, mac)), in.NeighSet(neighbour(inner, gateway, gatewayMAC)),
		in.RouteAdd(&netlink.Route{LinkIndex: inner.Attrs().Index, Dst: anywhere(), Gw: gateway.AsSlice()}),
	)
	if err != nil {
		return fmt.Errorf("set link up: %w", err)
	}
	return errors.Join(awaitUp(g.inner, c.link()), awaitUp(in, "eth0"))
}

// awaitUp waits until the kernel has noticed that both ends of a link are up; what is sent before is dropped.
func awaitUp(h *netlink.Handle, name string) error {
	for range 2000 {
		l, err := h.LinkByName(name)
		if err != nil {
			return fmt.Errorf("look for link: %w", err)
		}
		if l.Attrs().OperState == netlink.OperUp {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("link %s does not come up", name)
}

// disconnect removes a Computer's link; a missing one is no error.
func (g *Gateway) disconnect(name string) error {
	l, err := g.inner.LinkByName(name)
	if missing(err) {
		return nil
	}
	if err == nil {
		err = g.inner.LinkDel(l)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link: %w", err)
	}
	return nil
}

// forget removes the kernel's memory of a Computer's connections, so that a later one at its address inherits none.
func (g *Gateway) forget(a netip.Addr) error {
	for _, where := range []netlink.ConntrackFilterType{netlink.ConntrackOrigSrcIP, netlink.ConntrackReplySrcIP} {
		f := &netlink.ConntrackFilter{}
		if err := f.AddIP(where, a.AsSlice()); err != nil {
			return fmt.Errorf("forget connections: %w", err)
		}
		if _, err := g.inner.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, f); err != nil {
			return fmt.Errorf("forget connections: %w", err)
		}
	}
	return nil
}
