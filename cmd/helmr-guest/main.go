// Command helmr-guest is PID 1 of a Computer. It dials the Worker's socket and carries out what the Worker says; see
// internal/guest/server. As "helmr-guest scope" it is the first process of a process scope; see
// internal/guest/scope. It is built static and imports internal/guest only.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"helmr.dev/helmr/internal/guest/proto"
	"helmr.dev/helmr/internal/guest/scope"
	"helmr.dev/helmr/internal/guest/server"
)

// socketVariable overrides the default of -socket.
const socketVariable = "HELMR_GUEST_SOCKET"

func main() {
	if len(os.Args) > 1 && os.Args[1] == scope.Role {
		scope.Main()
	}
	socket := os.Getenv(socketVariable)
	if socket == "" {
		socket = "/run/helmr/worker.sock"
	}
	flag.StringVar(&socket, "socket", socket, "path of the Worker's Unix socket; also "+socketVariable)
	stop := flag.Duration("stop-deadline", 10*time.Second, "how long a process told to stop may take")
	version := flag.Bool("protocol", false, "print the version of the guest protocol and exit")
	flag.Parse()
	if *version {
		fmt.Println(proto.Version)
		return
	}
	serve(server.Config{Socket: socket, StopDeadline: *stop, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
}

// serve runs until SIGTERM or SIGINT; PID 1 ignores both, the Computer ends with its sandbox.
func serve(cfg server.Config) {
	ctx := context.Background()
	if os.Getpid() == 1 {
		// Handled rather than ignored, because programs would inherit an ignored signal.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	} else {
		// Orphans come here as they would to PID 1.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			cfg.Log.Warn("cannot adopt orphans", "err", err)
		}
		var cancel context.CancelFunc
		ctx, cancel = signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
		defer cancel()
	}
	s := server.New(cfg)
	s.Run(ctx)
	s.KillAll()
}
