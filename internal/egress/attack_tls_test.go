package egress

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/sys/unix"
)

// extension is one extension of a ClientHello.
type extension struct {
	number uint16
	data   []byte
}

func serverNames(names ...string) extension {
	var b cryptobyte.Builder
	b.AddUint16LengthPrefixed(func(list *cryptobyte.Builder) {
		for _, n := range names {
			list.AddUint8(0)
			list.AddUint16LengthPrefixed(func(name *cryptobyte.Builder) { name.AddBytes([]byte(n)) })
		}
	})
	return extension{0, b.BytesOrPanic()}
}

// helloWith writes a ClientHello of TLS 1.2 by hand.
func helloWith(extensions ...extension) []byte {
	var b cryptobyte.Builder
	b.AddUint8(1)
	b.AddUint24LengthPrefixed(func(hello *cryptobyte.Builder) {
		hello.AddUint16(0x0303)
		hello.AddBytes(make([]byte, 32))
		hello.AddUint8(0)
		hello.AddUint16LengthPrefixed(func(suites *cryptobyte.Builder) { suites.AddUint16(0xc02b) })
		hello.AddBytes([]byte{1, 0})
		hello.AddUint16LengthPrefixed(func(list *cryptobyte.Builder) {
			for _, e := range append(extensions, extension{10, []byte{0, 2, 0, 23}}, extension{13, []byte{0, 2, 4, 3}}) {
				list.AddUint16(e.number)
				list.AddUint16LengthPrefixed(func(data *cryptobyte.Builder) { data.AddBytes(e.data) })
			}
		})
	})
	return b.BytesOrPanic()
}

// records puts a message into records of at most n bytes.
func records(message []byte, n int) string {
	var out []byte
	for len(message) > 0 {
		part := message[:min(n, len(message))]
		out = append(binary.BigEndian.AppendUint16(append(out, 22, 3, 1), uint16(len(part))), part...)
		message = message[len(part):]
	}
	return string(out)
}

// helloAttack says a first message; an answer that is no handshake of a server is being stopped.
func helloAttack(name, text string) attack {
	return attack{"hello " + name, func(u *guest) (string, error) {
		c, err := u.dial("tcp4", allowedIP+":443")
		if err != nil {
			return "", err
		}
		if _, err := io.WriteString(c, text); err != nil {
			return "", err
		}
		head := make([]byte, 7)
		if _, err := io.ReadFull(c, head); err != nil {
			return "", err
		}
		return readOrAlert(string(head), nil)
	}}
}

