package worker

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"helmr.dev/helmr/internal/egress"
	"helmr.dev/helmr/internal/egress/authority"
	"helmr.dev/helmr/internal/egress/protected"
	"helmr.dev/helmr/internal/fault"
	guest "helmr.dev/helmr/internal/guest/client"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// Files in a Computer that its programs find the authority in: all roots, and what Node adds to its own.
const (
	rootsInside = "/var/lib/helmr/tls/roots.pem"
	extraInside = "/var/lib/helmr/tls/extra.pem"
)

// rootsOfImages are where images keep the roots that they trust, the most common first.
var rootsOfImages = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem", "/etc/pki/tls/cacert.pem",
}

// protection is what this Worker holds for the protected Secrets of one Computer. It is in memory only.
type protection struct {
	authority *authority.Authority
	bindings  []*workerpb.ProtectedBinding
	// trustedBy is the connection of the guest over which the authority was put in place; the computer's mu guards it.
	trustedBy int64
}

func (p *protection) origins() []string {
	if p == nil {
		return nil
	}
	var out []string
	for _, b := range p.bindings {
		out = append(out, b.GetOrigins()...)
	}
	return out
}

// openProtection asks the server for a Computer's protection, for as long as it is not there to answer; nil for a Computer
// without protected Secrets.
func (c *computer) openProtection(ctx context.Context, spec *workerpb.ComputerSpec) (*protection, error) {
	if !spec.GetProtected() {
		return nil, nil
	}
	for pause := 50 * time.Millisecond; ; pause = min(pause*2, 2*time.Second) {
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		resp, err := c.w.cfg.Server.OpenProtection(limited, &workerpb.OpenProtectionRequest{WorkerId: c.w.id, ComputerId: c.id, Epoch: c.epoch})
		cancel()
		if err == nil {
			a, err := authority.Open(resp.GetCertificate(), resp.GetKey(), nil)
			if err != nil {
				return nil, fmt.Errorf("open protection: %w", err)
			}
			clear(resp.GetKey())
			return &protection{authority: a, bindings: resp.GetBindings()}, nil
		}
		if fault.Is(err, fault.LeaseLost) || !sleep(ctx, pause) {
			return nil, fmt.Errorf("open protection: %w", err)
		}
		c.w.cfg.Log.Warn("cannot open the protection of a computer; trying again", "computer", c.id, "error", err)
	}
}

// protect has the Computer's requests to protected origins carry values from now on.
func (c *computer) protect(p *protection) error {
	c.mu.Lock()
	c.protection = p
	c.mu.Unlock()
	if p == nil || c.w.cfg.Network == nil {
		return nil
	}
	return c.w.cfg.Network.Protect(c.id, egress.Protection{Authority: p.authority, Resolve: c.resolveProtected})
}

// resolveProtected asks the server for values, for one request. Nothing of them is kept or logged.
func (c *computer) resolveProtected(ctx context.Context, origin string, placeholders []string) ([]protected.Value, error) {
	resp, err := c.w.cfg.Server.ResolveProtected(ctx, &workerpb.ResolveProtectedRequest{WorkerId: c.w.id, ComputerId: c.id, Epoch: c.epoch,
		Origin: origin, Placeholders: placeholders})
	if err != nil {
		return nil, fmt.Errorf("resolve protected secrets: %w", err)
	}
	states := map[workerpb.ProtectedValue_State]protected.State{workerpb.ProtectedValue_STATE_REVOKED: protected.Revoked,
		workerpb.ProtectedValue_STATE_ELSEWHERE: protected.Elsewhere, workerpb.ProtectedValue_STATE_VALUE: protected.Known}
	values := make([]protected.Value, 0, len(resp.GetValues()))
	for _, v := range resp.GetValues() {
		values = append(values, protected.Value{State: states[v.GetState()], Text: v.GetValue()})
	}
	return values, nil
}

// trust puts the Computer's authority where programs find it, once for each connection of the guest, and gives the
// variables that lead them there. Without protected Secrets it gives none.
func (c *computer) trust(ctx context.Context, link *guest.Client) ([]string, error) {
	c.mu.Lock()
	p, image, generation := c.protection, c.config.Env, c.guest.generation
	placed := p != nil && p.trustedBy == generation
	c.mu.Unlock()
	if p == nil {
		return nil, nil
	}
	if !placed {
		own := func(name string) []string {
			for _, v := range image {
				if value, ok := strings.CutPrefix(v, name+"="); ok && path.IsAbs(value) {
					return []string{value}
				}
			}
			return nil
		}
		for file, after := range map[string][]string{rootsInside: append(own("SSL_CERT_FILE"), rootsOfImages...), extraInside: own("NODE_EXTRA_CA_CERTS")} {
			limited, cancel := context.WithTimeout(ctx, callTimeout)
			err := link.PlaceFile(limited, guest.PlaceFile{Path: file, Content: p.authority.PEM(), Public: true, After: after})
			cancel()
			if err != nil {
				return nil, fmt.Errorf("place the authority of a computer: %w", err)
			}
		}
		c.mu.Lock()
		p.trustedBy = generation
		c.mu.Unlock()
	}
	return []string{"SSL_CERT_FILE=" + rootsInside, "NODE_EXTRA_CA_CERTS=" + extraInside}, nil
}
