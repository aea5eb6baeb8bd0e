package db

import (
	"crypto/rand"
	"strings"
	"sync/atomic"
	"time"
)

// heedFor is how long a commit whose answer was lost may still take effect: longer than any connection outlives its server.
const heedFor = 5 * time.Minute

// echoes tells the signals that come back from PostgreSQL to the server that sent them: it has acted on them when it
// committed. After a commit whose answer was lost, which may happen later than its signal here, they count for a while.
type echoes struct {
	sender string // stands before each topic
	until  *atomic.Int64
}

func newEchoes() echoes { return echoes{sender: rand.Text() + " ", until: &atomic.Int64{}} }

// heed has echoes count from now on for heedFor.
func (e echoes) heed() { e.until.Store(time.Now().Add(heedFor).UnixNano()) }

// topic gives the topic of a signal, and tells whether it is an echo that does not count.
func (e echoes) topic(signal string) (topic string, ignored bool) {
	if own, ok := strings.CutPrefix(signal, e.sender); ok {
		return own, time.Now().UnixNano() > e.until.Load()
	}
	_, topic, _ = strings.Cut(signal, " ")
	return topic, false
}
