package egress

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"helmr.dev/helmr/internal/egress/policy"
)

// attack is a way out. It returns what it got out or learned, and the error that stopped it.
type attack struct {
	name string
	try  func(u *guest) (string, error)
}

func dialAttack(network, address string) attack {
	return attack{network + " " + address, func(u *guest) (string, error) {
		_, err := u.dial(network, address)
		return "connected", err
	}}
}

func udpAttack(address string) attack {
	return attack{"udp " + address, func(u *guest) (string, error) { return u.udp(address, "out") }}
}

func tlsAttack(address, name string) attack {
	return attack{"tls " + address + " as " + name, func(u *guest) (string, error) { return u.tls(address, name) }}
}

// httpAttack sends raw text; getting 403 or 400 back is being stopped.
func httpAttack(name, text string) attack {
	return attack{"http " + name, func(u *guest) (string, error) {
		got, err := u.raw(allowedIP+":80", text)
		if err == nil && (strings.HasPrefix(got, "HTTP/1.1 403") || strings.HasPrefix(got, "HTTP/1.1 400") || strings.HasPrefix(got, "HTTP/1.0 403")) {
			return got, errStopped
		}
		return got, err
	}}
}

// dnsAttack asks a question; an answer without addresses is being stopped.
func dnsAttack(name string, kind uint16) attack {
	return attack{"dns " + dns.TypeToString[kind] + " " + name[:min(len(name), 40)], func(u *guest) (string, error) {
		for _, network := range []string{"udp4", "tcp4"} {
			if m := u.ask(network, name, kind); len(m.Answer) > 0 {
				return m.String(), nil
			}
		}
		return "", errStopped
	}}
}

var errStopped = fmt.Errorf("stopped: %w", net.ErrClosed)

func hostUplink(l *lab) string {
	st, err := l.g.readHost()
	l.must(err)
	a, _ := subnet(uplinkRange, st.Slot)
	return a.String()
}

// always are ways out that no policy opens.
func always(l *lab, neighbour *guest) []attack {
	gateway := l.g.computers[neighbour.id].gateway().String()
	var list []attack
	for _, ip := range []string{metadataIP, azureIP, cgnatIP, corpIP, blockedIP, hostIP, hostUplink(l), lanIP, "192.168.7.1", "198.18.0.1", gateway, "127.0.0.1", "0.0.0.0"} {
		list = append(list, dialAttack("tcp4", ip+":8080"), dialAttack("tcp4", ip+":22"), udpAttack(ip+":123"))
	}
	list = append(list,
		dialAttack("tcp4", l.g.computers[neighbour.id].address().String()+":9000"),
		dialAttack("tcp4", gateway+":15443"), dialAttack("tcp4", "198.18.0.1:15080"),
		dialAttack("tcp6", "[2606:2800:220:1::1]:443"), dialAttack("tcp6", "[fe80::1%eth0]:22"), dialAttack("udp6", "[ff02::1%eth0]:123"),
		dialAttack("tcp", "[::ffff:169.254.169.254]:8080"),
	)
	for name := range l.records {
		if strings.HasPrefix(name, "rebind") {
			list = append(list, dnsAttack(name, dns.TypeA))
		}
	}
	list = append(list, dnsAttack("allowed.example", dns.TypeAAAA), dnsAttack("allowed.example", dns.TypeTXT), dnsAttack("allowed.example", dns.TypeANY),
		dnsAttack("allowed.example", dns.TypeMX), dnsAttack("allowed.example", dns.TypeHTTPS), dnsAttack("allowed.example", dns.TypeAXFR), dnsAttack("9.9.9.9", dns.TypeA))
	return list
}

func (u *guest) shut(list []attack) {
	u.Helper()
	for _, a := range list {
		if got, err := a.try(u); err == nil {
			u.Errorf("%s: it got out: %q", a.name, got)
		} else if !refused(err) {
			u.Errorf("%s: not refused but left to wait: %v", a.name, err)
		}
	}
}

func listenInside(u *guest, port string) {
	u.must(inside(u.ns, func() error {
		ln, err := net.Listen("tcp4", ":"+port)
		if err != nil {
			return err
		}
		u.Cleanup(func() { ln.Close() })
		go u.acceptEcho(ln, "neighbour")
		return nil
	}))
}

