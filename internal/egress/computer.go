package egress

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"helmr.dev/helmr/internal/egress/policy"
)

// Bounds of what one Computer has under way in the proxies.
const (
	maxConnections = 256
	maxResolutions = 64
	maxAttempts    = 100 // remembered
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
}

func (g *Gateway) newComputer(rec record) *computer {
	c := &computer{record: rec, policy: rec.Policy, namespace: g.names.gateway + "-" + hashed(rec.ID)[:12],
		connections: make(chan struct{}, maxConnections), resolutions: make(chan struct{}, maxResolutions)}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.web = g.transport(c)
	return c
}

func (c *computer) end() {
	c.stop()
	c.web.CloseIdleConnections()
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

// Attempt is something that a Computer tried. What the guest sent is in Name and is bounded, but otherwise its own
// choice: show it as text.
type Attempt struct {
	At   time.Time
	Kind string // dns, tls or http
	Name string // the name asked for; "" when there was none
	// Address that was connected to or given as the answer; invalid when it did not come to that.
	Address netip.Addr
	// Reason says why it was refused; "" when it was not.
	Reason policy.Reason
	// Count is how often the same happened in a row.
	Count int
}

// attempts remembers the last few.
type attempts struct {
	mu   sync.Mutex
	last []Attempt // guarded by mu
}

func (a *attempts) add(at Attempt) {
	at.At, at.Count = time.Now().UTC(), 1
	if len(at.Name) > policy.MaxNameLength {
		at.Name = at.Name[:policy.MaxNameLength]
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.last {
		old := &a.last[i]
		if old.Kind == at.Kind && old.Name == at.Name && old.Reason == at.Reason {
			at.Count = old.Count + 1
			a.last = append(a.last[:i], a.last[i+1:]...)
			break
		}
	}
	if len(a.last) >= maxAttempts {
		a.last = append(a.last[:0], a.last[1:]...)
	}
	a.last = append(a.last, at)
}

func (a *attempts) list() []Attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]Attempt{}, a.last...)
}
