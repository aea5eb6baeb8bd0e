package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/egress/authority"
)

// origin is the one name that the internet of this run has, at an address that is public elsewhere.
const (
	origin          = "allowed.example"
	originAddress   = "93.184.216.34"
	networkSecret   = "BENCH_KEY"
	networkVariable = "KEY"
)

// network measures what the outbound network adds. Three Computers ask the same server in turn, with the same program: one
// under an open policy, whose packets the kernel forwards and no proxy sees, is the floor; one under an allowlist; and one
// whose requests carry a protected Secret. It is measured once, without a difference between databases.
func (b *bench) network(ctx context.Context, h *helmr) error {
	if _, err := h.CreateSecret(ctx, api.SecretCreateRequest{Name: networkSecret, Value: strings.Repeat("k", 64)}); err != nil {
		return err
	}
	binding := api.SecretBinding{Secret: networkSecret, Env: &api.SecretEnv{Name: networkVariable, Mode: "protected", AllowedOrigins: []string{"https://" + origin}}}
	ways := []struct {
		name string
		req  api.ComputerCreateRequest
		id   string
		way
	}{
		{name: "open", req: api.ComputerCreateRequest{Template: "open"}},
		{name: "listed", req: api.ComputerCreateRequest{Template: "listed"}},
		{name: "protected", req: api.ComputerCreateRequest{Template: "listed", Secrets: []api.SecretBinding{binding}}},
	}
	for i := range ways {
		c, err := h.CreateComputer(ctx, ways[i].req)
		if err != nil {
			return err
		}
		ways[i].id = c.ComputerID
	}
	for round := range b.few(5, 3) + 1 { // the first is to warm up
		for i := range ways {
			w := &ways[i]
			if err := w.measure(ctx, h, w.id, b.few(128, 32), b.few(300, 100), round > 0); err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
		}
	}
	open, listed, guarded := ways[0].way, ways[1].way, ways[2].way
	b.report.add("egress_throughput", h.kind, median(listed.rates), "MB/s", median(open.rates), atLeastRatio(0.7))
	b.report.add("protected_throughput", h.kind, median(guarded.rates), "MB/s", median(open.rates), atLeastRatio(0.7))
	b.report.add("egress_added", h.kind, median(listed.times)-median(open.times), "ms", 0, atMost(2))
	b.report.add("protected_added", h.kind, median(guarded.times)-median(open.times), "ms", 0, atMost(2))
	for i := range ways {
		if _, err := h.DeleteComputer(ctx, ways[i].id, api.ControlRequest{}); err != nil {
			return err
		}
	}
	return nil
}

// way is MB a second of downloads, and ms of small requests over a connection that is open.
type way struct{ rates, times []float64 }

// asks is the program in the Computer. The certificate of the server is not the matter here.
const asks = `
process.env.NODE_TLS_REJECT_UNAUTHORIZED = "0"; process.removeAllListeners("warning")
const https = require("node:https"), agent = new https.Agent({ keepAlive: true, maxSockets: 1 })
const get = (path) => new Promise((resolve, reject) => https.get("https://%s" + path, { agent, headers: { authorization: "Bearer " + process.env.%s } }, (r) => {
  let n = 0
  r.on("data", (d) => (n += d.length))
  r.on("end", () => r.statusCode === 200 ? resolve(n) : reject(new Error(String(r.statusCode))))
}).on("error", reject))
;(async () => {
  await get("/1")
  const times = []
  for (let i = 0; i < %d; i++) { const a = performance.now(); await get("/1"); times.push(performance.now() - a) }
  const size = %d * 1000000, a = performance.now()
  if (await get("/" + size) !== size) throw new Error("it is not whole")
  console.log(JSON.stringify({ times, rate: size / 1000 / (performance.now() - a) }))
})()`

func (w *way) measure(ctx context.Context, h *helmr, computer string, mb, requests int, count bool) error {
	r, err := h.CreateCommand(ctx, computer, api.CommandCreateRequest{Command: []string{"node", "-e", fmt.Sprintf(asks, origin, networkVariable, requests, mb)}})
	if err != nil {
		return err
	}
	text, err := h.output(ctx, r.CommandID)
	if err != nil {
		return err
	}
	var out struct {
		Times []float64
		Rate  float64
	}
	if err := json.Unmarshal([]byte(text), &out); err != nil || len(out.Times) != requests {
		return fmt.Errorf("the program in the computer failed (%s): %q", r.CommandID, text)
	}
	if count {
		w.rates, w.times = append(w.rates, out.Rate), append(w.times, median(out.Times))
	}
	return nil
}

