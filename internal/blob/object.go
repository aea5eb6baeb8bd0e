package blob

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"regexp"
)

var digestPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// ValidDigest tells whether s is a SHA-256 as 64 lower-case hex digits.
func ValidDigest(s string) bool { return digestPattern.MatchString(s) }

// ObjectKey is the key of the bundle object with a digest.
func ObjectKey(digest string) string { return "objects/" + digest }

// PutObject stores r under "objects/<digest>" if it has exactly size bytes and this SHA-256; otherwise nothing appears
// and the error is ErrMismatch. It is the only writer of that prefix, so whatever is found there was verified.
func (s *Store) PutObject(ctx context.Context, digest string, size int64, r io.Reader) error {
	if !ValidDigest(digest) {
		return fmt.Errorf("digest %q is not 64 lower-case hex digits", digest)
	}
	return s.Put(ctx, ObjectKey(digest), Verify(r, digest, size))
}

// Verify gives a reader of r that ends with io.EOF only if r had exactly size bytes with this SHA-256, and with
// ErrMismatch otherwise. A negative size is not checked. It reads at most one byte beyond size.
func Verify(r io.Reader, digest string, size int64) io.Reader {
	return &verifier{r: r, hash: sha256.New(), digest: digest, size: size}
}

type verifier struct {
	r      io.Reader
	hash   hash.Hash
	digest string
	size   int64
	n      int64
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.r.Read(p)
	v.n += int64(n)
	v.hash.Write(p[:n])
	if v.size >= 0 && v.n > v.size {
		return 0, fmt.Errorf("%w: more than the announced %d bytes", ErrMismatch, v.size)
	}
	if err != io.EOF {
		return n, err
	}
	if v.size >= 0 && v.n != v.size {
		return 0, fmt.Errorf("%w: %d bytes instead of %d", ErrMismatch, v.n, v.size)
	}
	if have := hex.EncodeToString(v.hash.Sum(nil)); have != v.digest {
		return 0, fmt.Errorf("%w: SHA-256 is %s instead of %s", ErrMismatch, have, v.digest)
	}
	return n, io.EOF
}