// Ways to say one name and mean another, or to say none, in the first message of TLS.
func TestSpec_09_12_Hello_Attacks(t *testing.T) {
	t.Parallel()
	l := setup(t)
	u := l.computer(allowlist)
	l.sniff(l.internet, "eth0", "wire", expected)
	whole := func(e ...extension) string { return records(helloWith(e...), 1<<14) }
	good := serverNames("allowed.example")
	list := []attack{
		helloAttack("with ECH", whole(good, extension{extensionECH, []byte{0, 0, 1, 0, 1, 7, 0, 0, 0, 0}})),
		helloAttack("with ECH before the name", whole(extension{extensionECH, []byte{1}}, good)),
		helloAttack("with ESNI alone", whole(extension{0xffce, []byte{0, 0}})),
		helloAttack("two names in a list", whole(serverNames("allowed.example", "other.example"))),
		helloAttack("two name extensions", whole(good, serverNames("other.example"))),
		helloAttack("two name extensions, the other first", whole(serverNames("other.example"), good)),
		helloAttack("a NUL in the name", whole(serverNames("allowed.example\x00.other.example"))),
		helloAttack("a final dot", whole(serverNames("allowed.example.."))),
		helloAttack("an address as name", whole(serverNames(otherIP))),
		helloAttack("a decimal address as name", whole(serverNames("1572395043"))),
		helloAttack("an octal address as name", whole(serverNames("0135.0270.0330.0043"))),
		helloAttack("a hexadecimal address as name", whole(serverNames("0x5db8d823"))),
		helloAttack("a v6 address as name", whole(serverNames("::ffff:"+otherIP))),
		helloAttack("a name with a port", whole(serverNames("allowed.example:443"))),
		helloAttack("a name with a space", whole(serverNames("allowed.example other.example"))),
		helloAttack("a wildcard as name", whole(serverNames("*.wild.example"))),
		helloAttack("an empty name", whole(serverNames(""))),
		helloAttack("a Unicode name", whole(serverNames("\u0430llowed.example"))),
		helloAttack("another name in pieces", records(helloWith(serverNames("other.example")), 7)),
		helloAttack("a name of another kind", whole(extension{0, []byte{0, 18, 1, 0, 15, 'a', 'l', 'l', 'o', 'w', 'e', 'd', '.', 'e', 'x', 'a', 'm', 'p', 'l', 'e'}})),
		helloAttack("SSL 2", "\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10"),
		helloAttack("an alert first", "\x15\x03\x01\x00\x02\x01\x00"),
		helloAttack("application data first", "\x17\x03\x03\x00\x05hello"),
		helloAttack("a heartbeat", "\x18\x03\x02\x00\x03\x01\x40\x00"),
		helloAttack("an endless message", records(append([]byte{1, 255, 255, 255}, make([]byte, 1<<18)...), 1<<14)),
	}
	t.Logf("%d ways out", len(list))
	u.shut(list)
	// Controls: the same by hand, whole and in pieces, gets to the server.
	for what, text := range map[string]string{"whole": whole(good), "in pieces": records(helloWith(good), 7), "upper case": whole(serverNames("ALLOWED.Example"))} {
		if got, err := helloAttack(what, text).try(u); err != nil || !strings.HasPrefix(got, "\x16\x03") {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
	l.awaitAttempt(u.id, "tls allowed.example invalid AddrPort name_encrypted")
	if bad := lines(l.seen.all(), "wire:", "other", otherIP); len(bad) > 0 {
		t.Errorf("something arrived:\n%s", strings.Join(bad, "\n"))
	}
}

// Ways that HTTP offers to be read differently by two readers, and to be sent on elsewhere.
func TestSpec_09_14_HTTP_Attacks(t *testing.T) {
	t.Parallel()
	l := setup(t)
	u := l.computer(allowlist)
	l.sniff(l.internet, "eth0", "wire", expected)
	const head = "GET / HTTP/1.1\r\nHost: allowed.example\r\n"
	list := []attack{
		httpAttack("HTTP/2 without TLS", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"),
		httpAttack("HTTP/0.9", "GET http://other.example/\r\n\r\n"),
		httpAttack("a folded Host", "GET / HTTP/1.1\r\nHost:\r\n other.example\r\n\r\n"),
		httpAttack("a Host with a tab", "GET / HTTP/1.1\r\nHost: allowed.example\tother.example\r\n\r\n"),
		httpAttack("a Host with a NUL", "GET / HTTP/1.1\r\nHost: allowed.example\x00other.example\r\n\r\n"),
		httpAttack("a Host list", "GET / HTTP/1.1\r\nHost: allowed.example, other.example\r\n\r\n"),
		httpAttack("an empty Host", "GET / HTTP/1.1\r\nHost:\r\n\r\n"),
		httpAttack("a Unicode Host", "GET / HTTP/1.1\r\nHost: \u0430llowed.example\r\n\r\n"),
		httpAttack("an https target", "GET https://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n"),
		httpAttack("an ftp target", "GET ftp://allowed.example/ HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n"),
		httpAttack("a target with a user", "GET http://allowed.example@other.example/ HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n"),
		httpAttack("a negative length", head+"Content-Length: -1\r\n\r\n"),
		httpAttack("a length that is no number", head+"Content-Length: 5, 6\r\n\r\n"),
		httpAttack("a bare CR", "GET / HTTP/1.1\rHost: other.example\r\n\r\n"),
		httpAttack("a header without a name", head+": x\r\n\r\n"),
		{"http an unknown coding", func(u *guest) (string, error) {
			got, err := u.raw(allowedIP+":80", head+"Transfer-Encoding: xchunked\r\n\r\n")
			if strings.HasPrefix(got, "HTTP/1.1 501") {
				err = errStopped
			}
			return got, err
		}},
		{"http huge headers", func(u *guest) (string, error) {
			got, err := u.raw(allowedIP+":80", head+"X: "+strings.Repeat("x", 256<<10)+"\r\n\r\n")
			if strings.HasPrefix(got, "HTTP/1.1 431") {
				err = errStopped
			}
			return got, err
		}},
		{"http a redirect to another name", func(u *guest) (string, error) {
			got, err := u.raw(allowedIP+":80", "GET /redirect HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n")
			if err != nil || !strings.Contains(got, "Location: http://other.example/") {
				return "", fmt.Errorf("the control fails: %q, %w", got, err) // nobody follows it for the client
			}
			got, err = u.raw(allowedIP+":80", "GET / HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n")
			if strings.HasPrefix(got, "HTTP/1.1 403") {
				err = errStopped
			}
			return got, err
		}},
	}
	t.Logf("%d ways out", len(list))
	u.shut(list)
	// Hop-by-hop headers steer this hop only, and asking for HTTP/2 in the clear changes nothing.
	got, err := u.raw(allowedIP+":80", "GET /headers HTTP/1.1\r\nHost: allowed.example\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nProxy-Authorization: x\r\nX-Kept: 1\r\n\r\n")
	if err != nil || !strings.Contains(got, "X-Kept: 1") || strings.Contains(got, "Proxy-Authorization") || strings.Contains(got, "Http2-Settings") || strings.Contains(got, "101 ") {
		t.Errorf("h2c: %q, %v", got, err)
	}
	if bad := lines(l.seen.all(), "wire:", "host=other", otherIP); len(bad) > 0 {
		t.Errorf("something arrived:\n%s", strings.Join(bad, "\n"))
	}
}

// Packets that ordinary programs cannot send: pieces, options, other senders' hardware addresses.
func TestSpec_09_17_Odd_Packets(t *testing.T) {
	t.Parallel()
	l := setup(t)
	u, neighbour := l.computer(allowlist), l.computer(`{"blockAll":false}`)
	l.sniff(l.internet, "eth0", "wire", expected)
	l.sniff(l.lan, "eth0", "lan wire", func(string) bool { return false })
	own, other := l.g.computers[u.id].address().String(), l.g.computers[neighbour.id].address().String()
	for _, dst := range []string{otherIP, allowedIP, metadataIP, hostIP, lanIP, other} {
		// A datagram in two pieces, the ports in the first or, with a tiny first piece, in the second.
		datagram := udpPayload(123, "fragment")
		for _, cut := range []int{8, 16} {
			u.must(u.ipPacket(17, own, dst, 0x2000, nil, datagram[:min(cut, len(datagram))]))
			u.must(u.ipPacket(17, own, dst, uint16(cut/8), nil, datagram[min(cut, len(datagram)):]))
		}
		u.must(u.ipPacket(6, own, dst, 1, nil, make([]byte, 24))) // a piece without the first
		// Source routes, loose and strict, over the neighbour.
		for _, option := range []byte{131, 137} {
			route := append([]byte{option, 7, 4}, netip.MustParseAddr(other).AsSlice()...)
			u.must(u.ipPacket(17, own, dst, 0, append(route, 0), udpPayload(123, "routed")))
		}
		u.must(u.ipPacket(17, own, dst, 0, []byte{7, 7, 4, 0, 0, 0, 0, 0}, udpPayload(123, "recorded"))) // record route
		u.must(u.ipPacket(17, own, dst, 0, []byte{148, 4, 0, 0}, udpPayload(123, "alert")))              // router alert
	}
	// Frames in the name of the neighbour's and of the gateway's own hardware.
	for _, mac := range []net.HardwareAddr{gatewayMAC, {0x02, 0x68, 0x6c, 0x6d, 0, 2}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}} {
		for _, src := range []string{own, other} {
			u.must(u.frameFrom(mac, unix.ETH_P_IP, gatewayMAC, ipv4Packet(17, src, otherIP, 0, nil, udpPayload(123, "mac"))))
		}
	}
	// ICMP that tells the gateway of other ways, or of endings.
	u.must(u.packet(1, own, l.g.computers[u.id].gateway().String(), append([]byte{5, 1, 0, 0}, netip.MustParseAddr(other).AsSlice()...)))
	u.must(u.packet(1, own, "198.18.0.1", []byte{3, 4, 0, 0, 0, 0, 0, 68}))
	if m := u.ask("udp4", "allowed.example", dns.TypeA); len(m.Answer) != 1 { // the gateway has seen all of it
		t.Errorf("after the packets: %s", m)
	}
	if got, err := neighbour.udp(otherIP+":123", "control"); err != nil || got != "control" {
		t.Errorf("the neighbour: %q, %v", got, err)
	}
	if bad := lines(l.seen.all(), "fragment", "routed", "recorded", "alert", "mac", "lan wire", "udp lan", "udp host"); len(bad) > 0 {
		t.Errorf("something arrived:\n%s", strings.Join(bad, "\n"))
	}
}

// What is let out lets nothing else in: an answer counts only from where it was asked, and nobody connects to a Computer.
func TestSpec_09_10_Nothing_Comes_In(t *testing.T) {
	t.Parallel()
	l := setup(t)
	u := l.computer(`{"blockAll":false}`)
	listenInside(u, "9000")
	c, err := u.dial("udp4", otherIP+":123")
	l.must(err)
	_, err = io.WriteString(c, "hello")
	l.must(err)
	b := make([]byte, 100)
	n, err := c.Read(b)
	if err != nil || string(b[:n]) != "hello" {
		t.Fatalf("control: %q, %v", b[:n], err)
	}
	// The internet sends to every port of the host's address that the flow could have, from an address that was not asked.
	l.must(inside(l.internet, func() error {
		from, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(allowedIP), Port: 9999})
		if err != nil {
			return err
		}
		defer from.Close()
		for port := 1024; port < 65536; port += 1 {
			if _, err := from.WriteToUDP([]byte("intruder"), &net.UDPAddr{IP: net.ParseIP(hostIP), Port: port}); err != nil {
				return err
			}
		}
		for _, to := range []string{hostIP + ":9000", l.g.computers[u.id].address().String() + ":9000"} {
			if conn, err := net.DialTimeout("tcp4", to, 300*time.Millisecond); err == nil {
				conn.Close()
				t.Errorf("%s: connected from outside", to)
			}
		}
		return nil
	}))
	_, err = io.WriteString(c, "again")
	l.must(err)
	if n, err = c.Read(b); err != nil || string(b[:n]) != "again" {
		t.Errorf("what came: %q, %v", b[:n], err)
	}
}

