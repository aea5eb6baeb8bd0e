package chunk

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// ErrUnreadable says that something stored is missing, was changed, or is under a key that this process lacks. Trying
// again does not help unless somebody puts it back; other errors may pass.
var ErrUnreadable = errors.New("cannot be read")

const (
	// sealVersion is the first byte of every object.
	sealVersion = 1
	idBytes     = 4
	headBytes   = 1 + idBytes
	// sealBytes is by how much an object is longer than what is compressed in it.
	sealBytes = headBytes + 12 + 16
)

// codec is shared by all goroutines of a call.
type codec struct {
	enc *zstd.Encoder
	dec *zstd.Decoder
}

func newCodec() (*codec, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(parallel))
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
func (k *keys) head() []byte { return append([]byte{sealVersion}, k.id[:]...) }

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
	return aead.Seal(out, nil, c.enc.EncodeAll(plain, scratch[:0]), bound(key, head)), nil
}

// open gives back what seal was given. head is the first bytes of stored, already taken apart.
func (c *codec) open(k *keys, key string, head, stored, buf []byte) ([]byte, error) {
	aead, err := k.aead(key)
	if err != nil {
		return nil, err
	}
	packed, err := aead.Open(nil, nil, stored[len(head):], bound(key, head))
	if err != nil {
		return nil, errors.New("it was changed, or belongs elsewhere")
	}
	return c.dec.DecodeAll(packed, buf[:0])
}

// bound is what an object is bound to.
func bound(key string, head []byte) []byte { return append(append([]byte(key), 0), head...) }

// keysOf finds the keys of an object.
func (sp *Space) keysOf(stored []byte) (*keys, error) {
	if len(stored) < sealBytes {
		return nil, errors.New("it was cut short")
	}
	if stored[0] != sealVersion {
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
