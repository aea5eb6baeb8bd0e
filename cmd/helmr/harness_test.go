package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/build/bundle"
)

// world is a real server on SQLite, without a Worker, and the environment of the commands that talk to it. Turns stay
// queued here; what a Worker does is tested end to end.
type world struct {
	url, key string
	env      map[string]string
}

func setup(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	inst, err := openInstallation(t.Context(), installationConfig{databaseURL: "sqlite:" + filepath.Join(dir, "helmr.db"), blobURL: "file:" + filepath.Join(dir, "blobs"),
		keys: rootKeys{present: make([]byte, 32)}, migrate: true, log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	key := access.NewRawKey()
	if _, err := inst.access.Bootstrap(t.Context(), access.BootstrapOptions{APIKey: key}); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- inst.run(ctx, ln) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := inst.close(); err != nil {
			t.Error(err)
		}
	})
	w := &world{url: "http://" + ln.Addr().String(), key: key}
	w.env = map[string]string{"HELMR_CONFIG_DIR": filepath.Join(dir, "config"), "HELMR_API_URL": w.url, "HELMR_API_KEY": key}
	return w
}

// ran is what a command did.
type ran struct {
	status         int
	stdout, stderr string
}

// run runs a command as a person would.
func (w *world) run(t *testing.T, args ...string) ran { return w.runIn(t.Context(), "", args...) }

func (w *world) runIn(ctx context.Context, stdin string, args ...string) ran {
	var out, errs lockedBuffer
	m := Main{Args: args, Getenv: func(name string) string { return w.env[name] }, Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs}
	status := m.Run(ctx)
	return ran{status, out.String(), errs.String()}
}

// ok runs a command that must succeed and gives its stdout.
func (w *world) ok(t *testing.T, args ...string) string {
	t.Helper()
	r := w.run(t, args...)
	if r.status != 0 {
		t.Fatalf("helmr %s: status %d\n%s%s", strings.Join(args, " "), r.status, r.stdout, r.stderr)
	}
	return r.stdout
}

// object runs a command with --json and decodes the object that it prints.
func (w *world) object(t *testing.T, args ...string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(w.ok(t, append(args, "--json")...)), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// deploy registers and promotes a bundle with agents on one template.
func (w *world) deploy(t *testing.T, agents ...string) map[string]any {
	t.Helper()
	return w.object(t, "deploy", "--bundle", makeBundle(t, agents...))
}

// makeBundle writes a well-formed bundle whose objects are no real program and image.
func makeBundle(t *testing.T, agents ...string) string {
	t.Helper()
	program, image := []byte("program of "+strings.Join(agents, ",")), []byte("image")
	m := bundle.Manifest{
		Contract: bundle.Contract, Platform: bundle.Platform{Arch: bundle.Arch, OS: bundle.OS}, Runtime: bundle.Runtime{Protocol: bundle.ProtocolVersion, SDK: "0.1.0"},
		Program: bundle.Program{Digest: bundle.Digest(program), Entry: bundle.Entry},
		Plan: bundle.Plan{Contract: bundle.IndexContract, Agents: []bundle.Agent{}, Templates: []bundle.Template{{
			ID: "box", Module: "agents/box.ts", Export: "box", Resources: bundle.Resources{MilliCPU: 1000, MemoryMiB: 1024}}}},
		TemplateImages: []bundle.TemplateImage{{Template: "box", Digest: bundle.Digest(image), Config: bundle.ImageConfig{Env: []string{"PATH=/bin"}, Workdir: "/srv"}}},
		Objects: []bundle.Object{{Digest: bundle.Digest(program), SizeBytes: int64(len(program)), MediaType: bundle.ProgramMediaType},
			{Digest: bundle.Digest(image), SizeBytes: int64(len(image)), MediaType: bundle.ImageMediaType}},
	}
	for _, a := range agents {
		m.Plan.Agents = append(m.Plan.Agents, bundle.Agent{ID: a, Module: "agents/a.ts", Export: a, Template: "box"})
	}
	slices.SortFunc(m.Objects, func(x, y bundle.Object) int { return strings.Compare(x.Digest, y.Digest) })
	raw, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "bundle")
	if err := os.MkdirAll(filepath.Join(dir, bundle.ObjectsDir), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{bundle.ManifestName: raw, filepath.Join(bundle.ObjectsDir, bundle.Digest(program)): program,
		filepath.Join(bundle.ObjectsDir, bundle.Digest(image)): image} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// lockedBuffer may be read while a command writes to it. Its wrote channel gets a value when something was written.
type lockedBuffer struct {
	mu sync.Mutex
	// b is guarded by mu.
	b     bytes.Buffer
	wrote chan struct{}
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wrote != nil {
		select {
		case l.wrote <- struct{}{}:
		default:
		}
	}
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
