package egress

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// sniff notes every IP packet that a device of a namespace receives, whatever it is, as "ip PROTOCOL SOURCE DESTINATION
// PORT" or "ethertype".
func (l *lab) sniff(ns *os.File, device, where string, skip func(line string) bool) {
	var f *os.File
	l.must(inside(ns, func() error {
		d, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, all&0xffff)
		if err != nil {
			return err
		}
		f = os.NewFile(uintptr(fd), "packets")
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all & 0xffff, Ifindex: d.Index})
	}))
	l.Cleanup(func() { f.Close() })
	raw, err := f.SyscallConn()
	l.must(err)
	go func() {
		buf := make([]byte, 65536)
		for {
			var n int
			var from unix.Sockaddr
			var e error
			if raw.Read(func(fd uintptr) bool {
				n, from, e = unix.Recvfrom(int(fd), buf, 0)
				return e != unix.EAGAIN
			}) != nil || e != nil {
				return
			}
			if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			if line := packetLine(buf[:n]); line != "" && !skip(line) {
				l.seen.add("%s: %s", where, line)
			}
		}
	}()
}

func packetLine(b []byte) string {
	if len(b) < 34 {
		return ""
	}
	switch kind := binary.BigEndian.Uint16(b[12:]); kind {
	case unix.ETH_P_ARP:
		return ""
	case unix.ETH_P_IP:
		ip := b[14:]
		src, _ := netip.AddrFromSlice(ip[12:16])
		dst, _ := netip.AddrFromSlice(ip[16:20])
		port := 0
		if head := int(ip[0]&15) * 4; len(ip) >= head+4 && (ip[9] == 6 || ip[9] == 17) {
			port = int(binary.BigEndian.Uint16(ip[head+2:]))
		}
		return fmt.Sprintf("ip %d %s %s %d", ip[9], src, dst, port)
	default:
		return fmt.Sprintf("ethertype %x", kind)
	}
}

// expected are the packets that an allowlist lets the host send: to its resolver, and to allowed names.
func expected(line string) bool {
	for _, ok := range []string{"ip 6 " + hostIP + " " + allowedIP + " 443", "ip 6 " + hostIP + " " + allowedIP + " 80", "ip 6 " + hostIP + " " + corpIP + " 443",
		"ip 17 " + hostIP + " " + dnsIP + " 53", "ip 6 " + hostIP + " " + dnsIP + " 53"} {
		if line == ok {
			return true
		}
	}
	return false
}

// packet sends an IPv4 packet with any header through the Computer's device.
func (u *guest) packet(protocol byte, src, dst string, payload []byte) error {
	return u.ipPacket(protocol, src, dst, 0, nil, payload)
}

// ipPacket is packet with flags and place of a fragment, and with options, a multiple of four bytes.
func (u *guest) ipPacket(protocol byte, src, dst string, fragment uint16, options, payload []byte) error {
	return u.frame(unix.ETH_P_IP, gatewayMAC, ipv4Packet(protocol, src, dst, fragment, options, payload))
}

func ipv4Packet(protocol byte, src, dst string, fragment uint16, options, payload []byte) []byte {
	h := make([]byte, 20, 20+len(options)+len(payload))
	h[0], h[8], h[9] = 0x45+byte(len(options)/4), 64, protocol
	binary.BigEndian.PutUint16(h[2:], uint16(20+len(options)+len(payload)))
	binary.BigEndian.PutUint16(h[4:], 4711)
	binary.BigEndian.PutUint16(h[6:], fragment)
	copy(h[12:], netip.MustParseAddr(src).AsSlice())
	copy(h[16:], netip.MustParseAddr(dst).AsSlice())
	h = append(h, options...)
	sum := uint32(0)
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum))
	return append(h, payload...)
}

// frame sends an Ethernet frame: what a program that broke out of its sandbox's kernel can do at most.
func (u *guest) frame(kind uint16, to net.HardwareAddr, payload []byte) error {
	return u.frameFrom(nil, kind, to, payload)
}

// frameFrom is frame in the name of another device; nil is its own.
func (u *guest) frameFrom(from net.HardwareAddr, kind uint16, to net.HardwareAddr, payload []byte) error {
	return inside(u.ns, func() error {
		d, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if from == nil {
			from = d.HardwareAddr
		}
		frame := append(append(append([]byte{}, to...), from...), byte(kind>>8), byte(kind))
		return unix.Sendto(fd, append(frame, payload...), 0, &unix.SockaddrLinklayer{Ifindex: d.Index, Halen: 6})
	})
}

// rawSocket opens a socket for frames on the Computer's device.
func (u *guest) rawSocket() (fd int, to *unix.SockaddrLinklayer) {
	u.must(inside(u.ns, func() error {
		d, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		to = &unix.SockaddrLinklayer{Ifindex: d.Index, Halen: 6}
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	u.Cleanup(func() { _ = unix.Close(fd) })
	return fd, to
}

func udpPayload(port int, text string) []byte {
	b := make([]byte, 8, 8+len(text))
	binary.BigEndian.PutUint16(b, 40000)
	binary.BigEndian.PutUint16(b[2:], uint16(port))
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(text)))
	return append(b, text...)
}

func lines(s string, with ...string) (found []string) {
	for line := range strings.Lines(s) {
		for _, w := range with {
			if strings.Contains(line, w) {
				found = append(found, strings.TrimSpace(line))
				break
			}
		}
	}
	return found
}
