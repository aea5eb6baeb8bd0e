package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"helmr.dev/helmr/internal/egress/policy"
)

const (
	askTimeout = 3 * time.Second
	minTTL     = 5 * time.Second
	maxTTL     = 5 * time.Minute
	maxCached  = 4096
	maxAliases = 16 // followed for one name
	maxAnswers = 16 // addresses taken for one name
)

// resolver finds the addresses of names for every Computer of the gateway, through the host's own resolvers. Only
// questions for IPv4 addresses ever leave it.
type resolver struct {
	g  *Gateway
	mu sync.Mutex
	// cache is guarded by mu.
	cache map[string]answer
}

// answer is what is known of a name until its time is over.
type answer struct {
	addresses []netip.Addr // empty when the name has none
	exists    bool
	until     time.Time
}

func newResolver(g *Gateway) *resolver { return &resolver{g: g, cache: map[string]answer{}} }

// lookUp gives the addresses of a name in normal form.
func (r *resolver) lookUp(ctx context.Context, name string) (answer, error) {
	r.mu.Lock()
	a, ok := r.cache[name]
	r.mu.Unlock()
	if ok && time.Now().Before(a.until) {
		return a, nil
	}
	a, err := r.ask(ctx, name)
	if err != nil {
		return answer{}, fmt.Errorf("resolve %s: %w", name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.cache) >= maxCached {
		clear(r.cache)
	}
	r.cache[name] = a
	return a, nil
}

func (r *resolver) ask(ctx context.Context, name string) (answer, error) {
	servers := r.g.cfg.Resolvers
	if len(servers) == 0 {
		var err error
		if servers, err = hostResolvers("/etc/resolv.conf"); err != nil {
			return answer{}, err
		}
	}
	q := new(dns.Msg)
	q.SetQuestion(dns.Fqdn(name), dns.TypeA)
	q.SetEdns0(1232, false)
	err := errors.New("no resolver is configured")
	for _, server := range servers {
		for _, network := range []string{"udp", "tcp"} {
			var reply *dns.Msg
			if reply, err = r.exchange(ctx, network, server, q); err != nil {
				break // the next server
			}
			if reply.Truncated && network == "udp" {
				continue
			}
			if reply.Rcode == dns.RcodeSuccess || reply.Rcode == dns.RcodeNameError {
				return read(name, reply), nil
			}
			err = fmt.Errorf("the resolver %s says %s", server.Addr(), dns.RcodeToString[reply.Rcode])
			break
		}
	}
	return answer{}, err
}

func (r *resolver) exchange(ctx context.Context, network string, server netip.AddrPort, q *dns.Msg) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := r.g.dialHost(&net.Dialer{Timeout: askTimeout}, network, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	q = q.Copy()
	q.Id = dns.Id() // a new number and a new port for each question: nobody guesses both
	reply, _, err := (&dns.Client{UDPSize: 1232}).ExchangeWithConnContext(ctx, q, &dns.Conn{Conn: conn, UDPSize: 1232})
	if err != nil {
		return nil, err
	}
	if len(reply.Question) != 1 || !strings.EqualFold(reply.Question[0].Name, q.Question[0].Name) {
		return nil, errors.New("the answer is to another question")
	}
	return reply, nil
}

// read follows the aliases of an answer to the addresses of the name that was asked for.
func read(name string, reply *dns.Msg) answer {
	a := answer{exists: reply.Rcode == dns.RcodeSuccess}
	ttl := maxTTL
	at := dns.Fqdn(name)
	for range maxAliases {
		next := ""
		for _, rr := range reply.Answer {
			if !strings.EqualFold(rr.Header().Name, at) {
				continue
			}
			switch rr := rr.(type) {
			case *dns.A:
				if ip, ok := netip.AddrFromSlice(rr.A.To4()); ok && len(a.addresses) < maxAnswers {
					a.addresses = append(a.addresses, ip)
				}
			case *dns.CNAME:
				next = rr.Target
			default:
				continue
			}
			ttl = min(ttl, time.Duration(rr.Header().Ttl)*time.Second)
		}
		if next == "" || len(a.addresses) > 0 {
			break
		}
		at = next
	}
	if len(a.addresses) == 0 {
		ttl = minTTL
	}
	a.until = time.Now().Add(max(ttl, minTTL))
	return a
}

// hostResolvers reads the addresses of the host's resolvers.
func hostResolvers(path string) ([]netip.AddrPort, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the host's resolvers: %w", err)
	}
	var list []netip.AddrPort
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil {
			list = append(list, netip.AddrPortFrom(a, portDNS))
		}
	}
	return list, nil
}

