package egress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"helmr.dev/helmr/internal/egress/policy"
)

// What the rules tell of, as prefixes of the kernel's log messages to one of its groups.
const (
	noteGroup    = 1
	noteBytes    = 128 // of each packet
	notePassed   = "passed"
	noteRefused  = "refused"
	noteExceeded = "exceeded"
)

// Numbers of the kernel's packet log (linux/netfilter/nfnetlink_log.h).
const (
	ulogPacket, ulogConfig               = unix.NFNL_SUBSYS_ULOG << 8, unix.NFNL_SUBSYS_ULOG<<8 | 1
	ulogPayload, ulogPrefix              = 9, 10
	ulogCommand, ulogMode, ulogThreshold = 1, 2, 5
	ulogBind, ulogCopyPacket             = 1, 2
)

// watchPackets notes what the kernel tells of packets. It needs no sleep and no look of its own: it is told.
func (g *Gateway) watchPackets() error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(g.ns.Fd())})
	if err != nil {
		return fmt.Errorf("open the kernel's packet log: %w", err)
	}
	if err := configure(conn); err != nil {
		return errors.Join(fmt.Errorf("open the kernel's packet log: %w", err), conn.Close())
	}
	g.closers = append(g.closers, conn.Close)
	g.running.Go(func() {
		for {
			messages, err := conn.Receive()
			if errors.Is(err, unix.ENOBUFS) {
				continue // some were lost, which is fine
			}
			if err != nil {
				return // closed
			}
			for _, m := range messages {
				g.note(m)
			}
		}
	})
	return nil
}

func configure(conn *netlink.Conn) error {
	mode := append(binary.BigEndian.AppendUint32(nil, noteBytes), ulogCopyPacket, 0)
	for _, a := range []netlink.Attribute{{Type: ulogCommand, Data: []byte{ulogBind}}, {Type: ulogMode, Data: mode}, {Type: ulogThreshold, Data: []byte{0, 0, 0, 1}}} {
		attributes, err := netlink.MarshalAttributes([]netlink.Attribute{a})
		if err != nil {
			return err
		}
		head := []byte{unix.AF_UNSPEC, 0, noteGroup >> 8, noteGroup & 0xff}
		if _, err := conn.Execute(netlink.Message{Header: netlink.Header{Type: ulogConfig, Flags: netlink.Request | netlink.Acknowledge}, Data: append(head, attributes...)}); err != nil {
			return err
		}
	}
	return nil
}

// note remembers a packet that the kernel told of, for the Computer that sent it.
func (g *Gateway) note(m netlink.Message) {
	if m.Header.Type != ulogPacket || len(m.Data) < 4 {
		return
	}
	attributes, err := netlink.UnmarshalAttributes(m.Data[4:])
	if err != nil {
		return
	}
	what, packet := "", []byte(nil)
	for _, a := range attributes {
		switch a.Type {
		case ulogPayload:
			packet = a.Data
		case ulogPrefix:
			what = strings.TrimRight(string(a.Data), "\x00")
		}
	}
	source, at, ok := readPacket(packet)
	c := g.at(source)
	if !ok || c == nil {
		return
	}
	switch what {
	case notePassed:
	case noteExceeded:
		at.Reason = policy.ReasonLimit
	default:
		at.Reason = c.refusedPacket(at.Address.Addr(), g.installation())
	}
	if what == noteExceeded && at.Address.Addr() == c.gateway() { // what was redirected to a proxy
		at.Address = netip.AddrPortFrom(netip.Addr{}, map[uint16]uint16{portTLS: 443, portHTTP: 80}[at.Address.Port()])
	}
	c.attempts.add(at)
}

// refusedPacket says why the rules refused a packet to an address.
func (c *computer) refusedPacket(to netip.Addr, in policy.Installation) policy.Reason {
	if in.Denied(to) || c.policy.Open() || !policy.Public(to) {
		return policy.ReasonMandatory
	}
	return policy.ReasonProtocol
}

// readPacket reads who sent an IPv4 packet, and where to.
func readPacket(b []byte) (source netip.Addr, at Attempt, ok bool) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return source, at, false
	}
	source, _ = netip.AddrFromSlice(b[12:16])
	to, _ := netip.AddrFromSlice(b[16:20])
	kinds := map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_ICMP: "icmp"}
	if at.Kind = kinds[b[9]]; at.Kind == "" {
		at.Kind = "ip"
	}
	port, head := uint16(0), int(b[0]&15)*4
	if fragment := binary.BigEndian.Uint16(b[6:]) & 0x1fff; (at.Kind == "tcp" || at.Kind == "udp") && fragment == 0 && len(b) >= head+4 {
		port = binary.BigEndian.Uint16(b[head+2:])
	}
	at.Address = netip.AddrPortFrom(to, port)
	return source, at, true
}
