package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/ipv4"

	"helmr.dev/helmr/internal/egress/policy"
	"helmr.dev/helmr/internal/id"
)

// Addresses of the lab's own internet. They exist in its namespaces only: no packet of a test leaves them.
const (
	allowedIP  = "93.184.216.34"
	otherIP    = "93.184.216.35"
	corpIP     = "10.20.0.5"
	metadataIP = "169.254.169.254"
	azureIP    = "168.63.129.16"
	cgnatIP    = "100.100.100.200"
	blockedIP  = "93.184.99.1"
	dnsIP      = "9.9.9.9"
	hostIP     = "81.2.69.2"
	lanIP      = "192.168.7.9"
)

// lab is a host with a gateway on it, an internet behind it, and a LAN beside it.
type lab struct {
	*testing.T
	g              *Gateway
	cfg            Config
	host, internet *os.File
	lan            *os.File
	seen           seen
	records        map[string][]string // name to addresses, or to "cname NAME"
}

// seen is what arrived at the servers.
type seen struct {
	mu   sync.Mutex
	list []string // guarded by mu
}

func (s *seen) add(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, fmt.Sprintf(format, args...))
}

func (s *seen) has(part string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(strings.Join(s.list, "\n"), part)
}

func (s *seen) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.list, "\n")
}

func setup(t *testing.T) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("network namespaces need root: run the tests as root")
	}
	l := &lab{T: t, records: map[string][]string{
		"allowed.example": {allowedIP}, "other.example": {otherIP}, "deep.a.wild.example": {otherIP}, "wild.example": {otherIP},
		"alias.example": {"cname allowed.example"}, "git.corp.example": {corpIP}, "public.corp.example": {allowedIP},
		"rebind.example": {corpIP}, "rebindmeta.example": {metadataIP}, "rebindazure.example": {azureIP}, "rebindhost.example": {hostIP},
		"rebindloop.example": {"127.0.0.1"}, "rebindlan.example": {lanIP}, "rebindself.example": {"198.18.0.1"}, "rebindcgnat.example": {cgnatIP},
		"rebindblocked.example": {blockedIP}, "rebindalias.example": {"cname git.corp.example"}, "rebindzero.example": {"0.0.0.0"},
		"mixed.example": {corpIP, allowedIP}, "empty.example": {},
	}}
	l.host, l.internet, l.lan = l.namespace("host"), l.namespace("inet"), l.namespace("lan")
	l.wire(l.host, "wan0", hostIP+"/24", l.internet, "81.2.69.1/24")
	l.wire(l.host, "lan0", "192.168.7.1/24", l.lan, lanIP+"/24")
	l.route(l.host, "81.2.69.1")
	l.route(l.lan, "192.168.7.1")
	for _, a := range []string{allowedIP, otherIP, corpIP, metadataIP, azureIP, cgnatIP, blockedIP, dnsIP} {
		l.address(l.internet, a)
	}
	l.serveInternet()
	l.serve(l.host, "host")
	l.serve(l.lan, "lan")
	l.cfg = Config{Dir: t.TempDir(), Resolvers: []netip.AddrPort{netip.MustParseAddrPort(dnsIP + ":53")},
		Blocked:  []netip.Prefix{netip.MustParsePrefix("93.184.99.0/24")},
		Business: []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16")}, HostNS: l.host, Log: slog.New(slog.DiscardHandler)}
	l.open()
	t.Cleanup(func() {
		for _, id := range l.g.List() {
			l.must(l.g.Remove(id))
		}
		l.must(l.g.Close())
		names, err := namespacesWith(l.g.names.gateway)
		if err != nil || len(names) > 0 {
			t.Errorf("left behind: %v, %v", names, err)
		}
	})
	return l
}

func (l *lab) open() {
	l.Helper()
	var err error
	l.g, err = Open(context.Background(), l.cfg)
	l.must(err)
}

func (l *lab) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

func (l *lab) namespace(what string) *os.File {
	l.Helper()
	b := make([]byte, 4)
	_, _ = rand.Read(b)
	name := "helmrtest-" + hex.EncodeToString(b) + "-" + what
	ns, err := makeNamespace(name)
	l.must(err)
	l.Cleanup(func() {
		ns.Close()
		l.must(deleteNamespace(name))
	})
	h := l.handle(ns)
	lo, err := h.LinkByName("lo")
	l.must(err)
	l.must(h.LinkSetUp(lo))
	return ns
}

func (l *lab) handle(ns *os.File) *netlink.Handle {
	h, err := handle(ns)
	l.must(err)
	l.Cleanup(h.Close)
	return h
}

