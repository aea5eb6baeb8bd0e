package chunk

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/crc32"
)

// maxRemembered bounds the pieces that are remembered of a folder. At the mean size of a piece that is a disk of 24 GiB, and
// takes 5 MiB of memory; of a larger one nothing is remembered.
const maxRemembered = 1 << 16

// memo is what is remembered of a folder that was stored, by the path of each file, in the order of the pieces.
type memo map[string][]*known

// bounded gives m if it is not larger than it may be.
func (m memo) bounded() memo {
	n := 0
	for _, pieces := range m {
		n += len(pieces)
	}
	if n > maxRemembered {
		return nil
	}
	return m
}

// known is a piece that was stored: where it was, its digest, and by what it is recognised.
type known struct {
	at     int64
	size   int
	whole  bool   // see cutter
	first  uint32 // checksum of its first page
	print  print
	digest [sha256.Size]byte
}

func (k *known) remember(p *prints, digest [sha256.Size]byte, data []byte) {
	k.first, k.print, k.digest = checksum(data[:min(pageSize, len(data))]), p.of(data), digest
}

// reference gives the reference that the piece may be stored or found under now.
func (k *known) reference(sp *Space) string { return sp.reference(hex.EncodeToString(k.digest[:])) }

func checksum(page []byte) uint32 { return crc32.Checksum(page, castagnoli) }

// print is the fingerprint of a piece.
type print [16]byte

// prints makes fingerprints, several times as fast as digests: GHASH under a key that is random for each process. It is a
// universal hash: whoever chooses two different pieces of at most 1 MiB without knowing the key has a chance of 2^-112 that
// they have the same fingerprint. Nobody learns anything about the key as long as no fingerprint leaves the process, for
// which reason none is stored, logged or sent.
type prints struct{ aead cipher.AEAD }

func newPrints() (*prints, error) {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, fmt.Errorf("make fingerprints: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("make fingerprints: %w", err)
	}
	return &prints{aead}, nil
}

// of gives the tag of GCM over a piece that nothing is encrypted with. One nonce for all is right: tags are secret.
func (p *prints) of(piece []byte) (out print) {
	var nonce [12]byte
	p.aead.Seal(out[:0], nonce[:], nil, piece)
	return out
}
