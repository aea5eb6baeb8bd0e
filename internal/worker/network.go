package worker

import (
	"context"
	"fmt"

	"helmr.dev/helmr/internal/egress/policy"
	"helmr.dev/helmr/internal/sandbox"
)

// resolvConfInside is bound over the image's own: the root filesystem keeps what it has for another start.
const resolvConfInside = "/etc/resolv.conf"

// readPolicy reads the policy of a Computer. One that is missing blocks everything.
func readPolicy(text string) (policy.Policy, error) {
	if text == "" {
		return policy.Policy{BlockAll: true}, nil
	}
	p, err := policy.Parse([]byte(text))
	if err != nil {
		return p, fmt.Errorf("network policy: %w", err)
	}
	return p, nil
}

// network makes the network of a Computer that is about to start: the namespace for its sandbox, "" for none, and what
// to bind into it.
func (c *computer) network(text string) (netNS string, mounts []sandbox.Mount, err error) {
	p, err := readPolicy(text)
	if err != nil || c.w.cfg.Network == nil {
		return "", nil, err
	}
	n, err := c.w.cfg.Network.Add(c.id, p)
	if err != nil || n.NetNS == "" {
		return "", nil, err
	}
	return n.NetNS, []sandbox.Mount{{Source: n.ResolvConf, Destination: resolvConfInside}}, nil
}

// networkIntact tells whether a living sandbox has all of its network.
func (c *computer) networkIntact(text string) bool {
	p, err := readPolicy(text)
	return err == nil && (p.BlockAll || c.w.cfg.Network == nil || c.w.cfg.Network.Intact(c.id))
}

// removeSandbox removes the sandbox of a Computer, and then its network: no sandbox ever runs on without its rules.
func (w *Worker) removeSandbox(ctx context.Context, id string) error {
	if err := w.cfg.Runtime.Remove(ctx, id); err != nil {
		return err
	}
	if w.cfg.Network == nil {
		return nil
	}
	return w.cfg.Network.Remove(id)
}

// sweepNetworks removes the networks of Computers that have no living sandbox here.
func (w *Worker) sweepNetworks(living map[string]bool) error {
	if w.cfg.Network == nil {
		return nil
	}
	for _, id := range w.cfg.Network.List() {
		if !living[id] {
			if err := w.cfg.Network.Remove(id); err != nil {
				return err
			}
		}
	}
	return nil
}
