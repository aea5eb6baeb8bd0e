package egress

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"helmr.dev/helmr/internal/egress/policy"
)

// A Gateway closes also while it looks at the host's addresses.
func TestCloseWhileTheHostIsLookedAt(t *testing.T) {
	t.Parallel()
	l := setup(t)
	for range 20 {
		cfg := l.cfg
		cfg.Dir, cfg.refreshEvery = t.TempDir(), time.Microsecond
		g, err := Open(t.Context(), cfg)
		l.must(err)
		closed := make(chan error, 1)
		go func() { closed <- g.Close() }()
		select {
		case err := <-closed:
			l.must(err)
		case <-time.After(time.Minute):
			t.Fatal("the Gateway does not close")
		}
	}
}

// Two Workers on one host share what is changed on it.
func TestTwoWorkersShareAHost(t *testing.T) {
	t.Parallel()
	l := setup(t)
	first := l.computer(`{"blockAll":false}`)
	if got := l.g.forwarding("wan0"); got != "1" {
		t.Fatalf("wan0 forwards: %q", got)
	}
	cfg := l.cfg
	cfg.Dir = t.TempDir()
	other, err := Open(t.Context(), cfg)
	l.must(err)
	n, err := other.Add("second", policy.Policy{})
	l.must(err)
	u := &guest{lab: l, id: "second"}
	u.ns, err = os.Open(n.NetNS)
	l.must(err)
	t.Cleanup(func() { u.ns.Close() })
	for _, g := range []*guest{first, u} {
		if got, err := g.udp(otherIP+":123", "hello"); err != nil || got != "hello" {
			t.Errorf("%s: %q, %v", g.id, got, err)
		}
	}
	l.must(l.g.Remove(first.id))
	l.must(l.g.Close())
	if got, err := u.udp(otherIP+":123", "still"); err != nil || got != "still" {
		t.Errorf("after the first Worker left: %q, %v", got, err)
	}
	l.must(other.Remove("second"))
	l.must(other.Close())
	if got := other.forwarding("wan0"); got != "0" {
		t.Errorf("wan0 forwards after both left: %q", got)
	}
	out := ""
	l.must(inside(l.host, func() error {
		b, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
		out = string(b)
		return err
	}))
	if strings.Contains(out, "helmr") {
		t.Errorf("rules are left on the host:\n%s", out)
	}
	l.open()
}

// A crash between any two steps leaves nothing that the next start does not remove.
func TestLeftoversAreSwept(t *testing.T) {
	t.Parallel()
	l := setup(t)
	u := l.computer(allowlist)
	l.must(l.g.deleteRecord(l.g.computers[u.id]))
	l.must(l.g.shut())
	l.open()
	if got := l.g.List(); len(got) != 0 {
		t.Errorf("it is still there: %v", got)
	}
	names, err := namespacesWith(l.g.names.gateway + "-")
	if err != nil || len(names) != 0 {
		t.Errorf("namespaces are left: %v, %v", names, err)
	}
	if _, err := l.g.inner.LinkByName("c1"); !missing(err) {
		t.Errorf("its link is left: %v", err)
	}
}