func TestSpec_09_17_Allowlist_Attacks(t *testing.T) {
	t.Parallel()
	l := setup(t)
	neighbour := l.computer(`{"blockAll":false}`) // so that there is an uplink
	listenInside(neighbour, "9000")
	u := l.computer(allowlist)
	l.sniff(l.internet, "eth0", "wire", expected)
	l.sniff(l.lan, "eth0", "lan wire", func(string) bool { return false })

	big := "GET / HTTP/1.1\r\nHost: allowed.example\r\n"
	get := func(host, rest string) string {
		return "GET " + rest + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"
	}
	list := append(always(l, neighbour),
		dialAttack("tcp4", allowedIP+":22"), dialAttack("tcp4", otherIP+":8080"), dialAttack("tcp4", otherIP+":853"), dialAttack("tcp4", dnsIP+":853"),
		dialAttack("tcp4", dnsIP+":53"), udpAttack(otherIP+":123"), udpAttack(otherIP+":443"), udpAttack(allowedIP+":443"), udpAttack(otherIP+":5353"),
		dialAttack("tcp", "[::ffff:"+otherIP+"]:8080"),
		tlsAttack(otherIP+":443", "other.example"), tlsAttack(allowedIP+":443", "other.example"), tlsAttack(allowedIP+":443", "wild.example"), tlsAttack(allowedIP+":443", ""),
		tlsAttack(otherIP+":443", ""), tlsAttack(metadataIP+":443", "other.example"), tlsAttack(allowedIP+":443", "allowed.example.evil.example"),
		tlsAttack(allowedIP+":443", "localhost"), tlsAttack(allowedIP+":443", "notallowed.example"), tlsAttack(allowedIP+":443", "public.corp.example"),
		attack{"ssh on 443", func(u *guest) (string, error) { return readOrAlert(u.raw(otherIP+":443", "SSH-2.0-x\r\n")) }},
		attack{"http on 443", func(u *guest) (string, error) { return readOrAlert(u.raw(otherIP+":443", get("allowed.example", "/"))) }},
		attack{"dns of another resolver", func(u *guest) (string, error) { return u.udp(dnsIP+":53", "question") }},
		httpAttack("host of another name", get("other.example", "/")), httpAttack("host of metadata", get(metadataIP, "/")),
		httpAttack("decimal host", get("2852039166", "/")), httpAttack("octal host", get("0251.0376.0251.0376", "/")), httpAttack("hex host", get("0xa9fea9fe", "/")),
		httpAttack("v6 host", get("[::ffff:169.254.169.254]", "/")), httpAttack("port", get("allowed.example:8080", "/")), httpAttack("no host", "GET / HTTP/1.0\r\n\r\n"),
		httpAttack("absolute form", get("allowed.example", "http://other.example/")), httpAttack("connect", "CONNECT other.example:443 HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n"),
		httpAttack("connect to allowed", "CONNECT allowed.example:22 HTTP/1.1\r\nHost: allowed.example:22\r\nConnection: close\r\n\r\n"),
		httpAttack("two hosts", big+"Host: other.example\r\nConnection: close\r\n\r\n"),
		httpAttack("both lengths", "POST / HTTP/1.1\r\nHost: other.example\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n"),
		httpAttack("two lengths", "POST / HTTP/1.1\r\nHost: allowed.example\r\nContent-Length: 5\r\nContent-Length: 6\r\nConnection: close\r\n\r\nabcde"),
		httpAttack("space before colon", big+"Transfer-Encoding : chunked\r\nConnection: close\r\n\r\n"),
		httpAttack("userinfo in host", get("allowed.example@other.example", "/")), httpAttack("rebinding host", get("rebind.example", "/")), httpAttack("rebinding to metadata", get("rebindmeta.example", "/")),
		dnsAttack("other.example", dns.TypeA), dnsAttack("wild.example", dns.TypeA), dnsAttack("x.allowed.example", dns.TypeA), dnsAttack("public.corp.example", dns.TypeA),
		dnsAttack(strings.Repeat("a", 60)+"."+strings.Repeat("b", 60)+".evil.example", dns.TypeTXT), dnsAttack(strings.Repeat("a", 60)+".evil.example", dns.TypeA),
	)
	for name := range l.records {
		if strings.HasPrefix(name, "rebind") {
			list = append(list, tlsAttack(allowedIP+":443", name))
		}
	}
	t.Logf("%d ways out", len(list))
	u.shut(list)

	// The name decides where a connection goes, whatever address it was made to.
	for _, to := range []string{otherIP, metadataIP, lanIP, hostIP} {
		if got, err := u.tls(to+":443", "allowed.example"); err != nil || !strings.HasPrefix(got, allowedIP+":443 ") {
			t.Errorf("allowed name at %s: %q, %v", to, got, err)
		}
	}
	// Private addresses within bounds and approved.
	if got, err := u.tls(otherIP+":443", "git.corp.example"); err != nil || !strings.HasPrefix(got, corpIP+":443 ") {
		t.Errorf("business range: %q, %v", got, err)
	}
	// Of two addresses the private one is left out.
	if got := addressesOf(u.ask("udp4", "mixed.example", dns.TypeA)); len(got) != 1 || got[0] != allowedIP {
		t.Errorf("mixed: %v", got)
	}
	// A second request on one connection is judged again; a smuggled one is none.
	got, err := u.raw(allowedIP+":80", "GET /first HTTP/1.1\r\nHost: allowed.example\r\n\r\nGET /second HTTP/1.1\r\nHost: other.example\r\n\r\n")
	if err != nil || strings.Count(got, "HTTP/1.1 200") != 1 || strings.Count(got, "HTTP/1.1 403") != 1 {
		t.Errorf("second request: %q, %v", got, err)
	}
	smuggled := "GET /smuggled HTTP/1.1\r\nHost: other.example\r\n\r\n"
	got, err = u.raw(allowedIP+":80", fmt.Sprintf("POST /outer HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(smuggled), smuggled))
	if err != nil || !strings.Contains(got, "HTTP/1.1 200") {
		t.Errorf("request in a body: %q, %v", got, err)
	}
	rawPackets(u, l.g.computers[neighbour.id].address().String())
	if bad := lines(l.seen.all(), "wire:", "neighbour", "host=other", "path=/smuggled", "path=/second", " host ", "udp ", "dns TXT", "dns AAAA", "evil"); len(bad) > 0 {
		t.Errorf("something arrived:\n%s", strings.Join(bad, "\n"))
	}
	// The forged packets were taken for nobody else's.
	held, _ := l.g.Attempts(neighbour.id)
	for _, a := range held {
		t.Errorf("an attempt is held against another Computer: %+v", a)
	}
}

// readOrAlert takes a TLS alert for being stopped.
func readOrAlert(got string, err error) (string, error) {
	if err == nil && strings.HasPrefix(got, "\x15\x03\x03\x00\x02\x02\x31") {
		err = errStopped
	}
	return got, err
}

// rawPackets sends what only a broken sandbox can send, then waits until the gateway has surely seen all of it.
func rawPackets(u *guest, neighbour string) {
	own := u.g.computers[u.id].address().String()
	question := new(dns.Msg)
	question.SetQuestion("spoofed.evil.example.", dns.TypeA)
	wire, err := question.Pack()
	u.must(err)
	for _, dst := range []string{otherIP, allowedIP, metadataIP, hostIP, lanIP, neighbour, "127.0.0.1", "198.18.0.1", "224.0.0.1", "255.255.255.255"} {
		for _, src := range []string{own, neighbour, hostIP, otherIP, "127.0.0.1", "0.0.0.0", "198.18.0.1"} {
			for _, protocol := range []byte{1, 2, 4, 41, 47, 50, 89, 132, 255} { // ICMP, IGMP, IP in IP, 6in4, GRE, ESP, OSPF, SCTP
				u.must(u.packet(protocol, src, dst, []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}))
			}
			u.must(u.packet(17, src, dst, udpPayload(123, "raw")))
			if src != own {
				u.must(u.packet(17, src, dst, udpPayload(53, string(wire))))
			}
		}
	}
	broadcast := net.HardwareAddr{255, 255, 255, 255, 255, 255}
	for _, kind := range []uint16{0x86dd, 0x8100, 0x88cc, 0x8847, 0x8863, 0x0042} { // IPv6, VLAN, LLDP, MPLS, PPPoE
		u.must(u.frame(kind, gatewayMAC, make([]byte, 60)))
		u.must(u.frame(kind, broadcast, make([]byte, 60)))
	}
	// ARP: "the neighbour's address is at my MAC".
	arp := []byte{0, 1, 8, 0, 6, 4, 0, 2, 2, 2, 2, 2, 2, 2}
	arp = append(append(arp, netip.MustParseAddr(neighbour).AsSlice()...), append([]byte(gatewayMAC), netip.MustParseAddr("198.18.0.1").AsSlice()...)...)
	u.must(u.frame(0x0806, broadcast, arp))
	if m := u.ask("udp4", "allowed.example", dns.TypeA); len(m.Answer) != 1 { // packets keep their order
		u.Errorf("after the raw packets: %s", m)
	}
}

func TestSpec_09_10_Open_Attacks(t *testing.T) {
	t.Parallel()
	l := setup(t)
	neighbour := l.computer(`{"blockAll":false}`)
	listenInside(neighbour, "9000")
	u := l.computer(`{"blockAll":false}`)
	own, unwanted := l.g.computers[u.id].address().String(), []string{metadataIP, azureIP, cgnatIP, corpIP, blockedIP, lanIP}
	bad := func(line string) bool { // keeps what must not be there
		f := strings.Fields(line)
		if len(f) < 4 || f[2] != hostIP {
			return false // from nobody else than the host
		}
		for _, dst := range unwanted {
			if f[3] == dst {
				return false
			}
		}
		return true
	}
	l.sniff(l.internet, "eth0", "wire", bad)
	l.sniff(l.lan, "eth0", "lan wire", func(string) bool { return false })
	list := always(l, neighbour)
	t.Logf("%d ways out", len(list))
	u.shut(list)

	for _, port := range []string{"22", "8080", "80", "443"} {
		if _, err := u.dial("tcp4", otherIP+":"+port); err != nil {
			t.Errorf("port %s of a public address: %v", port, err)
		}
	}
	for _, port := range []string{"123", "443", "5353"} {
		if got, err := u.udp(otherIP+":"+port, "hello"); err != nil || got != "hello" {
			t.Errorf("UDP port %s of a public address: %q, %v", port, got, err)
		}
	}
	if got := addressesOf(u.ask("udp4", "other.example", dns.TypeA)); len(got) != 1 || got[0] != otherIP {
		t.Errorf("dns: %v", got)
	}
	l.seen.mu.Lock()
	l.seen.list = nil
	l.seen.mu.Unlock()
	neighbourIP := l.g.computers[neighbour.id].address().String()
	for _, src := range []string{neighbourIP, hostIP, otherIP, "127.0.0.1", "198.18.0.1"} {
		l.must(u.packet(17, src, allowedIP, udpPayload(123, "spoofed")))
		l.must(u.packet(17, src, allowedIP, udpPayload(5353, "spoofed")))
	}
	for _, dst := range append(unwanted, hostIP, neighbourIP, hostUplink(l), "255.255.255.255", "127.0.0.1") {
		for _, protocol := range []byte{1, 4, 41, 47, 132} {
			l.must(u.packet(protocol, own, dst, []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}))
		}
		l.must(u.packet(17, own, dst, udpPayload(123, "raw")))
	}
	if got, err := u.udp(otherIP+":123", "last"); err != nil || got != "last" {
		t.Errorf("after the raw packets: %q, %v", got, err)
	}
	if found := lines(l.seen.all(), "wire:", "neighbour", " host ", "udp lan", "spoofed", "raw"); len(found) > 0 {
		t.Errorf("something arrived:\n%s", strings.Join(found, "\n"))
	}
}

func TestSpec_09_09_BlockAll_Has_No_Network(t *testing.T) {
	t.Parallel()
	l := setup(t)
	n, err := l.g.Add("blocked", policy.Policy{BlockAll: true})
	if err != nil || n != (Network{}) || len(l.g.List()) != 0 {
		t.Errorf("%+v, %v, %v", n, err, l.g.List())
	}
}
