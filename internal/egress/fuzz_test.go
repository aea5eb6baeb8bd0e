package egress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/miekg/dns"
	"golang.org/x/crypto/cryptobyte"

	"helmr.dev/helmr/internal/egress/policy"
)

// naiveHello reads the names of a ClientHello again, in another way: everything that any reader could take for a server
// name, and whether there is an ECH extension. ok says that it is a whole ClientHello.
func naiveHello(b []byte) (names []string, ech, ok bool) {
	var message []byte
	for s := cryptobyte.String(b); len(s) > 0; {
		var kind uint8
		var version uint16
		var fragment cryptobyte.String
		if !s.ReadUint8(&kind) || !s.ReadUint16(&version) || !s.ReadUint16LengthPrefixed(&fragment) || kind != 22 {
			break
		}
		message = append(message, fragment...)
	}
	s := cryptobyte.String(message)
	var kind uint8
	var hello, session, suites, compressions, extensions cryptobyte.String
	if !s.ReadUint8(&kind) || kind != 1 || !s.ReadUint24LengthPrefixed(&hello) || !hello.Skip(34) || !hello.ReadUint8LengthPrefixed(&session) ||
		!hello.ReadUint16LengthPrefixed(&suites) || !hello.ReadUint8LengthPrefixed(&compressions) {
		return nil, false, false
	}
	if hello.Empty() {
		return nil, false, true
	}
	if !hello.ReadUint16LengthPrefixed(&extensions) || !hello.Empty() {
		return nil, false, false
	}
	for !extensions.Empty() {
		var number uint16
		var data, list cryptobyte.String
		if !extensions.ReadUint16(&number) || !extensions.ReadUint16LengthPrefixed(&data) {
			return names, ech, false
		}
		ech = ech || number == extensionECH
		if number != 0 || !data.ReadUint16LengthPrefixed(&list) {
			continue
		}
		for !list.Empty() {
			var kind uint8
			var name cryptobyte.String
			if !list.ReadUint8(&kind) || !list.ReadUint16LengthPrefixed(&name) {
				return names, ech, false
			}
			names = append(names, string(name))
		}
	}
	return names, ech, true
}

// helloFor gives what a client says first.
func helloFor(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	go func() { _ = tls.Client(theirs, config).Handshake() }()
	defer ours.Close()
	head := make([]byte, 5)
	if _, err := io.ReadFull(ours, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint16(head[3:]))
	if _, err := io.ReadFull(ours, body); err != nil {
		t.Fatal(err)
	}
	return append(head, body...)
}

// Whatever a client says first: what is let through carries one name, the one that is judged, and is passed on as it was.
func FuzzHello(f *testing.F) {
	plain := helloFor(f, &tls.Config{ServerName: "allowed.example", NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12})
	f.Add(plain)
	f.Add(helloFor(f, &tls.Config{InsecureSkipVerify: true}))
	f.Add(append(bytes.Clone(plain), plain...))
	// The same message over two records, cut within the name.
	if at := bytes.Index(plain, []byte("allowed.example")); at > 5 {
		split := append([]byte{22, 3, 1}, binary.BigEndian.AppendUint16(nil, uint16(at-5+4))...)
		split = append(split, plain[5:at+4]...)
		split = append(append(split, 22, 3, 1), binary.BigEndian.AppendUint16(nil, uint16(len(plain)-at-4))...)
		f.Add(append(split, plain[at+4:]...))
	}
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte{22, 3, 1, 0, 4, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		name, read, reason := readHello(bytes.NewReader(data))
		if reason != "" {
			// What is no TLS at all may be passed on unread, where a policy is open. A name that is refused is not.
			if read != nil && (reason != policy.ReasonProtocol || name != "" || !bytes.HasPrefix(data, read)) {
				t.Fatalf("refused with %s, but %d bytes handed on as %q", reason, len(read), name)
			}
			return
		}
		if !bytes.HasPrefix(data, read) {
			t.Fatal("what is passed on is not what was said")
		}
		if normal, ok := policy.NormalizeName(name); !ok || normal != name {
			t.Fatalf("%q is not in normal form", name)
		}
		names, ech, ok := naiveHello(read)
		if !ok || ech || len(names) != 1 || !strings.EqualFold(names[0], name) {
			t.Fatalf("judged as %q, but it has the names %q (ECH %t, whole %t)", name, names, ech, ok)
		}
	})
}

