package egress

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"helmr.dev/helmr/internal/egress/policy"
)

// Ports of the gateway. Computers reach the proxies only where their connections are redirected to.
const (
	portDNS  = 53
	portTLS  = 15443
	portHTTP = 15080
)

// Bounds that the kernel holds for each Computer.
const (
	maxFlows       = 1024 // connections and UDP flows to the outside under an open policy
	maxLocal       = 320  // connections to the gateway: proxied ones and DNS over TCP
	dnsPerSecond   = 500
	notesPerSecond = 20 // packets that are told of
)

// rules are the gateway's own: one table for IPv4, one that drops all IPv6. A Computer is an element of sets and no
// rule of its own, so adding one does not depend on how many there are.
type rules struct {
	ns    *os.File
	table *nftables.Table

	members *nftables.Set // interface and source address of every Computer: what does not match is dropped
	caught  *nftables.Set // interface and port: what goes there under an open policy ends in the proxy of TLS
	listed  *nftables.Set // interfaces of Computers with an allowlist
	open    *nftables.Set // interfaces of Computers with an open policy
	public  *nftables.Set // destinations that no rule of the installation denies: what is not in it is refused
	flows   *nftables.Set // connections counted by interface
	local   *nftables.Set
	asked   *nftables.Set // rate of DNS questions by interface
	refused *nftables.Set // rate of refused packets that are noted, by interface
	passed  *nftables.Set // rate of new flows that are noted, by interface
	// notes tells whether the kernel can tell of packets.
	notes bool
}

func newRules(ns *os.File) *rules {
	r := &rules{ns: ns, table: &nftables.Table{Family: nftables.TableFamilyIPv4, Name: "helmr"}}
	set := func(name string, key nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{Table: r.table, Name: name, KeyType: key}
	}
	r.members = set("members", nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr))
	r.members.Concatenation = true
	r.caught = set("caught", nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeInetService))
	r.caught.Concatenation = true
	r.listed, r.open = set("listed", nftables.TypeIFName), set("open", nftables.TypeIFName)
	r.public = set("public", nftables.TypeIPAddr)
	r.public.Interval = true
	r.flows, r.local, r.asked = set("flows", nftables.TypeIFName), set("local", nftables.TypeIFName), set("asked", nftables.TypeIFName)
	r.refused, r.passed = set("refused", nftables.TypeIFName), set("passed", nftables.TypeIFName)
	for _, s := range r.dynamic() {
		s.Dynamic, s.Size = true, 1<<16
	}
	return r
}

func (r *rules) dynamic() []*nftables.Set {
	return []*nftables.Set{r.flows, r.local, r.asked, r.refused, r.passed}
}

func (r *rules) conn() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.WithNetNSFd(int(r.ns.Fd())))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, nil
}

func element(m *computer) []nftables.SetElement {
	return []nftables.SetElement{{Key: append(ifname(m.link()), m.address().AsSlice()...)}}
}

// install replaces all rules in one transaction: there is no moment without them. A kernel that cannot tell of packets
// does without.
func (r *rules) install(computers []*computer, denied []netip.Prefix) error {
	r.notes = true
	err := r.replace(computers, denied)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		r.notes = false
		err = r.replace(computers, denied)
	}
	return err
}

func (r *rules) replace(computers []*computer, denied []netip.Prefix) error {
	c, err := r.conn()
	if err != nil {
		return err
	}
	six := &nftables.Table{Family: nftables.TableFamilyIPv6, Name: "helmr"}
	for _, t := range []*nftables.Table{r.table, six} {
		c.AddTable(t) // so that there is one to delete
		c.DelTable(t)
		c.AddTable(t)
	}
	drop := nftables.ChainPolicyDrop
	for name, hook := range map[string]*nftables.ChainHook{"input": nftables.ChainHookInput, "forward": nftables.ChainHookForward, "output": nftables.ChainHookOutput} {
		c.AddChain(&nftables.Chain{Table: six, Name: name, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityFilter, Policy: &drop})
	}
	for _, s := range append(r.dynamic(), r.members, r.caught, r.listed, r.open, r.public) {
		if err := c.AddSet(s, nil); err != nil {
			return fmt.Errorf("add nftables set: %w", err)
		}
	}
	if err := c.SetAddElements(r.public, allBut(denied)); err != nil {
		return fmt.Errorf("add nftables elements: %w", err)
	}
	for _, m := range computers {
		if err := r.addElements(c, m); err != nil {
			return err
		}
	}
	r.chains(c)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("install nftables rules: %w", err)
	}
	return nil
}

