package worker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"helmr.dev/helmr/internal/blob"
	"helmr.dev/helmr/internal/build/bundle"
	"helmr.dev/helmr/internal/image"
)

// Where helmr's own read-only files are inside a Computer.
const (
	runtimeInside  = "/opt/helmr/runtime"
	programsInside = "/opt/helmr/programs"
	socketInside   = "/run/helmr"
	guestInside    = runtimeInside + "/helmr-guest"
	hostInside     = runtimeInside + "/host.mjs"
)

// assets keeps what Computers share read-only: unpacked images, programs, and helmr's own runtime files.
type assets struct {
	dir     string
	blob    *blob.Store
	images  *image.Cache
	runtime string // folder bound at runtimeInside

	mu sync.Mutex
	// programs is guarded by mu: fetches under way.
	programs map[string]*fetch
}

type fetch struct {
	done chan struct{}
	err  error
}

// installRuntime puts the guest and the host program into a folder named after their content, so that sandboxes of an
// older version keep theirs.
func (a *assets) installRuntime(guestBinary string, hostProgram []byte) error {
	guest, err := os.ReadFile(guestBinary)
	if err != nil {
		return fmt.Errorf("helmr-guest: %w (build it with `make setup`)", err)
	}
	sum := sha256.New()
	_, _ = sum.Write(guest)
	_, _ = sum.Write(hostProgram)
	a.runtime = filepath.Join(a.dir, "runtime", hex.EncodeToString(sum.Sum(nil))[:16])
	if _, err := os.Stat(a.runtime); err == nil {
		return nil
	}
	tmp := a.runtime + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return fmt.Errorf("install runtime: %w", err)
	}
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return fmt.Errorf("install runtime: %w", err)
	}
	if err := os.WriteFile(filepath.Join(tmp, "helmr-guest"), guest, 0o755); err != nil {
		return fmt.Errorf("install runtime: %w", err)
	}
	if err := os.WriteFile(filepath.Join(tmp, "host.mjs"), hostProgram, 0o644); err != nil {
		return fmt.Errorf("install runtime: %w", err)
	}
	if err := os.Rename(tmp, a.runtime); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("install runtime: %w", err)
	}
	return nil
}

// image gives the root filesystem of an image object and its configuration.
func (a *assets) image(ctx context.Context, digest string) (string, image.Config, error) {
	return a.images.Get(ctx, digest, func(out io.Writer) error {
		r, err := a.blob.Get(ctx, "objects/"+digest)
		if err != nil {
			return err
		}
		defer func() { _ = r.Close() }()
		_, err = io.Copy(out, r)
		return err
	})
}

// programsDir is the folder of an Environment's programs, bound at programsInside.
func (a *assets) programsDir(environmentID string) (string, error) {
	dir := filepath.Join(a.dir, "programs", environmentID)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("programs folder: %w", err)
	}
	return dir, nil
}

// program makes sure that a program is in place for an Environment. Concurrent calls for one program share the work.
func (a *assets) program(ctx context.Context, environmentID, digest string) error {
	parent, err := a.programsDir(environmentID)
	if err != nil {
		return err
	}
	dir := filepath.Join(parent, digest)
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	a.mu.Lock()
	f, ok := a.programs[dir]
	if !ok {
		f = &fetch{done: make(chan struct{})}
		a.programs[dir] = f
	}
	a.mu.Unlock()
	if ok {
		select {
		case <-f.done:
			return f.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.err = a.fetchProgram(ctx, digest, dir)
	a.mu.Lock()
	delete(a.programs, dir)
	a.mu.Unlock()
	close(f.done)
	return f.err
}

func (a *assets) fetchProgram(ctx context.Context, digest, dir string) error {
	r, err := a.blob.Get(ctx, "objects/"+digest)
	if err != nil {
		return fmt.Errorf("fetch program: %w", err)
	}
	defer func() { _ = r.Close() }()
	return bundle.UnpackProgram(r, digest, dir)
}

// isExited tells whether an operation is the last of its process. The guest writes it; a process that forges one harms
// only itself.
func isExited(payload []byte) bool {
	return len(payload) < 64<<10 && bytes.Contains(payload, []byte(`"type":"exited"`))
}

// exitCause gives what the guest says of a process's end, without anything the process wrote.
func exitCause(payload []byte) string {
	var e struct {
		Cause, Detail, Signal string
		Code                  *int
	}
	if err := json.Unmarshal(payload, &e); err != nil {
		return "unknown"
	}
	s := e.Cause
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Signal != "" {
		s += ", signal " + e.Signal
	}
	if e.Code != nil {
		s += fmt.Sprintf(", exit code %d", *e.Code)
	}
	return s
}
