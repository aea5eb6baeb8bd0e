package worker

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"helmr.dev/helmr/internal/egress"
	"helmr.dev/helmr/internal/egress/policy"
	"helmr.dev/helmr/internal/sandbox"
	workerpb "helmr.dev/helmr/internal/worker/proto"
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
func (c *computer) network(ctx context.Context, spec *workerpb.ComputerSpec) (netNS string, mounts []sandbox.Mount, err error) {
	p, err := readPolicy(spec.GetNetwork())
	if err != nil || c.w.cfg.Network == nil {
		return "", nil, err
	}
	prot, err := c.openProtection(ctx, spec)
	if err != nil {
		return "", nil, err
	}
	n, err := c.w.cfg.Network.Add(c.id, p, prot.origins()...)
	if err != nil || n.NetNS == "" {
		return "", nil, err
	}
	if err := c.protect(prot); err != nil {
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
func (w *Worker) sweepNetworks(living map[string]*sandbox.Status) error {
	if w.cfg.Network == nil {
		return nil
	}
	for _, id := range w.cfg.Network.List() {
		if living[id] == nil {
			if err := w.cfg.Network.Remove(id); err != nil {
				return err
			}
		}
	}
	return nil
}

// deny keeps Computers from the addresses that the server names. What is wrong with them stops nothing else: the rest is
// denied, and it is tried again with the next heartbeat.
func (w *Worker) deny(addresses []string) {
	if w.cfg.Network == nil {
		return
	}
	list := make([]netip.Addr, 0, len(addresses))
	for _, text := range addresses {
		a, _ := netip.ParseAddr(text) // the Gateway names what is none
		list = append(list, a)
	}
	if err := w.cfg.Network.Deny(list); err != nil {
		w.cfg.Log.Error("not all that belongs to the installation is denied to computers", "error", err)
	}
}

// Times between reports of what one Computer tried: something new is waited on a little, for what comes with it.
const (
	reportSoon  = 500 * time.Millisecond
	reportEvery = 3 * time.Second
)

// reportNetwork tells the server what the Computer tries on its network, until ctx ends. A report has all that is
// remembered, so one that is lost is made good by the next.
func (c *computer) reportNetwork(ctx context.Context) error {
	for wait := reportSoon; ; wait = reportEvery {
		_, tried := c.w.cfg.Network.Attempts(c.id)
		if tried == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tried:
		}
		if !sleep(ctx, wait) {
			return ctx.Err()
		}
		c.reportTried(ctx)
	}
}

// reportTried makes one report of what the Computer tried on its network, if that is anything.
func (c *computer) reportTried(ctx context.Context) {
	list, _ := c.w.cfg.Network.Attempts(c.id)
	if len(list) == 0 {
		return
	}
	req := &workerpb.ReportNetworkRequest{WorkerId: c.w.id, ComputerId: c.id, Epoch: c.epoch}
	for _, a := range list {
		req.Attempts = append(req.Attempts, attempt(a))
	}
	if _, err := c.w.cfg.Server.ReportNetwork(ctx, req); err != nil && ctx.Err() == nil {
		c.w.cfg.Log.Debug("what a computer tried on its network was not reported", "computer", c.id, "error", err)
	}
}

// reportLast makes the last report before the network is removed: a preparation that failed at once is read from it.
func (c *computer) reportLast(ctx context.Context) {
	if c.w.cfg.Network == nil {
		return
	}
	limited, cancel := context.WithTimeout(ctx, reportEvery)
	defer cancel()
	c.reportTried(limited)
}

func attempt(a egress.Attempt) *workerpb.NetworkAttempt {
	out := &workerpb.NetworkAttempt{Kind: a.Kind, Name: strings.ToValidUTF8(a.Name, "\uFFFD"), Port: int32(a.Address.Port()), Reason: string(a.Reason), Count: a.Count,
		FirstMs: a.First.UnixMilli(), LastMs: a.Last.UnixMilli()}
	if ip := a.Address.Addr(); ip.IsValid() {
		out.Address = ip.String()
	}
	return out
}
