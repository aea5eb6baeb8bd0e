package chunk

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"helmr.dev/helmr/internal/blob"
)

const (
	manifestVersion = 1
	// maxManifest bounds the JSON of a manifest: enough for some 3 million pieces.
	maxManifest = 256 << 20
	// maxPiece bounds a piece of any version of the rules.
	maxPiece = 16 << 20
	// maxReferences bounds the list at the beginning of a manifest.
	maxReferences = 4 << 20
	// referenceBytes is one reference in that list: digest and number.
	referenceBytes = 32 + 4
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

// piece is a part of a file. Without a reference it is Size zero bytes.
type piece struct {
	Size      int64  `json:"n"`
	Reference string `json:"d,omitempty"`
}

// newManifestName gives a name that no manifest ever had, so that what is known of one never concerns another.
func newManifestName() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
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
			if p == nil || p.Size < 1 || p.Reference != "" && (p.Size > maxPiece || !ValidReference(p.Reference)) {
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

// references gives what the manifest refers to, each once, sorted.
func (m *manifest) references() []string {
	var all []string
	for _, e := range m.Entries {
		for _, p := range e.Pieces {
			if p.Reference != "" {
				all = append(all, p.Reference)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// encodeHead gives the plain beginning of a stored manifest: head, how many references, and these.
func encodeHead(head []byte, references []string) ([]byte, error) {
	if len(references) > maxReferences {
		return nil, fmt.Errorf("it has %d different pieces; at most %d are possible", len(references), maxReferences)
	}
	out := slices.Grow(slices.Clone(head), 4+len(references)*referenceBytes)
	out = binary.BigEndian.AppendUint32(out, uint32(len(references)))
	for _, r := range references {
		digest, number, ok := splitReference(r)
		if !ok {
			return nil, fmt.Errorf("%q is not a reference", r)
		}
		raw, err := hex.DecodeString(digest)
		if err != nil {
			return nil, err
		}
		out = binary.BigEndian.AppendUint32(append(out, raw...), uint32(number))
	}
	return out, nil
}

func decodeReference(raw []byte) string {
	r := hex.EncodeToString(raw[:32])
	if n := binary.BigEndian.Uint32(raw[32:referenceBytes]); n > 0 {
		r += "-" + strconv.FormatUint(uint64(n), 10)
	}
	return r
}

// References hands each reference of a stored manifest to each, without any key. It is complete or fails: with
// ErrUnreadable if the manifest is missing or cut short.
func References(ctx context.Context, s *blob.Store, environmentID, name string, each func(reference string)) error {
	key := ManifestPrefix(environmentID) + name
	r, err := s.Get(ctx, key)
	if errors.Is(err, blob.ErrNotFound) {
		return fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	var head [headBytes + 4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return cutShort(key, err)
	}
	n := binary.BigEndian.Uint32(head[headBytes:])
	if head[0] != sealVersion || n > maxReferences {
		return fmt.Errorf("%w: %s is not a manifest", ErrUnreadable, key)
	}
	block := make([]byte, 1024*referenceBytes)
	for left := int(n) * referenceBytes; left > 0; left -= len(block) {
		block = block[:min(left, len(block))]
		if _, err := io.ReadFull(r, block); err != nil {
			return cutShort(key, err)
		}
		for at := 0; at < len(block); at += referenceBytes {
			each(decodeReference(block[at:]))
		}
	}
	return nil
}

func cutShort(key string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %s was cut short", ErrUnreadable, key)
	}
	return fmt.Errorf("read %s: %w", key, err)
}

// load reads the whole object under key, at most limit bytes, into buf if it has room.
func (sp *Space) load(ctx context.Context, key string, limit int64, buf []byte) ([]byte, error) {
	r, err := sp.store.Get(ctx, key)
	if errors.Is(err, blob.ErrNotFound) {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	stored, err := readAll(io.LimitReader(r, limit+1), buf[:0])
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	if int64(len(stored)) > limit {
		return nil, fmt.Errorf("%w: %s is longer than it can be", ErrUnreadable, key)
	}
	return stored, nil
}

// readAll appends what r has to buf.
func readAll(r io.Reader, buf []byte) ([]byte, error) {
	for {
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, 512)
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
	}
}

// pieceBuffers hold a piece in its three forms while it is fetched, and are used again for the next.
type pieceBuffers struct{ stored, packed, plain []byte }

// fetchPiece reads a piece of size bytes and checks that it is the one meant. What it gives is in b.
func (sp *Space) fetchPiece(ctx context.Context, c *codec, reference string, size int64, b *pieceBuffers) ([]byte, error) {
	key := sp.chunkKey(reference)
	limit := size + size/8 + 1024
	b.stored = slices.Grow(b.stored[:0], int(limit)+1)
	stored, err := sp.load(ctx, key, limit, b.stored)
	if err != nil {
		return nil, err
	}
	k, err := sp.keysOf(stored)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnreadable, key, err)
	}
	plain, err := c.open(k, key, stored[:headBytes], stored, b)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnreadable, key, err)
	}
	have := k.digest(plain)
	if digest, _, _ := strings.Cut(reference, "-"); int64(len(plain)) != size || hex.EncodeToString(have[:]) != digest {
		return nil, fmt.Errorf("%w: %s does not hold the %d bytes that it should", ErrUnreadable, key, size)
	}
	return plain, nil
}

// putManifest adds a manifest to a batch, as the object that appears last, and gives its name.
func (sp *Space) putManifest(ctx context.Context, c *codec, batch *blob.Batch, m *manifest, references []string) (name string, stored int64, err error) {
	if err := m.check(); err != nil {
		return "", 0, err
	}
	plain, err := json.Marshal(m)
	if err != nil {
		return "", 0, err
	}
	if len(plain) > maxManifest {
		return "", 0, fmt.Errorf("the manifest has %d bytes; at most %d are possible", len(plain), maxManifest)
	}
	name = newManifestName()
	sealed, err := sp.sealManifest(c, name, plain, references)
	if err != nil {
		return "", 0, err
	}
	return name, int64(len(sealed)), batch.Last(ctx, ManifestPrefix(sp.environment)+name, sealed)
}

func (sp *Space) sealManifest(c *codec, name string, plain []byte, references []string) ([]byte, error) {
	k := &sp.keys[0]
	head, err := encodeHead(k.head(sealVersion), references)
	if err != nil {
		return nil, err
	}
	return c.seal(k, ManifestPrefix(sp.environment)+name, head, plain, nil, nil)
}

// readManifest fetches and checks a manifest.
func (sp *Space) readManifest(ctx context.Context, c *codec, name string) (*manifest, error) {
	if !blob.ValidDigest(name) {
		return nil, fmt.Errorf("manifest name %q is not 64 lower-case hex digits", name)
	}
	key := ManifestPrefix(sp.environment) + name
	stored, err := sp.load(ctx, key, maxManifest+maxReferences*referenceBytes, nil)
	if err != nil {
		return nil, err
	}
	m, err := sp.decodeManifest(c, key, stored)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnreadable, key, err)
	}
	return m, nil
}

func (sp *Space) decodeManifest(c *codec, key string, stored []byte) (*manifest, error) {
	k, err := sp.keysOf(stored)
	if err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(stored[headBytes:])
	end := headBytes + 4 + int64(n)*referenceBytes
	if int64(len(stored)) < end {
		return nil, errors.New("it was cut short")
	}
	plain, err := c.open(k, key, stored[:end], stored, &pieceBuffers{})
	if err != nil {
		return nil, err
	}
	var m manifest
	if err := json.Unmarshal(plain, &m); err != nil {
		return nil, fmt.Errorf("it is not a manifest: %w", err)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("it is not a manifest: %w", err)
	}
	return &m, nil
}
