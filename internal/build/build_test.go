package build

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"helmr.dev/helmr/internal/build/bundle"
)

// project writes files into a new folder: the least that a project has, changed and completed by the pairs of path and
// content given. Content "-" removes a file.
func project(t *testing.T, pairs ...string) string {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{
		"package.json":    `{"name":"test","private":true,"type":"module"}`,
		"helmr.config.ts": "export default {}\n",
		"agents/one.ts":   agentModule("one", "box"),
	}
	for i := 0; i < len(pairs); i += 2 {
		files[pairs[i]] = pairs[i+1]
	}
	for name, content := range files {
		if content == "-" {
			continue
		}
		write(t, dir, name, content)
	}
	return dir
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	target := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(target, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// agentModule is a module that exports one Agent on a Template of its own.
func agentModule(agent, template string) string {
	return `import { agent, image, template } from "@helmr/sdk"
const box = template({ id: "` + template + `", image: image("` + template + `").from("node:24-bookworm-slim"), resources: { cpu: 1, memory: "512MiB" } })
export const ` + strings.ReplaceAll(agent, "-", "_") + ` = agent({ id: "` + agent + `", template: box, turn: () => ({ ok: true }) })
`
}

// recorder keeps progress.
type recorder struct {
	mu     sync.Mutex
	events []Event
}

func (r *recorder) progress(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *recorder) warnings() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, e := range r.events {
		if e.Kind == EventWarning {
			all = append(all, e.Message)
		}
	}
	return strings.Join(all, "\n")
}

// prepared runs the steps of a build before its images.
func prepared(t *testing.T, dir string) (*builder, *recorder, error) {
	t.Helper()
	r := &recorder{}
	b, err := newBuilder(dir, filepath.Join(t.TempDir(), "out", "bundle"), r.progress)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	for _, step := range []func(context.Context) error{b.capture, b.evaluate, b.install, b.makeIndex} {
		if err := step(t.Context()); err != nil {
			return b, r, err
		}
	}
	return b, r, nil
}

// assembled completes a build with an archive in place of each image: what is in it is no matter of this package.
func assembled(t *testing.T, b *builder) *bundle.Folder {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(archive, []byte("an archive"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.images = nil
	for range b.index.plan.Templates {
		b.images = append(b.images, builtImage{archive: archive, config: bundle.ImageConfig{Env: []string{"PATH=/usr/bin"}, Workdir: "/"}})
	}
	folder, err := b.assemble()
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// refused checks that err is a Problem with every part in its text, and gives that text.
func refused(t *testing.T, err error, parts ...string) string {
	t.Helper()
	if err == nil {
		t.Fatal("was accepted")
	}
	if _, ok := errors.AsType[*Problem](err); !ok {
		t.Fatalf("is no Problem: %v", err)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in the message:\n%s", part, err)
		}
	}
	return err.Error()
}