// Whatever a request says it is for, the name that is judged is the one it is passed on to.
func FuzzRequestName(f *testing.F) {
	for _, host := range []string{"allowed.example", "ALLOWED.example.:80", "allowed.example:8080", "[::1]", "2852039166", "a@b.example", "a b", "", "xn--a.example", "allowed.example\x00"} {
		f.Add("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
	}
	f.Add("GET http://other.example/ HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
	f.Add("CONNECT allowed.example:443 HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
	f.Add("GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n")
	f.Add("GET //other.example/ HTTP/1.1\r\nHost:\tallowed.example \r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return
		}
		name, reason := requestName(r)
		if reason != "" {
			return
		}
		if normal, ok := policy.NormalizeName(name); !ok || normal != name {
			t.Fatalf("%q is not in normal form", name)
		}
		host, port, found := strings.Cut(r.Host, ":")
		if got, ok := policy.NormalizeName(host); !ok || got != name || (found && port != "80") {
			t.Fatalf("judged as %q, but it says %q", name, r.Host)
		}
	})
}

// Whatever a Computer asks and whatever a resolver answered, it gets addresses that its policy permits and nothing else.
func FuzzQuestion(f *testing.F) {
	add := func(change func(*dns.Msg)) {
		q := new(dns.Msg)
		q.SetQuestion("allowed.example.", dns.TypeA)
		change(q)
		wire, err := q.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
	}
	add(func(*dns.Msg) {})
	add(func(q *dns.Msg) { q.SetEdns0(1232, true) })
	add(func(q *dns.Msg) { q.Question[0].Name, q.Question[0].Qtype = "tunnel.allowed.example.", dns.TypeTXT })
	add(func(q *dns.Msg) { q.Question = append(q.Question, q.Question[0]) })
	add(func(q *dns.Msg) { q.Response = true })
	add(func(q *dns.Msg) { q.Opcode = dns.OpcodeUpdate })
	add(func(q *dns.Msg) { q.Question[0].Name = "A.localhost." })
	f.Add([]byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1}) // a name that points at itself
	g := &Gateway{cfg: Config{Log: slog.New(slog.DiscardHandler)}, computers: map[string]*computer{}, bySource: map[netip.Addr]*computer{}}
	g.resolver = newResolver(g)
	g.resolver.cache["allowed.example"] = answer{exists: true, until: time.Now().Add(time.Hour), addresses: []netip.Addr{netip.MustParseAddr(allowedIP), netip.MustParseAddr(metadataIP), netip.MustParseAddr(corpIP)}}
	c := g.newComputer(record{ID: "c", Slot: 1, Policy: policy.Policy{AllowDomains: []policy.Entry{{Pattern: "allowed.example"}}}})
	f.Fuzz(func(t *testing.T, wire []byte) {
		q := new(dns.Msg)
		if q.Unpack(wire) != nil {
			return
		}
		reply := g.answer(c, q)
		if reply == nil {
			return
		}
		if !reply.Response || reply.Id != q.Id || len(reply.Ns) > 0 {
			t.Fatalf("no answer to the question: %s", reply)
		}
		for _, rr := range reply.Answer {
			a, ok := rr.(*dns.A)
			if !ok || (a.A.String() != allowedIP && !a.A.IsLoopback()) {
				t.Fatalf("it got %s", rr)
			}
		}
		if _, err := reply.Pack(); err != nil && !strings.Contains(err.Error(), "bad") {
			t.Fatalf("an answer that cannot be sent: %v", err)
		}
	})
}

// An answer from upstream is followed to a bounded number of IPv4 addresses of the name that was asked for.
func FuzzUpstreamAnswer(f *testing.F) {
	m := new(dns.Msg)
	m.SetQuestion("a.example.", dns.TypeA)
	for _, s := range []string{"a.example. 5 IN CNAME b.example.", "b.example. 5 IN CNAME a.example.", "b.example. 5 IN A 10.0.0.1", "other.example. 5 IN A 10.0.0.2"} {
		rr, err := dns.NewRR(s)
		if err != nil {
			f.Fatal(err)
		}
		m.Answer = append(m.Answer, rr)
	}
	wire, err := m.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(wire)
	f.Fuzz(func(t *testing.T, wire []byte) {
		reply := new(dns.Msg)
		if reply.Unpack(wire) != nil {
			return
		}
		a := read("a.example", reply)
		if len(a.addresses) > maxAnswers || time.Until(a.until) > maxTTL {
			t.Fatalf("%d addresses until %s", len(a.addresses), a.until)
		}
		if slices.ContainsFunc(a.addresses, func(ip netip.Addr) bool { return !ip.Is4() }) {
			t.Fatalf("not IPv4: %v", a.addresses)
		}
	})
}

// What the kernel tells of packets holds bytes of the guest.
func FuzzPacketNote(f *testing.F) {
	f.Add(slices.Concat([]byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0}, netip.MustParseAddr("198.18.0.6").AsSlice(), netip.MustParseAddr(otherIP).AsSlice(), udpPayload(53, "x")))
	f.Add([]byte{0x4f, 0, 0, 20, 0, 0, 0x20, 1, 64, 6, 0, 0, 198, 18, 0, 6, 127, 0, 0, 1})
	g := &Gateway{computers: map[string]*computer{}, bySource: map[netip.Addr]*computer{}}
	c := g.newComputer(record{ID: "c", Slot: 1})
	g.bySource[c.address()] = c
	f.Fuzz(func(t *testing.T, packet []byte) {
		attributes, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: ulogPayload, Data: packet[:min(len(packet), noteBytes)]}})
		if err != nil {
			t.Fatal(err)
		}
		g.note(netlink.Message{Header: netlink.Header{Type: ulogPacket}, Data: append([]byte{2, 0, 0, 1}, attributes...)})
		for _, a := range c.attempts.list() {
			if a.Reason == "" || !a.Address.Addr().Is4() {
				t.Fatalf("%+v", a)
			}
		}
	})
}
