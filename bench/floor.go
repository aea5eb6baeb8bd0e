package main

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/image"
	"helmr.dev/helmr/internal/sandbox"
	"helmr.dev/helmr/internal/sandbox/gvisor"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// floors are what no implementation with the same promises, sandbox and database can do without on this machine, each
// measured by itself just before the figures.
type floors struct {
	http       float64 // ms of a small POST over the loopback and its answer
	commit     float64 // ms of a transaction that writes one row, fsync included
	commitRate float64 // such transactions a second, by 16 callers (SQLite: one after the other)
	echo       float64 // ms from a Node program in a sandbox to the host and back, over a Unix socket
	save       float64 // ms of capturing the unchanged disk of a sandbox with runsc
	fragments  float64 // a second, from a Node program in a sandbox to the host, one write each

	rootfs  string       // unpacked image
	config  image.Config // of the image
	program string       // folder with the deployed program
	sandbox *floorSandbox
	server  *process // see serveFloor
	url     string
}

func measureFloors(ctx context.Context, b *bench, h *helmr) (f *floors, err error) {
	f = &floors{}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	if err := f.locate(ctx, h); err != nil {
		return f, err
	}
	if f.server, err = startProcess(filepath.Join(h.dir, "floor.out"), os.Environ(), os.Args[0], floorServerArg); err != nil {
		return f, err
	}
	err = until(ctx, f.server, func() bool {
		raw, err := os.ReadFile(f.server.out)
		f.url = "http://" + strings.TrimSpace(string(raw))
		return err == nil && bytes.HasSuffix(raw, []byte("\n"))
	})
	if err != nil {
		return f, err
	}
	if err := f.measureHTTP(ctx, b.few(1000, 300)); err != nil {
		return f, err
	}
	if err := f.measureCommits(ctx, b, h); err != nil {
		return f, err
	}
	if f.sandbox, err = startFloorSandbox(ctx, b, h, f); err != nil {
		return f, err
	}
	return f, f.measureSandbox(b)
}

// locate runs one Turn, so that image and program are where the Worker keeps them, and finds them there.
func (f *floors) locate(ctx context.Context, h *helmr) error {
	s, err := h.newWarm(ctx, "alone", "", "")
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(filepath.Join(h.worker, "computers", s.computer, "spec.json"))
	if err != nil {
		return err
	}
	var spec workerpb.ComputerSpec
	if err := protojson.Unmarshal(raw, &spec); err != nil {
		return err
	}
	dir := filepath.Join(h.worker, "images")
	if h.serverIs == h.workerIs {
		if dir, err = image.CacheDir(); err != nil {
			return err
		}
		dir = filepath.Join(dir, "rootfs")
	}
	cache, err := image.OpenCache(dir)
	if err != nil {
		return err
	}
	f.rootfs, f.config, err = cache.Get(ctx, spec.GetImageDigest(), func(io.Writer) error { return errors.New("the image is not unpacked") })
	if err != nil {
		return err
	}
	programs, err := filepath.Glob(filepath.Join(h.worker, "programs", spec.GetEnvironmentId(), "*", "index.mjs"))
	if err != nil || len(programs) != 1 {
		return fmt.Errorf("found %d programs of the project, want 1", len(programs))
	}
	f.program = filepath.Dir(programs[0])
	return s.end(ctx)
}

func (f *floors) measureHTTP(ctx context.Context, n int) error {
	body := []byte(`{"input":[{"type":"text","text":"Review APP-42"}]}`)
	var times []float64
	for range n {
		began := time.Now()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/echo", bytes.NewReader(body))
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if err != nil {
			return err
		}
		times = append(times, ms(time.Since(began)))
	}
	f.http = median(times)
	return nil
}

const floorTable = "bench_floor"

func (f *floors) measureCommits(ctx context.Context, b *bench, h *helmr) (err error) {
	dir := filepath.Join(h.dir, "floor")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	database, err := b.newDatabase(ctx, h.kind, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.dropDatabase(h.kind, database)) }()
	d, err := openPlain(h.kind, database)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	d.SetMaxIdleConns(16)
	if _, err := d.ExecContext(ctx, "CREATE TABLE "+floorTable+" (id TEXT PRIMARY KEY, text TEXT)"); err != nil {
		return err
	}
	one := commits(ctx, d, h.kind, 1, b.few(400, 150))
	callers := 1
	if h.kind == db.PostgreSQL {
		callers = 16
	}
	began := time.Now()
	many := commits(ctx, d, h.kind, callers, b.few(2000, 500))
	f.commit, f.commitRate = median(one), float64(len(many))/time.Since(began).Seconds()
	if len(one) == 0 || len(many) == 0 {
		return errors.New("commits failed")
	}
	return nil
}

// commits writes rows, each in a transaction of its own, and gives the time in ms that each took; none on an error.
func commits(ctx context.Context, d *sql.DB, kind db.Kind, callers, n int) []float64 {
	query := insert(kind, floorTable, []string{"id", "text"}, 1)
	all := make([][]float64, callers)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for range n / callers {
				began := time.Now()
				if _, err := d.ExecContext(ctx, query, fmt.Sprint(c, "-", began.UnixNano()), strings.Repeat("x", 200)); err != nil {
					all[c] = nil
					return
				}
				all[c] = append(all[c], ms(time.Since(began)))
			}
		})
	}
	wg.Wait()
	var times []float64
	for _, t := range all {
		if t == nil {
			return nil
		}
		times = append(times, t...)
	}
	return times
}

