package egress

import (
	"strings"
	"testing"
)

func TestControls(t *testing.T) {
	t.Parallel()
	l := setup(t)
	u := l.computer(allowlist)
	if got := addressesOf(u.ask("udp4", "allowed.example", 1)); len(got) != 1 || got[0] != allowedIP {
		t.Errorf("dns: %v", got)
	}
	if got, err := u.tls(allowedIP+":443", "allowed.example"); err != nil || !strings.HasPrefix(got, allowedIP+":443 allowed.example") {
		t.Errorf("tls: %q %v", got, err)
	}
	if got, err := u.raw(allowedIP+":80", "GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n"); err != nil || !strings.Contains(got, allowedIP+":80 allowed.example") {
		t.Errorf("http: %q %v", got, err)
	}
	o := l.computer(`{"blockAll":false}`)
	if got, err := o.tls(otherIP+":443", "whatever.example"); err != nil || !strings.HasPrefix(got, otherIP) {
		t.Errorf("open tls: %q %v", got, err)
	}
	if got, err := o.udp(otherIP+":123", "time"); err != nil || got != "time" {
		t.Errorf("open udp: %q %v", got, err)
	}
}