func (r *rules) chains(c *nftables.Conn) {
	drop, accept := nftables.ChainPolicyDrop, nftables.ChainPolicyAccept
	base := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority, p *nftables.ChainPolicy) *nftables.Chain {
		return c.AddChain(&nftables.Chain{Table: r.table, Name: name, Type: kind, Hooknum: hook, Priority: priority, Policy: p})
	}
	reject := c.AddChain(&nftables.Chain{Table: r.table, Name: "reject"})
	refuse := c.AddChain(&nftables.Chain{Table: r.table, Name: "refuse"})
	exceed := c.AddChain(&nftables.Chain{Table: r.table, Name: "exceed"})
	arrive := base("arrive", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityMangle, &drop)
	steer := base("steer", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, &accept)
	input := base("input", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter, &drop)
	forward := base("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter, &drop)
	output := base("output", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter, &drop)
	leave := base("leave", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource, &accept)
	rule := func(chain *nftables.Chain, parts ...[]expr.Any) {
		c.AddRule(&nftables.Rule{Table: r.table, Chain: chain, Exprs: slices.Concat(parts...)})
	}

	rule(arrive, load(expr.MetaKeyIIFNAME, 1), sourceAddress(unix.NFT_REG32_00+4), in(r.members, 1), verdict(expr.VerdictAccept))
	rule(arrive, interfaceIs(expr.MetaKeyIIFNAME, uplinkInside), state(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), verdict(expr.VerdictAccept))

	for port, to := range map[uint16]uint16{443: portTLS, 80: portHTTP} {
		rule(steer, load(expr.MetaKeyIIFNAME, 1), in(r.listed, 1), protocolIs(unix.IPPROTO_TCP), portIs(port),
			[]expr.Any{&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(to)}, &expr.Redir{RegisterProtoMin: 1}})
	}

	caught := slices.Concat(load(expr.MetaKeyIIFNAME, 1), port(unix.NFT_REG32_00+4), in(r.caught, 1))
	rule(steer, protocolIs(unix.IPPROTO_TCP), caught,
		[]expr.Any{&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(portTLS)}, &expr.Redir{RegisterProtoMin: 1}})

	rule(input, state(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), verdict(expr.VerdictAccept))
	rule(input, state(expr.CtStateBitINVALID), verdict(expr.VerdictDrop))
	rule(input, protocolIs(unix.IPPROTO_UDP), destinationIs(resolverAddress), portIs(portDNS), load(expr.MetaKeyIIFNAME, 1),
		[]expr.Any{&expr.Dynset{SrcRegKey: 1, SetName: r.asked.Name, SetID: r.asked.ID, Operation: unix.NFT_DYNSET_OP_UPDATE,
			Exprs: []expr.Any{&expr.Limit{Type: expr.LimitTypePkts, Rate: dnsPerSecond, Unit: expr.LimitTimeSecond, Burst: dnsPerSecond, Over: true}}}},
		verdict(expr.VerdictDrop))
	rule(input, protocolIs(unix.IPPROTO_UDP), destinationIs(resolverAddress), portIs(portDNS), verdict(expr.VerdictAccept))
	rule(input, overCount(r.local, maxLocal), jump(exceed))
	rule(input, protocolIs(unix.IPPROTO_TCP), destinationIs(resolverAddress), portIs(portDNS), verdict(expr.VerdictAccept))
	for _, port := range []uint16{portTLS, portHTTP} {
		rule(input, load(expr.MetaKeyIIFNAME, 1), in(r.listed, 1), protocolIs(unix.IPPROTO_TCP), portIs(port), redirected(), verdict(expr.VerdictAccept))
	}
	rule(input, load(expr.MetaKeyIIFNAME, 1), in(r.open, 1), protocolIs(unix.IPPROTO_TCP), portIs(portTLS), redirected(), verdict(expr.VerdictAccept))
	rule(input, jump(refuse))

	rule(forward, state(expr.CtStateBitINVALID), verdict(expr.VerdictDrop))
	rule(forward, interfaceIs(expr.MetaKeyIIFNAME, uplinkInside), state(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), verdict(expr.VerdictAccept))
	// No HTTP/3 beside the proxy of protected origins: programs fall back to TCP.
	rule(forward, protocolIs(unix.IPPROTO_UDP), caught, jump(refuse))
	// A set that is being replaced is empty for a moment, so what it does not have is refused, never let through. What
	// goes on already is then only dropped: it is sent again.
	open := slices.Concat(load(expr.MetaKeyIIFNAME, 1), in(r.open, 1), interfaceIs(expr.MetaKeyOIFNAME, uplinkInside))
	public := slices.Concat(destination(1), in(r.public, 1))
	rule(forward, open, state(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), public, verdict(expr.VerdictAccept))
	rule(forward, open, state(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), verdict(expr.VerdictDrop))
	rule(forward, open, public, overCount(r.flows, maxFlows), jump(exceed))
	if r.notes {
		rule(forward, open, public, note(r.passed, notePassed))
		rule(refuse, note(r.refused, noteRefused))
		rule(exceed, note(r.refused, noteExceeded))
	}
	rule(forward, open, public, verdict(expr.VerdictAccept))
	rule(forward, jump(refuse))

	rule(output, state(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), verdict(expr.VerdictAccept))

	rule(refuse, jump(reject))
	rule(exceed, jump(reject))
	rule(reject, protocolIs(unix.IPPROTO_TCP), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
	// Of the codes, gVisor tells programs about this one.
	rule(reject, protocolIs(unix.IPPROTO_UDP), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: icmpPortUnreachable}})
	rule(reject, []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: icmpAdminProhibited}})

	rule(leave, interfaceIs(expr.MetaKeyOIFNAME, uplinkInside), []expr.Any{&expr.Masq{}})
}