func (f *floors) measureSandbox(b *bench) error {
	if _, err := f.sandbox.echo(b.few(200, 100)); err != nil { // Node compiles on the way
		return err
	}
	var err error
	if f.echo, err = f.sandbox.echo(b.few(1000, 300)); err != nil {
		return err
	}
	if f.fragments, err = f.sandbox.fragments(b.few(20000, 5000)); err != nil {
		return err
	}
	f.save, err = f.sandbox.save(b.few(7, 3))
	return err
}

func (f *floors) close() error {
	var errs []error
	if f.sandbox != nil {
		errs = append(errs, f.sandbox.close())
	}
	if f.server != nil {
		errs = append(errs, f.server.stop())
	}
	return errors.Join(errs...)
}

// floorSandbox is a sandbox in which floor.mjs is all that runs, and the connection to it.
type floorSandbox struct {
	runtime *gvisor.Runtime
	dir     string
	conn    net.Conn
	in      *bufio.Reader
	saves   int
}

const floorSandboxID = "bench-floor"

func startFloorSandbox(ctx context.Context, b *bench, h *helmr, f *floors) (_ *floorSandbox, err error) {
	s := &floorSandbox{dir: filepath.Join(h.dir, "floor")}
	sock := filepath.Join(s.dir, "sock")
	if err := os.MkdirAll(sock, 0o755); err != nil {
		return nil, err
	}
	if s.runtime, err = gvisor.New(gvisor.Config{RunscPath: b.binary("runsc"), Root: filepath.Join(s.dir, "sandboxes")}); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", filepath.Join(sock, "floor.sock"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }()
	_ = os.Chmod(filepath.Join(sock, "floor.sock"), 0o666)
	err = s.runtime.Start(ctx, sandbox.Spec{ID: floorSandboxID, RootFS: f.rootfs, Args: []string{"node", "/floor/floor.mjs", "serve", "/floor-sock/floor.sock"},
		Env: f.config.Env, Dir: filepath.Join(s.dir, "sandbox"), CPUMillis: 2000, MemoryMiB: 512, DiskMiB: 1024,
		Mounts: []sandbox.Mount{{Source: filepath.Join(b.root, "bench", "floor"), Destination: "/floor"}, {Source: sock, Destination: "/floor-sock"}}})
	if err != nil {
		return nil, err
	}
	if err := l.(*net.UnixListener).SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if s.conn, err = l.Accept(); err != nil {
		return nil, errors.Join(fmt.Errorf("the floor program did not connect: %w", err), s.close())
	}
	s.in = bufio.NewReader(s.conn)
	if _, err := s.in.ReadString('\n'); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *floorSandbox) ask(what string, n int) error {
	_, err := fmt.Fprintf(s.conn, "%s %d\n", what, n)
	return err
}

// echo gives the median round trip in ms.
func (s *floorSandbox) echo(n int) (float64, error) {
	if err := s.ask("echo", n); err != nil {
		return 0, err
	}
	for range n {
		if _, err := s.in.ReadSlice('\n'); err != nil {
			return 0, err
		}
		if _, err := s.conn.Write([]byte("0\n")); err != nil {
			return 0, err
		}
	}
	line, err := s.in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	var answer struct {
		Trips []float64 `json:"trips"`
	}
	err = json.Unmarshal([]byte(line), &answer)
	return median(answer.Trips), err
}

// fragments gives how many lines a second arrive.
func (s *floorSandbox) fragments(n int) (float64, error) {
	began := time.Now()
	if err := s.ask("fragments", n); err != nil {
		return 0, err
	}
	for range n {
		if _, err := s.in.ReadSlice('\n'); err != nil {
			return 0, err
		}
	}
	rate := float64(n) / time.Since(began).Seconds()
	_, err := s.in.ReadString('\n')
	return rate, err
}

// spawn starts Node programs that do nothing.
func (s *floorSandbox) spawn(n int) error {
	if err := s.ask("spawn", n); err != nil {
		return err
	}
	_, err := s.in.ReadString('\n')
	return err
}

// save gives the median time of capturing the disk.
func (s *floorSandbox) save(n int) (float64, error) {
	var times []float64
	for range n {
		s.saves++
		dir := filepath.Join(s.dir, fmt.Sprint("save-", s.saves))
		began := time.Now()
		if err := s.runtime.SaveDisk(context.Background(), floorSandboxID, dir); err != nil {
			return 0, err
		}
		times = append(times, ms(time.Since(began)))
		if err := os.RemoveAll(dir); err != nil {
			return 0, err
		}
	}
	return median(times), nil
}

func (s *floorSandbox) close() error {
	if s.conn != nil {
		_ = s.conn.Close()
	}
	return s.runtime.Remove(context.Background(), floorSandboxID)
}
