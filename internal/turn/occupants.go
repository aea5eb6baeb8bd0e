package turn

import (
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// Occupants are what uses Computers beside Sessions. A room to the right has them and decides about them in this room's
// transactions, under the Computer's lock.
type Occupants interface {
	// Exchange takes what a Worker sees of them on c, adds what is wanted of them, and tells how they use c.
	Exchange(tx *db.Tx, c *computer.Row, now int64, req *workerpb.ExchangeRequest, out *workerpb.ExchangeResponse) (Occupancy, error)
	// Unplaced records that c became unavailable before it ran.
	Unplaced(tx *db.Tx, c *computer.Row, now int64) error
	// Lost records that c is lost. proven tells that nothing of it runs any more for certain; why, if known, is for people.
	Lost(tx *db.Tx, c *computer.Row, now int64, proven bool, why string) error
}

// Occupancy counts occupants of one Computer.
type Occupancy struct {
	// Waiting are still to be begun: the Computer has to run for them.
	Waiting int
	// Inside have something in the guest that must end, or be fetched, before the Computer may be emptied.
	Inside int
	// Stuck cannot be ended: they keep the Computer in use, but not from being stopped.
	Stuck int
}

// Host lets others than Sessions use Computers. It is called once, before anything else.
func (s *Service) Host(o Occupants) { s.occupants = o }

func (x *exchange) exchangeOthers() (err error) {
	if x.occupants != nil {
		x.others, err = x.occupants.Exchange(x.tx, x.c, x.now, x.req, x.out)
	}
	return err
}

// startFailed records a failed start. Turns wait for the next one; others fail when there is none soon.
func (x *exchange) startFailed() error {
	if err := x.c.StartFailed(x.now, message(x.req.GetError(), "the sandbox did not start")); err != nil {
		return err
	}
	if x.c.Residency != computer.Unavailable || x.occupants == nil {
		return nil
	}
	return x.occupants.Unplaced(x.tx, x.c, x.now)
}

// use keeps the Computer's record of whether anything needs it.
func (x *exchange) use() {
	for _, u := range x.units {
		if u.p != nil || u.runnable() || u.busy() {
			return
		}
	}
	if x.others == (Occupancy{}) {
		x.c.Unwanted(x.now)
	}
}