// While the process that serves dies and comes back, again and again, nothing that is refused gets through: rules are
// the kernel's, and are replaced in one transaction.
func TestSpec_09_17_Rules_Have_No_Gap(t *testing.T) {
	t.Parallel()
	l := setup(t)
	u, o := l.computer(allowlist), l.computer(`{"blockAll":false}`)
	unwanted := []string{metadataIP, corpIP, blockedIP, lanIP}
	l.sniff(l.internet, "eth0", "wire", func(line string) bool {
		f := strings.Fields(line)
		return !slices.ContainsFunc(unwanted, func(dst string) bool { return len(f) == 5 && f[3] == dst }) && !strings.HasSuffix(line, " 53")
	})
	l.sniff(l.lan, "eth0", "lan wire", func(string) bool { return false })
	stop, done := make(chan struct{}), make(chan int)
	for _, g := range []*guest{u, o} {
		own := l.g.computers[g.id].address().String()
		targets := unwanted
		if g == u {
			targets = append([]string{otherIP, allowedIP}, unwanted...)
		}
		fd, to := g.rawSocket()
		go func() {
			sent := 0
			defer func() { done <- sent }()
			for {
				for _, dst := range targets {
					for _, port := range []int{123, 443, 5353} {
						frame := slices.Concat(gatewayMAC, gatewayMAC, []byte{8, 0}, ipv4Packet(17, own, dst, 0, nil, udpPayload(port, "gap of "+g.id)))
						if err := unix.Sendto(fd, frame, 0, to); err == nil {
							sent++
						}
					}
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
	}
	for range 15 {
		l.must(l.g.shut()) // as a process that is killed: nothing is put in order
		l.open()
	}
	close(stop)
	for range 2 {
		if sent := <-done; sent < 1000 {
			t.Errorf("only %d packets were tried", sent)
		}
	}
	if bad := lines(l.seen.all(), "gap of "+u.id, "wire:"); len(bad) > 0 {
		t.Errorf("something arrived:\n%s", strings.Join(bad[:min(10, len(bad))], "\n"))
	}
	if got, err := o.udp(otherIP+":123", "control"); err != nil || got != "control" {
		t.Errorf("control: %q, %v", got, err)
	}
	if got, err := u.tls(allowedIP+":443", "allowed.example"); err != nil || !strings.HasPrefix(got, allowedIP) {
		t.Errorf("control: %q, %v", got, err)
	}
}

// Nothing of a Computer's network outlives it, and who gets its address later inherits nothing.
func TestSpec_09_17_Rules_Vanish_With_The_Computer(t *testing.T) {
	t.Parallel()
	l := setup(t)
	stays := l.computer(allowlist)
	for _, p := range []string{allowlist, `{"blockAll":false}`} {
		u := l.computer(p)
		c := l.g.computers[u.id]
		_, _ = u.udp(otherIP+":123", "flow")
		l.must(l.g.Remove(u.id))
		if names, err := namespacesWith(c.namespace); err != nil || len(names) > 0 {
			t.Errorf("its namespace is left: %v, %v", names, err)
		}
		if _, err := l.g.inner.LinkByName(c.link()); !missing(err) {
			t.Errorf("its link is left: %v", err)
		}
		if _, err := os.Stat(l.g.recordPath(u.id)); !os.IsNotExist(err) {
			t.Errorf("its record is left: %v", err)
		}
		if list, _ := l.g.Attempts(u.id); list != nil || l.g.at(c.address()) != nil {
			t.Error("the gateway remembers it")
		}
		conn, err := l.g.rules.conn()
		l.must(err)
		for set, what := range map[*nftables.Set]string{l.g.rules.members: "members", l.g.rules.listed: "listed", l.g.rules.open: "open"} {
			elements, err := conn.GetSetElements(set)
			l.must(err)
			for _, e := range elements {
				if strings.HasPrefix(string(e.Key), c.link()+"\x00") {
					t.Errorf("it is left in the set %s", what)
				}
			}
		}
		flows, err := l.g.inner.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		l.must(err)
		for _, f := range flows {
			if f.Forward.SrcIP.String() == c.address().String() {
				t.Errorf("a connection is left: %s", f)
			}
		}
	}
	if got, err := stays.tls(allowedIP+":443", "allowed.example"); err != nil || !strings.HasPrefix(got, allowedIP) {
		t.Errorf("the one that stays: %q, %v", got, err)
	}
}

// What is named as the installation's own is denied under every policy, also when it is public, is named by an entry, or
// lies in a business range.
func TestSpec_21_06_The_Installation_Is_Denied(t *testing.T) {
	t.Parallel()
	l := setup(t)
	l.must(l.g.Close())
	l.cfg.Blocked = append(l.cfg.Blocked, netip.MustParsePrefix(otherIP+"/32"), netip.MustParsePrefix(corpIP+"/32")) // a server, a database
	l.open()
	l.records["server.example"] = []string{otherIP}
	u := l.computer(`{"allowDomains":["server.example","allowed.example",{"domain":"git.corp.example","ipRanges":["10.20.0.0/16"]}]}`)
	o := l.computer(`{"blockAll":false}`)
	u.shut([]attack{
		dnsAttack("server.example", dns.TypeA), tlsAttack(otherIP+":443", "server.example"), dnsAttack("git.corp.example", dns.TypeA),
		tlsAttack(corpIP+":443", "git.corp.example"), httpAttack("to a server", "GET / HTTP/1.1\r\nHost: server.example\r\nConnection: close\r\n\r\n"),
	})
	o.shut([]attack{dialAttack("tcp4", otherIP+":8080"), dialAttack("tcp4", corpIP+":8080"), udpAttack(otherIP + ":123"), dnsAttack("server.example", dns.TypeA)})
	l.awaitAttempt(u.id, "server.example invalid AddrPort destination_denied")
	if got, err := u.tls(otherIP+":443", "allowed.example"); err != nil || !strings.HasPrefix(got, allowedIP) {
		t.Errorf("control: %q, %v", got, err)
	}
}

// What the server tells is denied from then on, also after a restart, until it tells otherwise.
func TestSpec_21_06_What_The_Server_Tells_Is_Denied(t *testing.T) {
	t.Parallel()
	l := setup(t)
	l.records["server.example"] = []string{otherIP}
	u := l.computer(`{"allowDomains":["server.example","allowed.example"]}`)
	o := l.computer(`{"blockAll":false}`)
	if got, err := u.tls(otherIP+":443", "server.example"); err != nil || !strings.HasPrefix(got, otherIP) {
		t.Fatalf("control: %q, %v", got, err)
	}
	flow, err := o.dial("tcp4", otherIP+":8080")
	l.must(err)
	echo := func() error {
		if _, err := io.WriteString(flow, "x"); err != nil {
			return err
		}
		_, err := io.ReadFull(flow, make([]byte, 1))
		return err
	}
	l.must(echo())

	if err := l.g.Deny([]netip.Addr{netip.MustParseAddr("::1"), netip.MustParseAddr(otherIP), {}}); err == nil || !strings.Contains(err.Error(), "::1") {
		t.Errorf("addresses that are none: %v", err)
	}
	refuse := func(when string) {
		u.shut([]attack{dnsAttack("server.example", dns.TypeA), tlsAttack(otherIP+":443", "server.example"), httpAttack("to a server", "GET / HTTP/1.1\r\nHost: server.example\r\nConnection: close\r\n\r\n")})
		o.shut([]attack{dialAttack("tcp4", otherIP+":8080"), udpAttack(otherIP + ":123"), dnsAttack("server.example", dns.TypeA)})
		if got, err := u.tls(allowedIP+":443", "allowed.example"); err != nil || !strings.HasPrefix(got, allowedIP) {
			t.Errorf("control %s: %q, %v", when, got, err)
		}
	}
	refuse("at once")
	l.must(flow.SetDeadline(time.Now().Add(time.Second)))
	if err := echo(); err == nil {
		t.Error("a connection of before goes on")
	}
	l.must(l.g.shut())
	l.open()
	refuse("after a restart")

	l.must(l.g.Deny(nil))
	if got, err := u.tls(otherIP+":443", "server.example"); err != nil || !strings.HasPrefix(got, otherIP) {
		t.Errorf("denied no more: %q, %v", got, err)
	}
	if got, err := o.udp(otherIP+":123", "again"); err != nil || got != "again" {
		t.Errorf("denied no more: %q, %v", got, err)
	}
	if got := fmt.Sprint(l.g.Addresses()); got != "["+hostIP+" 192.168.7.1]" && got != "[192.168.7.1 "+hostIP+"]" {
		t.Errorf("the host's own: %s", got)
	}
	many := make([]netip.Addr, 0, MaxTold+1)
	for a := netip.MustParseAddr("20.0.0.0"); len(many) <= MaxTold; a = a.Next() {
		many = append(many, a)
	}
	if err := l.g.Deny(many); err == nil || !strings.Contains(err.Error(), "too many") || len(l.g.told) != MaxTold {
		t.Errorf("too many: %v, %d", err, len(l.g.told))
	}
}

func TestAllButIsTheRest(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 3))
	for range 2000 {
		var list []netip.Prefix
		for range r.IntN(6) {
			list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(r.IntN(4)) * 85, byte(r.IntN(2)), 0, byte(r.IntN(3))}), r.IntN(33)).Masked())
		}
		elements := allBut(list)
		has := func(a netip.Addr) (inside bool) {
			for _, e := range elements {
				if slices.Compare(e.Key, a.AsSlice()) <= 0 {
					inside = !e.IntervalEnd
				}
			}
			return inside
		}
		points := []netip.Addr{netip.IPv4Unspecified(), netip.MustParseAddr("255.255.255.255"), netip.MustParseAddr("85.1.0.1")}
		for _, p := range list {
			for _, a := range []netip.Addr{p.Addr(), p.Addr().Prev(), lastAddress(p), lastAddress(p).Next()} {
				if a.IsValid() && a.Is4() {
					points = append(points, a)
				}
			}
		}
		for _, a := range points {
			denied := slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
			if has(a) == denied {
				t.Fatalf("seed %d: %s, with %v denied: %v", seed, a, list, elements)
			}
		}
	}
}

func lastAddress(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		b[bit/8] |= 1 << (7 - bit%8)
	}
	return netip.AddrFrom4(b)
}
