package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Limits of a policy.
const (
	MaxDomains    = 256
	MaxRanges     = 64
	MaxNameLength = 253
)

// Policy is a normalized network policy: everything public, nothing, or named domains only. The zero value means
// everything public, as an omitted policy does.
type Policy struct {
	// BlockAll refuses everything. It is false with an allowlist.
	BlockAll bool
	// AllowDomains is nil unless the policy is an allowlist; an empty allowlist permits nothing.
	AllowDomains []Entry
}

// Entry grants connections to the names that match its pattern.
type Entry struct {
	// Pattern is a lower-case name, or "*." and a name for all names below it.
	Pattern string
	// Ranges bound the addresses used under this entry; nil permits public addresses.
	Ranges []netip.Prefix
}

// Allowlist tells whether only named domains are permitted.
func (p Policy) Allowlist() bool { return p.AllowDomains != nil }

// Open tells whether all public destinations are permitted.
func (p Policy) Open() bool { return !p.BlockAll && p.AllowDomains == nil }

// Entries gives the entries whose pattern matches a name in normal form.
func (p Policy) Entries(name string) []Entry {
	var found []Entry
	for _, e := range p.AllowDomains {
		if e.Matches(name) {
			found = append(found, e)
		}
	}
	return found
}

// Matches tells whether a name in normal form is the entry's, or lies at any depth below its wildcard.
func (e Entry) Matches(name string) bool {
	if suffix, wild := strings.CutPrefix(e.Pattern, "*"); wild {
		return len(name) > len(suffix) && strings.HasSuffix(name, suffix)
	}
	return name == e.Pattern
}

// PermitsName tells whether any connection to a name in normal form may be permitted.
func (p Policy) PermitsName(name string) bool { return p.Open() || len(p.Entries(name)) > 0 }

// Parse reads the JSON form, checks it and gives its normal form. The error names the field, what is wrong and what to
// do.
func Parse(text []byte) (Policy, error) {
	const allowed = "use {blockAll: true}, {blockAll: false} or {allowDomains: [...]}"
	fields, err := object(text, "blockAll", "allowDomains")
	if err != nil {
		return Policy{}, fmt.Errorf("network %w; %s", err, allowed)
	}
	block, hasBlock := fields["blockAll"]
	domains, hasDomains := fields["allowDomains"]
	switch {
	case hasBlock && hasDomains:
		return Policy{}, errors.New("network has both blockAll and allowDomains; give one of them")
	case hasBlock:
		var p Policy
		if s := string(block); s != "true" && s != "false" {
			return Policy{}, errors.New("network.blockAll is not true or false; " + allowed)
		}
		p.BlockAll = string(block) == "true"
		return p, nil
	case hasDomains:
		entries, err := parseDomains(domains)
		return Policy{AllowDomains: entries}, err
	}
	return Policy{}, errors.New("network is empty; " + allowed)
}

// object reads a JSON object with known fields only, each once.
func object(text []byte, known ...string) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("is not an object")
	}
	fields := map[string]json.RawMessage{}
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return nil, errors.New("is not valid JSON")
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, errors.New("is not valid JSON")
		}
		if _, twice := fields[name]; twice {
			return nil, fmt.Errorf("has the field %q twice", name)
		}
		fields[name] = bytes.TrimSpace(value)
	}
	if _, err := d.Token(); err != nil || len(bytes.TrimSpace(text[d.InputOffset():])) > 0 {
		return nil, errors.New("is not valid JSON")
	}
next:
	for name := range fields {
		for _, k := range known {
			if name == k {
				continue next
			}
		}
		return nil, fmt.Errorf("has the unknown field %q", name)
	}
	return fields, nil
}

func parseDomains(text []byte) ([]Entry, error) {
	const field = "network.allowDomains"
	var raw []json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil || raw == nil {
		return nil, errors.New(field + ` is not an array; give names such as "api.example.com" or {domain, ipRanges}`)
	}
	if len(raw) > MaxDomains {
		return nil, fmt.Errorf("%s has %d entries; at most %d are allowed", field, len(raw), MaxDomains)
	}
	entries := make([]Entry, 0, len(raw))
	seen := make(map[string]bool, len(raw))
	for i, item := range raw {
		e, err := parseEntry(item)
		if err != nil {
			return nil, fmt.Errorf("%s[%d]%w", field, i, err)
		}
		if seen[e.Pattern] {
			return nil, fmt.Errorf("%s[%d] names %q again; name each domain once", field, i, e.Pattern)
		}
		seen[e.Pattern] = true
		entries = append(entries, e)
	}
	return entries, nil
}

// parseEntry reads one entry. Its errors go on where the name of the entry ends.
func parseEntry(text json.RawMessage) (Entry, error) {
	var name string
	if json.Unmarshal(text, &name) == nil && text[0] == '"' {
		pattern, err := NormalizePattern(name)
		if err != nil {
			return Entry{}, fmt.Errorf(" is %w", err)
		}
		return Entry{Pattern: pattern}, nil
	}
	fields, err := object(text, "domain", "ipRanges")
	if err != nil {
		return Entry{}, fmt.Errorf(` %w; give a name such as "api.example.com" or {domain, ipRanges}`, err)
	}
	if json.Unmarshal(fields["domain"], &name) != nil || fields["domain"][0] != '"' {
		return Entry{}, errors.New(`.domain is not a name; give one such as "git.corp.example"`)
	}
	e := Entry{}
	if e.Pattern, err = NormalizePattern(name); err != nil {
		return Entry{}, fmt.Errorf(".domain is %w", err)
	}
	var ranges []string
	if json.Unmarshal(fields["ipRanges"], &ranges) != nil || len(ranges) < 1 || len(ranges) > MaxRanges {
		return Entry{}, fmt.Errorf(`.ipRanges is empty, too long or no array; give 1 to %d IPv4 CIDRs such as "10.20.0.0/16"`, MaxRanges)
	}
	for i, text := range ranges {
		prefix, err := parseRange(text)
		if err != nil {
			return Entry{}, fmt.Errorf(".ipRanges[%d] is %w", i, err)
		}
		for _, other := range e.Ranges {
			if other == prefix {
				return Entry{}, fmt.Errorf(".ipRanges[%d] repeats %q; name each range once", i, text)
			}
		}
		e.Ranges = append(e.Ranges, prefix)
	}
	return e, nil
}

func parseRange(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil || !prefix.Addr().Is4() || prefix.Masked() != prefix || prefix.String() != text {
		return prefix, fmt.Errorf(`%.80q; give a canonical IPv4 CIDR with its host bits zero, such as "10.20.0.0/16"`, text)
	}
	return prefix, nil
}

// MarshalJSON gives the JSON form of a normalized policy.
func (p Policy) MarshalJSON() ([]byte, error) {
	if !p.Allowlist() {
		return json.Marshal(struct {
			BlockAll bool `json:"blockAll"`
		}{p.BlockAll})
	}
	type bounded struct {
		Domain   string         `json:"domain"`
		IPRanges []netip.Prefix `json:"ipRanges"`
	}
	entries := make([]any, len(p.AllowDomains))
	for i, e := range p.AllowDomains {
		entries[i] = e.Pattern
		if e.Ranges != nil {
			entries[i] = bounded{e.Pattern, e.Ranges}
		}
	}
	return json.Marshal(struct {
		AllowDomains []any `json:"allowDomains"`
	}{entries})
}

// UnmarshalJSON is Parse.
func (p *Policy) UnmarshalJSON(text []byte) error {
	parsed, err := Parse(text)
	if err == nil {
		*p = parsed
	}
	return err
}
