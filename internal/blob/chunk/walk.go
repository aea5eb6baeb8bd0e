package chunk

import (
	"bytes"
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
)

const (
	// blockBytes is how much is read at once of what is cut.
	blockBytes = 64 * pageSize
	// lookAhead is how many known pieces are compared before it is their turn.
	lookAhead = 2 * parallel
)

// walker goes through one file and gives its entry the pieces. What is remembered of an earlier state of the file is taken over
// where the bytes are the same; the rest is cut. Since the end of a piece depends on its own bytes, and for some on what
// follows, which is compared as well, the pieces are the same as if everything had been cut.
type walker struct {
	st    *storer
	group *errgroup.Group
	in    *input
	e     *entry
	cut   *cutter
	at    int64 // how far it has read
	done  int64 // how many bytes are in pieces
	kept  []*known

	block   []byte // of the file, from blockAt on
	blockAt int64

	before []*known
	first  map[uint32]int // of before, by checksum of the first page
	// ahead are pieces of before that are being compared, at offsets that ascend; next is the one behind them, which would
	// begin shift bytes from where it was. right is how many were the same in a row: no more than that are compared ahead,
	// so that it costs a guest that misleads it as much as it costs the Worker.
	ahead []*guess
	next  int
	shift int64
	right int
	// comparing are the comparisons under way: they read the file.
	comparing sync.WaitGroup
}

// guess is a piece of before that may be found at an offset.
type guess struct {
	known *known
	at    int64
	done  chan struct{}
	same  bool // once done is closed
}

func (st *storer) walk(ctx context.Context, group *errgroup.Group, in *input, e *entry) error {
	w := &walker{st: st, group: group, in: in, e: e, before: st.before[e.Path], first: map[uint32]int{}, right: lookAhead}
	for i, k := range w.before {
		w.first[k.first] = i
	}
	w.cut = &cutter{rules: st.rules, buffer: st.buffer,
		zero: func(size int64) error {
			st.zeroBytes += size
			w.add(&piece{Size: size})
			return nil
		},
		data: func(data []byte, whole bool) error { return w.store(ctx, data, whole) },
	}
	err := w.run(ctx)
	w.comparing.Wait()
	if err != nil {
		return err
	}
	if st.memo != nil && len(w.kept) > 0 {
		st.memo[e.Path] = w.kept
	}
	return nil
}

func (w *walker) run(ctx context.Context) error {
	for {
		if took, err := w.expected(ctx); took || err != nil {
			if err != nil {
				return err
			}
			continue
		}
		page, hole, err := w.read(ctx)
		switch {
		case err != nil:
			return err
		case hole > 0:
			if err := w.cut.hole(hole); err != nil {
				return err
			}
			w.at += hole
			continue
		case len(page) == 0:
			return w.cut.end()
		}
		if w.cut.zeros > 0 && !bytes.Equal(page, zeroPage[:len(page)]) {
			if err := w.cut.endZeros(); err != nil {
				return err
			}
			continue // a piece begins here
		}
		if took, err := w.found(ctx, page); took || err != nil {
			if err != nil {
				return err
			}
			continue
		}
		if err := w.cut.page(page); err != nil {
			return err
		}
		w.at += int64(len(page))
	}
}

// read gives the page that is next, or the length of a hole, or neither at the end.
func (w *walker) read(ctx context.Context) (page []byte, hole int64, err error) {
	if off := w.at - w.blockAt; off >= 0 && off < int64(len(w.block)) {
		return w.block[off:min(off+pageSize, int64(len(w.block)))], 0, nil
	}
	if err := w.in.reach(ctx, w.at+blockBytes); err != nil {
		return nil, 0, err
	}
	end := w.in.size
	if w.at >= end {
		return nil, 0, nil
	}
	if w.in.final {
		start, to := dataAt(w.in.f, w.at, end)
		if start > w.at {
			return nil, start - w.at, nil
		}
		end = to
	}
	if w.block == nil {
		w.block = make([]byte, blockBytes)
	}
	w.block, w.blockAt = w.block[:min(blockBytes, end-w.at)], w.at
	if err := w.in.read(w.block, w.at); err != nil {
		w.block = w.block[:0]
		return nil, 0, err
	}
	return w.block[:min(pageSize, len(w.block))], 0, nil
}

// store takes a piece that was cut.
func (w *walker) store(ctx context.Context, data []byte, whole bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	st, p, k := w.st, &piece{Size: int64(len(data))}, &known{at: w.done, size: len(data), whole: whole}
	st.pieces++
	w.kept = append(w.kept, k)
	w.add(p)
	w.group.Go(func() error {
		defer st.buffers.Put(&data)
		return st.piece(ctx, p, k, data)
	})
	return nil
}

