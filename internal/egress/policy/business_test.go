package policy

import (
	"net/netip"
	"testing"
)

func TestSpec_09_16_PrivateAddressesNeedTheEntryAndTheInstallation(t *testing.T) {
	t.Parallel()
	ranges := func(list ...string) []netip.Prefix { return prefixes(list...) }
	p := Policy{AllowDomains: []Entry{
		{Pattern: "a.corp.example", Ranges: ranges("10.20.0.0/16", "93.184.216.0/24")},
		{Pattern: "*.corp.example", Ranges: ranges("192.168.7.0/24")},
		{Pattern: "b.corp.example"},
	}}
	for _, c := range []struct {
		name, address string
		business      []netip.Prefix
		want          Reason
	}{
		{"a.corp.example", "10.20.3.4", nil, ReasonMandatory},                                    // by default no range is approved
		{"a.corp.example", "10.20.3.4", ranges("10.21.0.0/16"), ReasonMandatory},                 // another one is
		{"a.corp.example", "10.20.3.4", ranges("10.20.3.0/24"), ""},                              // both hold it
		{"a.corp.example", "10.20.4.4", ranges("10.20.3.0/24"), ReasonMandatory},                 // only the entry does
		{"a.corp.example", "10.21.0.1", ranges("10.0.0.0/8"), ReasonAddress},                     // only the installation does
		{"b.corp.example", "10.20.3.4", ranges("10.0.0.0/8"), ReasonAddress},                     // an entry without ranges is for public addresses
		{"b.corp.example", "192.168.7.1", ranges("192.168.0.0/16"), ""},                          // by the wildcard's ranges
		{"a.corp.example", "93.184.216.34", nil, ""},                                             // a public address needs no approval
		{"a.corp.example", "172.16.0.1", ranges("10.0.0.0/8", "172.16.0.0/12"), ReasonAddress},   // the third private block
		{"other.example", "10.20.3.4", ranges("10.20.0.0/16"), ReasonName},                       // no name, no destination
		{"a.corp.example", "100.64.0.1", ranges("100.64.0.0/10", "10.0.0.0/8"), ReasonMandatory}, // shared space is not private space
		{"a.corp.example", "169.254.169.254", ranges("169.254.0.0/16"), ReasonMandatory},         // nor is this
	} {
		if got := p.Permit(c.name, netip.MustParseAddr(c.address), Installation{Business: c.business}); got != c.want {
			t.Errorf("%s at %s with %v: %q, want %q", c.name, c.address, c.business, got, c.want)
		}
	}
	// An open policy reaches none of them, whatever is approved.
	if got := (Policy{}).Permit("a.corp.example", netip.MustParseAddr("10.20.3.4"), Installation{Business: ranges("10.0.0.0/8")}); got == "" {
		t.Error("an open policy reaches a private address")
	}
}
