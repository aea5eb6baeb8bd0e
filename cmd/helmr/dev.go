package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/blob/chunk"
	"helmr.dev/helmr/internal/build"
	"helmr.dev/helmr/internal/egress"
	"helmr.dev/helmr/internal/image"
	"helmr.dev/helmr/internal/sandbox"
	"helmr.dev/helmr/internal/sandbox/gvisor"
	"helmr.dev/helmr/internal/worker"
)

const (
	// devOvercommit is how many times the CPUs and the disk of a developer's machine are given out: most Computers wait
	// most of the time, and their disks are sparse.
	devOvercommit = 16
	// devReserveMiB of disk stay free.
	devReserveMiB = 1024
	// devStopWithin bounds an orderly stop.
	devStopWithin = 45 * time.Second
	// maxLogBytes is the size above which the log of earlier runs is set aside.
	maxLogBytes = 64 << 20
)

// dev is one run of helmr dev.
type dev struct {
	app       *app
	cmd       *cobra.Command
	dataDir   string
	addr      string
	database  string
	blobs     string
	verbose   bool
	clear     bool
	log       *slog.Logger
	runscPath string
}

func (a *app) devCommand() *cobra.Command {
	d := &dev{app: a}
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole helmr on this machine",
		Long: `Runs server and worker in one process, for this machine only. It needs no settings: it makes its data folder, an
environment and an API key, brings its database up to date, and tells the other commands where it is. Started again on
the same folder it goes on with everything, also with sandboxes that outlived a crash.

Ctrl-C stops it in order: running turns are aborted with "shutdown", disks are saved, sandboxes removed. A second Ctrl-C
ends it at once; its sandboxes then live on until the next start.

The data folder is $XDG_STATE_HOME/helmr or ~/.local/state/helmr unless --data-dir names another one. It holds helmr.log
(JSON lines) and, while helmr dev runs, dev.json with its URL and process ID.`,
		Example: `  helmr dev
  helmr dev --addr 127.0.0.1:0 --data-dir /tmp/try
  helmr dev --verbose`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d.cmd = cmd
			return d.run(cmd.Context())
		},
	}
	f := c.Flags()
	f.StringVar(&d.dataDir, "data-dir", "", "folder for everything it keeps")
	f.StringVar(&d.addr, "addr", "127.0.0.1:8080", "address to listen on; port 0 takes a free one")
	f.StringVar(&d.database, "database", "", "database URL (default: a SQLite file in the data folder)")
	f.StringVar(&d.blobs, "blobs", "", "blob storage URL (default: a folder in the data folder)")
	f.BoolVar(&d.verbose, "verbose", false, "log to stderr instead of helmr.log")
	f.BoolVar(&d.clear, "clear", false, "only remove the sandboxes that a killed helmr dev left on the folder, without saving them, and end")
	return c
}

func (d *dev) run(ctx context.Context) error {
	if err := d.place(); err != nil {
		return err
	}
	if d.clear {
		return d.clearSandboxes(ctx)
	}
	if err := checkLoopback(d.addr); err != nil {
		return err
	}
	// Nothing is made on a machine that cannot run it.
	problems, err := d.check(ctx)
	if err != nil {
		return err
	}
	unlock, err := lockFolder(d.dataDir, "dev", "--data-dir")
	if err != nil {
		return err
	}
	defer unlock()
	closeLog, err := d.openLog()
	if err != nil {
		return err
	}
	defer closeLog()
	logProblems(problems, d.log)
	ln, err := net.Listen("tcp", d.addr)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return hinted{fmt.Errorf("%s is in use by another program", d.addr), "choose another address: helmr dev --addr 127.0.0.1:0 takes a free port"}
		}
		return fmt.Errorf("listen on %s: %w", d.addr, err)
	}
	defer func() { _ = ln.Close() }() // closed already when the server has served
	return d.serve(ctx, ln)
}

// place settles where everything is.
func (d *dev) place() error {
	if d.dataDir == "" {
		base := d.app.getenv("XDG_STATE_HOME")
		if base == "" {
			home := d.app.getenv("HOME")
			if home == "" {
				return hinted{errors.New("there is no place for helmr's data: HOME is not set"), "name a folder with --data-dir"}
			}
			base = filepath.Join(home, ".local", "state")
		}
		d.dataDir = filepath.Join(base, "helmr")
	}
	var err error
	if d.dataDir, err = filepath.Abs(d.dataDir); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	if os.Geteuid() != 0 {
		return hinted{errors.New("helmr dev needs root rights: it starts sandboxes"), "run it as root: sudo helmr dev"}
	}
	if d.database == "" {
		d.database = "sqlite:" + filepath.Join(d.dataDir, "helmr.db")
	}
	if d.blobs == "" {
		d.blobs = "file:" + filepath.Join(d.dataDir, "blobs")
	}
	return nil
}

