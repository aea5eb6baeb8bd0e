package egress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"helmr.dev/helmr/internal/egress/policy"
)

// Check finds out, by trying, whether this host can hold policies against Computers. It leaves nothing behind.
func Check(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "helmr-network-")
	if err != nil {
		return fmt.Errorf("try the network: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	g, err := Open(ctx, Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	_, err = g.Add("check", policy.Policy{AllowDomains: []policy.Entry{}})
	return errors.Join(err, g.Remove("check"), g.Close())
}
