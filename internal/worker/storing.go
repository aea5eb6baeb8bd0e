package worker

import (
	"context"
	"errors"

	"helmr.dev/helmr/internal/blob/chunk"
	"helmr.dev/helmr/internal/sandbox"
)

// storing is a folder of a capture that is stored while the sandbox is still writing it.
type storing struct {
	space *chunk.Space
	src   chunk.Source // for storing it again: it is there as a whole
	whole chan struct{}
	stop  context.CancelFunc
	ended chan struct{}

	// stored and err are guarded by ended.
	stored chunk.Stored
	err    error
}

var errAgain = errors.New("it is to be stored again")

// storeDisk begins to store a disk that somebody is about to write into dir.
func (c *computer) storeDisk(ctx context.Context, dir string) (*storing, error) {
	c.mu.Lock()
	before := c.lastDisk
	c.mu.Unlock()
	return c.beginStoring(ctx, chunk.Source{Dir: dir, Before: before, Remember: true})
}

// keepStored keeps what is known of the disk that was stored last: the next one is mostly the same.
func (c *computer) keepStored(disk chunk.Stored) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastDisk = disk
}

// beginStoring begins to store a folder that somebody is about to write. Tell it with written, and call end.
func (c *computer) beginStoring(ctx context.Context, src chunk.Source) (*storing, error) {
	space, err := c.w.cfg.Vault.Space(c.environment())
	if err != nil {
		return nil, err
	}
	s := &storing{space: space, src: src, whole: make(chan struct{}), ended: make(chan struct{})}
	ctx, s.stop = context.WithCancel(ctx)
	src.Growing, src.Written = sandbox.AppendedFile, s.whole
	go func() {
		defer close(s.ended)
		s.stored, s.err = space.StoreFrom(ctx, src)
	}()
	return s, nil
}

// written takes how the writing of the folder ended, and gives it back. After an error nothing is stored.
func (s *storing) written(err error) error {
	if err == nil {
		close(s.whole)
	} else {
		s.end()
	}
	return err
}

// end stops it if it has not ended, and waits for that.
func (s *storing) end() {
	s.stop()
	<-s.ended
}

// get gives what was stored, after written. If it failed it is tried again, once for each call.
func (s *storing) get(ctx context.Context) (chunk.Stored, error) {
	<-s.ended
	if s.err != nil {
		s.stored, s.err = s.space.StoreFrom(ctx, s.src)
	}
	return s.stored, s.err
}

// retire takes note of names that may not be used: the next get stores again.
func (s *storing) retire(names []string) {
	s.space.Retire(names...)
	s.src.Before, s.err = s.stored, errAgain
}