func (l *lab) wire(a *os.File, name, addressA string, b *os.File, addressB string) {
	l.Helper()
	ha, hb := l.handle(a), l.handle(b)
	l.must(ha.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(b.Fd())}))
	for _, end := range []struct {
		h             *netlink.Handle
		name, address string
	}{{ha, name, addressA}, {hb, "eth0", addressB}} {
		link, err := end.h.LinkByName(end.name)
		l.must(err)
		addr, err := netlink.ParseAddr(end.address)
		l.must(err)
		l.must(end.h.AddrAdd(link, addr))
		l.must(end.h.LinkSetUp(link))
	}
	l.must(awaitUp(ha, name))
	l.must(awaitUp(hb, "eth0"))
}

func (l *lab) route(ns *os.File, gateway string) {
	l.must(l.handle(ns).RouteAdd(&netlink.Route{Dst: anywhere(), Gw: net.ParseIP(gateway)}))
}

func (l *lab) address(ns *os.File, a string) {
	h := l.handle(ns)
	lo, err := h.LinkByName("lo")
	l.must(err)
	l.must(h.AddrAdd(lo, network(netip.MustParseAddr(a), 32)))
}

// serve starts servers that answer everything on every address of a namespace and note what arrives.
func (l *lab) serve(ns *os.File, where string) {
	l.must(inside(ns, func() error {
		for _, port := range []string{"22", "80", "443", "8080", "853"} {
			ln, err := net.Listen("tcp4", ":"+port)
			if err != nil {
				return err
			}
			l.Cleanup(func() { ln.Close() })
			switch port {
			case "443":
				go l.acceptTLS(ln, where)
			case "80":
				go l.acceptHTTP(ln, where)
			default:
				go l.acceptEcho(ln, where)
			}
		}
		for _, port := range []int{123, 443, 5353} {
			pc, err := net.ListenUDP("udp4", &net.UDPAddr{Port: port})
			if err != nil {
				return err
			}
			l.Cleanup(func() { pc.Close() })
			p := ipv4.NewPacketConn(pc)
			if err := p.SetControlMessage(ipv4.FlagDst, true); err != nil {
				return err
			}
			go l.echoUDP(p, where, port)
		}
		return nil
	}))
}

// echoUDP answers from the address that was asked.
func (l *lab) echoUDP(p *ipv4.PacketConn, where string, port int) {
	buf := make([]byte, 2048)
	for {
		n, cm, from, err := p.ReadFrom(buf)
		if err != nil {
			return
		}
		l.seen.add("udp %s port %d: %q", where, port, buf[:n])
		_, _ = p.WriteTo(buf[:n], &ipv4.ControlMessage{Src: cm.Dst}, from)
	}
}

func (l *lab) acceptEcho(ln net.Listener, where string) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		l.seen.add("tcp %s %s", where, c.LocalAddr())
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}()
	}
}

func (l *lab) acceptTLS(ln net.Listener, where string) {
	cert := certificate(l.T)
	config := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}}
	for {
		raw, err := ln.Accept()
		if err != nil {
			return
		}
		l.seen.add("tcp %s %s", where, raw.LocalAddr())
		go func() {
			defer raw.Close()
			c := tls.Server(raw, config)
			if c.Handshake() != nil {
				return
			}
			l.seen.add("tls %s %s sni=%s", where, raw.LocalAddr(), c.ConnectionState().ServerName)
			fmt.Fprintf(c, "%s %s\n", raw.LocalAddr(), c.ConnectionState().ServerName)
			_, _ = io.Copy(c, c)
		}()
	}
}

func (l *lab) acceptHTTP(ln net.Listener, where string) {
	server := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		local := r.Context().Value(http.LocalAddrContextKey)
		l.seen.add("http %s %s host=%s path=%s", where, local, r.Host, r.URL)
		if strings.HasPrefix(r.URL.Path, "/redirect") {
			http.Redirect(w, r, "http://other.example/", http.StatusFound)
			return
		}
		if r.URL.Path == "/headers" {
			_ = r.Header.Write(w)
			return
		}
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s", local, r.Host, body)
	})}
	l.Cleanup(func() { server.Close() })
	_ = server.Serve(ln)
}