// resolve finds the addresses that a Computer may use for a name, which is in normal form.
func (g *Gateway) resolve(ctx context.Context, c *computer, name string) (answer, policy.Reason, error) {
	if !c.policy.PermitsName(name) {
		return answer{}, policy.ReasonName, nil
	}
	give, ok := take(c.resolutions)
	if !ok {
		return answer{}, policy.ReasonLimit, nil
	}
	defer give()
	found, err := g.resolver.lookUp(ctx, name)
	if err != nil {
		return answer{}, "", err
	}
	in := g.installation()
	var reason policy.Reason
	permitted := answer{exists: found.exists, until: found.until}
	for _, a := range found.addresses {
		if why := c.policy.Permit(name, a, in); why != "" {
			reason = why
			continue
		}
		permitted.addresses = append(permitted.addresses, a)
	}
	if len(permitted.addresses) > 0 {
		reason = ""
	}
	return permitted, reason, nil
}

// ServeDNS answers a Computer: with addresses that its policy permits, or at once that there are none.
func (g *Gateway) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	source, err := netip.ParseAddrPort(w.RemoteAddr().String())
	if err != nil {
		return
	}
	c := g.at(source.Addr())
	if c == nil {
		return
	}
	reply := g.answer(c, q)
	if reply == nil {
		return
	}
	_ = w.WriteMsg(reply) // one that does not get it asks again
}

func (g *Gateway) answer(c *computer, q *dns.Msg) *dns.Msg {
	if q.Response {
		return nil
	}
	reply := new(dns.Msg)
	reply.SetReply(q)
	reply.RecursionAvailable = true
	refuse := func(rcode int, name string, reason policy.Reason) *dns.Msg {
		c.attempts.add(Attempt{Kind: "dns", Name: name, Reason: reason})
		reply.Rcode = rcode
		if opt := q.IsEdns0(); opt != nil {
			reply.SetEdns0(1232, false)
			e := reply.IsEdns0()
			e.Option = append(e.Option, &dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeProhibited, ExtraText: "network policy: " + string(reason)})
		}
		return reply
	}
	if q.Opcode != dns.OpcodeQuery || len(q.Question) != 1 || q.Question[0].Qclass != dns.ClassINET {
		return refuse(dns.RcodeRefused, "", policy.ReasonQuestion)
	}
	question := q.Question[0]
	name, ok := policy.NormalizeName(question.Name)
	if local := strings.ToLower(question.Name); local == "localhost." || strings.HasSuffix(local, ".localhost.") {
		if question.Qtype == dns.TypeA { // images without /etc/hosts know it from nowhere else
			reply.Answer = []dns.RR{record4(question.Name, netip.AddrFrom4([4]byte{127, 0, 0, 1}), maxTTL)}
		}
		return reply
	}
	if !ok {
		return refuse(dns.RcodeNameError, question.Name, policy.ReasonInvalid)
	}
	// NXDOMAIN and not REFUSED: some C libraries take the latter for silence and wait.
	if !c.policy.PermitsName(name) {
		return refuse(dns.RcodeNameError, name, policy.ReasonName)
	}
	switch question.Qtype {
	case dns.TypeA:
	case dns.TypeAAAA, dns.TypeHTTPS, dns.TypeSVCB:
		return reply // asked for beside addresses by ordinary programs: there is none
	default:
		return refuse(dns.RcodeRefused, name, policy.ReasonQuestion)
	}
	found, reason, err := g.resolve(c.ctx, c, name)
	switch {
	case err != nil:
		g.cfg.Log.Debug("a name could not be resolved", "computer", c.ID, "error", err)
		reply.Rcode = dns.RcodeServerFailure
		return reply
	case reason == policy.ReasonLimit:
		return refuse(dns.RcodeServerFailure, name, reason)
	case reason != "":
		return refuse(dns.RcodeNameError, name, reason)
	case !found.exists:
		reply.Rcode = dns.RcodeNameError
		return reply
	}
	for _, a := range found.addresses {
		reply.Answer = append(reply.Answer, record4(question.Name, a, time.Until(found.until)))
	}
	at := Attempt{Kind: "dns", Name: name}
	if len(found.addresses) > 0 {
		at.Address = netip.AddrPortFrom(found.addresses[0], 0)
	}
	c.attempts.add(at)
	return reply
}

func record4(name string, a netip.Addr, ttl time.Duration) dns.RR {
	seconds := uint32(max(ttl, time.Second) / time.Second)
	return &dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: seconds}, A: a.AsSlice()}
}
