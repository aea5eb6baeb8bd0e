package chunk

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// ErrUnreadable says that something stored is missing, was changed, or is under a key that this process lacks. Trying
// again does not help unless somebody puts it back; other errors may pass.
var ErrUnreadable = errors.New("cannot be read")

const (
	// sealVersion and quickVersion are the first byte of every object: what is in it is compressed with zstd, or with S2. That is
	// three times as fast and leaves a third more of what can be compressed: for what is not kept for long.
	sealVersion  = 1
	quickVersion = 2
	idBytes      = 4
	headBytes    = 1 + idBytes
	// sealBytes is by how much an object is longer than what is compressed in it.
	sealBytes = headBytes + 12 + 16
)

// codec is shared by all goroutines of a call.
type codec struct {
	enc *zstd.Encoder
	dec *zstd.Decoder
}

func newCodec() (*codec, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(parallel), zstd.WithEncoderCRC(false)) // the encryption tells what was changed
	if err != nil {
		return nil, err
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(parallel), zstd.WithDecoderMaxMemory(maxManifest))
	if err != nil {
		return nil, err
	}
	return &codec{enc, dec}, nil
}

func (c *codec) close() {
	_ = c.enc.Close()
	c.dec.Close()
}

// head gives the first bytes of an object under k.
func (k *keys) head(version byte) []byte { return append([]byte{version}, k.id[:]...) }

// aead gives the cipher of one object. Each has a key of its own, so no number of objects wears a key out; the nonce is
// random, because what was compressed may differ for the same piece.
func (k *keys) aead(key string) (cipher.AEAD, error) {
	mac := hmac.New(sha256.New, k.content)
	mac.Write([]byte(key))
	block, err := aes.NewCipher(mac.Sum(nil))
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// digest names a piece.
func (k *keys) digest(piece []byte) (digest [sha256.Size]byte) {
	mac := hmac.New(sha256.New, k.names)
	mac.Write(piece)
	mac.Sum(digest[:0])
	return digest
}

// seal gives the stored form of plain: head, then plain compressed and encrypted for the object key, which head belongs
// to. scratch and out may be nil.
func (c *codec) seal(k *keys, key string, head, plain, scratch, out []byte) ([]byte, error) {
	aead, err := k.aead(key)
	if err != nil {
		return nil, err
	}
	out = append(out[:0], head...)
	return aead.Seal(out, nil, c.pack(head[0], plain, scratch[:0]), bound(key, head)), nil
}

// pack compresses plain in the way of a version, or only frames it if that looks useless.
func (c *codec) pack(version byte, plain, out []byte) []byte {
	if version == quickVersion {
		return s2.Encode(out[:cap(out)], plain) // it leaves alone what cannot be compressed, nearly as fast
	}
	if !noisy(plain) {
		return c.enc.EncodeAll(plain, out)
	}
	// A frame of zstd in one segment, with its size and blocks of bytes as they are.
	out = append(out, 0x28, 0xb5, 0x2f, 0xfd, 0xa0)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(plain)))
	for len(plain) > 0 {
		n, last := len(plain), uint32(1)
		if n > maxBlock {
			n, last = maxBlock, 0
		}
		head := uint32(n)<<3 | last
		out = append(append(out, byte(head), byte(head>>8), byte(head>>16)), plain[:n]...)
		plain = plain[n:]
	}
	return out
}

const (
	// maxBlock is the largest block of zstd.
	maxBlock = 128 << 10
	// samples are looked at to tell noise, each of sampleBytes.
	samples     = 8
	sampleBytes = 1 << 10
)

// noisy tells whether a piece looks as if it cannot be compressed: its bytes are encrypted, compressed, or random. In samples of
// these the sum of the squares of how often each byte occurs is near its mean, n + n*n/256; text has several times that. Bytes
// that repeat far apart are not seen.
func noisy(piece []byte) bool {
	if len(piece) < 2*samples*sampleBytes {
		return false
	}
	for i := range samples {
		at := i * (len(piece) - sampleBytes) / (samples - 1)
		var count [256]int
		for _, b := range piece[at : at+sampleBytes] {
			count[b]++
		}
		sum := 0
		for _, n := range count {
			sum += n * n
		}
		// The standard deviation is some 90.
		if sum > sampleBytes+sampleBytes*sampleBytes/256+500 {
			return false
		}
	}
	return true
}

// open gives back what seal was given, in b. head is the first bytes of stored, already taken apart.
func (c *codec) open(k *keys, key string, head, stored []byte, b *pieceBuffers) ([]byte, error) {
	aead, err := k.aead(key)
	if err != nil {
		return nil, err
	}
	packed, err := aead.Open(b.packed[:0], nil, stored[len(head):], bound(key, head))
	if err != nil {
		return nil, errors.New("it was changed, or belongs elsewhere")
	}
	b.packed = packed
	plain, err := c.unpack(head[0], packed, b.plain)
	if err == nil {
		b.plain = plain
	}
	return plain, err
}

// unpack gives back what pack was given, in buf if it has room.
func (c *codec) unpack(version byte, packed, buf []byte) ([]byte, error) {
	if version != quickVersion {
		return c.dec.DecodeAll(packed, buf[:0])
	}
	if n, err := s2.DecodedLen(packed); err != nil || n > maxPiece {
		return nil, errors.New("its length is not possible")
	}
	return s2.Decode(buf[:cap(buf)], packed)
}

// bound is what an object is bound to.
func bound(key string, head []byte) []byte { return append(append([]byte(key), 0), head...) }

// keysOf finds the keys of an object.
func (sp *Space) keysOf(stored []byte) (*keys, error) {
	if len(stored) < sealBytes {
		return nil, errors.New("it was cut short")
	}
	if stored[0] != sealVersion && stored[0] != quickVersion {
		return nil, fmt.Errorf("its version %d is not known", stored[0])
	}
	for i := range sp.keys {
		if bytes.Equal(sp.keys[i].id[:], stored[1:headBytes]) {
			return &sp.keys[i], nil
		}
	}
	return nil, errors.New("it was stored under another HELMR_CHECKPOINT_ENCRYPTION_KEY")
}

// A reference is the digest of a piece, with "-NUMBER" from its second object on: once the first was removed, its name is
// never used again.
var referencePattern = regexp.MustCompile(`^[0-9a-f]{64}(-[1-9][0-9]{0,8})?$`)

// ValidReference tells whether r can be the reference of a piece or the name of a manifest.
func ValidReference(r string) bool { return referencePattern.MatchString(r) }

func splitReference(r string) (digest string, number int, ok bool) {
	if !ValidReference(r) {
		return "", 0, false
	}
	digest, suffix, _ := strings.Cut(r, "-")
	number, _ = strconv.Atoi(suffix) // "" is 0
	return digest, number, true
}

func (sp *Space) chunkKey(reference string) string { return ChunkPrefix(sp.environment) + reference }

// ChunkPrefix is what the keys of an Environment's pieces begin with; a reference follows.
func ChunkPrefix(environmentID string) string { return "chunks/" + environmentID + "/" }

// ManifestPrefix is what the keys of an Environment's manifests begin with; the name of a manifest follows.
func ManifestPrefix(environmentID string) string { return "manifests/" + environmentID + "/" }
