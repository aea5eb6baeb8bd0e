package egress

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"helmr.dev/helmr/internal/egress/policy"
)

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
