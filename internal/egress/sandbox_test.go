package egress

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/internal/egress/policy"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/sandbox"
	"helmr.dev/helmr/internal/sandbox/gvisor"
	"helmr.dev/helmr/internal/sandbox/sandboxtest"
)

// inmate is a real sandbox on a Computer's network.
type inmate struct {
	*lab
	rt     sandbox.Runtime
	id     string
	rootfs string
	dir    string
	sock   net.Listener
}

func runtimeOf(t *testing.T) sandbox.Runtime {
	path := os.Getenv("HELMR_TEST_RUNSC")
	if path == "" {
		path = filepath.Join("..", "..", "build", "bin", "runsc")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("runsc is missing: run make setup (%v)", err)
	}
	rt, err := gvisor.New(gvisor.Config{RunscPath: path, Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return rt
}

// start starts a sandbox on a new network and waits for its PID 1. hold is what PID 1 connects to before.
func (in *inmate) start(p string, memory string, hold ...string) {
	in.Helper()
	parsed, err := policy.Parse([]byte(p))
	in.must(err)
	n, err := in.g.Add(in.id, parsed)
	in.must(err)
	dir, err := os.MkdirTemp("/tmp", "helmr-egress-") // a socket's path has to be short
	in.must(err)
	in.Cleanup(func() { os.RemoveAll(dir) })
	in.must(os.Chmod(dir, 0o755))
	in.sock, err = net.Listen("unix", filepath.Join(dir, "worker.sock"))
	in.must(err)
	in.must(os.Chmod(filepath.Join(dir, "worker.sock"), 0o666))
	in.Cleanup(func() { in.sock.Close() })
	spec := sandbox.Spec{ID: in.id, RootFS: in.rootfs, Args: append([]string{sandboxtest.ProbePath, "init", "/run/helmr/worker.sock"}, hold...), Env: []string{"PATH=/bin"},
		Mounts:    []sandbox.Mount{{Source: dir, Destination: "/run/helmr"}, {Source: n.ResolvConf, Destination: "/etc/resolv.conf"}},
		CPUMillis: 1000, MemoryMiB: 256, DiskMiB: 64, NetNS: n.NetNS, Dir: in.TempDir(), MemoryFrom: memory}
	in.Cleanup(func() { in.must(in.rt.Remove(context.Background(), in.id)) })
	at := time.Now()
	in.must(in.rt.Start(context.Background(), spec))
	in.must(in.sock.(*net.UnixListener).SetDeadline(time.Now().Add(time.Minute)))
	conn, err := in.sock.Accept()
	in.must(err)
	in.Cleanup(func() { conn.Close() })
	in.Logf("start to hello: %s", time.Since(at).Round(time.Millisecond))
}

func (in *inmate) probe(args ...string) string {
	in.Helper()
	res, err := in.rt.Exec(context.Background(), in.id, append([]string{sandboxtest.ProbePath}, args...))
	if err != nil || res.Code != 0 {
		in.Fatalf("probe %v: %v, exit code %d: %s", args, err, res.Code, res.Stderr)
	}
	return strings.TrimSpace(string(res.Stdout))
}

func (in *inmate) want(want string, args ...string) {
	in.Helper()
	if got := in.probe(args...); !strings.Contains(got, want) || (strings.HasPrefix(want, "error") && strings.Contains(got, "timeout")) {
		in.Errorf("%v: %q, want %q", args, got, want)
	}
}

func TestSandboxes(t *testing.T) {
	t.Parallel()
	rootfs := sandboxtest.BuildRootFS(t)
	newInmate := func(t *testing.T) *inmate {
		return &inmate{lab: setup(t), rt: runtimeOf(t), id: id.New(), rootfs: rootfs}
	}
	t.Run("allowlist", func(t *testing.T) {
		t.Parallel()
		in := newInmate(t)
		in.sniff(in.internet, "eth0", "wire", expected)
		in.sniff(in.lan, "eth0", "lan wire", func(string) bool { return false })
		in.start(allowlist, "")
		in.want("eth0", "interfaces")
		in.want(allowedIP, "lookup", "allowed.example")
		in.want("127.0.0.1", "lookup", "localhost")
		in.want(allowedIP+":443 allowed.example", "secure", "allowed.example:443", "allowed.example")
		in.want(allowedIP+":443 alias.example", "secure", "alias.example:443", "alias.example")
		in.want("200 OK", "connect", "tcp4", "allowed.example:80", "GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
		in.want("error", "lookup", "other.example")
		in.want("no such host", "lookup", "rebind.example")
		in.want("error", "secure", otherIP+":443", "other.example")
		in.want("access denied", "secure", allowedIP+":443", "other.example")
		in.want("403 Forbidden", "connect", "tcp4", allowedIP+":80", "GET / HTTP/1.1\r\nHost: other.example\r\n\r\n")
		for _, where := range []string{otherIP + ":22", otherIP + ":8080", metadataIP + ":8080", hostIP + ":8080", lanIP + ":8080", hostUplinkOr(in.lab) + ":8080",
			"198.18.0.1:15443", "198.18.0.1:22", corpIP + ":8080", "[2606:2800:220:1::1]:443"} {
			in.want("error", "connect", "tcp", where, "x")
		}
		for _, where := range []string{otherIP + ":123", otherIP + ":443", dnsIP + ":53", lanIP + ":123", hostIP + ":123"} {
			in.want("error", "connect", "udp", where, "x")
		}
		if got := in.probe("raw"); got != "" {
			t.Errorf("raw sockets: %s", got)
		}
		if bad := lines(in.seen.all(), "wire:", "host=other", " host ", "udp "); len(bad) > 0 {
			t.Errorf("something arrived:\n%s", strings.Join(bad, "\n"))
		}
	})
	t.Run("open", func(t *testing.T) {
		t.Parallel()
		in := newInmate(t)
		in.start(`{"blockAll":false}`, "")
		in.want(otherIP+":443 x.example", "secure", "other.example:443", "x.example")
		in.want("hello", "connect", "tcp4", otherIP+":8080", "hello")
		in.want("hello", "connect", "udp4", otherIP+":123", "hello")
		for _, where := range []string{metadataIP + ":8080", hostIP + ":8080", lanIP + ":8080", hostUplinkOr(in.lab) + ":8080", corpIP + ":8080", azureIP + ":8080", blockedIP + ":8080"} {
			in.want("error", "connect", "tcp", where, "x")
		}
		in.want("no such host", "lookup", "rebindmeta.example")
	})
	t.Run("a checkpoint goes on in another network", func(t *testing.T) {
		t.Parallel()
		in := newInmate(t)
		in.start(`{"blockAll":false}`, "", otherIP+":8080") // with an open connection
		in.want("hello", "connect", "tcp4", otherIP+":8080", "hello")
		memory := filepath.Join(t.TempDir(), "memory")
		in.must(in.rt.Freeze(context.Background(), in.id, filepath.Join(t.TempDir(), "disk"), memory))
		in.must(in.rt.Remove(context.Background(), in.id))
		before := in.g.computers[in.id].address()
		in.must(in.g.Remove(in.id))
		in.start(`{"blockAll":false}`, memory, otherIP+":8080")
		if after := in.g.computers[in.id].address(); after == before {
			t.Errorf("the address is still %s: the test shows nothing", after)
		}
		in.want(otherIP, "lookup", "other.example")
		in.want("hello", "connect", "tcp4", otherIP+":8080", "hello")
		in.want("error", "connect", "tcp4", metadataIP+":8080", "hello")
	})
	t.Run("the network outlives its process", func(t *testing.T) {
		t.Parallel()
		in := newInmate(t)
		in.start(allowlist, "")
		in.want(allowedIP+":443", "secure", "allowed.example:443", "allowed.example")
		in.must(in.g.Close())
		in.want("error", "connect", "tcp4", otherIP+":8080", "x") // nobody serves, the rules hold
		in.want("error", "secure", allowedIP+":443", "allowed.example")
		in.open()
		if !in.g.Intact(in.id) || fmt.Sprint(in.g.List()) != "["+in.id+"]" {
			t.Errorf("after another Open: %v", in.g.List())
		}
		in.want(allowedIP+":443", "secure", "allowed.example:443", "allowed.example")
		in.want("error", "connect", "tcp4", otherIP+":8080", "x")
	})
}

// hostUplinkOr gives the host's end of the uplink, or where it would be.
func hostUplinkOr(l *lab) string {
	if st, err := l.g.readHost(); err == nil && st.Slot == 0 {
		return "198.19.0.5"
	}
	return hostUplink(l)
}
