package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	guest "helmr.dev/helmr/internal/guest/client"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// deliverSecrets gets the values bound to the Computer for one process that is about to start: files are written by the
// guest, variables are given back as NAME=value. refused says why they cannot be delivered, so that the process must not
// start. Nothing of a value is kept here, written to the host or logged.
func (c *computer) deliverSecrets(ctx context.Context, link *guest.Client, user string) (variables []string, refused string, err error) {
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := c.w.cfg.Server.ResolveSecrets(limited, &workerpb.ResolveSecretsRequest{WorkerId: c.w.id, ComputerId: c.id, Epoch: c.epoch})
	if err != nil {
		return nil, "", fmt.Errorf("resolve secrets: %w", err) // a revoked one is found by the next Exchange too
	}
	for _, f := range resp.GetFiles() {
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		err := link.PlaceFile(limited, guest.PlaceFile{Path: f.GetPath(), Content: f.GetContent(), User: user})
		cancel()
		switch {
		case errors.Is(err, guest.ErrInvalid):
			return nil, "the file of a Secret cannot be written: " + err.Error(), nil
		case err != nil:
			return nil, "", err
		}
	}
	for _, v := range resp.GetVariables() {
		variables = append(variables, v.GetName()+"="+string(v.GetValue()))
	}
	trust, err := c.trust(ctx, link)
	return append(variables, trust...), "", err
}

// overlay gives the variables of base with those of own over them, each name once.
func overlay(base, own []string) []string {
	named := make(map[string]bool, len(own))
	for _, v := range own {
		name, _, _ := strings.Cut(v, "=")
		named[name] = true
	}
	env := make([]string, 0, len(base)+len(own))
	for _, v := range base {
		if name, _, _ := strings.Cut(v, "="); !named[name] {
			env = append(env, v)
		}
	}
	return append(env, own...)
}
