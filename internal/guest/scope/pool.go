package scope

import (
	"sync"
	"time"
)

// Bounds of a Pool.
const (
	// maxStarting first processes start at a time; each costs the processor more than many a program.
	maxStarting = 2
	// refusals of blanks in a row end a start: something is wrong that the next one will not cure.
	maxRefusals = 3
)

// Pool keeps scopes whose program has ended and whose every process is gone, for the next program: starting the first
// process of a scope takes longer than many a program. A scope is used again only after it was seen that nothing
// is left in it and that its mounts are as they were. The Pool holds none until it was used, and lets go of them when it
// has not been used for a while. It is safe for concurrent use.
type Pool struct {
	reaper *Reaper
	most   int
	idle   time.Duration

	mu sync.Mutex
	// all below are guarded by mu
	blanks   []*blank
	waiting  []chan offer // for a blank, the longest first
	starting int
	checking int // blanks that are empty and may be given soon
	used     time.Time
	timer    *time.Timer
}

// offer is what a waiter gets: a blank of its own or why there is none.
type offer struct {
	blank *blank
	err   error
}

// NewPool makes an empty pool that keeps up to most scopes, for as long as idle after its last use.
func NewPool(r *Reaper, most int, idle time.Duration) *Pool {
	return &Pool{reaper: r, most: most, idle: idle}
}

// Start is as the function Start, with a scope of the pool. When none is free it waits for a new one or for one that
// becomes free, whichever is first. When a scope turns out to have ended it takes another.
func (p *Pool) Start(spec Spec, note func(string)) (*Scope, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	for refused := 0; ; refused++ {
		b, err := p.take()
		if err != nil {
			return nil, err
		}
		s, err := b.run(spec, note, p)
		if err == nil {
			return s, nil
		}
		b.discard()
		if refused == maxRefusals {
			return nil, err
		}
	}
}

func (p *Pool) take() (*blank, error) {
	p.mu.Lock()
	p.used = time.Now()
	for n := len(p.blanks); n > 0; n = len(p.blanks) {
		b := p.blanks[n-1]
		p.blanks = p.blanks[:n-1]
		if !b.dead() {
			p.mu.Unlock()
			return b, nil
		}
		go b.discard()
	}
	wait := make(chan offer, 1)
	p.waiting = append(p.waiting, wait)
	p.growLocked()
	p.mu.Unlock()
	got := <-wait
	return got.blank, got.err
}

// growLocked starts blanks if more wait than are to come.
func (p *Pool) growLocked() {
	if p.starting < min(maxStarting, len(p.waiting)-p.checking) {
		p.starting++
		go p.grow()
	}
}

// checks announces that check is called for a blank.
func (p *Pool) checks() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checking++
}

// check gives an empty blank if its mounts are as they were, and ends it otherwise.
func (p *Pool) check(b *blank) {
	if b.unchanged() {
		p.give(b)
	} else {
		b.discard()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checking--
	p.growLocked()
}

// grow starts blanks, one after the other, while somebody waits.
func (p *Pool) grow() {
	for {
		b, err := newBlank(p.reaper)
		if err != nil {
			p.offer(offer{err: err})
		} else {
			p.give(b)
		}
		p.mu.Lock()
		if len(p.waiting) < p.starting { // the others who start are enough
			p.starting--
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
	}
}

// offer hands something to who waits longest, if anybody does.
func (p *Pool) offer(o offer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offerLocked(o)
}

func (p *Pool) offerLocked(o offer) (taken bool) {
	if len(p.waiting) == 0 {
		return false
	}
	p.waiting[0] <- o
	p.waiting = p.waiting[1:]
	return true
}

// give takes a blank that is free: for who waits, to keep, or to end it.
func (p *Pool) give(b *blank) {
	p.mu.Lock()
	used := p.offerLocked(offer{blank: b})
	if !used && len(p.blanks) < p.most {
		used = true
		p.blanks = append(p.blanks, b)
		if p.timer == nil {
			p.timer = time.AfterFunc(p.idle, p.drop)
		}
	}
	p.mu.Unlock()
	if !used {
		b.discard()
	}
}

// drop lets go of all blanks if the pool has not been used for a while.
func (p *Pool) drop() {
	p.mu.Lock()
	if left := p.idle - time.Since(p.used); left > 0 {
		p.timer.Reset(left)
		p.mu.Unlock()
		return
	}
	gone := p.blanks
	p.blanks, p.timer = nil, nil
	p.mu.Unlock()
	for _, b := range gone {
		b.discard()
	}
}
