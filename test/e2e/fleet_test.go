package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"math/rand/v2"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
)

// fleet is a server and several Workers on one machine, each in a network namespace of its own, joined by a bridge: each
// can be killed, paused and cut off.
type fleet struct {
	*helmr
	settings []string
	net      string // the first three parts of its addresses
	name     string // of its links, made unique
	server   *node
	workers  []*node
	// database is what the server reaches its PostgreSQL through; nil on SQLite.
	database *dbtest.Proxy
}

// node is one process of a fleet, in its namespace.
type node struct {
	f        *fleet
	role     string // "server", or the name of a Worker
	ns, link string
	ip       string
	args     []string
	settings []string
	dir      string // of a Worker
	live     *live
	lives    []*live // all there were
}

func ipCommand(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// newFleet installs a server on a database and starts it with Workers. lost is after how long a silent Worker is lost.
func newFleet(t testing.TB, kind db.Kind, lost time.Duration, workers ...string) *fleet {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("these tests make network namespaces: run them as root")
	}
	dir, err := os.MkdirTemp("", "helmr-fleet-")
	if err != nil {
		t.Fatal(err)
	}
	h := &helmr{t: t, dir: dir, config: filepath.Join(dir, "config")}
	f := &fleet{helmr: h}
	f.bridge()
	h.database = "sqlite:" + filepath.Join(dir, "helmr.db")
	if kind == db.PostgreSQL {
		f.database = dbtest.NewProxy(t, dbtest.URL(t, kind), f.net+".1:0")
		h.database = f.database.URL
	}
	f.settings = append(serverSettings(h.database, filepath.Join(dir, "blobs")), "HELMR_CONFIG_DIR="+h.config, "HELMR_TEST_WORKERS_LOST_AFTER="+lost.String())
	t.Cleanup(f.close)
	f.server = f.node("server", 2, "server")
	f.settings = append(f.settings, "HELMR_ADDR="+f.server.ip+":8080", "HELMR_SERVER_URL=http://"+f.server.ip+":8080", "HELMR_BLOB_URL=file:"+filepath.Join(dir, "blobs"),
		"HELMR_CHECKPOINT_ENCRYPTION_KEY="+rootKey())
	p := program{env: f.settings}
	p.run(t, "migrate").ok(t)
	h.info.APIKey = strings.TrimSpace(p.run(t, "server", "bootstrap").ok(t))
	writeFiles(t, dir, map[string]string{"worker.token": p.run(t, "server", "worker-token").ok(t)})
	h.info.URL = "http://" + f.server.ip + ":8080"
	h.Client = client.New(h.info.URL, h.info.APIKey, client.WithHTTPClient(&http.Client{Transport: &http.Transport{ResponseHeaderTimeout: 90 * time.Second, MaxIdleConnsPerHost: 32,
		DialContext: dialWithin(2 * time.Second)}}))
	f.server.start()
	for i, name := range workers {
		w := f.node(name, 3+i, "worker")
		w.dir = filepath.Join(dir, name, "worker") // as helmr dev has it, which clears it
		w.settings = []string{"HELMR_WORKER_NAME=" + name, "HELMR_WORKER_ENROLLMENT_TOKEN_FILE=" + filepath.Join(dir, "worker.token"), "HELMR_WORKER_WORK_DIR=" + w.dir,
			"HELMR_WORKER_CAPACITY_MEMORY_MIB=4096", "HELMR_WORKER_CAPACITY_VCPUS=8", "HELMR_WORKER_DISK_MIB=16384"}
		f.workers = append(f.workers, w)
		w.start()
		w.live.says("worker registered")
	}
	f.deploy("testdata/project")
	return f
}

func (f *fleet) deploy(project string) {
	f.t.Helper()
	program{env: f.settings}.login(f.info.URL, f.info.APIKey).run(f.t, "deploy", project).ok(f.t)
}

// bridge makes the switch that joins the namespaces, on a network that nobody has.
func (f *fleet) bridge() {
	f.t.Helper()
	for range 20 {
		n := rand.IntN(1 << 14)
		f.name, f.net = fmt.Sprintf("hf%d", n), fmt.Sprintf("10.%d.%d", 192+n>>8, n&255)
		if exec.Command("ip", "link", "add", f.name, "type", "bridge").Run() == nil {
			ipCommand(f.t, "address", "add", f.net+".1/24", "dev", f.name)
			ipCommand(f.t, "link", "set", f.name, "up")
			return
		}
	}
	f.t.Fatal("cannot make a bridge")
}

