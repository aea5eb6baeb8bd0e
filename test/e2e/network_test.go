package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
)

// inNamespace runs do on a thread in a named network namespace, and gives the thread up.
func inNamespace(t testing.TB, name string, do func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this function
		f, err := os.Open(filepath.Join("/run/netns", name))
		if err == nil {
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
			f.Close()
		}
		if err == nil {
			err = do()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// smallInternet makes two network namespaces: a host, and behind it an internet with a resolver and web servers. No
// packet leaves them. It gives the host's name.
func smallInternet(t *testing.T) string {
	host, internet := fmt.Sprintf("helmre2e-%d-host", os.Getpid()), fmt.Sprintf("helmre2e-%d-inet", os.Getpid())
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v\n%s", args, err, out)
		}
	}
	for _, ns := range []string{host, internet} {
		run("netns", "add", ns)
		t.Cleanup(func() { run("netns", "delete", ns) })
		run("-n", ns, "link", "set", "lo", "up")
	}
	run("-n", host, "link", "add", "wan0", "type", "veth", "peer", "name", "eth0", "netns", internet)
	run("-n", host, "address", "add", "81.2.69.2/24", "dev", "wan0")
	run("-n", internet, "address", "add", "81.2.69.1/24", "dev", "eth0")
	run("-n", host, "link", "set", "wan0", "up")
	run("-n", internet, "link", "set", "eth0", "up")
	run("-n", host, "route", "add", "default", "via", "81.2.69.1")
	names := map[string]string{"allowed.example.": "93.184.216.34", "other.example.": "93.184.216.35", "git.corp.example.": "10.20.0.5", "meta.corp.example.": "169.254.169.254"}
	for _, a := range []string{"9.9.9.9", "93.184.216.34", "93.184.216.35", "10.20.0.5", "169.254.169.254"} {
		run("-n", internet, "address", "add", a+"/32", "dev", "lo")
	}
	inNamespace(t, internet, func() error {
		pc, err := net.ListenPacket("udp4", "9.9.9.9:53")
		if err != nil {
			return err
		}
		server := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			m := new(dns.Msg)
			m.SetReply(q)
			if a, ok := names[strings.ToLower(q.Question[0].Name)]; ok && q.Question[0].Qtype == dns.TypeA {
				m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP(a)}}
			} else {
				m.Rcode = dns.RcodeNameError
			}
			_ = w.WriteMsg(m)
		})}
		go func() { _ = server.ActivateAndServe() }()
		t.Cleanup(func() { _ = server.Shutdown() })
		ln, err := net.Listen("tcp4", ":80")
		if err != nil {
			return err
		}
		web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, fmt.Sprintf("%v is %s", r.Context().Value(http.LocalAddrContextKey), r.Host))
		})}
		go func() { _ = web.Serve(ln) }()
		t.Cleanup(func() { _ = web.Close() })
		return nil
	})
	return host
}

// attempts asks for what a Computer tried until all parts are there: reports take a moment.
func (h *helmr) attempts(key string, parts ...string) string {
	h.t.Helper()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-again.C {
		stdout, stderr, code := h.command("computer", "network", "--key", key, "--json")
		var n api.ComputerNetwork
		if err := json.Unmarshal([]byte(stdout), &n); code != 0 || err != nil {
			h.t.Fatalf("computer network: exit %d, %v\n%s%s", code, err, stdout, stderr)
		}
		text, missing := "", false
		for _, a := range n.Attempts {
			to := a.Name
			if a.Address != "" && to != "" {
				to += "@"
			}
			if to += a.Address; a.Port != 0 {
				to += fmt.Sprintf(":%d", a.Port)
			}
			text += fmt.Sprintf("%s %s %s\n", a.Kind, to, cmp.Or(a.Reason, a.Outcome))
		}
		for _, p := range parts {
			missing = missing || !strings.Contains(text, p)
		}
		if !missing {
			return text
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("computer network of %s lacks one of %q:\n%s", key, parts, text)
		}
	}
}

// talksWithoutNetwork has a Turn, a Message and a question of an Agent whose Computer has no network.
func (h *helmr) talksWithoutNetwork() {
	h.t.Helper()
	r := h.create("recluse", "hello")
	asked := h.questions(r.SessionID, r.TurnID, 1)
	if _, err := h.SendMessage(context.Background(), r.SessionID, r.TurnID, api.MessageRequest{Data: input("psst")}); err != nil {
		h.t.Fatal(err)
	}
	if out, errs, code := h.command("session", "turn", "question", "respond", r.SessionID, r.TurnID, asked[0].ID, "--text", "peace"); code != 0 {
		h.t.Fatalf("respond: %d %s %s", code, out, errs)
	}
	if got := h.talk(r.SessionID, r.TurnID); len(got.Heard) != 1 || got.Heard[0] != "psst" || got.Why != "peace" || got.Asked != "in" {
		h.t.Errorf("%+v", got)
	}
}