func (l *lab) serveInternet() {
	l.serve(l.internet, "internet")
	var pc net.PacketConn
	var ln net.Listener
	l.must(inside(l.internet, func() (err error) {
		if pc, err = net.ListenPacket("udp4", ":53"); err == nil {
			ln, err = net.Listen("tcp4", ":53")
		}
		return err
	}))
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		name := strings.ToLower(strings.TrimSuffix(q.Question[0].Name, "."))
		l.seen.add("dns %s %s from %s", dns.TypeToString[q.Question[0].Qtype], name, w.RemoteAddr())
		m := new(dns.Msg)
		m.SetReply(q)
		entries, ok := l.records[name]
		if !ok {
			m.Rcode = dns.RcodeNameError
		}
		header := func(name string, t uint16) dns.RR_Header {
			return dns.RR_Header{Name: dns.Fqdn(name), Rrtype: t, Class: dns.ClassINET, Ttl: 1}
		}
		for _, e := range entries {
			if target, ok := strings.CutPrefix(e, "cname "); ok {
				m.Answer = append(m.Answer, &dns.CNAME{Hdr: header(name, dns.TypeCNAME), Target: dns.Fqdn(target)})
				for _, a := range l.records[target] {
					m.Answer = append(m.Answer, &dns.A{Hdr: header(target, dns.TypeA), A: net.ParseIP(a)})
				}
				continue
			}
			m.Answer = append(m.Answer, &dns.A{Hdr: header(name, dns.TypeA), A: net.ParseIP(e)})
		}
		_ = w.WriteMsg(m)
	})
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: handler}, {Listener: ln, Handler: handler}} {
		l.Cleanup(func() { _ = s.Shutdown() })
		go func() { _ = s.ActivateAndServe() }()
	}
}

func certificate(t testing.TB) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// guest is somebody in a Computer's namespace with every right there: more than a program in a sandbox has.
type guest struct {
	*lab
	id string
	ns *os.File
}

const allowlist = `{"allowDomains":["allowed.example","alias.example","*.wild.example","mixed.example","empty.example","missing.example",` +
	`{"domain":"*.corp.example","ipRanges":["10.20.0.0/16"]},` +
	`"rebind.example","rebindmeta.example","rebindazure.example","rebindhost.example","rebindloop.example","rebindlan.example","rebindself.example",` +
	`"rebindcgnat.example","rebindblocked.example","rebindalias.example","rebindzero.example"]}`

func (l *lab) computer(policyText string) *guest {
	l.Helper()
	p, err := policy.Parse([]byte(policyText))
	l.must(err)
	u := &guest{lab: l, id: id.New()}
	n, err := l.g.Add(u.id, p)
	l.must(err)
	u.ns, err = os.Open(n.NetNS)
	l.must(err)
	l.Cleanup(func() { u.ns.Close() })
	return u
}

// patience only turns a hang into a failure.
const patience = 10 * time.Second

func (u *guest) dial(network, address string) (conn net.Conn, err error) {
	err = inside(u.ns, func() error {
		conn, err = net.DialTimeout(network, address, patience)
		return err
	})
	if err == nil {
		u.Cleanup(func() { conn.Close() })
		u.must(conn.SetDeadline(time.Now().Add(patience)))
	}
	return conn, err
}

// tls connects to an address with a name and gives the server's first line.
func (u *guest) tls(address, name string) (string, error) {
	raw, err := u.dial("tcp4", address)
	if err != nil {
		return "", err
	}
	c := tls.Client(raw, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err := c.Handshake(); err != nil {
		return "", err
	}
	return bufio.NewReader(c).ReadString('\n')
}

// raw sends bytes and gives everything that comes back.
func (u *guest) raw(address, text string) (string, error) {
	c, err := u.dial("tcp4", address)
	if err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

func (u *guest) udp(address, text string) (string, error) {
	c, err := u.dial("udp4", address)
	if err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	b := make([]byte, 2048)
	n, err := c.Read(b)
	return string(b[:n]), err
}

// ask sends a question to the Computer's resolver.
func (u *guest) ask(network, name string, kind uint16) *dns.Msg {
	u.Helper()
	q := new(dns.Msg)
	q.SetQuestion(dns.Fqdn(name), kind)
	q.SetEdns0(1232, false)
	reply, err := u.askAt(network, resolverAddress.String()+":53", q)
	if err != nil {
		tried, _ := u.g.Attempts(u.id)
		u.Fatalf("ask %s: %v; attempts %+v; arrived:\n%s", name, err, tried, u.seen.all())
	}
	return reply
}

func (u *guest) askAt(network, server string, q *dns.Msg) (*dns.Msg, error) {
	raw, err := u.dial(network, server)
	if err != nil {
		return nil, err
	}
	c := &dns.Conn{Conn: raw}
	if err := c.WriteMsg(q); err != nil {
		return nil, err
	}
	return c.ReadMsg()
}

func addressesOf(m *dns.Msg) (list []string) {
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			list = append(list, a.A.String())
		}
	}
	return list
}

// refused tells whether an error says that somebody refused: not a timeout.
func refused(err error) bool {
	var timeout net.Error
	return err != nil && !(errors.As(err, &timeout) && timeout.Timeout())
}

var _ = bytes.MinRead
