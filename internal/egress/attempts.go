package egress

import (
	"net/netip"
	"sync"
	"time"

	"helmr.dev/helmr/internal/egress/policy"
)

// maxAttempts is how many are remembered of a Computer.
const maxAttempts = 100

// Attempt is something that a Computer tried, once or often in a row. What the guest sent is in Name and is bounded, but
// otherwise its own choice: show it as text.
type Attempt struct {
	// First and Last are when it was tried first and last.
	First, Last time.Time
	Kind        string // dns, tls, http or (to a protected origin) https by name; tcp, udp, icmp or ip for packets
	Name        string // the name asked for; "" when there was none
	// Address that was connected to, or given as the answer, with the port; not valid when it did not come to that.
	Address netip.AddrPort
	// Reason says why it was refused; "" when it was not.
	Reason policy.Reason
	// Count is how often the same happened.
	Count int64
}

// same tells whether two are the same thing tried again. A name is itself at whatever address.
func (a Attempt) same(b Attempt) bool {
	return a.Kind == b.Kind && a.Name == b.Name && a.Reason == b.Reason && (a.Name != "" || a.Address == b.Address)
}

// attempts remembers the last few.
type attempts struct {
	// tried receives when there is something new.
	tried chan struct{}

	mu   sync.Mutex
	last []Attempt // guarded by mu
}

func (a *attempts) add(at Attempt) {
	at.Last, at.Count = time.Now().UTC(), 1
	at.First = at.Last
	if len(at.Name) > policy.MaxNameLength {
		at.Name = at.Name[:policy.MaxNameLength]
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, old := range a.last {
		if old.same(at) {
			at.First, at.Count = old.First, old.Count+1
			a.last = append(a.last[:i], a.last[i+1:]...)
			break
		}
	}
	if len(a.last) >= maxAttempts {
		a.last = append(a.last[:0], a.last[1:]...)
	}
	a.last = append(a.last, at)
	select {
	case a.tried <- struct{}{}:
	default:
	}
}

func (a *attempts) list() []Attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]Attempt{}, a.last...)
}

// Attempts gives what a Computer tried lately, in the order in which it was tried last, and where the next one is
// signalled; nil for one that has no network. Of what the kernel refuses or forwards it notes a few a second, and it
// begins anew with each Open.
func (g *Gateway) Attempts(id string) (list []Attempt, tried <-chan struct{}) {
	g.mu.RLock()
	c := g.computers[id]
	g.mu.RUnlock()
	if c == nil {
		return nil, nil
	}
	return c.attempts.list(), c.attempts.tried
}