// What one Computer uses up is its own: connections, questions, resolutions.
func TestSpec_09_17_Floods_Cost_One_Computer(t *testing.T) {
	t.Parallel()
	l := setup(t)
	u, neighbour := l.computer(allowlist), l.computer(allowlist)
	refusedOnes := 0
	for range maxLocal + 50 {
		c, err := u.dial("tcp4", allowedIP+":443") // and says nothing
		if err != nil {
			if !refused(err) {
				t.Fatalf("a connection too many waits: %v", err)
			}
			refusedOnes++
			continue
		}
		_ = c
	}
	if refusedOnes < 50 {
		t.Errorf("only %d connections were refused", refusedOnes)
	}
	l.awaitAttempt(u.id, "limit_reached")
	// A tunnel in questions: none of those that the policy does not name goes on, and the rate is bounded.
	q := new(dns.Msg)
	q.SetQuestion("x.evil.example.", dns.TypeTXT)
	wire, err := q.Pack()
	l.must(err)
	c, err := u.dial("udp4", resolverAddress.String()+":53")
	l.must(err)
	for range 20 * dnsPerSecond {
		_, _ = c.Write(wire)
	}
	answered := 0
	for b := make([]byte, 2048); ; answered++ {
		l.must(c.SetReadDeadline(time.Now().Add(300 * time.Millisecond)))
		if _, err := c.Read(b); err != nil {
			break
		}
	}
	if answered == 0 || answered > 10*dnsPerSecond {
		t.Errorf("%d of %d questions were answered", answered, 20*dnsPerSecond)
	}
	if got, err := neighbour.tls(allowedIP+":443", "allowed.example"); err != nil || !strings.HasPrefix(got, allowedIP+":443") {
		t.Errorf("the neighbour's TLS: %q, %v", got, err)
	}
	if m := neighbour.ask("udp4", "allowed.example", dns.TypeA); len(m.Answer) != 1 {
		t.Errorf("the neighbour's question: %s", m)
	}
	if bad := lines(l.seen.all(), "evil"); len(bad) > 0 {
		t.Errorf("questions went on:\n%s", bad[0])
	}
	for _, a := range lines(l.seen.all(), "dns TXT") {
		t.Errorf("went on: %s", a)
	}
}

