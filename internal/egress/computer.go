package egress

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"

	"helmr.dev/helmr/internal/egress/policy"
)

// Bounds of what one Computer has under way in the proxies.
const (
	maxConnections = 256
	maxResolutions = 64
)

// computer is one Computer that has a network.
type computer struct {
	record
	policy    policy.Policy
	namespace string

	ctx  context.Context // ends with the network
	stop context.CancelFunc

	connections, resolutions chan struct{} // a place for each
	attempts                 attempts
	web                      *http.Transport // of the HTTP proxy
	shield                   shield
}

func (g *Gateway) newComputer(rec record) *computer {
	c := &computer{record: rec, policy: rec.Policy, namespace: g.names.gateway + "-" + hashed(rec.ID)[:12],
		connections: make(chan struct{}, maxConnections), resolutions: make(chan struct{}, maxResolutions), attempts: attempts{tried: make(chan struct{}, 1)}}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.web = g.transport(c)
	c.shield.origins = parseOrigins(rec.Protected)
	return c
}

func (c *computer) end() {
	c.stop()
	c.web.CloseIdleConnections()
	c.shield.close()
}

func (c *computer) link() string { return fmt.Sprintf("c%d", c.Slot) }

func (c *computer) gateway() netip.Addr {
	a, _ := subnet(computerRange, c.Slot)
	return a
}

func (c *computer) address() netip.Addr {
	_, a := subnet(computerRange, c.Slot)
	return a
}

// take gets one of a bounded number of places, without waiting.
func take(places chan struct{}) (give func(), ok bool) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, true
	default:
		return nil, false
	}
}
