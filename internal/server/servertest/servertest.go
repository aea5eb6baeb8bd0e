// Package servertest runs a real server for tests: the real rooms on a fresh database and object store, behind a real
// listener, with API keys of two Environments. It has no Worker, so Turns stay queued. It is for tests only.
package servertest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/blob"
	"helmr.dev/helmr/internal/build/bundle"
	"helmr.dev/helmr/internal/command"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/deployment"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/preparation"
	"helmr.dev/helmr/internal/secret"
	"helmr.dev/helmr/internal/server"
	"helmr.dev/helmr/internal/session"
	"helmr.dev/helmr/internal/turn"
)

// Server is a running server and what a test needs to talk to it.
type Server struct {
	*server.Server
	URL    string
	DB     *db.DB
	Access *access.Service
	Turn   *turn.Service
	// Command is hosted by Turn, as in a whole installation.
	Command *command.Service
	Secret  *secret.Service
	// Computer also keeps the Workers.
	Computer *computer.Service
	Log      *Log

	Key           string // all scopes, in the first Environment
	OtherKey      string // all scopes, in another Environment of the same installation
	EnvironmentID string
	OwnerToken    string // of the owner of the installation

	stop    context.CancelFunc
	stopped chan error
}

// Start runs a server on a database until the test ends. change may alter its configuration.
func Start(t testing.TB, d *db.DB, change func(*server.Config)) *Server {
	t.Helper()
	ctx := context.Background()
	objects, err := blob.Open(ctx, "file:"+t.TempDir())
	if err != nil {
		t.Fatalf("open object store: %v", err)
	}
	log := &Log{}
	rooms := deployment.NewService(d, objects)
	s := &Server{DB: d, Access: access.NewService(d), Turn: turn.NewService(d, time.Now), Command: command.NewService(d, time.Now), Computer: computer.NewService(d, time.Now), Log: log, stopped: make(chan error, 1)}
	s.Turn.Host(s.Command)
	computers := s.Computer
	preparations := preparation.NewService(d, s.Command, time.Now)
	computers.Prepare(preparations)
	s.Access.OwnerKey = []byte("the key of this test")
	s.OwnerToken = access.NewOwnerToken(s.Access.OwnerKey, time.Now().Add(time.Hour))
	root, err := secret.LocalRoot(make([]byte, secret.RootKeyBytes))
	if err != nil {
		t.Fatalf("make root key: %v", err)
	}
	keys, err := secret.OpenKeyring(ctx, d, root)
	if err != nil {
		t.Fatalf("open keyring: %v", err)
	}
	s.Secret = secret.NewService(d, keys, time.Now)
	boot, err := s.Access.Bootstrap(ctx, access.BootstrapOptions{})
	if err != nil {
		t.Fatalf("bootstrap: %v", err)
	}
	s.Key, s.EnvironmentID = boot.APIKey, boot.EnvironmentID
	s.OtherKey = s.NewKey(t, addEnvironment(t, d, boot.EnvironmentID), access.Scopes()...)
	config := server.Config{Version: "test"}
	if change != nil {
		change(&config)
	}
	s.Server = server.New(config, server.Deps{
		DB: d, Access: s.Access, Session: session.NewService(d), Turn: s.Turn, Converse: s.Turn, Computer: computers, Worker: computers, Prepare: preparations,
		Command: s.Command, Secret: s.Secret,
		Deployment: rooms, Catalog: rooms, Bundle: rooms, Logger: slog.New(slog.NewJSONHandler(log, nil)),
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	s.URL = "http://" + ln.Addr().String()
	var run context.Context
	run, s.stop = context.WithCancel(ctx)
	go func() { s.stopped <- s.Serve(run, ln) }()
	t.Cleanup(func() {
		_ = s.Stop()
		if t.Failed() {
			log.show(t)
		}
	})
	return s
}

// New runs a server on a fresh SQLite database.
func New(t testing.TB, change func(*server.Config)) *Server {
	t.Helper()
	return Start(t, dbtest.New(t, db.SQLite), change)
}

// Stop ends the server in order and gives what Serve returned; again, it gives nil.
func (s *Server) Stop() error {
	s.stop()
	err := <-s.stopped
	s.stopped <- nil
	return err
}

// WaitOpen waits until n streams and long-polls are open.
func (s *Server) WaitOpen(t testing.TB, n int) {
	t.Helper()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for deadline := time.Now().Add(30 * time.Second); ; <-again.C {
		open := s.open(t)
		if open >= n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d streams are open, want %d", open, n)
		}
	}
}

func (s *Server) open(t testing.TB) int {
	t.Helper()
	families, err := s.Registry().Gather()
	if err != nil {
		t.Fatalf("gather metrics: %v", err)
	}
	for _, f := range families {
		if f.GetName() == "helmr_http_streams" {
			return int(f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	return 0
}

// NewKey makes an API key with scopes in an Environment.
func (s *Server) NewKey(t testing.TB, environmentID string, scopes ...string) string {
	t.Helper()
	all := map[string]bool{}
	for _, scope := range access.Scopes() {
		all[scope] = true
	}
	raw, _, err := s.Access.CreateAPIKey(context.Background(), access.CreateAPIKeyRequest{
		EnvironmentID: environmentID, Name: "test", Scopes: scopes, By: access.Principal{Scopes: all}})
	if err != nil {
		t.Fatalf("create API key: %v", err)
	}
	return raw
}

// KeyWithout makes an API key of the first Environment that lacks some scopes.
func (s *Server) KeyWithout(t testing.TB, without ...string) string {
	t.Helper()
	return s.NewKey(t, s.EnvironmentID, slices.DeleteFunc(access.Scopes(), func(scope string) bool { return slices.Contains(without, scope) })...)
}

// Client gives a client with the key.
func (s *Server) Client(key string) *client.Client { return client.New(s.URL, key) }

// addEnvironment copies an Environment under a new id.
func addEnvironment(t testing.TB, d *db.DB, like string) string {
	t.Helper()
	environmentID := id.New()
	err := d.Write(context.Background(), func(tx *db.Tx) error {
		_, err := tx.Exec(sqlCopyEnvironment, environmentID, like)
		return err
	})
	if err != nil {
		t.Fatalf("add environment: %v", err)
	}
	return environmentID
}

// Bundle is a small bundle: its manifest and its objects by digest.
type Bundle struct {
	Manifest []byte
	Digest   string
	Objects  map[string][]byte
}

// NewBundle makes a bundle that declares Agents on one Template named "box". Its program and image are not runnable.
func NewBundle(t testing.TB, agents ...string) Bundle {
	t.Helper()
	program, image := []byte("program of "+id.New()), []byte("image")
	b := Bundle{Objects: map[string][]byte{hash(program): program, hash(image): image}}
	m := bundle.Manifest{
		Contract: bundle.Contract, Platform: bundle.Platform{Arch: bundle.Arch, OS: bundle.OS},
		Plan: bundle.Plan{Contract: bundle.IndexContract, Agents: []bundle.Agent{}, Templates: []bundle.Template{
			{ID: "box", Module: "box.ts", Export: "box", Resources: bundle.Resources{MilliCPU: 1000, MemoryMiB: 512}}}},
		Runtime: bundle.Runtime{Protocol: bundle.ProtocolVersion, SDK: "0.0.0"},
		Program: bundle.Program{Digest: hash(program), Entry: bundle.Entry},
		TemplateImages: []bundle.TemplateImage{{Template: "box", Digest: hash(image), Config: bundle.ImageConfig{
			Env: []string{"PATH=/bin"}, Workdir: "/"}}},
		Objects: []bundle.Object{
			{Digest: hash(program), SizeBytes: int64(len(program)), MediaType: bundle.ProgramMediaType},
			{Digest: hash(image), SizeBytes: int64(len(image)), MediaType: bundle.ImageMediaType},
		},
	}
	slices.SortFunc(m.Objects, func(a, b bundle.Object) int { return bytes.Compare([]byte(a.Digest), []byte(b.Digest)) })
	slices.Sort(agents)
	for _, a := range agents {
		m.Plan.Agents = append(m.Plan.Agents, bundle.Agent{ID: a, Module: a + ".ts", Export: "agent", Template: "box"})
	}
	var err error
	if b.Manifest, err = m.Encode(); err != nil {
		t.Fatalf("encode manifest: %v", err)
	}
	b.Digest = hash(b.Manifest)
	return b
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Upload plans and uploads a bundle over HTTP.
func Upload(t testing.TB, c *client.Client, b Bundle) {
	t.Helper()
	ctx := context.Background()
	plan, err := c.UploadPlan(ctx, b.Manifest)
	if err != nil {
		t.Fatalf("upload plan: %v", err)
	}
	for _, u := range plan.Uploads {
		data := b.Objects[u.Digest]
		open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
		if err := c.UploadObject(ctx, u, int64(len(data)), open, nil); err != nil {
			t.Fatalf("upload: %v", err)
		}
	}
}

// Deploy uploads, finalizes and promotes a bundle with Agents over HTTP.
func Deploy(t testing.TB, c *client.Client, agents ...string) api.Deployment {
	t.Helper()
	ctx := context.Background()
	b := NewBundle(t, agents...)
	Upload(t, c, b)
	d, err := c.Finalize(ctx, api.FinalizeRequest{BundleDigest: b.Digest, IdempotencyKey: id.New()}, nil)
	if err != nil {
		t.Fatalf("finalize: %v", err)
	}
	if _, err := c.Promote(ctx, d.ID, api.PromoteRequest{}); err != nil {
		t.Fatalf("promote: %v", err)
	}
	return d
}

// Log keeps log lines.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write adds a line.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// show writes the errors among the lines into the test's own log.
func (l *Log) show(t testing.TB) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, `"level":"ERROR"`) {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// String gives everything logged so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
