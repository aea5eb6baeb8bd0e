package chunk

import (
	"bytes"
	"hash/crc32"
)

const (
	pageSize = 4096
	// minZeroRun is how long a run of zero pages must be to become a piece of its own.
	minZeroRun = 64 << 10
)

// rules say where a file is cut: behind a page whose checksum has all bits of mask set, once a piece has min bytes, and
// in any case at max. The mean piece is then near min + pageSize*(mask+1).
type rules struct {
	min, max int
	mask     uint32
}

// standard was chosen by measurement (bench_test.go): after scattered small changes, which is what a Turn leaves, it
// stores half as much as a mean of 768 KiB. A mean of 256 KiB stores only a tenth less and makes a sixth more objects;
// a first Save is hardly faster with larger pieces.
var standard = rules{min: 128 << 10, max: 1 << 20, mask: 1<<6 - 1}

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	zeroPage   [pageSize]byte
)

// cutter turns the pages of one file into pieces. Where it cuts depends on the content alone, so holes may be fed
// without being read.
type cutter struct {
	rules rules
	// data and zero receive the pieces in order. data owns its argument; buffer gives the next empty one. whole says that
	// the bytes of the piece alone decided where it ends, not what follows them.
	data   func(piece []byte, whole bool) error
	zero   func(size int64) error
	buffer func() []byte

	buf   []byte // the piece so far, zeros at its end included
	tail  int    // how many zero bytes the end of buf is
	zeros int64  // length of the running zero piece; then buf is empty
}

// page takes the next page; only the last one of a file may be short.
func (c *cutter) page(p []byte) error {
	if bytes.Equal(p, zeroPage[:len(p)]) {
		return c.zeroPage(len(p))
	}
	if err := c.endZeros(); err != nil {
		return err
	}
	if c.buf == nil {
		c.buf = c.buffer()
	}
	c.buf = append(c.buf, p...)
	c.tail = 0
	if len(c.buf) >= c.rules.min && crc32.Checksum(p, castagnoli)&c.rules.mask == c.rules.mask || len(c.buf) >= c.rules.max {
		return c.endData(true)
	}
	return nil
}

// fresh tells that a piece has just ended: where the next one ends depends on nothing before.
func (c *cutter) fresh() bool { return len(c.buf) == 0 && c.zeros == 0 }

func (c *cutter) zeroPage(n int) error {
	if c.zeros > 0 {
		c.zeros += int64(n)
		return nil
	}
	if c.buf == nil {
		c.buf = c.buffer()
	}
	c.buf = append(c.buf, zeroPage[:n]...)
	c.tail += n
	if c.tail >= minZeroRun {
		return c.beginZeros()
	}
	if len(c.buf) >= c.rules.max {
		return c.endData(true)
	}
	return nil
}

// hole takes n zero bytes that need not be read; n is a multiple of the page size unless the file ends with it.
func (c *cutter) hole(n int64) error {
	for ; n > 0 && c.zeros == 0; n -= pageSize {
		if err := c.zeroPage(int(min(n, pageSize))); err != nil {
			return err
		}
	}
	c.zeros += max(n, 0)
	return nil
}

// beginZeros cuts the zeros at the end of buf off into a zero piece.
func (c *cutter) beginZeros() error {
	run := c.tail
	c.buf, c.tail = c.buf[:len(c.buf)-run], 0
	if len(c.buf) > 0 {
		if err := c.endData(false); err != nil {
			return err
		}
	}
	c.buf, c.zeros = c.buf[:0], int64(run)
	return nil
}

func (c *cutter) endZeros() error {
	if c.zeros == 0 {
		return nil
	}
	n := c.zeros
	c.zeros = 0
	return c.zero(n)
}

func (c *cutter) endData(whole bool) error {
	piece := c.buf
	c.buf, c.tail = nil, 0
	return c.data(piece, whole)
}

// end gives out what is left of the file.
func (c *cutter) end() error {
	if err := c.endZeros(); err != nil {
		return err
	}
	if len(c.buf) > 0 {
		return c.endData(false)
	}
	return nil
}
