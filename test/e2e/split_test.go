package e2e

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
)

// cluster is an installation of separate processes: servers on one database, and a Worker.
type cluster struct {
	*helmr         // its folder, and a client of the first server
	settings       []string
	checkpointKey  string
	first, second  string // addresses
	server, worker *live  // the first server, and the Worker
	other          *client.Client
}

// rootKey makes a key for a setting.
func rootKey() string {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return base64.StdEncoding.EncodeToString(key)
}

// serverSettings are all that a server needs.
func serverSettings(database, blobs string) []string {
	s := []string{"HELMR_DATABASE_URL=" + database, "HELMR_BLOB_URL=file:" + blobs}
	for _, name := range []string{"HELMR_AUTH_KEY", "HELMR_ENCRYPTION_KEY", "HELMR_WORKER_HOST_CREDENTIAL_SIGNING_KEY", "HELMR_COMPUTER_FENCING_KEY"} {
		s = append(s, name+"="+rootKey())
	}
	return s
}

// process runs helmr with settings.
func (c *cluster) process(settings ...string) program {
	return program{env: slices.Concat(c.settings, []string{"HELMR_CONFIG_DIR=" + c.config}, settings)}
}

// startServer starts a server and waits until it is ready.
func (c *cluster) startServer(address string) *live {
	c.t.Helper()
	l := c.process("HELMR_ADDR="+address).start(c.t, "server")
	c.until("the server is ready", func() bool {
		select {
		case <-l.exited:
			c.t.Fatalf("the server ended:\n%s", l.err.String())
		default:
		}
		res, err := http.Get("http://" + address + "/readyz")
		if err != nil {
			return false
		}
		defer func() { _ = res.Body.Close() }()
		return res.StatusCode == http.StatusOK
	})
	return l
}

func (c *cluster) workerSettings() []string {
	return []string{"HELMR_SERVER_URL=http://" + c.first, "HELMR_WORKER_NAME=one", "HELMR_WORKER_ENROLLMENT_TOKEN_FILE=" + filepath.Join(c.dir, "worker.token"),
		"HELMR_WORKER_WORK_DIR=" + filepath.Join(c.dir, "worker"), "HELMR_CHECKPOINT_ENCRYPTION_KEY=" + c.checkpointKey, "HELMR_WORKER_CAPACITY_MEMORY_MIB=2048", "HELMR_WORKER_CAPACITY_VCPUS=4"}
}

// TestSpec_21_04_SeparateProcesses runs servers and a Worker as an operator does, and kills each of them.
func TestSpec_21_04_SeparateProcesses(t *testing.T) {
	t.Parallel()
	c := install(t)
	c.startWorker()
	c.program().login(c.info.URL, c.info.APIKey).run(t, "deploy", "testdata/project").ok(t)
	r := c.create("counter", "hello")
	if got := c.completed(r.SessionID, r.TurnID); got.Turns != 1 {
		t.Fatalf("first turn: %+v", got)
	}
	// One story; each part goes on from the one before.
	for _, part := range []struct {
		name string
		test func(c *cluster, sessionID string)
	}{
		{"events reach the other server", (*cluster).otherServer},
		{"a server is killed", (*cluster).serverKilled},
		{"the worker is killed", (*cluster).workerKilled},
		{"the worker is told to stop", (*cluster).workerStopped},
		{"a second worker on the folder", (*cluster).secondWorker},
		{"a worker with a wrong token", (*cluster).wrongToken},
		{"no worker has room", (*cluster).noRoom},
		{"the servers are told to stop", (*cluster).serversStopped},
	} {
		began := time.Now()
		part.test(c, r.SessionID)
		t.Logf("%s: %s", part.name, time.Since(began).Round(time.Millisecond))
	}
}

// install makes an installation on PostgreSQL with two servers, step by step, and without a Worker.
func install(t *testing.T) *cluster { return installOn(t) }

