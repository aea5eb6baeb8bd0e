package chunk

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/klauspost/compress/zstd"

	"helmr.dev/helmr/internal/blob"
)

const (
	manifestVersion = 1
	// maxManifest bounds the JSON of a manifest: enough for some 3 million pieces.
	maxManifest = 256 << 20
	// maxPiece bounds a piece of any version of the rules.
	maxPiece = 16 << 20
)

// manifest lists a folder in the order of its paths, parents first.
type manifest struct {
	Version int      `json:"version"`
	Entries []*entry `json:"entries"`
}

// entry is one file or folder. Mode holds permission bits, with setuid, setgid and sticky as in fs.FileMode.
type entry struct {
	Path   string      `json:"path"`
	Dir    bool        `json:"dir,omitempty"`
	Mode   fs.FileMode `json:"mode"`
	Size   int64       `json:"size,omitempty"`
	Pieces []*piece    `json:"pieces,omitempty"`
}

// piece is a part of a file. Without a digest it is Size zero bytes.
type piece struct {
	Size   int64  `json:"n"`
	Digest string `json:"d,omitempty"`
}

func chunkKey(digest string) string { return "chunks/" + digest }

// ManifestKey is the key of the manifest with a digest.
func ManifestKey(digest string) string { return "manifests/" + digest }

// codec is shared by all goroutines of a call. Sealing chunks with a key will be added in seal and open.
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

// seal gives the stored form of a piece or manifest, in buf if it fits.
func (c *codec) seal(plain, buf []byte) []byte { return c.enc.EncodeAll(plain, buf[:0]) }

// open gives back what seal was given.
func (c *codec) open(stored, buf []byte) ([]byte, error) { return c.dec.DecodeAll(stored, buf[:0]) }

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// fetch reads the object under key and checks that its content has the digest. Bytes beyond limit are refused.
func (c *codec) fetch(ctx context.Context, s *blob.Store, key, digest string, limit int64, buf []byte) ([]byte, error) {
	r, err := s.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	stored, err := io.ReadAll(io.LimitReader(r, limit+limit/8+1024))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	plain, err := c.open(stored, buf)
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", key, err)
	}
	if have := digestOf(plain); have != digest || int64(len(plain)) > limit {
		return nil, fmt.Errorf("%s is damaged: its %d bytes have SHA-256 %s", key, len(plain), have)
	}
	return plain, nil
}

// readManifest fetches and checks a manifest.
func (c *codec) readManifest(ctx context.Context, s *blob.Store, digest string) (*manifest, error) {
	if !blob.ValidDigest(digest) {
		return nil, fmt.Errorf("manifest digest %q is not 64 lower-case hex digits", digest)
	}
	plain, err := c.fetch(ctx, s, ManifestKey(digest), digest, maxManifest, nil)
	if err != nil {
		return nil, err
	}
	var m manifest
	if err := json.Unmarshal(plain, &m); err != nil {
		return nil, fmt.Errorf("%s is not a manifest: %w", ManifestKey(digest), err)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("%s is not a manifest: %w", ManifestKey(digest), err)
	}
	return &m, nil
}

// check refuses a manifest that Store would not write.
func (m *manifest) check() error {
	if m.Version != manifestVersion {
		return fmt.Errorf("version %d is not known", m.Version)
	}
	last := ""
	for _, e := range m.Entries {
		if e == nil || !fs.ValidPath(e.Path) || e.Path == "." || e.Path <= last {
			return errors.New("its paths are not valid, sorted and distinct")
		}
		last = e.Path
		var sum int64
		for _, p := range e.Pieces {
			if p == nil || p.Size < 1 || p.Digest != "" && (p.Size > maxPiece || !blob.ValidDigest(p.Digest)) {
				return fmt.Errorf("%s has a bad piece", e.Path)
			}
			sum += p.Size
		}
		if sum != e.Size || e.Dir && sum != 0 {
			return fmt.Errorf("the pieces of %s have %d bytes instead of %d", e.Path, sum, e.Size)
		}
	}
	return nil
}