// check looks for what sandboxes need, before anything is made. It gives what only weakens them.
func (d *dev) check(ctx context.Context) ([]sandbox.Problem, error) {
	var err error
	if d.runscPath, err = companion("runsc"); err != nil {
		return nil, err
	}
	problems := append(gvisor.Preflight(ctx, gvisor.Config{RunscPath: d.runscPath, Root: filepath.Join(d.dataDir, "worker", "sandboxes")}), networkProblem(ctx)...)
	return problems, fatalProblems(problems)
}

// serve opens the installation, tells where it is, and runs server and Worker until ctx ends.
func (d *dev) serve(ctx context.Context, ln net.Listener) (err error) {
	rootKey, err := keyFile(filepath.Join(d.dataDir, "encryption.key"), keyOfSecrets)
	if err != nil {
		return err
	}
	inst, err := openInstallation(ctx, installationConfig{databaseURL: d.database, blobURL: d.blobs, keys: rootKeys{present: rootKey}, ownerKey: ownerKey(rootKey),
		migrate: true, log: d.log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, inst.close()) }()
	key, err := d.key(ctx, inst.access)
	if err != nil {
		return err
	}
	network, err := openNetwork(ctx, filepath.Join(d.dataDir, "worker"), d.app.getenv, []string{d.database, inst.blobs.Endpoint()}, d.log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, network.Close()) }()
	w, err := d.worker(inst, network)
	if err != nil {
		return err
	}
	// Both outlive ctx: an orderly stop needs them.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, 2)
	go func() { ended <- inst.run(running, ln) }()
	go func() { ended <- w.Run(running) }()
	if err := d.announce("http://"+ln.Addr().String(), key, access.NewOwnerToken(ownerKey(rootKey), time.Now().Add(access.MaxOwnerToken))); err != nil {
		return err
	}
	defer func() { _ = os.Remove(filepath.Join(d.dataDir, "dev.json")) }() // a stale one is replaced by the next start
	var first error
	select {
	case first = <-ended:
		stop()
		return errors.Join(first, <-ended)
	case <-ctx.Done():
	}
	d.cmd.PrintErrln("Stopping in order: turns are aborted, disks saved. Ctrl-C again ends at once.")
	leave, cancel := context.WithTimeout(running, devStopWithin)
	defer cancel()
	if err := w.Leave(leave); err != nil {
		d.log.Error("orderly stop did not finish; sandboxes live on until the next start", "error", err)
		d.cmd.PrintErrf("Not everything could be stopped in %s: the next helmr dev on %s goes on with it.\n", devStopWithin, d.dataDir)
	}
	stop()
	return errors.Join(<-ended, <-ended)
}

func (d *dev) worker(inst *installation, network *egress.Gateway) (*worker.Worker, error) {
	guest, err := companion("helmr-guest")
	if err != nil {
		return nil, err
	}
	host, err := build.HostProgram()
	if err != nil {
		return nil, err
	}
	checkpointKey, err := keyFile(filepath.Join(d.dataDir, "checkpoint.key"), keyOfSaves)
	if err != nil {
		return nil, err
	}
	vault, err := chunk.NewVault(inst.blobs, checkpointKey)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(d.dataDir, "worker")
	sandboxes, err := gvisor.New(gvisor.Config{RunscPath: d.runscPath, Root: filepath.Join(dir, "sandboxes")})
	if err != nil {
		return nil, err
	}
	offer, err := hostCapacity(d.dataDir, devReserveMiB)
	if err != nil {
		return nil, err
	}
	cache, err := image.CacheDir()
	if err != nil {
		return nil, err
	}
	// Unpacked images can be made again, so they are shared by all data folders of this machine.
	return worker.New(worker.Config{Name: "dev", Dir: dir, ImageDir: filepath.Join(cache, "rootfs"),
		CPUMillis: offer.cpuMillis * devOvercommit, MemoryMiB: offer.memoryMiB, DiskMiB: offer.diskMiB * devOvercommit,
		GuestBinary: guest, HostProgram: host, Server: inst.rpc, Runtime: sandboxes, Network: network, Blob: inst.blobs, Vault: vault, Log: d.log})
}

