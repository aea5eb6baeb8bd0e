package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// Errors of a Store, to be found with errors.Is.
var (
	// ErrNotFound says that no object has the key.
	ErrNotFound = errors.New("blob does not exist")
	// ErrFull says that the disk under a folder has no room left. Nothing of the refused object stays.
	ErrFull = errors.New("the disk of the blob store is full")
	// ErrMismatch says that content does not have the digest or size that was announced.
	ErrMismatch = errors.New("content does not match")
)

// Store is an open blob store. It is safe for concurrent use, also by several processes on one folder or bucket.
type Store struct {
	driver driver
	seen   seen
}

// Info describes one object of a list.
type Info struct {
	Key        string
	Size       int64
	ModifiedAt time.Time
}

// driver is one kind of storage. Keys are already checked.
type driver interface {
	put(ctx context.Context, key string, r io.Reader) error
	get(ctx context.Context, key string) (io.ReadCloser, error)
	size(ctx context.Context, key string) (int64, bool, error)
	delete(ctx context.Context, key string) error
	list(ctx context.Context, prefix string, each func(Info) error) error
	batch() batch
	check(ctx context.Context) error
	endpoint() string
	close() error
}

// batch is the driver's side of a Batch.
type batch interface {
	put(ctx context.Context, key string, data []byte) error
	last(ctx context.Context, key string, data []byte) error
	commit(ctx context.Context) error
	discard()
}

// S3 holds what an s3: URL does not say. Empty fields mean: what the AWS SDK finds by itself.
type S3 struct {
	Endpoint        string // HELMR_S3_ENDPOINT, for example "https://s3.example.org"; path-style addresses are used with it
	AccessKeyID     string // HELMR_S3_ACCESS_KEY_ID
	SecretAccessKey string // HELMR_S3_SECRET_ACCESS_KEY
}

// Open opens the store at rawURL: "file:PATH" (made when missing) or "s3://BUCKET[/PREFIX][?region=REGION]". At most
// one S3 may be given; file: needs none. A bucket is not contacted: Check does that.
func Open(ctx context.Context, rawURL string, s3 ...S3) (*Store, error) {
	switch {
	case strings.HasPrefix(rawURL, "file:"):
		path := strings.TrimPrefix(rawURL, "file:")
		if strings.HasPrefix(path, "//") { // file://HOST/PATH: only an empty host
			path = strings.TrimPrefix(path, "//")
			if !strings.HasPrefix(path, "/") {
				return nil, errors.New(`blob URL: "file://" must be followed by an absolute path; write "file:PATH"`)
			}
		}
		d, err := openFolder(path)
		if err != nil {
			return nil, err
		}
		return &Store{driver: d}, nil
	case strings.HasPrefix(rawURL, "s3:"):
		u, err := url.Parse(rawURL)
		if err != nil || u.Host == "" {
			return nil, errors.New(`blob URL: want "s3://BUCKET", optionally with "/PREFIX" and "?region=REGION"`)
		}
		var access S3
		if len(s3) > 0 {
			access = s3[0]
		}
		d, err := openBucket(ctx, u, access)
		if err != nil {
			return nil, err
		}
		return &Store{driver: d}, nil
	}
	return nil, errors.New(`blob URL: want "file:PATH" or "s3://BUCKET"`)
}

// Check tells whether the store can be reached.
func (s *Store) Check(ctx context.Context) error { return s.driver.check(ctx) }

// Endpoint gives the URL of the server that the store is reached at, "" of a folder.
func (s *Store) Endpoint() string { return s.driver.endpoint() }

// Close gives back what the store holds open.
func (s *Store) Close() error { return s.driver.close() }

var keyPattern = regexp.MustCompile(`^[a-z]{1,32}(/[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}){1,4}$`)

// checkKey refuses what could leave the store's folder or meet its temporary files.
func checkKey(key string) error {
	if !keyPattern.MatchString(key) || strings.HasPrefix(key, tmpFolder+"/") {
		return fmt.Errorf("blob key %q is not valid", key)
	}
	return nil
}

// Put stores everything r gives under key, replacing what was there. If r or the store fails, or ctx ends, nothing
// appears.
func (s *Store) Put(ctx context.Context, key string, r io.Reader) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if err := s.driver.put(ctx, key, r); err != nil {
		return fmt.Errorf("put %s: %w", key, err)
	}
	return nil
}

// Get opens the object under key. The caller closes it.
func (s *Store) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	r, err := s.driver.get(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", key, err)
	}
	return r, nil
}

// Size gives the size in bytes of the object under key, and whether there is one.
func (s *Store) Size(ctx context.Context, key string) (size int64, found bool, err error) {
	if err := checkKey(key); err != nil {
		return 0, false, err
	}
	size, found, err = s.driver.size(ctx, key)
	if err != nil {
		return 0, false, fmt.Errorf("look for %s: %w", key, err)
	}
	return size, found, nil
}

// Exists tells whether an object has the key.
func (s *Store) Exists(ctx context.Context, key string) (bool, error) {
	_, found, err := s.Size(ctx, key)
	return found, err
}

// Delete removes the object under key; a missing one is no error.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	s.seen.drop(key)
	if err := s.driver.delete(ctx, key); err != nil {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	return nil
}

// List hands every object whose key begins with prefix to each, in no promised order, and stops at its first error.
// prefix is the first part of keys, for example "chunks/".
func (s *Store) List(ctx context.Context, prefix string, each func(Info) error) error {
	if err := checkKey(strings.TrimSuffix(prefix, "/") + "/x"); err != nil || !strings.HasSuffix(prefix, "/") {
		return fmt.Errorf("blob prefix %q is not valid", prefix)
	}
	if err := s.driver.list(ctx, prefix, each); err != nil {
		return fmt.Errorf("list %s: %w", prefix, err)
	}
	return nil
}

// Batch is a group of small objects that become durable together. Before Commit returns nil none of them may be relied
// on; a folder does not even show them, so that a crash leaves no half-written object under a key. Its methods may be
// called from several goroutines, but Commit only after all Puts have returned. Discard after Commit does nothing.
type Batch struct{ b batch }

// Batch starts a batch. End it with Commit or Discard.
func (s *Store) Batch() *Batch { return &Batch{s.driver.batch()} }

// Put adds one object. data is not kept after Put returns.
func (b *Batch) Put(ctx context.Context, key string, data []byte) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if err := b.b.put(ctx, key, data); err != nil {
		return fmt.Errorf("put %s: %w", key, err)
	}
	return nil
}

// Last adds an object that appears when all others are durable. There may be one, after all Puts have returned.
func (b *Batch) Last(ctx context.Context, key string, data []byte) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if err := b.b.last(ctx, key, data); err != nil {
		return fmt.Errorf("put %s: %w", key, err)
	}
	return nil
}

// Commit makes all objects of the batch durable and visible.
func (b *Batch) Commit(ctx context.Context) error {
	if err := b.b.commit(ctx); err != nil {
		return fmt.Errorf("commit blobs: %w", err)
	}
	return nil
}

// Discard drops what was not committed.
func (b *Batch) Discard() { b.b.discard() }