// installOn is install with other settings for all processes.
func installOn(t *testing.T, settings ...string) *cluster {
	dir, err := os.MkdirTemp("", "helmr-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	h := &helmr{t: t, dir: dir, config: filepath.Join(dir, "config")}
	c := &cluster{helmr: h, settings: serverSettings(dbtest.URL(t, db.PostgreSQL), filepath.Join(dir, "blobs")), checkpointKey: rootKey(), first: freePort(t), second: freePort(t)}
	c.settings = append(c.settings, settings...)
	t.Cleanup(h.close) // after the processes have ended, which start looks after

	p := c.process("HELMR_ADDR=" + c.first)
	p.run(t, "server").refused(t, 1, "schema", "helmr migrate")
	inOrder(t, p.run(t, "migrate").ok(t), "ran 0001_")
	if again := p.run(t, "migrate").ok(t); again != "The schema is up to date.\n" {
		t.Errorf("a second migrate says %q", again)
	}
	p.run(t, "server", "check-config").ok(t)
	h.info.APIKey = strings.TrimSpace(p.run(t, "server", "bootstrap").ok(t))
	p.run(t, "server", "bootstrap").refused(t, 1, "has an organization already")
	writeFiles(t, dir, map[string]string{"worker.token": p.run(t, "server", "worker-token").ok(t)})

	c.server = c.startServer(c.first)
	c.startServer(c.second)
	h.info.URL = "http://" + c.first
	h.Client, c.other = client.New(h.info.URL, h.info.APIKey), client.New("http://"+c.second, h.info.APIKey)
	return c
}

// follow collects the events of one Turn through the second server, until it is terminal.
func (c *cluster) follow(sessionID string, after int64, turnID string) <-chan []api.Event {
	seen := make(chan []api.Event, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		var all []api.Event
		defer func() { seen <- all }()
		for e, err := range c.other.StreamEvents(ctx, sessionID, after) {
			if err != nil {
				return
			}
			if e.TurnID == nil || *e.TurnID != turnID {
				continue
			}
			all = append(all, e)
			switch e.Kind {
			case "turn.completed", "turn.failed", "turn.interrupted", "turn.cancelled":
				return
			}
		}
	}()
	return seen
}

// slow queues a Turn, waits until it is with its handler, and gives it with a channel of its events.
func (c *cluster) slow(sessionID string, steps int) (turnID string, seen <-chan []api.Event) {
	c.t.Helper()
	events := c.events(sessionID)
	turnID = c.enqueue(sessionID, fmt.Sprintf("slow %d", steps))
	seen = c.follow(sessionID, events[len(events)-1].Sequence, turnID)
	c.running(api.SessionCreateReceipt{SessionID: sessionID, TurnID: turnID})
	return turnID, seen
}

// whole wants a completed Turn with each output once and in order.
func (c *cluster) whole(events []api.Event, steps int) {
	c.t.Helper()
	var kinds []string
	outputs := -1 // the first says which Turn it is
	for _, e := range events {
		if e.Kind != "turn.output" {
			kinds = append(kinds, e.Kind)
			continue
		}
		if outputs >= 0 && !strings.Contains(string(e.Data), fmt.Sprintf(`"step %d"`, outputs)) {
			c.t.Errorf("output %d is %s", outputs, e.Data)
		}
		outputs++
	}
	if got := strings.Join(kinds, " "); got != "turn.queued turn.running turn.finalizing turn.completed" || outputs != steps {
		c.t.Errorf("%d of %d outputs, events %s", outputs, steps, got)
	}
}

func (c *cluster) otherServer(sessionID string) {
	turnID, seen := c.slow(sessionID, 3)
	c.whole(<-seen, 3)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if v, err := c.other.WaitTurn(ctx, sessionID, turnID); err != nil || v.Status != "completed" {
		c.t.Errorf("the other server says %+v, %v", v, err)
	}
}

// steps of a Turn that outlasts a restart: about three seconds.
const steps = 60

// wentOn wants that a Turn completed in the process that began it.
func (c *cluster) wentOn(sessionID, turnID string, seen <-chan []api.Event) {
	c.t.Helper()
	c.whole(<-seen, steps)
	if got := c.completed(sessionID, turnID); got.Inits != 1 || got.Recovery.Kind != "initial" {
		c.t.Errorf("the turn: %+v", got)
	}
}

func (c *cluster) serverKilled(sessionID string) {
	turnID, seen := c.slow(sessionID, steps)
	c.server.signal(syscall.SIGKILL)
	c.server.wait()
	if v, err := c.other.GetTurn(context.Background(), sessionID, turnID); err != nil || v.Terminal() {
		c.t.Fatalf("the turn is %s before the server is back: %v", v.Status, err)
	}
	c.server = c.startServer(c.first)
	c.wentOn(sessionID, turnID, seen)
}

func (c *cluster) workerKilled(sessionID string) {
	turnID, seen := c.slow(sessionID, steps)
	c.worker.signal(syscall.SIGKILL)
	c.worker.wait()
	c.startWorker()
	c.wentOn(sessionID, turnID, seen)
}

// workerStopped tells the Worker program to stop, as in an upgrade: its Computers live on.
func (c *cluster) workerStopped(sessionID string) {
	turnID, seen := c.slow(sessionID, steps)
	c.worker.signal(syscall.SIGTERM)
	if r := c.worker.wait(); r.code != 0 {
		c.t.Errorf("the worker ended with %d\n%s", r.code, r.stderr)
	}
	s, err := c.GetSession(context.Background(), sessionID)
	if err != nil || c.sandboxPID(s.ComputerID) == 0 {
		c.t.Fatalf("no sandbox of computer %s lives on, %v", s.ComputerID, err)
	}
	c.startWorker()
	c.wentOn(sessionID, turnID, seen)
}

func (c *cluster) secondWorker(string) {
	r := c.process(c.workerSettings()...).run(c.t, "worker")
	r.refused(c.t, 1, "another helmr worker runs on "+filepath.Join(c.dir, "worker"))
}

func (c *cluster) wrongToken(string) {
	token := filepath.Join(writeFiles(c.t, c.t.TempDir(), map[string]string{"token": "hlmr_wgt_wrong\n"}), "token")
	settings := append(c.workerSettings(), "HELMR_WORKER_WORK_DIR="+c.t.TempDir(), "HELMR_WORKER_ENROLLMENT_TOKEN_FILE="+token, "HELMR_WORKER_NAME=two")
	c.process(settings...).run(c.t, "worker").refused(c.t, 1, "authentication_required: the enrollment token is not valid", "helmr server worker-token")
}

// noRoom creates a Session whose Computer fits no Worker, though the environment allows it.
func (c *cluster) noRoom(string) {
	p := c.program().login(c.info.URL, c.info.APIKey)
	p.run(c.t, "deploy", smallProject(c.t, map[string]string{"agents/box.ts": strings.Replace(boxModule, "512MiB", "4GiB", 1)})).ok(c.t)
	waits := p.start(c.t, "session", "create", "one", "--text", "x", "--follow")
	waits.says("turn 1 is still queued: no worker has room for its computer (scheduling)")
	waits.signal(syscall.SIGINT)
	waits.wait()
}

func (c *cluster) serversStopped(string) {
	c.server.signal(syscall.SIGTERM)
	if r := c.server.wait(); r.code != 0 || !strings.Contains(r.stderr, "server stopped") {
		c.t.Errorf("the server ended with %d\n%s", r.code, r.stderr)
	}
}

// startWorker starts the Worker on its folder.
func (c *cluster) startWorker() {
	c.t.Helper()
	c.worker = c.process(c.workerSettings()...).start(c.t, "worker")
	c.worker.says("worker registered")
}

// TestSettings starts processes with settings that are missing or wrong: each is named, and no value is shown.
func TestSettings(t *testing.T) {
	t.Parallel()
	const secret = "c2VjcmV0LXZhbHVlLXRoYXQtbXVzdC1uZXZlci1zaG93" // not 32 bytes
	good := serverSettings("sqlite:"+filepath.Join(t.TempDir(), "helmr.db"), t.TempDir())
	for name, test := range map[string]struct {
		args  []string
		env   []string
		parts []string
	}{
		"nothing":             {[]string{"server", "check-config"}, nil, []string{"HELMR_DATABASE_URL is missing", "HELMR_BLOB_URL is missing", "HELMR_AUTH_KEY is missing", "base64 of exactly 32 bytes", "docs/operations.md"}},
		"server":              {[]string{"server"}, nil, []string{"HELMR_DATABASE_URL is missing"}},
		"bootstrap":           {[]string{"server", "bootstrap"}, nil, []string{"HELMR_DATABASE_URL is missing"}},
		"migrate":             {[]string{"migrate"}, nil, []string{"HELMR_DATABASE_URL is missing", "sqlite:PATH"}},
		"worker":              {[]string{"worker"}, nil, []string{"HELMR_SERVER_URL is missing", "HELMR_WORKER_NAME is missing", "HELMR_WORKER_ENROLLMENT_TOKEN_FILE is missing", "HELMR_BLOB_URL is missing"}},
		"key":                 {[]string{"server", "check-config"}, append(slices.Clone(good), "HELMR_AUTH_KEY="+secret), []string{"HELMR_AUTH_KEY is malformed: it has 33 bytes"}},
		"database":            {[]string{"migrate"}, []string{"HELMR_DATABASE_URL=mysql://" + secret}, []string{"HELMR_DATABASE_URL is malformed", "postgres:"}},
		"number":              {[]string{"server", "check-config"}, append(slices.Clone(good), "HELMR_ENVIRONMENT_MAX_CPU_MILLIS="+secret), []string{"HELMR_ENVIRONMENT_MAX_CPU_MILLIS is malformed"}},
		"bucket without keys": {[]string{"server", "check-config"}, append(slices.Clone(good), "HELMR_BLOB_URL=s3://"+secret), []string{"HELMR_S3_ACCESS_KEY_ID is missing", "HELMR_S3_SECRET_ACCESS_KEY is missing"}},
		"no database there":   {[]string{"migrate"}, []string{"HELMR_DATABASE_URL=postgres://user:" + secret + "@127.0.0.1:1/helmr"}, []string{"database", "127.0.0.1", "refused", "the setting that names it"}},
		"no folder there":     {[]string{"migrate"}, []string{"HELMR_DATABASE_URL=sqlite:/dev/null/helmr.db"}, []string{"/dev/null"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := program{env: append([]string{"HELMR_CONFIG_DIR=" + t.TempDir()}, test.env...)}
			r := p.run(t, test.args...)
			r.refused(t, 1, test.parts...)
			if strings.Contains(r.stderr, secret) {
				t.Error("a value is shown")
			}
		})
	}
}

// TestSpec_21_02_OneServerOnSQLite starts a second server on a SQLite database: it is refused, and the first goes on.
func TestSpec_21_02_OneServerOnSQLite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := &cluster{helmr: &helmr{t: t, dir: dir, config: dir}, settings: serverSettings("sqlite:"+filepath.Join(dir, "helmr.db"), filepath.Join(dir, "blobs")), first: freePort(t)}
	p := c.process("HELMR_ADDR=" + freePort(t))
	p.run(t, "migrate").ok(t)
	key := strings.TrimSpace(p.run(t, "server", "bootstrap").ok(t))
	server := c.startServer(c.first)
	p.run(t, "server").refused(t, 1, "helmr.db", "another")
	p.run(t, "server", "bootstrap").refused(t, 1, "helmr.db", "another")
	if me := p.login("http://"+c.first, key).run(t, "whoami", "--json").object(t); me["key_from"] != "HELMR_API_KEY" {
		t.Errorf("whoami: %v", me)
	}
	server.signal(syscall.SIGTERM)
	if r := server.wait(); r.code != 0 {
		t.Errorf("the server ended with %d\n%s", r.code, r.stderr)
	}
}

// login gives the program a server and a key.
func (p program) login(url, key string) program {
	p.env = append(slices.Clone(p.env), "HELMR_API_URL="+url, "HELMR_API_KEY="+key)
	return p
}