// TestNetworkPolicies deploys Templates with policies and looks out of their Computers, with a helmr that lives in a
// network of its own.
func TestNetworkPolicies(t *testing.T) {
	host := smallInternet(t)
	h := prepare(t, db.SQLite)
	h.netns = "/run/netns/" + host
	h.env = []string{"HELMR_WORKER_NETWORK_RESOLVER_IPV4=9.9.9.9", `HELMR_BUSINESS_IPV4_CIDRS=["10.20.0.0/16"]`}
	h.run()
	h.deploy("testdata/network")
	look := func(computer, url string) string {
		t.Helper()
		script := fmt.Sprintf("fetch(%q).then(async (r) => console.log(r.status, await r.text()), (e) => console.log('failed', e.cause?.code ?? e))", url)
		stdout, stderr, code := h.command("computer", "exec", "--key", computer, "--", "node", "-e", script)
		if code != 0 {
			t.Fatalf("%s: exit %d\n%s%s", url, code, stdout, stderr)
		}
		return strings.TrimSpace(stdout)
	}
	for _, name := range []string{"listed", "open", "blocked"} {
		if stdout, stderr, code := h.command("computer", "create", name, "--key", name); code != 0 {
			t.Fatalf("create: exit %d\n%s%s", code, stdout, stderr)
		}
	}
	want := func(id, url, part string) {
		t.Helper()
		if got := look(id, url); !strings.Contains(got, part) {
			t.Errorf("%s: %s, want %s", url, got, part)
		}
	}
	const listed, open, blocked = "listed", "open", "blocked"
	check := func() {
		t.Helper()
		want(listed, "http://allowed.example/", "200 93.184.216.34:80 is allowed.example")
		want(listed, "http://git.corp.example/", "200 10.20.0.5:80")
		want(listed, "http://other.example/", "failed ENOTFOUND")
		want(listed, "http://meta.corp.example/", "failed ENOTFOUND")
		want(listed, "http://93.184.216.35/", "403 helmr: the network policy")
		want(listed, "http://93.184.216.35:8080/", "failed ECONNREFUSED")
		want(listed, "https://93.184.216.35/", "ACCESS_DENIED")
		want(open, "http://other.example/", "200 93.184.216.35:80")
		want(open, "http://93.184.216.34/", "200 93.184.216.34:80")
		want(open, "http://169.254.169.254/", "failed ECONNREFUSED")
		want(open, "http://81.2.69.2/", "failed ECONNREFUSED")
		want(open, "http://git.corp.example/", "failed ENOTFOUND")
		want(blocked, "http://93.184.216.34/", "failed ENETUNREACH")
		want(blocked, "http://allowed.example/", "failed EAI_AGAIN")
	}
	check()
	attempts := h.attempts("listed", "93.184.216.35:8080", "meta.corp.example")
	for _, want := range []string{"other.example name_not_allowed", "93.184.216.35:8080 protocol_not_allowed", "meta.corp.example destination_denied", "allowed.example@93.184.216.34:80 allowed", "git.corp.example@10.20.0.5:80 allowed"} {
		if !strings.Contains(attempts, want) {
			t.Errorf("computer network lacks %q:\n%s", want, attempts)
		}
	}
	if attempts := h.attempts("open", "169.254.169.254:80"); !strings.Contains(attempts, "169.254.169.254:80 destination_denied") || !strings.Contains(attempts, "93.184.216.34:80 allowed") {
		t.Errorf("computer network of an open policy:\n%s", attempts)
	}
	stdout, stderr, code := h.command("computer", "network", "--key", "listed")
	if code != 0 || !strings.Contains(stdout, "name_not_allowed") || !strings.Contains(stdout, "allowed.example (93.184.216.34:80)") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	h.talksWithoutNetwork()
	h.kill()
	h.run()                                                // adopts sandboxes and networks
	h.attempts("listed", "other.example name_not_allowed") // and what was tried is remembered
	check()
	h.stop()
	if names, err := filepath.Glob("/run/netns/helmr-*"); err == nil {
		for _, name := range names {
			if out, err := exec.Command("ip", "-n", filepath.Base(name), "link", "show", "up0").Output(); err == nil {
				t.Logf("a gateway: %s\n%s", name, out) // of another test, perhaps
			}
		}
	}
	if out, err := exec.Command("ip", "netns", "exec", host, "nft", "list", "ruleset").CombinedOutput(); err != nil || len(strings.TrimSpace(string(out))) > 0 {
		t.Errorf("rules are left on the host: %v\n%s", err, out)
	}
}
