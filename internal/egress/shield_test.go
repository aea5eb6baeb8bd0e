package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"helmr.dev/helmr/internal/egress/authority"
	"helmr.dev/helmr/internal/egress/policy"
	"helmr.dev/helmr/internal/egress/protected"
	"helmr.dev/helmr/internal/id"
)

const originIP = "52.0.0.2"

// shieldedLab is a lab with HTTPS servers at an address of their own, on ports 443 and 9443.
type shieldedLab struct {
	*lab
	made, public *authority.Authority
	placeholder  string
}

func setupShield(t *testing.T) *shieldedLab {
	l := &shieldedLab{lab: setup(t), placeholder: authority.NewPlaceholder()}
	for _, name := range []string{"api.example", "side.example", "api.wild.example"} {
		l.records[name] = []string{originIP}
	}
	l.records["private.example"] = []string{corpIP}
	origins := l.namespace("origins")
	l.wire(l.internet, "org0", "52.0.0.1/24", origins, originIP+"/24")
	l.route(origins, "52.0.0.1")
	l.must(inside(l.internet, func() error { return setSysctl("net/ipv4/ip_forward", "1") }))
	names := []string{"api.example", "side.example", "api.wild.example", "private.example", "rebindmeta.example"}
	cert, key, err := authority.Make(names, time.Now())
	l.must(err)
	l.public, err = authority.Open(cert, key, nil)
	l.must(err)
	cert, key, err = authority.Make(names, time.Now())
	l.must(err)
	l.made, err = authority.Open(cert, key, nil)
	l.must(err)
	server := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		l.seen.add("https origin host=%s authorization=%s", r.Host, r.Header.Get("Authorization"))
		_ = json.NewEncoder(w).Encode([]string{r.Host, r.Header.Get("Authorization"), string(body), r.TLS.ServerName})
	}), TLSConfig: &tls.Config{NextProtos: []string{"h2", "http/1.1"}, GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return l.public.Leaf(h.ServerName) }}}
	t.Cleanup(func() { server.Close() })
	l.must(inside(origins, func() error {
		for _, port := range []string{":443", ":9443"} {
			ln, err := net.Listen("tcp4", port)
			if err != nil {
				return err
			}
			go func() { _ = server.ServeTLS(ln, "", "") }()
		}
		ln, err := net.Listen("tcp4", ":7000")
		if err != nil {
			return err
		}
		t.Cleanup(func() { ln.Close() })
		go l.acceptEcho(ln, "origin")
		pc, err := net.ListenPacket("udp4", ":443")
		if err != nil {
			return err
		}
		t.Cleanup(func() { pc.Close() })
		go func() {
			buf := make([]byte, 2048)
			for {
				n, from, err := pc.ReadFrom(buf)
				if err != nil {
					return
				}
				l.seen.add("udp origin")
				_, _ = pc.WriteTo(buf[:n], from)
			}
		}()
		return nil
	}))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(l.public.PEM())
	l.must(l.g.Close())
	l.cfg.Roots = roots
	l.open()
	return l
}

// shielded makes a Computer with protected origins.
func (l *shieldedLab) shielded(policyText string, origins ...string) *guest {
	l.Helper()
	p, err := policy.Parse([]byte(policyText))
	l.must(err)
	u := &guest{lab: l.lab, id: id.New()}
	n, err := l.g.Add(u.id, p, origins...)
	l.must(err)
	u.ns, err = os.Open(n.NetNS)
	l.must(err)
	l.Cleanup(func() { u.ns.Close() })
	l.protect(u)
	return u
}

func (l *shieldedLab) protect(u *guest) {
	l.Helper()
	l.must(l.g.Protect(u.id, Protection{Authority: l.made, Resolve: func(_ context.Context, origin string, placeholders []string) ([]protected.Value, error) {
		var out []protected.Value
		for _, p := range placeholders {
			if p != l.placeholder {
				out = append(out, protected.Value{})
				continue
			}
			out = append(out, protected.Value{State: protected.Known, Text: []byte("value for " + origin)})
		}
		return out, nil
	}}))
}

// ask sends a request with the placeholder to an address and tells what came back and whose certificate was shown.
func (l *shieldedLab) request(u *guest, address, name, host string) (answer, by string, err error) {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(l.made.PEM())
	pool.AppendCertsFromPEM(l.public.PEM())
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: name}, ForceAttemptHTTP2: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return u.dial("tcp4", address) }}
	defer tr.CloseIdleConnections()
	r, err := http.NewRequest("GET", "https://"+host+"/", nil)
	l.must(err)
	r.Header.Set("Authorization", l.placeholder)
	resp, err := tr.RoundTrip(r)
	if err != nil {
		return "", "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	by = "the origin"
	chain := x509.NewCertPool()
	chain.AppendCertsFromPEM(l.made.PEM())
	if _, err := resp.TLS.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: chain, DNSName: name}); err == nil {
		by = "the proxy"
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, strings.TrimSpace(string(b))), by, err
}