// startInside starts a helmr dev in a network namespace, behind which another one is its internet: a resolver and one
// server. No packet leaves the two.
func startInside(ctx context.Context, b *bench, kind db.Kind) (_ *helmr, err error) {
	h, err := newHelmr(ctx, b, kind, "inside")
	if err != nil {
		return nil, err
	}
	h.internet = &internet{name: fmt.Sprintf("helmrbench-%d", os.Getpid())}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	roots, err := h.internet.open(h.dir)
	if err != nil {
		return nil, err
	}
	h.env = append(h.env, "HELMR_WORKER_NETWORK_RESOLVER_IPV4=9.9.9.9", "SSL_CERT_FILE="+roots)
	return h, h.startDev(ctx)
}

// internet is two network namespaces and the servers in the second.
type internet struct {
	name string
	ends []func() error
}

func (n *internet) host() string { return n.name + "-host" }

func (n *internet) ip(args ...string) error {
	var out bytes.Buffer
	cmd := exec.Command("ip", args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out.String())
	}
	return nil
}

// open makes everything. It gives a file with the roots that the server's certificate is verified with.
func (n *internet) open(dir string) (roots string, err error) {
	inet := n.name + "-inet"
	for _, ns := range []string{n.host(), inet} {
		if err := n.ip("netns", "add", ns); err != nil {
			return "", err
		}
		n.ends = append(n.ends, func() error { return n.ip("netns", "delete", ns) })
	}
	for _, line := range []string{
		"-n HOST link set lo up", "-n INET link set lo up", "-n HOST link add wan0 type veth peer name eth0 netns INET", "-n HOST address add 81.2.69.2/24 dev wan0",
		"-n INET address add 81.2.69.1/24 dev eth0", "-n HOST link set wan0 up", "-n INET link set eth0 up", "-n HOST route add default via 81.2.69.1",
		"-n INET address add 9.9.9.9/32 dev lo", "-n INET address add " + originAddress + "/32 dev lo",
	} {
		if err := n.ip(strings.Fields(strings.NewReplacer("HOST", n.host(), "INET", inet).Replace(line))...); err != nil {
			return "", err
		}
	}
	certificate, key, err := authority.Make([]string{origin}, time.Now())
	if err != nil {
		return "", err
	}
	public, err := authority.Open(certificate, key, nil)
	if err != nil {
		return "", err
	}
	roots = filepath.Join(dir, "roots.pem")
	if err := os.WriteFile(roots, public.PEM(), 0o644); err != nil {
		return "", err
	}
	return roots, inNamespace(inet, func() error { return n.serve(public) })
}

// serve answers questions for the one name, and requests for as many bytes as their path says.
func (n *internet) serve(public *authority.Authority) error {
	pc, err := net.ListenPacket("udp4", "9.9.9.9:53")
	if err != nil {
		return err
	}
	resolver := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(q)
		if q.Question[0].Qtype == dns.TypeA && strings.EqualFold(q.Question[0].Name, origin+".") {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP(originAddress)}}
		}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = resolver.ActivateAndServe() }()
	ln, err := net.Listen("tcp4", originAddress+":443")
	if err != nil {
		return err
	}
	block := make([]byte, 1<<16)
	web := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(r.URL.Path[1:])
		w.Header().Set("Content-Length", strconv.Itoa(size))
		for ; size > 0; size -= len(block) {
			if _, err := w.Write(block[:min(size, len(block))]); err != nil {
				return
			}
		}
	}), TLSConfig: &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return public.Leaf(origin) }}}
	go func() { _ = web.ServeTLS(ln, "", "") }()
	n.ends = append(n.ends, resolver.Shutdown, web.Close)
	return nil
}

// client dials in the namespace of helmr.
func (n *internet) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		err = inNamespace(n.host(), func() (err error) {
			conn, err = new(net.Dialer).DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}}}
}

func (n *internet) close() error {
	var errs []error
	for i := len(n.ends) - 1; i >= 0; i-- {
		errs = append(errs, n.ends[i]())
	}
	return errors.Join(errs...)
}

// inNamespace runs do on a thread in a named network namespace, and gives the thread up.
func inNamespace(name string, do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this function
		f, err := os.Open(filepath.Join("/run/netns", name))
		if err == nil {
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
			_ = f.Close()
		}
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}
