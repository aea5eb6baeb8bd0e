package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/internal/blob"
	"helmr.dev/helmr/internal/blob/chunk"
	"helmr.dev/helmr/internal/build"
	"helmr.dev/helmr/internal/sandbox/gvisor"
	"helmr.dev/helmr/internal/worker"
)

func (a *app) workerCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "worker",
		Short: "Run a worker: it hosts computers on this machine for a server",
		Long: `Runs a worker until it is told to stop (SIGTERM or Ctrl-C). Its computers live on: a worker that starts again on the
same folder before the server gives it up goes on with them. It needs root rights. Its settings are environment
variables; a missing or malformed one stops it at start. Logs are JSON lines on stderr.

` + settingsHelp(workerSettings),
		Example: "  helmr worker\n  helmr doctor",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runWorker(cmd) },
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
	problems := append(gvisor.Preflight(ctx, gvisor.Config{RunscPath: runsc}), networkProblem(ctx)...)
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
	if cfg.Network, err = openNetwork(ctx, cfg.Dir, func(name string) string { return s[name] }, []string{s["HELMR_SERVER_URL"], s["HELMR_S3_ENDPOINT"]}, log); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cfg.Network.Close()) }()
	w, err := worker.New(cfg)
	if err != nil {
		return err
	}
	return w.Run(ctx)
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
	if cfg.Runtime, err = gvisor.New(gvisor.Config{RunscPath: runsc, Root: filepath.Join(dir, "sandboxes")}); err != nil {
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

// serverTransport speaks HTTP/2 to the server, so that a Worker's waiting calls share one connection.
func serverTransport(url string) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Protocols = new(http.Protocols)
	transport.Protocols.SetHTTP2(true)
	transport.Protocols.SetHTTP1(true)
	if strings.HasPrefix(url, "http:") {
		transport.Protocols.SetHTTP1(false)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	return &http.Client{Transport: transport}
}