func (r *rules) addElements(c *nftables.Conn, m *computer) error {
	which := r.listed
	if m.policy.Open() {
		which = r.open
	}
	if ports := caughtPorts(m); len(ports) > 0 {
		if err := c.SetAddElements(r.caught, ports); err != nil {
			return fmt.Errorf("add nftables elements: %w", err)
		}
	}
	err := errors.Join(c.SetAddElements(r.members, element(m)), c.SetAddElements(which, []nftables.SetElement{{Key: ifname(m.link())}}))
	if err != nil {
		return fmt.Errorf("add nftables elements: %w", err)
	}
	return nil
}

// add lets a Computer in under its policy.
func (r *rules) add(m *computer) error {
	c, err := r.conn()
	if err != nil {
		return err
	}
	if err := r.addElements(c, m); err != nil {
		return err
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("add computer to nftables: %w", err)
	}
	return nil
}

// remove shuts a Computer out. One that is not there is no error.
func (r *rules) remove(m *computer) error {
	for set, elements := range map[*nftables.Set][]nftables.SetElement{
		r.members: element(m), r.listed: {{Key: ifname(m.link())}}, r.open: {{Key: ifname(m.link())}}, r.caught: caughtPorts(m),
	} {
		if len(elements) == 0 {
			continue
		}
		c, err := r.conn()
		if err != nil {
			return err
		}
		if err := c.SetDeleteElements(set, elements); err != nil {
			return fmt.Errorf("remove computer from nftables: %w", err)
		}
		if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove computer from nftables: %w", err)
		}
	}
	return nil
}

// deny replaces the destinations that are denied under every policy.
func (r *rules) deny(list []netip.Prefix) error {
	c, err := r.conn()
	if err != nil {
		return err
	}
	c.FlushSet(r.public)
	if err := c.SetAddElements(r.public, allBut(list)); err != nil {
		return fmt.Errorf("set denied destinations: %w", err)
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("set denied destinations: %w", err)
	}
	return nil
}

// allBut gives all addresses but those of prefixes, which may overlap, as the elements of an interval set.
func allBut(list []netip.Prefix) []nftables.SetElement {
	type span struct{ first, last uint64 } // last is the first address behind it
	var spans []span
	for _, p := range list {
		if !p.Addr().Is4() {
			continue
		}
		b := p.Masked().Addr().As4()
		first := uint64(binaryutil.BigEndian.Uint32(b[:]))
		spans = append(spans, span{first, first + 1<<(32-p.Bits())})
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	const end = 1 << 32
	var out []nftables.SetElement
	at := uint64(0)
	for _, s := range append(spans, span{end, end}) {
		if s.first > at {
			out = append(out, nftables.SetElement{Key: binaryutil.BigEndian.PutUint32(uint32(at))})
			if s.first < end {
				out = append(out, nftables.SetElement{Key: binaryutil.BigEndian.PutUint32(uint32(s.first)), IntervalEnd: true})
			}
		}
		at = max(at, s.last)
	}
	return out
}

// mandatory lists what is denied under every policy, given the host's own addresses.
func mandatory(blocked, host []netip.Prefix) []netip.Prefix {
	return slices.Concat(policy.NonPublic, blocked, host)
}