func (w *walker) add(p *piece) {
	w.e.Pieces = append(w.e.Pieces, p)
	w.done += p.Size
}

// expected takes over the piece that followed the one before, if a piece begins here and it is there.
func (w *walker) expected(ctx context.Context) (took bool, err error) {
	if !w.cut.fresh() {
		return false, nil
	}
	for len(w.ahead) > 0 && w.ahead[0].at < w.at {
		w.ahead = w.ahead[1:]
	}
	if len(w.ahead) == 0 {
		for w.next < len(w.before) && w.before[w.next].at+w.shift < w.at {
			w.next++
		}
		if w.next == len(w.before) || w.before[w.next].at+w.shift != w.at {
			return false, nil
		}
		if err := w.in.reach(ctx, w.needs(w.before[w.next])); err != nil {
			return false, err
		}
		w.look(ctx)
	}
	if len(w.ahead) == 0 || w.ahead[0].at != w.at {
		return false, nil
	}
	g := w.ahead[0]
	w.ahead = w.ahead[1:]
	select {
	case <-g.done:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if !g.same {
		w.right = 0
		return false, nil
	}
	w.right++
	w.over(g.known)
	w.look(ctx)
	return true, nil
}

// over takes over a piece that is at w.at.
func (w *walker) over(was *known) {
	k := *was
	k.at = w.done
	reference := k.reference(w.st.space)
	w.st.take(reference)
	w.st.pieces++
	w.kept = append(w.kept, &k)
	w.add(&piece{Size: int64(k.size), Reference: reference})
	w.at += int64(k.size)
}

// found takes over a piece that begins with a page, wherever it was, if a piece begins here.
func (w *walker) found(ctx context.Context, page []byte) (took bool, err error) {
	if !w.cut.fresh() || len(w.before) == 0 {
		return false, nil
	}
	i, ok := w.first[checksum(page)]
	if !ok || w.before[i].at+w.shift == w.at { // it was expected, and is not the same
		return false, nil
	}
	w.ahead, w.next, w.shift, w.right = nil, i, w.at-w.before[i].at, 0
	return w.expected(ctx)
}

// needs gives how much of the file must be there to compare a piece: with what follows if that ended it.
func (w *walker) needs(k *known) int64 {
	end := k.at + w.shift + int64(k.size)
	if !k.whole {
		end += minZeroRun
	}
	return end
}

// look begins to compare the pieces that are next, as far as the file is there.
func (w *walker) look(ctx context.Context) {
	for len(w.ahead) < min(lookAhead, 1+w.right) && w.next < len(w.before) {
		k := w.before[w.next]
		end := k.at + w.shift + int64(k.size)
		if end > w.in.size || !w.in.final && w.needs(k) > w.in.size {
			return
		}
		g := &guess{known: k, at: k.at + w.shift, done: make(chan struct{})}
		ends := w.in.final && end == w.in.size
		left := w.in.size - end
		w.comparing.Add(1)
		w.group.Go(func() (err error) {
			defer w.comparing.Done()
			defer close(g.done)
			g.same, err = w.compare(ctx, g, ends, left)
			return err
		})
		w.ahead = append(w.ahead, g)
		w.next++
	}
}

// compare tells whether a guess is right, and what it stands for may be referred to. ends says that the file does where it
// does, left how many bytes follow at least.
func (w *walker) compare(ctx context.Context, g *guess, ends bool, left int64) (bool, error) {
	k := g.known
	if has, err := w.st.has(ctx, k.reference(w.st.space)); !has || err != nil {
		return false, err
	}
	buf := w.st.buffer()
	defer func() { w.st.buffers.Put(&buf) }()
	if k.size > cap(buf) {
		return false, nil
	}
	buf = buf[:k.size]
	if err := w.in.read(buf, g.at); err != nil {
		return false, err
	}
	if w.st.space.prints.of(buf) != k.print {
		return false, nil
	}
	if ends { // as every piece does at the end of the file
		return true, nil
	}
	if k.size%pageSize != 0 {
		return false, nil // its last page was the last of the file
	}
	if k.whole {
		return true, nil
	}
	// Zeros ended it, or the end of the file did. Enough zeros that are not its own end it again.
	if left < minZeroRun || zeros(buf[k.size-pageSize:]) {
		return false, nil
	}
	run := buf[:minZeroRun]
	if err := w.in.read(run, g.at+int64(k.size)); err != nil {
		return false, err
	}
	return zeros(run), nil
}

// zeros tells whether there are only zero bytes in whole pages.
func zeros(pages []byte) bool {
	for ; len(pages) > 0; pages = pages[pageSize:] {
		if !bytes.Equal(pages[:pageSize], zeroPage[:]) {
			return false
		}
	}
	return true
}
