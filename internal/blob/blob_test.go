package blob_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"helmr.dev/helmr/internal/blob"
	"helmr.dev/helmr/internal/blob/blobtest"
)

// each runs test on a folder and on an S3-compatible server.
func each(t *testing.T, test func(t *testing.T, s *blob.Store)) {
	t.Helper()
	t.Run("folder", func(t *testing.T) {
		t.Parallel()
		test(t, open(t, "file:"+t.TempDir()))
	})
	t.Run("s3", func(t *testing.T) {
		t.Parallel()
		backend := s3mem.New()
		if err := backend.CreateBucket("helmr"); err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(gofakes3.New(backend).Server())
		t.Cleanup(server.Close)
		test(t, open(t, "s3://helmr/some/prefix", blob.S3{Endpoint: server.URL, AccessKeyID: "id", SecretAccessKey: "secret"}))
	})
	t.Run("versitygw", func(t *testing.T) {
		t.Parallel()
		test(t, open(t, "s3://helmr/some/prefix", blobtest.Server(t, "helmr")))
	})
}

func open(t *testing.T, url string, s3 ...blob.S3) *blob.Store {
	t.Helper()
	s, err := blob.Open(t.Context(), url, s3...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

func read(t *testing.T, s *blob.Store, key string) []byte {
	t.Helper()
	r, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func keys(t *testing.T, s *blob.Store, prefix string) []string {
	t.Helper()
	var out []string
	err := s.List(t.Context(), prefix, func(i blob.Info) error {
		if i.ModifiedAt.IsZero() {
			t.Errorf("%s has no time", i.Key)
		}
		out = append(out, i.Key)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

func TestPutGetSizeListDelete(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *blob.Store) {
		if err := s.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		contents := [][]byte{{}, []byte("x"), random(1 << 20), random(20 << 20)}
		var want []string
		for _, c := range contents {
			key := "chunks/" + digest(c)
			want = append(want, key)
			if ok, err := s.Exists(t.Context(), key); ok || err != nil {
				t.Fatalf("before put: %v, %v", ok, err)
			}
			if err := s.Put(t.Context(), key, bytes.NewReader(c)); err != nil {
				t.Fatal(err)
			}
			if err := s.Put(t.Context(), key, bytes.NewReader(c)); err != nil {
				t.Fatalf("put again: %v", err)
			}
			if n, ok, err := s.Size(t.Context(), key); n != int64(len(c)) || !ok || err != nil {
				t.Fatalf("size %d, %v, %v; want %d", n, ok, err, len(c))
			}
			if !bytes.Equal(read(t, s, key), c) {
				t.Fatalf("%d bytes come back changed", len(c))
			}
		}
		slices.Sort(want)
		if have := keys(t, s, "chunks/"); !slices.Equal(have, want) {
			t.Fatalf("list %v, want %v", have, want)
		}
		if have := keys(t, s, "manifests/"); len(have) != 0 {
			t.Fatalf("list of an unused prefix: %v", have)
		}
		for range 2 {
			if err := s.Delete(t.Context(), want[0]); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Get(t.Context(), want[0]); !errors.Is(err, blob.ErrNotFound) {
			t.Fatalf("get after delete: %v", err)
		}
		if have := keys(t, s, "chunks/"); !slices.Equal(have, want[1:]) {
			t.Fatalf("list after delete %v", have)
		}
	})
}

func TestAFailedPutLeavesNothing(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *blob.Store) {
		key := "chunks/" + digest([]byte("a"))
		broken := errors.New("the sender went away")
		for _, n := range []int{0, 1000, 30 << 20} {
			err := s.Put(t.Context(), key, io.MultiReader(bytes.NewReader(random(n)), iotest.ErrReader(broken)))
			if !errors.Is(err, broken) {
				t.Fatalf("put: %v", err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Put(ctx, key, strings.NewReader("a")); !errors.Is(err, context.Canceled) {
			t.Fatalf("put with an ended context: %v", err)
		}
		if have := keys(t, s, "chunks/"); len(have) != 0 {
			t.Fatalf("left: %v", have)
		}
	})
}

func TestPutObjectTakesOnlyWhatWasAnnounced(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *blob.Store) {
		content := random(100_000)
		d, n := digest(content), int64(len(content))
		refuse := func(name string, size int64, body []byte) {
			t.Helper()
			if err := s.PutObject(t.Context(), d, size, iotest.HalfReader(bytes.NewReader(body))); !errors.Is(err, blob.ErrMismatch) {
				t.Errorf("%s: %v", name, err)
			}
			if ok, err := s.Exists(t.Context(), blob.ObjectKey(d)); ok || err != nil {
				t.Errorf("%s: exists %v, %v", name, ok, err)
			}
		}
		changed := slices.Clone(content)
		changed[500] ^= 1
		refuse("changed", n, changed)
		refuse("short", n, content[:n-1])
		refuse("long", n, append(slices.Clone(content), 0))
		refuse("wrong size", n+1, content)
		refuse("empty", n, nil)
		if err := s.PutObject(t.Context(), d, n, bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(read(t, s, blob.ObjectKey(d)), content) {
			t.Fatal("comes back changed")
		}
		if err := s.PutObject(t.Context(), "../"+d, n, bytes.NewReader(content)); err == nil {
			t.Fatal("a digest that is none was taken")
		}
	})
}

func TestBatchAppearsAtCommit(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *blob.Store) {
		b := s.Batch()
		defer b.Discard()
		var want []string
		var wg sync.WaitGroup
		for range 100 { // more than are synced together
			c := random(3000)
			want = append(want, "chunks/"+digest(c))
			wg.Go(func() {
				if err := b.Put(t.Context(), "chunks/"+digest(c), c); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if err := b.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.Discard()
		slices.Sort(want)
		if have := keys(t, s, "chunks/"); !slices.Equal(have, want) {
			t.Fatalf("%d objects, want %d", len(have), len(want))
		}
	})
}

func TestTheLastOfABatchIsLast(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *blob.Store) {
		for _, n := range []int{0, 1, 31, 32, 40} { // also when it fills a group
			b := s.Batch()
			defer b.Discard()
			for range n {
				c := random(300)
				if err := b.Put(t.Context(), "chunks/"+digest(c), c); err != nil {
					t.Fatal(err)
				}
			}
			last := fmt.Sprint("manifests/", n)
			if err := errors.Join(b.Last(t.Context(), last, []byte("last")), b.Commit(t.Context())); err != nil {
				t.Fatal(err)
			}
			if have := read(t, s, last); string(have) != "last" {
				t.Fatalf("last is %q", have)
			}
		}
		if have := keys(t, s, "chunks/"); len(have) != 104 {
			t.Fatalf("%d objects", len(have))
		}
	})
}

// TestNoLastWithoutTheOthers: when one cannot appear, the last does not.
func TestNoLastWithoutTheOthers(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := open(t, "file:"+root)
	b := s.Batch()
	for _, key := range []string{"chunks/a", "broken/b", "chunks/c"} {
		if err := b.Put(t.Context(), key, []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Last(t.Context(), "manifests/m", []byte("m")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "broken"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(t.Context()); err == nil {
		t.Fatal("committed without a place for one")
	}
	b.Discard()
	if ok, err := s.Exists(t.Context(), "manifests/m"); ok || err != nil {
		t.Fatalf("the last is there: %t, %v", ok, err)
	}
	if have := files(t, root); slices.ContainsFunc(have, func(f string) bool { return strings.HasPrefix(f, "tmp/") }) {
		t.Fatalf("left: %v", have)
	}
}

func TestKeysAreChecked(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s *blob.Store) {
		for _, key := range []string{"", "x", "/x", "objects/", "objects/..", "objects/../x", "../objects/x", "objects//x", "objects/.attrs",
			"objects/a\x00", "objects/a b", "tmp/put-1", "Objects/x", "objects/" + strings.Repeat("a", 200)} {
			if err := s.Put(t.Context(), key, strings.NewReader("")); err == nil {
				t.Errorf("put %q was taken", key)
			}
			if _, err := s.Get(t.Context(), key); err == nil || errors.Is(err, blob.ErrNotFound) {
				t.Errorf("get %q: %v", key, err)
			}
			if err := s.Delete(t.Context(), key); err == nil {
				t.Errorf("delete %q was taken", key)
			}
		}
		for _, prefix := range []string{"", "/", "../", "tmp/", "chunks"} {
			if err := s.List(t.Context(), prefix, func(blob.Info) error { return nil }); err == nil {
				t.Errorf("list %q was taken", prefix)
			}
		}
	})
}

// files gives every regular file under root.
func files(t *testing.T, root string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out = append(out, strings.TrimPrefix(path, root+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestFolderHoldsOneFilePerObjectAndNoLeftovers(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := open(t, "file://"+root)
	b := s.Batch()
	if err := b.Put(t.Context(), "chunks/a", []byte("a")); err != nil {
		t.Fatal(err)
	}
	if ok, _ := s.Exists(t.Context(), "chunks/a"); ok {
		t.Fatal("a batch shows before commit")
	}
	for i := range 40 { // more than are synced together
		if err := b.Put(t.Context(), fmt.Sprint("chunks/a", i), []byte("a")); err != nil {
			t.Fatal(err)
		}
	}
	b.Discard()
	_ = s.Put(t.Context(), "chunks/b", iotest.ErrReader(errors.New("broken")))
	if have := files(t, root); len(have) != 0 {
		t.Fatalf("left: %v", have)
	}
	if err := s.Put(t.Context(), "chunks/c", strings.NewReader("c")); err != nil {
		t.Fatal(err)
	}
	if have := files(t, root); !slices.Equal(have, []string{"chunks/c"}) {
		t.Fatalf("files: %v", have)
	}
}

func TestFolderSweepsOldTemporaryFilesAtOpen(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	open(t, "file:"+root)
	old, young := filepath.Join(root, "tmp/put-old"), filepath.Join(root, "tmp/put-young")
	for _, name := range []string{old, young} {
		if err := os.WriteFile(name, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(old)
	if err != nil {
		t.Fatal(err)
	}
	past := info.ModTime().AddDate(0, 0, -2)
	if err := os.Chtimes(old, past, past); err != nil {
		t.Fatal(err)
	}
	open(t, "file:"+root)
	if have := files(t, root); !slices.Equal(have, []string{"tmp/put-young"}) {
		t.Fatalf("files: %v", have)
	}
}

// What is denied to Computers is where the SDK goes, also when no setting of ours says where that is.
func TestSpec_21_06_TheEndpointIsWhereTheClientGoes(t *testing.T) {
	folder := open(t, "file:"+t.TempDir())
	if got := folder.Endpoint(); got != "" {
		t.Errorf("folder: %q", got)
	}
	keys := blob.S3{AccessKeyID: "id", SecretAccessKey: "secret"}
	for url, want := range map[string]string{
		"s3://pieces":                          "https://pieces.s3.us-east-1.amazonaws.com",
		"s3://pieces/prefix?region=eu-west-3":  "https://pieces.s3.eu-west-3.amazonaws.com",
		"s3://with.dots?region=eu-west-3":      "https://s3.eu-west-3.amazonaws.com",
		"s3://pieces/prefix?region=cn-north-1": "https://pieces.s3.cn-north-1.amazonaws.com.cn",
	} {
		if got := open(t, url, keys).Endpoint(); got != want {
			t.Errorf("%s: %q, want %q", url, got, want)
		}
	}
	keys.Endpoint = "http://10.1.2.3:9000"
	if got := open(t, "s3://pieces", keys).Endpoint(); got != keys.Endpoint {
		t.Errorf("with an endpoint: %q", got)
	}
	// The SDK's own setting, which it reads where it finds the credentials itself.
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AWS_ENDPOINT_URL_S3", "https://store.example")
	if got := open(t, "s3://pieces").Endpoint(); got != "https://pieces.store.example" {
		t.Errorf("with AWS_ENDPOINT_URL_S3: %q", got)
	}
}

func TestOpenNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"": "blob URL", "/tmp/x": "blob URL", "file:": "path", "file://host/x": "absolute", "s3:": "BUCKET", "s3://b?x=1": `"x"`, "gs://b": "blob URL",
	} {
		if s, err := blob.Open(t.Context(), url); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Open(%q) = %v, %v; want an error with %q", url, s, err, want)
		}
	}
	_, err := blob.Open(t.Context(), "s3://b", blob.S3{AccessKeyID: "only half"})
	if err == nil || !strings.Contains(err.Error(), "HELMR_S3_SECRET_ACCESS_KEY") {
		t.Errorf("half a credential: %v", err)
	}
}

func TestAFullDiskIsNamedAndLeavesNothing(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := syscall.Mount("tmpfs", root, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a small disk needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(root, 0); err != nil {
			t.Error(err)
		}
	})
	s := open(t, "file:"+root)
	if err := s.Put(t.Context(), "chunks/a", bytes.NewReader(random(2<<20))); !errors.Is(err, blob.ErrFull) || !strings.Contains(err.Error(), "free some space") {
		t.Fatalf("put: %v", err)
	}
	b := s.Batch()
	if err := b.Put(t.Context(), "chunks/a", random(300_000)); err != nil {
		t.Fatal(err)
	}
	if err := b.Put(t.Context(), "chunks/b", random(900_000)); !errors.Is(err, blob.ErrFull) {
		t.Fatalf("batch: %v", err)
	}
	b.Discard()
	if have := files(t, root); len(have) != 0 {
		t.Fatalf("left: %v", have)
	}
	if err := s.Put(t.Context(), "chunks/a", bytes.NewReader(random(500_000))); err != nil {
		t.Fatalf("put when there is room again: %v", err)
	}
}