func TestSpec_10_10_OnlyProtectedOriginsAreIntercepted(t *testing.T) {
	t.Parallel()
	l := setupShield(t)
	listed := l.shielded(`{"allowDomains":["api.example","side.example","*.wild.example","rebindmeta.example",{"domain":"private.example","ipRanges":["10.20.0.0/16"]}]}`,
		"https://api.example", "https://api.wild.example", "https://private.example", "https://rebindmeta.example")
	open := l.shielded(`{"blockAll":false}`, "https://api.example", "https://api.example:9443", "https://api.example:7000")
	check := func(u *guest, address, name, host, answer, by string) {
		t.Helper()
		got, who, err := l.request(u, address, name, host)
		if err != nil || !strings.Contains(got, answer) || who != by {
			t.Errorf("%s for %s: %q by %s, %v; want %q by %s", name, host, got, who, err, answer, by)
		}
	}
	all := func() {
		t.Helper()
		check(listed, originIP+":443", "api.example", "api.example", `"value for https://api.example"`, "the proxy")
		check(listed, originIP+":443", "api.wild.example", "api.wild.example", `"value for https://api.wild.example"`, "the proxy")
		// The address that the guest names is nothing.
		check(listed, otherIP+":443", "api.example", "api.example", `"value for https://api.example"`, "the proxy")
		check(open, otherIP+":443", "api.example", "api.example", `"value for https://api.example"`, "the proxy")
		check(listed, originIP+":443", "side.example", "side.example", l.placeholder, "the origin")
		check(open, originIP+":443", "side.example", "side.example", l.placeholder, "the origin")
		check(open, originIP+":9443", "api.example", "api.example:9443", `"value for https://api.example:9443"`, "the proxy")
		check(open, originIP+":9443", "side.example", "side.example:9443", l.placeholder, "the origin")
		// Another name within the connection.
		check(listed, originIP+":443", "api.example", "side.example", "421 helmr", "the proxy")
		check(open, originIP+":443", "side.example", "api.example", l.placeholder, "the origin")
	}
	all()
	plain, err := open.dial("tcp4", originIP+":7000")
	l.must(err)
	_, err = io.WriteString(plain, "plain")
	l.must(err)
	echo := make([]byte, 5)
	if _, err := io.ReadFull(plain, echo); err != nil || string(echo) != "plain" {
		t.Errorf("what is no TLS does not pass a protected port under an open policy: %q %v", echo, err)
	}
	// Fail closed: what might be for a protected origin.
	for what, config := range map[string]*tls.Config{
		"no name":        {InsecureSkipVerify: true},
		"unknown ALPN":   {ServerName: "api.example", NextProtos: []string{"smtp"}, InsecureSkipVerify: true},
		"an old version": {ServerName: "api.example", MaxVersion: tls.VersionTLS11, InsecureSkipVerify: true},
	} {
		for _, u := range []*guest{listed, open} {
			raw, err := u.dial("tcp4", originIP+":443")
			l.must(err)
			if err := tls.Client(raw, config).Handshake(); !refused(err) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	if got, err := open.udp(originIP+":443", "quic"); !refused(err) {
		t.Errorf("HTTP/3: %q %v", got, err)
	}
	if got, err := open.udp(otherIP+":123", "time"); err != nil || got != "time" {
		t.Errorf("other UDP: %q %v", got, err)
	}
	// Denied destinations stay denied on the ports that the proxy takes.
	for _, a := range []string{metadataIP, lanIP, hostIP, corpIP, "198.18.0.1", blockedIP} {
		if _, _, err := l.request(open, a+":443", "side.example", "side.example"); !refused(err) {
			t.Errorf("%s: %v", a, err)
		}
	}
	if got, _, err := l.request(listed, originIP+":443", "private.example", "private.example"); err != nil || !strings.HasPrefix(got, "502") {
		t.Errorf("an origin whose certificate is not valid: %q %v", got, err)
	}
	if got, _, err := l.request(listed, originIP+":443", "rebindmeta.example", "rebindmeta.example"); err != nil || !strings.HasPrefix(got, "403") || !strings.Contains(got, "destination_denied") {
		t.Errorf("an origin that resolves to a denied address: %q %v", got, err)
	}
	// After a restart they are refused until they are protected again, and everything else goes on.
	l.must(l.g.Close())
	l.open()
	for _, u := range []*guest{listed, open} {
		if _, _, err := l.request(u, originIP+":443", "api.example", "api.example"); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("without protection: %v", err)
		}
		check(u, originIP+":443", "side.example", "side.example", l.placeholder, "the origin")
	}
	l.protect(listed)
	l.protect(open)
	check(listed, originIP+":443", "api.example", "api.example", `"value for https://api.example"`, "the proxy")
	check(open, originIP+":443", "api.example", "api.example", `"value for https://api.example"`, "the proxy")
	l.must(l.g.Remove(listed.id))
	if _, _, err := l.request(listed, originIP+":443", "api.example", "api.example"); err == nil {
		t.Error("a removed Computer is served")
	}
}
