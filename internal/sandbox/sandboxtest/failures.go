package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/sandbox"
)

var errNever = errors.New("it never comes")

// badStarts checks each refusal and that nothing is left after it, without any Remove.
func badStarts(h *harness) {
	garbage := h.dir("garbage")
	must(h, os.MkdirAll(garbage, 0o755))
	must(h, os.WriteFile(filepath.Join(garbage, "file"), make([]byte, 4096), 0o644))
	breaks := map[string]func(s *sandbox.Spec){
		"no image":            func(s *sandbox.Spec) { s.RootFS = h.dir("missing") },
		"image is no EROFS":   func(s *sandbox.Spec) { s.RootFS = filepath.Join(garbage, "file") },
		"image is a folder":   func(s *sandbox.Spec) { s.RootFS = garbage },
		"no program":          func(s *sandbox.Spec) { s.Args = nil },
		"program is missing":  func(s *sandbox.Spec) { s.Args = []string{"/no/such/program"} },
		"program is a folder": func(s *sandbox.Spec) { s.Args = []string{"/etc"} },
		"mount is missing":    func(s *sandbox.Spec) { s.Mounts[0].Source = h.dir("missing") },
		"mount is relative":   func(s *sandbox.Spec) { s.Mounts[0].Destination = "run/helmr" },
		"disk is missing":     func(s *sandbox.Spec) { s.DiskFrom = h.dir("missing") },
		"disk is garbage":     func(s *sandbox.Spec) { s.DiskFrom = garbage },
		"memory is missing":   func(s *sandbox.Spec) { s.MemoryFrom = h.dir("missing") },
		"memory is garbage":   func(s *sandbox.Spec) { s.MemoryFrom = garbage },
		"memory never comes": func(s *sandbox.Spec) {
			s.MemoryFrom, s.MemoryReady = garbage, func(context.Context) error { return errNever }
		},
		"disk and memory": func(s *sandbox.Spec) { s.DiskFrom, s.MemoryFrom = garbage, garbage },
		"no memory":       func(s *sandbox.Spec) { s.MemoryMiB = 0 },
		"bad id":          func(s *sandbox.Spec) { s.ID = "../" + s.ID },
		"folder in use":   func(s *sandbox.Spec) { s.Dir = garbage },
	}
	for name, edit := range breaks {
		spec := h.spec(1)
		edit(&spec)
		err := h.rt.Start(h.ctx, spec)
		if err == nil {
			h.Errorf("%s: started", name)
			h.remove()
			continue
		}
		if name == "memory never comes" && !errors.Is(err, errNever) {
			h.Errorf("%s: %v", name, err)
		}
		h.Logf("%s: %v", name, err)
		h.assertNoTraces()
		if _, err := os.Stat(h.dir("computer-1")); !errors.Is(err, fs.ErrNotExist) {
			h.Errorf("%s: folder is left: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(garbage, "file")); err != nil {
		h.Errorf("a folder in use lost its file: %v", err)
	}
	h.start(h.spec(1)) // and the same id can start afterwards
}

// startCutOff gives up starts at many moments.
func startCutOff(h *harness) {
	completed := 0
	for n := range 12 {
		ctx, cancel := context.WithTimeout(h.ctx, time.Duration(n*n)*2*time.Millisecond)
		err := h.rt.Start(ctx, h.spec(n))
		cancel()
		if err == nil {
			completed++
			h.remove()
		}
		h.assertNoTraces()
		if _, err := os.Stat(h.spec(n).Dir); !errors.Is(err, fs.ErrNotExist) {
			h.Errorf("cut off after %d ms: folder is left: %v", n*n*2, err)
		}
	}
	h.Logf("%d of 12 starts completed", completed)
}

// resumeCutOff gives up resumes at many moments; the memory stays as it was.
func resumeCutOff(h *harness) {
	before := h.start(h.spec(0))
	memory := h.dir("memory")
	h.socket.close()
	h.freeze(h.dir("disk"), memory)
	h.remove()
	must(h, h.socket.listen())
	for n := range 12 {
		spec := h.spec(n)
		spec.MemoryFrom = memory
		ctx, cancel := context.WithCancel(h.ctx)
		given := time.Duration(n*n) * 2 * time.Millisecond
		if n%2 == 0 {
			spec.MemoryReady = func(ctx context.Context) error { // the end comes while it waits, or just behind
				time.AfterFunc(given, cancel)
				if n%4 == 0 {
					<-ctx.Done()
				}
				return nil
			}
		} else {
			time.AfterFunc(given, cancel)
		}
		err := h.rt.Start(ctx, spec)
		cancel()
		if err == nil {
			h.remove()
		} else if !errors.Is(err, context.Canceled) {
			h.Errorf("cut off: %v", err)
		}
		h.assertNoTraces()
		if _, err := os.Stat(spec.Dir); !errors.Is(err, fs.ErrNotExist) {
			h.Errorf("resume %d was cut off: folder is left: %v", n, err)
		}
	}
	h.socket.close()
	must(h, h.socket.listen()) // without the connections of those that completed
	spec := h.spec(1)
	spec.MemoryFrom = memory
	equal(h, "token", h.start(spec).Token, before.Token)
}

func badCaptures(h *harness) {
	before := h.start(h.spec(1))
	full := h.dir("full")
	must(h, os.MkdirAll(full, 0o755))
	must(h, os.WriteFile(filepath.Join(full, "file"), []byte("mine"), 0o644))
	if err := h.rt.SaveDisk(h.ctx, h.id, full); err == nil {
		h.Error("save into a folder in use: no error")
	}
	for _, dirs := range [][2]string{{full, h.dir("memory")}, {h.dir("disk"), full}} {
		if err := h.rt.Freeze(h.ctx, h.id, dirs[0], dirs[1]); err == nil {
			h.Error("freeze into a folder in use: no error")
		}
	}
	if err := h.rt.SaveDisk(h.ctx, h.id, filepath.Join(full, "file", "below")); err == nil {
		h.Error("save below a file: no error")
	}
	ctx, cancel := context.WithCancel(h.ctx)
	cancel()
	if err := h.rt.SaveDisk(ctx, h.id, h.dir("cancelled")); !errors.Is(err, context.Canceled) {
		h.Errorf("cancelled save: %v", err)
	}
	// One cut off in the middle leaves no files, and a sandbox that runs and can be saved.
	h.probe("make", "/tmp")
	for n := range 5 {
		dir := h.dir(fmt.Sprintf("cut-%d", n))
		ctx, cancel := context.WithTimeout(h.ctx, time.Duration(n*8)*time.Millisecond)
		err := h.rt.SaveDisk(ctx, h.id, dir)
		cancel()
		if _, e := os.Stat(dir); err != nil && !errors.Is(e, fs.ErrNotExist) {
			h.Errorf("cut off save left its folder: %v", e)
		}
	}
	h.save("whole")
	h.socket.close()
	must(h, h.socket.listen())
	equal(h, "token", h.hello().Token, before.Token)
	if b, err := os.ReadFile(filepath.Join(full, "file")); err != nil || string(b) != "mine" {
		h.Errorf("a folder in use lost its file: %v", err)
	}
}

// concurrent runs several Computers at once through their lives.
func concurrent(h *harness) {
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			spec := h.spec(100 + n)
			spec.ID = id.New()
			if err := h.rt.Start(h.ctx, spec); err != nil {
				h.Errorf("start: %v", err)
				return
			}
			dir := h.dir(fmt.Sprintf("saved-%d", n))
			if err := h.rt.SaveDisk(h.ctx, spec.ID, dir); err != nil {
				h.Errorf("save: %v", err)
			}
			var inner sync.WaitGroup
			for range 3 { // removals of one id take turns
				inner.Go(func() {
					if err := h.rt.Remove(h.ctx, spec.ID); err != nil {
						h.Errorf("remove: %v", err)
					}
				})
			}
			inner.Wait()
			for _, trace := range Traces(h, spec.ID, h.base) {
				h.Errorf("left behind: %s", trace)
			}
		})
	}
	wg.Wait()
}

// allocated is what a file takes on the disk.
func allocated(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}
