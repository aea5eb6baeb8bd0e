package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"helmr.dev/helmr/internal/blob/blobtest"
)

// awaitsSave waits until the Turn waits for its Save and the Worker has failed to store it.
func (h *helmr) awaitsSave(sessionID, turnID string) {
	h.t.Helper()
	h.until("the Turn waits for a Save that cannot be stored", func() bool {
		v, err := h.GetTurn(context.Background(), sessionID, turnID)
		log, lerr := os.ReadFile(filepath.Join(h.dir, "helmr.log"))
		return err == nil && lerr == nil && v.Status == "finalizing" && strings.Contains(string(log), "save failed; trying again")
	})
}

// TestSpec_05_09_SavesAreRetriedWhileTheBlobStorageIsFull fills the disk of the blob storage, and nothing else, during a Turn.
func TestSpec_05_09_SavesAreRetriedWhileTheBlobStorageIsFull(t *testing.T) {
	t.Parallel()
	const size = 600
	blobs := tinyDisk(t, size)
	dir := t.TempDir()
	h := &helmr{t: t, dir: dir, config: filepath.Join(dir, "config"), database: "sqlite:" + filepath.Join(dir, "helmr.db"), blobs: "file:" + filepath.Join(blobs, "blobs")}
	t.Cleanup(h.close)
	h.run()
	h.deploy("testdata/project")
	r := h.create("counter", "hello")
	h.completed(r.SessionID, r.TurnID)
	resize(t, blobs, 0)
	turnID := h.enqueue(r.SessionID, "hello")
	h.awaitsSave(r.SessionID, turnID)
	resize(t, blobs, size)
	if got := h.completed(r.SessionID, turnID); got.Turns != 2 || got.Inits != 1 {
		t.Errorf("the Turn that met the full disk: %+v", got)
	}
	if entries, err := os.ReadDir(filepath.Join(blobs, "blobs", "tmp")); err != nil || len(entries) > 0 {
		t.Errorf("%d temporary files are left, %v", len(entries), err)
	}
}

// TestSpec_07_13_ABucketOutlivesAWorker loses Workers with all of their folders: another one restores a disk from the bucket, and
// another one resumes a hibernated Computer from it.
func TestSpec_07_13_ABucketOutlivesAWorker(t *testing.T) {
	t.Parallel()
	s3 := blobtest.Start(t, "helmr")
	c := installOn(t, "HELMR_BLOB_URL=s3://helmr/e2e", "HELMR_S3_ENDPOINT="+s3.Access.Endpoint, "HELMR_S3_ACCESS_KEY_ID="+s3.Access.AccessKeyID,
		"HELMR_S3_SECRET_ACCESS_KEY="+s3.Access.SecretAccessKey, "HELMR_TEST_WORKERS_LOST_AFTER=6s")
	c.startWorker()
	c.program().login(c.info.URL, c.info.APIKey).run(t, "deploy", "testdata/project").ok(t)
	r := c.create("counter", "write kept")
	c.completed(r.SessionID, r.TurnID)
	c.wantExit(c.sh(c.whereIs(r.SessionID).ID, "head -c 20000000 /dev/urandom >big; sha256sum big >sum; rm /etc/debian_version"), 0)
	c.completed(r.SessionID, c.enqueue(r.SessionID, "hello")) // a Save has them
	c.program().login(c.info.URL, c.info.APIKey).run(t, "deploy", "testdata/hibernate").ok(t)
	sleeper, first := c.asleep("look")

	// As if the machine burned down: the program, its sandboxes and its folder are gone.
	c.worker.signal(syscall.SIGKILL)
	c.worker.wait()
	clean := c.invoke("dev", "--data-dir", c.dir, "--clear")
	if out, err := clean.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.RemoveAll(filepath.Join(c.dir, "worker")); err != nil {
		t.Fatal(err)
	}
	two := filepath.Join(c.dir, "two", "worker") // where close looks
	c.worker = c.process(append(c.workerSettings(), "HELMR_WORKER_NAME=two", "HELMR_WORKER_WORK_DIR="+two)...).start(t, "worker")
	c.worker.says("worker registered")

	// Until the first Worker counts as lost it may be given the hibernated Computer too, which would be lost with it.
	c.until("the Session is held", func() bool {
		s, err := c.GetSession(context.Background(), r.SessionID)
		return err == nil && len(s.Holds) == 1 && s.Holds[0].Reason == "computer_lost"
	})
	second := c.again(sleeper, first, c.enqueue(sleeper, "look"))
	c.residency(sleeper, "hibernated")
	c.again(sleeper, second, c.enqueue(sleeper, "look"))
	c.resume(r.SessionID)
	if got := c.completed(r.SessionID, c.enqueue(r.SessionID, "hello")); got.Note == nil || *got.Note != "kept" || got.Inits != 2 || got.Recovery.Reason != "computer_lost" {
		t.Errorf("restored: %+v", got)
	}
	c.wantExit(c.sh(c.whereIs(r.SessionID).ID, "sha256sum -c sum && test ! -e /etc/debian_version"), 0)
	if found, _ := filepath.Glob(filepath.Join(two, "computers", c.whereIs(r.SessionID).ID)); len(found) != 1 {
		t.Error("the Computer is not on the other Worker")
	}
}

// TestSavesInABucket runs separate processes on an S3 server, which is away for a while.
func TestSavesInABucket(t *testing.T) {
	t.Parallel()
	s3 := blobtest.Start(t, "helmr")
	c := installOn(t, "HELMR_BLOB_URL=s3://helmr/e2e", "HELMR_S3_ENDPOINT="+s3.Access.Endpoint, "HELMR_S3_ACCESS_KEY_ID="+s3.Access.AccessKeyID,
		"HELMR_S3_SECRET_ACCESS_KEY="+s3.Access.SecretAccessKey)
	c.startWorker()
	c.program().login(c.info.URL, c.info.APIKey).run(t, "deploy", "testdata/project").ok(t)
	r := c.create("counter", "hello")
	c.completed(r.SessionID, r.TurnID)
	s3.Stop()
	turnID := c.enqueue(r.SessionID, "hello")
	c.until("the Turn waits for its Save", func() bool {
		v, err := c.GetTurn(context.Background(), r.SessionID, turnID)
		return err == nil && v.Status == "finalizing" && strings.Contains(c.worker.err.String(), "save failed; trying again")
	})
	s3.Resume()
	if got := c.completed(r.SessionID, turnID); got.Turns != 2 || got.Inits != 1 {
		t.Errorf("the Turn without a bucket: %+v", got)
	}
	files := 0
	err := filepath.WalkDir(filepath.Join(s3.Root, "helmr", "e2e", "chunks"), func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files++
		}
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("%d pieces are in the bucket, %v", files, err)
	}
}