// An author sees at once, and in words of the tools they use, that it was the policy.
func TestSpec_09_13_Refusals_Are_Understood(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	l := setup(t)
	u := l.computer(allowlist)
	curl := func(args ...string) string {
		var out []byte
		_ = inside(u.ns, func() (err error) {
			cmd := exec.CommandContext(t.Context(), "curl", append([]string{"--silent", "--show-error", "--insecure", "--noproxy", "*", "--max-time", "30"}, args...)...)
			out, err = cmd.CombinedOutput()
			return err
		})
		return string(out)
	}
	for what, v := range map[string]struct {
		args  []string
		parts []string
	}{
		"a name over TLS":  {[]string{"--resolve", "other.example:443:" + otherIP, "https://other.example/"}, []string{"alert", "denied"}},
		"an address, TLS":  {[]string{"https://" + otherIP + "/"}, []string{"alert", "denied"}},
		"a name over HTTP": {[]string{"--resolve", "other.example:80:" + otherIP, "http://other.example/"}, []string{"network policy of this Computer", "name_not_allowed"}},
		"an address, HTTP": {[]string{"http://" + otherIP + "/"}, []string{"network policy of this Computer", "name_invalid"}},
		"another port":     {[]string{"http://" + otherIP + ":8080/"}, []string{"Couldn't connect", "8080"}},
		"metadata":         {[]string{"http://" + metadataIP + ":8080/"}, []string{"Couldn't connect"}},
		"IPv6":             {[]string{"http://[2606:2800:220:1::1]/"}, []string{"Couldn't connect"}},
		"the control":      {[]string{"--resolve", "allowed.example:80:" + allowedIP, "http://allowed.example/"}, []string{allowedIP + ":80 allowed.example"}},
	} {
		text := curl(v.args...)
		for _, part := range v.parts {
			if !strings.Contains(strings.ToLower(text), strings.ToLower(part)) && !(part == "Couldn't connect" && strings.Contains(text, "Failed to connect")) {
				t.Errorf("%s: %q, want %q", what, text, part)
			}
		}
		if strings.Contains(text, "timed out") {
			t.Errorf("%s hangs: %s", what, text)
		}
	}
}
