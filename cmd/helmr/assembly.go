package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/blob"
	"helmr.dev/helmr/internal/command"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/deployment"
	"helmr.dev/helmr/internal/loop"
	"helmr.dev/helmr/internal/preparation"
	"helmr.dev/helmr/internal/secret"
	"helmr.dev/helmr/internal/server"
	"helmr.dev/helmr/internal/server/rpc"
	"helmr.dev/helmr/internal/session"
	"helmr.dev/helmr/internal/storage"
	"helmr.dev/helmr/internal/turn"
)

// installationConfig says what the server side of helmr works with.
type installationConfig struct {
	publicURL   string // which people and Workers reach the server under; "" if it is not known
	databaseURL string
	blobURL     string
	s3          blob.S3
	keys        rootKeys
	tls         *tls.Config   // nil: the server speaks no TLS itself
	ownerKey    []byte        // checks owner tokens; nil: there are none
	lostAfter   time.Duration // after which silent Workers are lost; 0: the default. For tests
	migrate     bool          // bring the schema up to date; otherwise a schema that is not is refused
	log         *slog.Logger
	mounts      func(*rpc.Service) map[string]http.Handler // nil: none
}

// installation is the server side of helmr, put together: database, objects, rooms, HTTP and background work.
type installation struct {
	db        *db.DB
	blobs     *blob.Store
	access    *access.Service
	computers *computer.Service
	rpc       *rpc.Service
	http      *server.Server
	loops     *loop.Driver
	log       *slog.Logger
}

// openInstallation opens everything and starts nothing. After an error nothing is open.
func openInstallation(ctx context.Context, cfg installationConfig) (_ *installation, err error) {
	i := &installation{log: cfg.log}
	defer func() {
		if err != nil {
			err = errors.Join(err, i.close())
		}
	}()
	if i.db, err = db.Open(ctx, cfg.databaseURL); err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	if err := i.schema(ctx, cfg.migrate); err != nil {
		return nil, err
	}
	if i.blobs, err = openBlobs(ctx, cfg.blobURL, cfg.s3); err != nil {
		return nil, err
	}
	keyring, err := cfg.keys.open(ctx, i.db)
	if err != nil {
		return nil, err
	}
	secrets := secret.NewService(i.db, keyring, time.Now)
	i.access = access.NewService(i.db)
	i.access.OwnerKey = cfg.ownerKey
	deployments := deployment.NewService(i.db, i.blobs)
	computers := computer.NewService(i.db, time.Now)
	if cfg.lostAfter > 0 {
		computers.LoseWorkersAfter(cfg.lostAfter)
	}
	computers.DenyAddresses(ownAddresses([]string{cfg.publicURL, cfg.databaseURL, i.blobs.Endpoint()}))
	i.computers = computers
	sessions := session.NewService(i.db)
	turns := turn.NewService(i.db, time.Now)
	commands := command.NewService(i.db, time.Now)
	turns.Host(commands)
	preparations := preparation.NewService(i.db, commands, time.Now)
	computers.Prepare(preparations)
	i.rpc = rpc.New(i.db.Hub(), computers, turns, commands, computer.NewResolver(i.db, secrets, time.Now))
	collector := storage.NewCollector(i.db, i.blobs, time.Now, cfg.log, computer.Manifests, preparation.Manifests)
	i.loops = loop.New(i.db.Hub(), cfg.log, slices.Concat(collector.Loops(), computers.Loops(), turns.Loops(), commands.Loops(), preparations.Loops())...)
	var mounts map[string]http.Handler
	if cfg.mounts != nil {
		mounts = cfg.mounts(i.rpc)
	}
	i.http = server.New(server.Config{Version: version(), Mounts: mounts, TLS: cfg.tls}, server.Deps{DB: i.db, Access: i.access, Session: sessions, Turn: turns, Converse: turns,
		Computer: computers, Worker: computers, Command: commands, Secret: secrets, Deployment: deployments, Catalog: deployments, Bundle: deployments, Prepare: preparations, Logger: cfg.log})
	return i, nil
}

// openBlobs opens the object store and proves that it can be used.
func openBlobs(ctx context.Context, url string, s3 blob.S3) (*blob.Store, error) {
	var extra []blob.S3
	if strings.HasPrefix(url, "s3:") {
		extra = append(extra, s3)
	}
	blobs, err := blob.Open(ctx, url, extra...)
	if err != nil {
		return nil, fmt.Errorf("open the blob storage: %w", err)
	}
	if err := blobs.Check(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("check the blob storage: %w", err), blobs.Close())
	}
	return blobs, nil
}

func (i *installation) schema(ctx context.Context, migrate bool) error {
	if migrate {
		ran, err := i.db.Migrate(ctx)
		if err != nil {
			return err
		}
		if len(ran) > 0 {
			i.log.Info("schema migrated", "migrations", ran)
		}
		return nil
	}
	pending, err := i.db.Pending(ctx)
	if err != nil {
		return err
	}
	if len(pending) > 0 {
		return hinted{fmt.Errorf("the schema of the database is not current: it lacks %s", strings.Join(pending, ", ")), "run `helmr migrate` with the same HELMR_DATABASE_URL"}
	}
	return nil
}

// run answers on ln and does the background work until ctx ends, then stops both in order.
func (i *installation) run(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var background sync.WaitGroup
	background.Go(func() { i.loops.Run(ctx) })
	err := i.http.Serve(ctx, ln)
	cancel()
	background.Wait()
	return err
}

func (i *installation) close() error {
	var errs []error
	if i.blobs != nil {
		errs = append(errs, i.blobs.Close())
	}
	if i.db != nil {
		errs = append(errs, i.db.Close())
	}
	return errors.Join(errs...)
}
