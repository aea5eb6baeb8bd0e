package db

import (
	"strings"
	"sync"
)

// Hub carries signals from committed transactions to whoever waits in this process. A topic is a path: a signal for
// "a/b" reaches those who subscribed to "a/b" and to "a".
type Hub struct {
	mu     sync.Mutex
	topics map[string]map[*Subscription]struct{}
}

// Subscription is one waiter's interest in topics. C receives (without blocking the sender) when one was signalled;
// several signals may arrive as one.
type Subscription struct {
	C      chan struct{}
	hub    *Hub
	topics []string
	onFire func(topic string)
}

func newHub() *Hub { return &Hub{topics: map[string]map[*Subscription]struct{}{}} }

// Subscribe starts listening. Subscribe first, then read the state, then wait on C: no change is missed. Close ends it.
func (h *Hub) Subscribe(topics ...string) *Subscription { return h.subscribe(nil, topics) }

// SubscribeFunc is Subscribe with a function that is told the topic before C receives. It must not block.
func (h *Hub) SubscribeFunc(fn func(topic string), topics ...string) *Subscription {
	return h.subscribe(fn, topics)
}

func (h *Hub) subscribe(fn func(string), topics []string) *Subscription {
	s := &Subscription{C: make(chan struct{}, 1), hub: h, topics: topics, onFire: fn}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range topics {
		set := h.topics[t]
		if set == nil {
			set = map[*Subscription]struct{}{}
			h.topics[t] = set
		}
		set[s] = struct{}{}
	}
	return s
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	for _, t := range s.topics {
		delete(s.hub.topics[t], s)
		if len(s.hub.topics[t]) == 0 {
			delete(s.hub.topics, t)
		}
	}
}

// Signal wakes everyone who waits on topic in this process. Transactions use Tx.Signal instead.
func (h *Hub) Signal(topics ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range topics {
		h.fireLocked(t, t)
		if i := strings.LastIndexByte(t, '/'); i > 0 {
			h.fireLocked(t[:i], t)
		}
	}
}

func (h *Hub) fireLocked(topic, signalled string) {
	for s := range h.topics[topic] {
		if s.onFire != nil {
			s.onFire(signalled)
		}
		select {
		case s.C <- struct{}{}:
		default:
		}
	}
}

// signalAll wakes everyone: used when signals of other servers may have been lost.
func (h *Hub) signalAll() {
	h.mu.Lock()
	all := make([]string, 0, len(h.topics))
	for t := range h.topics {
		all = append(all, t)
	}
	h.mu.Unlock()
	h.Signal(all...)
}
