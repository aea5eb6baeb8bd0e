package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/internal/blob"
	"helmr.dev/helmr/internal/blob/chunk"
	"helmr.dev/helmr/internal/build"
	"helmr.dev/helmr/internal/sandbox/gvisor"
	"helmr.dev/helmr/internal/worker"
)

func (a *app) workerCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "worker",
		Short: "Run a worker: it hosts computers on this machine for a server",
		Long: `Runs a worker until it is told to stop (SIGTERM or Ctrl-C). Its computers live on: a worker that starts again on the
same folder before the server gives it up goes on with them; later they are ended, by a process that the worker leaves
behind for that. To empty it first, run helmr worker drain. It needs root rights. Its settings are environment
variables; a missing or malformed one stops it at start. Logs are JSON lines on stderr.

` + settingsHelp(workerSettings),
		Example: "  helmr worker\n  helmr worker drain --timeout 30m",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runWorker(cmd) },
	}
	c.AddCommand(a.workerList(), a.workerStatus(), a.workerDrain(), a.workerActivate(), a.workerToken(), workerGuard())
	return c
}

// workerGuard is the process that a Worker leaves behind; nobody else starts it.
func workerGuard() *cobra.Command {
	return &cobra.Command{
		Use: "guard DIR", Short: "End the sandboxes of a worker whose lease is over (started by helmr worker)", Example: "  helmr worker guard /var/lib/helmr/worker",
		Hidden: true, Args: oneArg("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			// It needs no runsc: what is left of a sandbox is removed by the next Worker.
			r, err := gvisor.New(gvisor.Config{Root: filepath.Join(args[0], "sandboxes")})
			if err != nil {
				return err
			}
			// Nothing but the end of its work ends it: a service manager that stops the Worker may signal it too.
			ctx := context.WithoutCancel(cmd.Context())
			return worker.Guard(ctx, args[0], r.KillAll, r.Count)
		},
	}
}

func (a *app) runWorker(cmd *cobra.Command) (err error) {
	s, unused, err := readSettings(a.getenv, workerSettings)
	if err != nil {
		return settingsError(err)
	}
	if os.Geteuid() != 0 {
		return hinted{errors.New("helmr worker needs root rights: it starts sandboxes"), "run it as root: sudo --preserve-env helmr worker"}
	}
	log := processLog(cmd.ErrOrStderr())
	for _, name := range unused {
		log.Warn("this setting does nothing yet", "setting", name)
	}
	token, err := os.ReadFile(s["HELMR_WORKER_ENROLLMENT_TOKEN_FILE"])
	if err != nil {
		return fmt.Errorf("read HELMR_WORKER_ENROLLMENT_TOKEN_FILE: %w", err)
	}
	ctx := cmd.Context()
	runsc, err := companion("runsc")
	if err != nil {
		return err
	}
	problems := append(gvisor.Preflight(ctx, s.sandboxes(runsc)), networkProblem(ctx)...)
	if err := fatalProblems(problems); err != nil {
		return err
	}
	logProblems(problems, log)
	unlock, err := lockFolder(s["HELMR_WORKER_WORK_DIR"], "worker", "HELMR_WORKER_WORK_DIR")
	if err != nil {
		return err
	}
	defer unlock()
	blobs, err := openBlobs(ctx, s["HELMR_BLOB_URL"], s.s3())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, blobs.Close()) }()
	cfg, err := workerConfig(s, runsc, log)
	if err != nil {
		return err
	}
	if cfg.Vault, err = s.vault(blobs); err != nil {
		return err
	}
	cfg.EnrollmentToken, cfg.Server, cfg.Blob = strings.TrimSpace(string(token)), worker.Remote(serverTransport(s["HELMR_SERVER_URL"]), s["HELMR_SERVER_URL"]), blobs
	if cfg.Network, err = openNetwork(ctx, cfg.Dir, func(name string) string { return s[name] }, []string{s["HELMR_SERVER_URL"], blobs.Endpoint()}, log); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cfg.Network.Close()) }()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find helmr itself: %w", err)
	}
	cfg.Guard = []string{self, "worker", "guard", cfg.Dir}
	warnUnencrypted(log, s["HELMR_SERVER_URL"])
	w, err := worker.New(cfg)
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// sandboxes is where the Worker's are and what bounds them.
func (s settings) sandboxes(runsc string) gvisor.Config {
	return gvisor.Config{RunscPath: runsc, Root: filepath.Join(s["HELMR_WORKER_WORK_DIR"], "sandboxes"),
		DiskSpeed: gvisor.DiskSpeed{MiB: s.number("HELMR_WORKER_COMPUTER_DISK_MIB_PER_SECOND"), Operations: s.number("HELMR_WORKER_COMPUTER_DISK_OPERATIONS_PER_SECOND")}}
}

// vault gives what Computers' disks are stored in.
func (s settings) vault(blobs *blob.Store) (*chunk.Vault, error) {
	var previous [][]byte
	if s["HELMR_CHECKPOINT_ENCRYPTION_KEY_PREVIOUS"] != "" {
		previous = append(previous, s.key("HELMR_CHECKPOINT_ENCRYPTION_KEY_PREVIOUS"))
	}
	return chunk.NewVault(blobs, s.key("HELMR_CHECKPOINT_ENCRYPTION_KEY"), previous...)
}

// workerConfig is what concerns this machine.
func workerConfig(s settings, runsc string, log *slog.Logger) (worker.Config, error) {
	dir := s["HELMR_WORKER_WORK_DIR"]
	cfg := worker.Config{Name: s["HELMR_WORKER_NAME"], Dir: dir, Log: log}
	var err error
	if cfg.GuestBinary, err = companion("helmr-guest"); err != nil {
		return cfg, err
	}
	if cfg.HostProgram, err = build.HostProgram(); err != nil {
		return cfg, err
	}
	if cfg.Runtime, err = gvisor.New(s.sandboxes(runsc)); err != nil {
		return cfg, err
	}
	offer, err := hostCapacity(dir, s.number("HELMR_WORKER_DISK_RESERVE_MIB"))
	if err != nil {
		return cfg, err
	}
	cfg.CPUMillis, cfg.MemoryMiB, cfg.DiskMiB = offer.cpuMillis, offer.memoryMiB, offer.diskMiB
	if n := s.number("HELMR_WORKER_CAPACITY_VCPUS"); n > 0 {
		cfg.CPUMillis = n * 1000
	}
	if n := s.number("HELMR_WORKER_CAPACITY_MEMORY_MIB"); n > 0 {
		cfg.MemoryMiB = n
	}
	if n := s.number("HELMR_WORKER_DISK_MIB"); n > 0 {
		cfg.DiskMiB = n
	}
	return cfg, nil
}

// serverTransport speaks HTTP/2 to the server, so that a Worker's waiting calls share one connection. A connection that
// is cut without a word is found out by pings.
func serverTransport(url string) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Protocols = new(http.Protocols)
	transport.Protocols.SetHTTP2(true)
	transport.Protocols.SetHTTP1(true)
	if strings.HasPrefix(url, "http:") {
		transport.Protocols.SetHTTP1(false)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	transport.HTTP2 = &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second}
	transport.DialContext = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	return &http.Client{Transport: transport}
}

// warnUnencrypted says when what Workers and server tell each other can be read on the way.
func warnUnencrypted(log *slog.Logger, server string) {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "http" {
		return
	}
	if ip, err := netip.ParseAddr(u.Hostname()); u.Hostname() == "localhost" || (err == nil && ip.IsLoopback()) {
		return
	}
	log.Warn("HELMR_SERVER_URL is not https: credentials and Secrets can be read on the way")
}