func (f *fleet) node(role string, host int, args ...string) *node {
	f.t.Helper()
	n := &node{f: f, role: role, ns: fmt.Sprintf("%s-%d", f.name, host), link: fmt.Sprintf("%s-%d", f.name, host), ip: fmt.Sprintf("%s.%d", f.net, host), args: args}
	ipCommand(f.t, "netns", "add", n.ns)
	ipCommand(f.t, "link", "add", n.link, "type", "veth", "peer", "name", "eth0", "netns", n.ns)
	ipCommand(f.t, "link", "set", n.link, "master", f.name, "up")
	ipCommand(f.t, "-n", n.ns, "address", "add", n.ip+"/24", "dev", "eth0")
	ipCommand(f.t, "-n", n.ns, "link", "set", "eth0", "up")
	ipCommand(f.t, "-n", n.ns, "link", "set", "lo", "up")
	return n
}

// start starts the process of the node in its namespace.
func (n *node) start() {
	n.f.t.Helper()
	p := program{path: "nsenter", env: slices.Concat(n.f.settings, n.settings)}
	n.live = p.start(n.f.t, append([]string{"--net=/run/netns/" + n.ns, binary(n.f.t, "helmr")}, n.args...)...)
	n.lives = append(n.lives, n.live)
	if n == n.f.server {
		n.f.until("the server is ready", func() bool {
			res, err := (&http.Client{Timeout: time.Second}).Get(n.f.info.URL + "/readyz")
			if err != nil {
				return false
			}
			_ = res.Body.Close()
			return res.StatusCode == http.StatusOK
		})
	}
}

// running tells whether the process of the node lives.
func (n *node) running() bool {
	select {
	case <-n.live.exited:
		return false
	default:
		return true
	}
}

// own runs a command of the CLI as the node's machine would.
func (n *node) own(args ...string) ran {
	p := program{path: "nsenter", env: slices.Concat(n.f.settings, n.settings)}
	return p.run(n.f.t, append([]string{"--net=/run/netns/" + n.ns, binary(n.f.t, "helmr")}, args...)...)
}

// Faults. Each is undone by heal.

func (n *node) kill() {
	n.live.signal(syscall.SIGKILL)
	n.live.wait()
}

func (n *node) pause() { n.live.signal(syscall.SIGSTOP) }

func (n *node) cut() { ipCommand(n.f.t, "link", "set", n.link, "down") }

// heal makes the node whole, whatever was done to it.
func (n *node) heal() {
	n.f.t.Helper()
	ipCommand(n.f.t, "link", "set", n.link, "up")
	if n.running() {
		n.live.signal(syscall.SIGCONT)
		return
	}
	n.start()
}

// close removes everything, also after a failure.
func (f *fleet) close() {
	for _, n := range append([]*node{f.server}, f.workers...) {
		if n != nil && n.live != nil && n.running() {
			_ = n.live.cmd.Process.Kill()
			<-n.live.exited
		}
	}
	for _, w := range f.workers {
		clean := exec.Command("nsenter", "--net=/run/netns/"+w.ns, binary(f.t, "helmr"), "dev", "--data-dir", filepath.Dir(w.dir), "--clear")
		if out, err := clean.CombinedOutput(); err != nil {
			f.t.Errorf("clear sandboxes of %s: %v\n%s", w.role, err, out)
		}
		f.killUnder(w.dir)
	}
	for _, n := range append([]*node{f.server}, f.workers...) {
		if n != nil {
			_ = exec.Command("ip", "netns", "delete", n.ns).Run()
			_ = exec.Command("ip", "link", "delete", n.link).Run()
		}
	}
	_ = exec.Command("ip", "link", "delete", f.name).Run()
	if f.t.Failed() || os.Getenv("HELMR_E2E_KEEP") != "" {
		for _, n := range append([]*node{f.server}, f.workers...) {
			var log strings.Builder
			for _, l := range n.lives {
				log.WriteString(l.err.String())
			}
			_ = os.WriteFile(filepath.Join(f.dir, n.role+".log"), []byte(log.String()), 0o600)
		}
		f.t.Logf("data and logs are kept in %s", f.dir)
		return
	}
	if err := os.RemoveAll(f.dir); err != nil {
		f.t.Error(err)
	}
}

