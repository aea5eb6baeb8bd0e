// Package blobtest gives tests a real S3 server: versitygw, the program that HELMR_TEST_S3 names (scripts/test sets it), on a
// folder of the test. It is for tests only and knows nothing of what is stored.
package blobtest

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"helmr.dev/helmr/internal/blob"
)

// Access keys of the server.
const (
	accessKeyID     = "helmr-test"
	secretAccessKey = "helmr-test-secret"
)

// Server starts an S3 server with a bucket and ends it with the test. Without HELMR_TEST_S3 the test is skipped, in CI it
// fails.
func Server(t *testing.T, bucket string) blob.S3 {
	t.Helper()
	s := Start(t, bucket)
	return s.Access
}

// S3 is a running server.
type S3 struct {
	Access blob.S3
	// Root is the folder in which the bucket is a folder, and each object a file.
	Root string

	t       *testing.T
	address string
	cmd     *exec.Cmd
	output  *bytes.Buffer
}

// Start is Server for tests that stop and start it again.
func Start(t *testing.T, bucket string) *S3 {
	t.Helper()
	if os.Getenv("HELMR_TEST_S3") == "" {
		if os.Getenv("CI") != "" {
			t.Fatal("HELMR_TEST_S3 is not set: scripts/test builds versitygw and names it there")
		}
		t.Skip("HELMR_TEST_S3 is not set: scripts/test builds versitygw and names it there")
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &S3{t: t, Root: t.TempDir(), address: ln.Addr().String()}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(s.Root, bucket), 0o700); err != nil {
		t.Fatal(err)
	}
	s.Access = blob.S3{Endpoint: "http://" + s.address, AccessKeyID: accessKeyID, SecretAccessKey: secretAccessKey}
	t.Cleanup(s.Stop)
	s.Resume()
	return s
}

// Resume starts a stopped server on what it had, and waits until it listens.
func (s *S3) Resume() {
	s.t.Helper()
	s.output = &bytes.Buffer{}
	s.cmd = exec.Command(os.Getenv("HELMR_TEST_S3"), "--port", s.address, "--quiet", "posix", "--sidecar", s.t.TempDir(), s.Root)
	s.cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+accessKeyID, "ROOT_SECRET_KEY="+secretAccessKey)
	s.cmd.Stdout, s.cmd.Stderr = s.output, s.output
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatalf("start versitygw: %v", err)
	}
	ended := make(chan error, 1)
	cmd := s.cmd
	go func() { ended <- cmd.Wait() }()
	ctx, cancel := context.WithTimeout(s.t.Context(), 60*time.Second)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.address)
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case err := <-ended:
			s.t.Fatalf("versitygw ended: %v\n%s", err, s.output)
		case <-ctx.Done():
			s.t.Fatalf("versitygw does not listen on %s", s.address)
		case <-time.After(pause):
		}
	}
}

// Stop kills the server; what it has stays.
func (s *S3) Stop() {
	if s.cmd != nil && s.cmd.Process != nil {
		_ = s.cmd.Process.Kill() // it may have ended already
	}
	s.cmd = nil
}
