package egress

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// awaitAttempt waits until an attempt of a Computer, written as one line, has a part.
func (l *lab) awaitAttempt(id, part string) string {
	l.Helper()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	for {
		list, tried := l.g.Attempts(id)
		text := ""
		for _, a := range list {
			text += fmt.Sprintf("%s %s %s %s x%d\n", a.Kind, a.Name, a.Address, a.Reason, a.Count)
		}
		if strings.Contains(text, part) {
			return text
		}
		select {
		case <-tried:
		case <-limit.C:
			l.Fatalf("no attempt has %q:\n%s", part, text)
		}
	}
}

func TestAttemptsSayWhatAndWhy(t *testing.T) {
	t.Parallel()
	l := setup(t)
	u, o := l.computer(allowlist), l.computer(`{"blockAll":false}`)
	for _, a := range []attack{
		dialAttack("tcp4", otherIP+":22"), dialAttack("tcp4", metadataIP+":8080"), udpAttack(otherIP + ":123"), udpAttack(dnsIP + ":53"),
		tlsAttack(allowedIP+":443", "other.example"), tlsAttack(allowedIP+":443", ""), dnsAttack("other.example", dns.TypeA), dnsAttack("rebind.example", dns.TypeA),
		dialAttack("tcp4", "198.18.0.1:22"),
	} {
		if _, err := a.try(u); err == nil {
			t.Errorf("%s got out", a.name)
		}
	}
	if _, err := u.tls(allowedIP+":443", "allowed.example"); err != nil {
		t.Error(err)
	}
	for _, want := range []string{
		"tcp  " + otherIP + ":22 protocol_not_allowed", "tcp  " + metadataIP + ":8080 destination_denied", "udp  " + otherIP + ":123 protocol_not_allowed",
		"udp  " + dnsIP + ":53 protocol_not_allowed", "tls other.example invalid AddrPort name_not_allowed", "tls  invalid AddrPort name_missing",
		"dns other.example invalid AddrPort name_not_allowed x2", "dns rebind.example invalid AddrPort address_not_allowed", "tcp  198.18.0.1:22 destination_denied",
		"tls allowed.example " + allowedIP + ":443  x1",
	} {
		l.awaitAttempt(u.id, want)
	}
	if _, err := o.dial("tcp4", otherIP+":8080"); err != nil {
		t.Error(err)
	}
	_, _ = o.dial("tcp4", corpIP+":8080")
	l.awaitAttempt(o.id, "tcp  "+otherIP+":8080  x1")
	l.awaitAttempt(o.id, "tcp  "+corpIP+":8080 destination_denied")
}

func TestAttemptsAreBounded(t *testing.T) {
	t.Parallel()
	a := attempts{tried: make(chan struct{}, 1)}
	for i := range 10 * maxAttempts {
		a.add(Attempt{Kind: "dns", Name: strings.Repeat("x", 1000) + fmt.Sprint(i)})
		a.add(Attempt{Kind: "tls", Name: fmt.Sprint(i)})
	}
	list := a.list()
	if len(list) != maxAttempts || len(list[0].Name) > 253 || list[maxAttempts-1].Name != fmt.Sprint(10*maxAttempts-1) {
		t.Errorf("%d attempts, the last %+v", len(list), list[len(list)-1])
	}
}