// key gives the API key of this data folder. It is written down before it is made known to the database, so that a crash
// in between loses nothing.
func (d *dev) key(ctx context.Context, svc *access.Service) (string, error) {
	path := filepath.Join(d.dataDir, "keys.json")
	var keys struct {
		APIKey string `json:"api_key"`
	}
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		keys.APIKey = access.NewRawKey()
		if raw, err = json.MarshalIndent(keys, "", "  "); err != nil {
			return "", fmt.Errorf("encode keys: %w", err)
		}
		if err := writeFile(path, append(raw, '\n')); err != nil {
			return "", err
		}
	case err != nil:
		return "", fmt.Errorf("read keys: %w", err)
	default:
		if err := json.Unmarshal(raw, &keys); err != nil || keys.APIKey == "" {
			return "", hinted{fmt.Errorf("%s is broken", path), "remove the file: helmr dev then makes another key"}
		}
	}
	// As with helmr server bootstrap, the settings count on the first start on a data folder.
	limits, err := access.LimitsFrom(func(name string) (string, bool) { v := d.app.getenv(name); return v, v != "" })
	if err != nil {
		return "", settingsError(err)
	}
	if _, err := svc.Bootstrap(ctx, access.BootstrapOptions{APIKey: keys.APIKey, Limits: limits}); err != nil {
		return "", err
	}
	return keys.APIKey, nil
}

// ownerKey derives what checks owner tokens from the key of the data folder.
func ownerKey(rootKey []byte) []byte {
	m := hmac.New(sha256.New, rootKey)
	_, _ = m.Write([]byte("owner tokens of helmr dev"))
	return m.Sum(nil)
}

// announce tells people, scripts and later commands where this helmr is.
func (d *dev) announce(url, key, ownerToken string) error {
	login := "saved for the commands of this user"
	if err := errors.Join(d.app.saveLogin(url, key), d.app.saveLogin(url, ownerToken)); err != nil {
		d.log.Warn("the login could not be saved", "error", err)
		login = "not saved (" + err.Error() + "); set HELMR_API_KEY and HELMR_API_URL"
	}
	logFile := filepath.Join(d.dataDir, "helmr.log")
	if d.verbose {
		logFile = ""
	}
	about := struct {
		URL     string `json:"url"`
		PID     int    `json:"pid"`
		DataDir string `json:"data_dir"`
		Log     string `json:"log,omitempty"`
		APIKey  string `json:"api_key"`
	}{url, os.Getpid(), d.dataDir, logFile, key}
	raw, err := json.Marshal(about)
	if err != nil {
		return fmt.Errorf("encode dev.json: %w", err)
	}
	err = d.app.show(d.cmd, about, func(w *text) {
		w.line("helmr is ready.")
		w.field("  url", url)
		w.field("  key", key)
		w.field("  login", login)
		w.field("  data", d.dataDir)
		w.field("  log", logFile)
		w.line("Deploy a project with `helmr deploy PATH`. Ctrl-C stops helmr and keeps all data.")
	})
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(d.dataDir, "dev.json"), append(raw, '\n'))
}

func (d *dev) clearSandboxes(ctx context.Context) error {
	root := filepath.Join(d.dataDir, "worker", "sandboxes")
	if _, err := os.Stat(root); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	unlock, err := lockFolder(d.dataDir, "dev", "--data-dir")
	if err != nil {
		return err
	}
	defer unlock()
	runsc, err := companion("runsc")
	if err != nil {
		return err
	}
	r, err := gvisor.New(gvisor.Config{RunscPath: runsc, Root: root})
	if err != nil {
		return err
	}
	found, err := r.List(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range found {
		errs = append(errs, r.Remove(ctx, s.ID))
	}
	network, err := openNetwork(ctx, filepath.Join(d.dataDir, "worker"), d.app.getenv, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, id := range network.List() {
		errs = append(errs, network.Remove(id))
	}
	errs = append(errs, network.Close())
	d.app.progress(d.cmd, "%d sandboxes removed.", len(found))
	return errors.Join(errs...)
}

// openLog opens helmr.log, or stderr with --verbose.
func (d *dev) openLog() (closeLog func(), err error) {
	if d.verbose {
		d.log = slog.New(slog.NewJSONHandler(d.cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelDebug}))
		return func() {}, nil
	}
	path := filepath.Join(d.dataDir, "helmr.log")
	if info, err := os.Stat(path); err == nil && info.Size() > maxLogBytes {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("set the old log aside: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	d.log = slog.New(slog.NewJSONHandler(f, nil))
	return func() { _ = f.Close() }, nil // nothing can be done about a log that does not close
}

// checkLoopback refuses an address that others could reach.
func checkLoopback(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return usageErrorf("--addr: %q is not HOST:PORT, for example 127.0.0.1:8080", addr)
	}
	if ip, err := netip.ParseAddr(host); host == "localhost" || (err == nil && ip.IsLoopback()) {
		return nil
	}
	return usageErrorf("--addr: helmr dev listens on this machine only, for example 127.0.0.1:8080; for others run `helmr server`")
}
