package blob

import (
	"sync"
	"time"
)

// Bounds of what a Store remembers.
const (
	seenMax = 200_000
	// seenFor is how long a key is believed without looking. Whoever deletes objects that nothing refers to must leave
	// each alone for longer than this after the last reference is gone.
	seenFor = 15 * time.Minute
)

// seen holds keys that this process has lately stored or found: half of them at most is forgotten at a time.
type seen struct {
	mu          sync.Mutex
	young, aged map[string]time.Time
}

// Remember notes that an object durably has key, to save looking for it again.
func (s *Store) Remember(key string) { s.seen.add(key, time.Now()) }

// Remembers tells whether key was noted lately. False says nothing.
func (s *Store) Remembers(key string) bool { return s.seen.has(key, time.Now()) }

func (s *seen) add(key string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.young == nil || len(s.young) >= seenMax/2 {
		s.young, s.aged = map[string]time.Time{}, s.young
	}
	s.young[key] = now
}

func (s *seen) has(key string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.young[key]
	if !ok {
		at, ok = s.aged[key]
	}
	return ok && now.Sub(at) < seenFor
}

func (s *seen) drop(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.young, key)
	delete(s.aged, key)
}