// killUnder ends processes that name a folder of this fleet in their arguments.
func (f *fleet) killUnder(dir string) {
	for _, p := range hostProcesses() {
		if strings.Contains(p.args, dir+"/") || strings.HasSuffix(p.args, dir) {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
	}
}

// hostProcess is a process of this machine with its arguments, joined by spaces.
type hostProcess struct {
	pid  int
	args string
}

func hostProcesses() []hostProcess {
	var out []hostProcess
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscan(e.Name(), &pid); err != nil || pid == os.Getpid() {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && len(line) > 0 {
			out = append(out, hostProcess{pid, strings.ReplaceAll(strings.TrimRight(string(line), "\x00"), "\x00", " ")})
		}
	}
	return out
}

// traces lists what the Workers of the fleet left on the machine.
func (f *fleet) traces() []string {
	var out []string
	for _, p := range hostProcesses() {
		if strings.Contains(p.args, f.dir) {
			out = append(out, fmt.Sprintf("process %d: %s", p.pid, p.args))
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, f.dir) {
			out = append(out, "mount "+line)
		}
	}
	for _, w := range f.workers {
		for _, pattern := range []string{"computers/*", "sandboxes/records/*", "sandboxes/runsc/*", "tmp/*"} {
			left, _ := filepath.Glob(filepath.Join(w.dir, pattern))
			out = append(out, left...)
		}
		links, _ := exec.Command("ip", "-n", w.ns, "-br", "link").Output()
		for line := range strings.Lines(string(links)) {
			if !strings.HasPrefix(line, "lo ") && !strings.HasPrefix(line, "eth0") {
				out = append(out, w.role+": link "+line)
			}
		}
		rules, _ := exec.Command("nsenter", "--net=/run/netns/"+w.ns, "nft", "list", "tables").Output()
		for line := range bytes.Lines(rules) {
			out = append(out, w.role+": "+string(line))
		}
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/helmr-*")
	for _, g := range groups {
		for _, w := range f.workers {
			if strings.Contains(g, sandboxGroup(w.dir)) {
				out = append(out, "cgroup "+g)
			}
		}
	}
	return out
}

// frozen tells whether the node's sandbox of a Computer is frozen for a capture: nothing runs inside. Its Worker keeps it until
// it hears that the capture is published, which a lost answer delays while the Computer resumes elsewhere.
func (n *node) frozen(computerID string) bool {
	text, err := os.ReadFile(filepath.Join(n.dir, "sandboxes", "records", computerID+".json"))
	var record struct {
		Frozen bool `json:"frozen"`
	}
	return err == nil && json.Unmarshal(text, &record) == nil && record.Frozen
}

// watcher looks at the sandboxes of all Workers and remembers each Computer that ran on two at once.
type watcher struct {
	f    *fleet
	stop context.CancelFunc
	done chan struct{}

	mu sync.Mutex
	// twice says for how long a Computer ran on two Workers, at most; guarded by mu.
	twice map[string]time.Duration
	looks int
}

const watchEvery = 100 * time.Millisecond

func (f *fleet) watch() *watcher {
	ctx, stop := context.WithCancel(context.Background())
	w := &watcher{f: f, stop: stop, done: make(chan struct{}), twice: map[string]time.Duration{}}
	go func() {
		defer close(w.done)
		since := map[string]time.Time{}
		again := time.NewTicker(watchEvery)
		defer again.Stop()
		for {
			w.look(since)
			select {
			case <-ctx.Done():
				return
			case <-again.C:
			}
		}
	}()
	return w
}

// look notes which Computers have sandboxes on two Workers, and since when without a pause.
func (w *watcher) look(since map[string]time.Time) {
	now, on := time.Now(), map[string]map[string]bool{}
	for _, p := range hostProcesses() {
		if !strings.HasPrefix(p.args, "runsc-sandbox ") || !strings.Contains(p.args, w.f.dir) {
			continue
		}
		words := strings.Fields(p.args)
		computerID := words[len(words)-1]
		for _, n := range w.f.workers {
			if strings.Contains(p.args, n.dir+"/") && !n.frozen(computerID) {
				if on[computerID] == nil {
					on[computerID] = map[string]bool{}
				}
				on[computerID][n.role] = true
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks++
	for computerID, roles := range on {
		if len(roles) < 2 {
			delete(since, computerID)
			continue
		}
		if since[computerID].IsZero() {
			since[computerID] = now
		}
		w.twice[computerID] = max(w.twice[computerID], now.Sub(since[computerID])+time.Nanosecond)
	}
	for computerID := range since {
		if on[computerID] == nil {
			delete(since, computerID)
		}
	}
}

// end stops looking and gives what was seen.
func (w *watcher) end() map[string]time.Duration {
	w.stop()
	<-w.done
	return w.twice
}
