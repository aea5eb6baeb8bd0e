package policy

import "net/netip"

// Reason says why something is refused; "" when it is permitted. The values are shown to people and stay as they are.
type Reason string

// Reasons. The ones about addresses come from Permit, the others from what enforces a policy.
const (
	ReasonName      Reason = "name_not_allowed"     // no entry matches the name
	ReasonAddress   Reason = "address_not_allowed"  // the name is allowed, but not at this address
	ReasonMandatory Reason = "destination_denied"   // denied under every policy
	ReasonInvalid   Reason = "name_invalid"         // not a name that a policy could permit
	ReasonNoName    Reason = "name_missing"         // TLS without SNI, HTTP without Host
	ReasonECH       Reason = "name_encrypted"       // TLS with an encrypted name
	ReasonProtocol  Reason = "protocol_not_allowed" // neither TLS on 443 nor HTTP on 80
	ReasonQuestion  Reason = "question_not_allowed" // a DNS question for something other than an address
	ReasonLimit     Reason = "limit_reached"        // too many at once
)

// Installation is what the installation adds to every policy.
type Installation struct {
	// Blocked is denied under every policy, before anything else.
	Blocked []netip.Prefix
	// Business are the private ranges that entries with ranges may open.
	Business []netip.Prefix
}

var rfc1918 = prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")

// NonPublic lists every IPv4 range that is not an ordinary public destination (the special-purpose registries of IANA),
// and the one public address at which a cloud serves its metadata.
var NonPublic = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
	"192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"224.0.0.0/4", "240.0.0.0/4",
	"168.63.129.16/32",
)

func prefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, s := range list {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

func within(list []netip.Prefix, a netip.Addr) bool {
	for _, p := range list {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// Public tells whether an address is an ordinary public IPv4 destination.
func Public(a netip.Addr) bool { return a.Is4() && !within(NonPublic, a) }

// Denied tells whether an address is denied under every policy: all but public addresses and approved private ones.
func (in Installation) Denied(a netip.Addr) bool {
	if !a.Is4() || within(in.Blocked, a) {
		return true
	}
	return !Public(a) && (!within(rfc1918, a) || !within(in.Business, a))
}

// Permit tells whether a connection to a name in normal form may use an address. One matching entry whose bounds are
// met is enough.
func (p Policy) Permit(name string, a netip.Addr, in Installation) Reason {
	if !p.PermitsName(name) {
		return ReasonName
	}
	if in.Denied(a) {
		return ReasonMandatory
	}
	if p.Open() {
		if !Public(a) {
			return ReasonMandatory
		}
		return ""
	}
	for _, e := range p.Entries(name) {
		if e.Ranges == nil && Public(a) || within(e.Ranges, a) {
			return ""
		}
	}
	return ReasonAddress
}
