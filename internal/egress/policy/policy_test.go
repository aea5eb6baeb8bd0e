package policy

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
)

type vectors struct {
	Policies []struct {
		In, Out json.RawMessage
	}
	// Fields are bad policies with how an error about them begins.
	Fields []struct {
		In    json.RawMessage
		Field string
	}
	BadNames []string `json:"badNames"`
	Matches  []struct {
		Pattern string
		Yes, No []string
	}
	Permits []struct {
		Policy            Policy
		Name, Reason      string
		Address           netip.Addr
		Business, Blocked []netip.Prefix
	}
}

func readVectors(t testing.TB) vectors {
	t.Helper()
	text, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestSpec_09_09_A_Policy_Has_One_Form(t *testing.T) {
	t.Parallel()
	for _, v := range readVectors(t).Policies {
		p, err := Parse(v.In)
		if v.Out == nil {
			if err == nil {
				t.Errorf("%s is accepted", v.In)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", v.In, err)
			continue
		}
		got, err := json.Marshal(p)
		if err != nil || !sameJSON(got, v.Out) {
			t.Errorf("%s: %s, %v; want %s", v.In, got, err, v.Out)
		}
		again, err := Parse(got)
		if err != nil || !reflect.DeepEqual(p, again) {
			t.Errorf("%s does not survive: %+v, %+v, %v", got, p, again, err)
		}
	}
	for _, text := range []string{`{"blockAll":true,"blockAll":false}`, `{"blockAll":true} {}`, `{"blockAll":true}x`, `{"blockAll":tru`, ``} {
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}

func TestSpec_09_09_Errors_Name_The_Field(t *testing.T) {
	t.Parallel()
	for _, v := range readVectors(t).Fields {
		if _, err := Parse(v.In); err == nil || !strings.HasPrefix(err.Error(), v.Field) || !strings.Contains(err.Error(), "; ") {
			t.Errorf("%s: %v, want it to begin with %q and to say what is allowed", v.In, err, v.Field)
		}
	}
}

// A string entry permits public addresses only; ranges bound those of their own entry. (The vectors say more.)
func TestSpec_09_15_Ranges_Bound_Their_Entry(t *testing.T) {
	t.Parallel()
	p, err := Parse([]byte(`{"allowDomains":["a.example",{"domain":"b.example","ipRanges":["93.184.216.0/24","10.0.0.0/8"]},{"domain":"*.b.example","ipRanges":["93.184.217.0/24"]},"x.b.example"]}`))
	if err != nil {
		t.Fatal(err)
	}
	in := Installation{Business: prefixes("10.0.0.0/8")}
	for _, v := range []struct {
		name, address string
		ok            bool
	}{
		{"a.example", "93.184.216.34", true}, {"a.example", "10.0.0.1", false}, {"b.example", "93.184.216.34", true}, {"b.example", "93.184.217.1", false},
		{"b.example", "10.0.0.1", true}, {"y.b.example", "93.184.217.1", true}, {"y.b.example", "10.0.0.1", false}, {"x.b.example", "8.8.8.8", true}, {"x.b.example", "10.0.0.1", false},
	} {
		if got := p.Permit(v.name, netip.MustParseAddr(v.address), in); (got == "") != v.ok {
			t.Errorf("%s at %s: %q", v.name, v.address, got)
		}
	}
	many := make([]string, MaxRanges+1)
	for i := range many {
		many[i] = fmt.Sprintf("10.0.%d.0/24", i)
	}
	for n, ok := range map[int]bool{0: false, 1: true, MaxRanges: true, MaxRanges + 1: false} {
		text, _ := json.Marshal(map[string]any{"allowDomains": []any{map[string]any{"domain": "a.example", "ipRanges": many[:n]}}})
		if _, err := Parse(text); (err == nil) != ok {
			t.Errorf("%d ranges: %v", n, err)
		}
	}
}

func TestSpec_09_16_Private_Needs_Both(t *testing.T) {
	t.Parallel()
	a := netip.MustParseAddr("10.20.0.5")
	ranges := func(list ...string) Policy {
		return Policy{AllowDomains: []Entry{{Pattern: "a.example", Ranges: prefixes(list...)}}}
	}
	for what, v := range map[string]struct {
		p    Policy
		in   Installation
		want Reason
	}{
		"both":               {ranges("10.20.0.0/16"), Installation{Business: prefixes("10.0.0.0/8")}, ""},
		"not approved":       {ranges("10.20.0.0/16"), Installation{}, ReasonMandatory},
		"approved elsewhere": {ranges("10.20.0.0/16"), Installation{Business: prefixes("192.168.0.0/16")}, ReasonMandatory},
		"not in the entry":   {ranges("10.30.0.0/16"), Installation{Business: prefixes("10.0.0.0/8")}, ReasonAddress},
		"blocked first":      {ranges("10.20.0.0/16"), Installation{Business: prefixes("10.0.0.0/8"), Blocked: prefixes("10.20.0.5/32")}, ReasonMandatory},
		"open policy":        {Policy{}, Installation{Business: prefixes("10.0.0.0/8")}, ReasonMandatory},
		"not RFC 1918":       {ranges("100.64.0.0/10"), Installation{Business: prefixes("0.0.0.0/0")}, ReasonAddress},
	} {
		if got := v.p.Permit("a.example", a, v.in); got != v.want {
			t.Errorf("%s: %q, want %q", what, got, v.want)
		}
	}
}

func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

func TestSpec_09_10_Omitted_Means_Open(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(Policy{})
	if err != nil || string(text) != `{"blockAll":false}` || !(Policy{}).Open() {
		t.Errorf("%s, %v", text, err)
	}
}

func TestSpec_09_11_At_Most_256_Patterns(t *testing.T) {
	t.Parallel()
	names := make([]string, MaxDomains+1)
	for i := range names {
		names[i] = fmt.Sprintf("a%d.example", i)
	}
	for n, ok := range map[int]bool{MaxDomains: true, MaxDomains + 1: false} {
		text, _ := json.Marshal(map[string]any{"allowDomains": names[:n]})
		if _, err := Parse(text); (err == nil) != ok {
			t.Errorf("%d entries: %v", n, err)
		}
	}
}

func TestSpec_09_12_Names(t *testing.T) {
	t.Parallel()
	for _, name := range readVectors(t).BadNames {
		if got, err := NormalizePattern(name); err == nil {
			t.Errorf("%q is accepted as %q", name, got)
		}
		if got, ok := NormalizeName(name); ok {
			t.Errorf("%q is accepted as the name %q", name, got)
		}
	}
	label := strings.Repeat("a", 61)
	long := "*." + strings.Join([]string{label, label, label, label, "aaa"}, ".")
	if len(long) != MaxNameLength {
		t.Fatalf("the test's name has %d characters", len(long))
	}
	if _, err := NormalizePattern(long); err != nil {
		t.Error(err)
	}
	if _, err := NormalizePattern(long + "a"); err == nil {
		t.Error("254 characters are accepted")
	}
}

func TestSpec_09_13_Wildcards(t *testing.T) {
	t.Parallel()
	for _, v := range readVectors(t).Matches {
		e := Entry{Pattern: v.Pattern}
		for _, name := range v.Yes {
			if !e.Matches(name) {
				t.Errorf("%s does not match %s", v.Pattern, name)
			}
		}
		for _, name := range v.No {
			if e.Matches(name) {
				t.Errorf("%s matches %s", v.Pattern, name)
			}
		}
	}
}

// Also 09.15 to 09.17: the vectors hold ranges, business ranges and mandatory denies.
func TestSpec_09_14_Entries_Are_Grants(t *testing.T) {
	t.Parallel()
	for _, v := range readVectors(t).Permits {
		got := v.Policy.Permit(v.Name, v.Address, Installation{Blocked: v.Blocked, Business: v.Business})
		if string(got) != v.Reason {
			t.Errorf("%+v %s %s: %q, want %q", v.Policy, v.Name, v.Address, got, v.Reason)
		}
	}
}

func TestSpec_09_17_Reserved_Destinations(t *testing.T) {
	t.Parallel()
	all := Installation{Business: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}
	p := Policy{AllowDomains: []Entry{{Pattern: "a.example", Ranges: all.Business}}}
	for _, prefix := range NonPublic {
		last := lastOf(prefix)
		for _, a := range []netip.Addr{prefix.Addr(), last} {
			private := within(rfc1918, a)
			if Public(a) || (p.Permit("a.example", a, all) == "") != private || (Policy{}).Permit("a.example", a, all) == "" {
				t.Errorf("%s of %s is permitted", a, prefix)
			}
		}
		for _, a := range []netip.Addr{prefix.Addr().Prev(), last.Next()} {
			if a.IsValid() && !within(NonPublic, a) && (Policy{}).Permit("a.example", a, Installation{}) != "" {
				t.Errorf("%s beside %s is refused", a, prefix)
			}
		}
	}
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		b[bit/8] |= 1 << (7 - bit%8)
	}
	return netip.AddrFrom4(b)
}

// naivePermit says the rules again, label by label and bit by bit.
func naivePermit(p Policy, name string, a netip.Addr, in Installation) bool {
	inside := func(list []netip.Prefix) bool {
		for _, r := range list {
			x, y, same := a.As4(), r.Addr().As4(), true
			for bit := range r.Bits() {
				same = same && (x[bit/8]>>(7-bit%8))&1 == (y[bit/8]>>(7-bit%8))&1
			}
			if same {
				return true
			}
		}
		return false
	}
	private := inside(rfc1918)
	public := !inside(NonPublic)
	if p.BlockAll || inside(in.Blocked) || (!public && !private) {
		return false
	}
	if p.AllowDomains == nil {
		return public
	}
	have := strings.Split(name, ".")
	for _, e := range p.AllowDomains {
		want := strings.Split(e.Pattern, ".")
		match := len(have) == len(want)
		if want[0] == "*" {
			want = want[1:]
			match = len(have) > len(want)
		}
		for i := 1; match && i <= len(want); i++ {
			match = have[len(have)-i] == want[len(want)-i]
		}
		if match && (e.Ranges == nil && public || e.Ranges != nil && inside(e.Ranges) && (public || inside(in.Business))) {
			return true
		}
	}
	return false
}

func TestPermitAgreesWithANaiveModel(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	name := func() string {
		s := pick("a", "b", "shop") + "." + pick("example", "corp", "uk")
		for range r.IntN(3) {
			s = pick("a", "b", "x1") + "." + s
		}
		return s
	}
	ranges := func(n int) (list []netip.Prefix) {
		for range n {
			b := [4]byte{[]byte{10, 11, 93, 172, 100, 169}[r.IntN(6)], byte(r.IntN(4)) * 16, byte(r.IntN(2)), 0}
			list = append(list, netip.PrefixFrom(netip.AddrFrom4(b), r.IntN(33)).Masked())
		}
		return list
	}
	permitted := 0
	for range 50000 {
		p := Policy{BlockAll: r.IntN(20) == 0}
		if !p.BlockAll && r.IntN(8) != 0 {
			p.AllowDomains = []Entry{}
			for range r.IntN(4) {
				p.AllowDomains = append(p.AllowDomains, Entry{Pattern: pick("", "*.") + name(), Ranges: ranges(r.IntN(3))})
			}
		}
		in := Installation{Blocked: ranges(r.IntN(2)), Business: ranges(r.IntN(3))}
		a := ranges(1)[0].Addr()
		n := name()
		got, want := p.Permit(n, a, in) == "", naivePermit(p, n, a, in)
		if got != want {
			t.Fatalf("seed %d: %+v, %s at %s, %+v: %v, the model says %v", seed, p, n, a, in, got, want)
		}
		if got {
			permitted++
		}
	}
	if permitted < 500 {
		t.Errorf("only %d of the cases are permitted: the test looks away", permitted)
	}
}

func FuzzParse(f *testing.F) {
	for _, v := range readVectors(f).Policies {
		f.Add([]byte(v.In))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse(text)
		if err != nil {
			return
		}
		out, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(out)
		if err != nil || !reflect.DeepEqual(p, again) {
			t.Fatalf("%s: %+v becomes %+v, %v", text, p, again, err)
		}
		for _, e := range p.AllowDomains {
			if name, ok := NormalizeName(strings.TrimPrefix(e.Pattern, "*.")); !ok || name != strings.TrimPrefix(e.Pattern, "*.") {
				t.Fatalf("%q is not in normal form", e.Pattern)
			}
		}
	})
}
