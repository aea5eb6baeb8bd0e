package e2e

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"helmr.dev/helmr/internal/db"
)

// sniffer notes the packets that begin something on any device of a network namespace: all but those of a TCP connection
// that is there.
type sniffer struct {
	mu   sync.Mutex
	list []string // guarded by mu
}

func sniff(t *testing.T, namespace string) *sniffer {
	t.Helper()
	s := &sniffer{}
	var f *os.File
	inNamespace(t, namespace, func() error {
		const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, all)
		f = os.NewFile(uintptr(fd), "packets")
		return err
	})
	t.Cleanup(func() { _ = f.Close() })
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		b := make([]byte, 65536)
		for {
			var n int
			var from unix.Sockaddr
			var e error
			if raw.Read(func(fd uintptr) bool {
				n, from, e = unix.Recvfrom(int(fd), b, 0)
				return e != unix.EAGAIN
			}) != nil || e != nil {
				return
			}
			ll, ok := from.(*unix.SockaddrLinklayer)
			if !ok || ll.Pkttype == unix.PACKET_OUTGOING || ll.Protocol == unix.ETH_P_ARP<<8&0xff00|unix.ETH_P_ARP>>8 || n < 20 {
				continue
			}
			if line := beginning(b[:n]); line != "" {
				s.mu.Lock()
				s.list = append(s.list, line)
				s.mu.Unlock()
			}
		}
	}()
	return s
}

// beginning describes a packet that belongs to no TCP connection yet.
func beginning(b []byte) string {
	if b[0]>>4 != 4 {
		return fmt.Sprintf("IP version %d", b[0]>>4)
	}
	src, _ := netip.AddrFromSlice(b[12:16])
	dst, _ := netip.AddrFromSlice(b[16:20])
	head, port := int(b[0]&15)*4, uint16(0)
	if (b[9] == unix.IPPROTO_TCP || b[9] == unix.IPPROTO_UDP) && len(b) >= head+14 {
		port = uint16(b[head+2])<<8 | uint16(b[head+3])
		if b[9] == unix.IPPROTO_TCP && b[head+13]&0x12 != 0x02 {
			return ""
		}
	}
	return fmt.Sprintf("%d %s -> %s:%d", b[9], src, dst, port)
}

func (s *sniffer) from(source string) (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range s.list {
		if strings.Contains(line, " "+source) {
			list = append(list, line)
		}
	}
	return list
}

// While helmr is dead its sandboxes run on, and the rules with them: what a Computer with an allowlist tries then does
// not leave the machine, not as a packet, not as a question. The helmr that comes back serves them again.
func TestSpec_09_17_NothingLeavesWhileHelmrIsDead(t *testing.T) {
	host := smallInternet(t)
	h := prepare(t, db.SQLite)
	h.netns = "/run/netns/" + host
	h.env = []string{"HELMR_WORKER_NETWORK_RESOLVER_IPV4=9.9.9.9"}
	h.run()
	h.deploy("testdata/network")
	if _, stderr, code := h.command("computer", "create", "listed", "--key", "listed"); code != 0 {
		t.Fatal(stderr)
	}
	const script = `
import dgram from "node:dgram"; import net from "node:net"; import { setTimeout as sleep } from "node:timers/promises"
const dial = (host, port) => new Promise((done) => { const s = net.connect({ host, port, timeout: 2000 }); for (const e of ["connect", "error", "timeout"]) s.on(e, (x) => { s.destroy(); done(e === "error" ? x.code : e) }) })
const said = new Set(), say = (what) => { if (!said.has(what)) { said.add(what); console.log(what) } }
const socket = dgram.createSocket("udp4"); socket.on("error", () => {}); socket.on("message", () => say("udp answered"))
for (;;) {
  for (const [host, port] of [["93.184.216.35", 22], ["169.254.169.254", 8080], ["10.20.0.5", 8080], ["81.2.69.2", 22]]) say(host + ":" + port + " " + await dial(host, port))
  for (const [host, port] of [["9.9.9.9", 53], ["93.184.216.35", 443]]) socket.send("out", port, host, () => {})
  say("web " + await fetch("http://allowed.example/", { signal: AbortSignal.timeout(2000) }).then((r) => r.status, (e) => e.cause?.code ?? e.name))
  await sleep(10)
}`
	stdout, stderr, code := h.command("computer", "exec", "--key", "listed", "--detach", "--", "node", "--input-type=module", "-e", script)
	if code != 0 {
		t.Fatal(stderr)
	}
	commandID := strings.TrimSpace(stdout)
	output := func() string {
		stdout, _, _ := h.command("command", "logs", commandID)
		return stdout
	}
	h.until("the Computer reaches what it may", func() bool { return strings.Contains(output(), "web 200") })

	h.confined()

	sum := sha256.Sum256([]byte(filepath.Join(h.dir, "worker", "network")))
	gateway, internet := fmt.Sprintf("helmr-%x", sum[:4]), strings.TrimSuffix(host, "host")+"inet"
	outside := sniff(t, internet)
	h.kill()
	inside := sniff(t, gateway) // helmr is dead from here on
	before := len(outside.from("81.2.69.2"))
	h.until("the Computer has tried everything often", func() bool { return len(inside.from("198.18.")) > 200 })
	if list := outside.from("81.2.69.2"); len(list) > before {
		t.Errorf("%d packets left while helmr was dead: %v", len(list)-before, list[before:min(len(list), before+10)])
	}
	reached := len(outside.from("81.2.69.2 -> 93.184.216.34:80"))
	h.run()
	h.until("the Computer reaches again what it may", func() bool { return len(outside.from("81.2.69.2 -> 93.184.216.34:80")) > reached })
	for _, line := range strings.Split(strings.TrimSpace(output()), "\n") {
		if strings.HasSuffix(line, " connect") || line == "udp answered" || strings.HasSuffix(line, "timeout") {
			t.Errorf("from inside: %s", line)
		}
	}
	for _, line := range outside.from("81.2.69.2") {
		if !strings.HasSuffix(line, "-> 93.184.216.34:80") && !strings.HasSuffix(line, "-> 9.9.9.9:53") {
			t.Errorf("left: %s", line)
		}
	}
	if _, stderr, code := h.command("command", "cancel", commandID); code != 0 {
		t.Error(stderr)
	}
	h.stop()
}

// confined looks at the host's processes of a sandbox: gVisor's kernel and its file server have few rights, no way to gain
// one, a filter for system calls, and the kernel a root without the host's files.
func (h *helmr) confined() {
	h.t.Helper()
	found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	seen := map[string]int{}
	for _, path := range found {
		line, _ := os.ReadFile(path)
		kind, _, _ := strings.Cut(string(line), "\x00")
		if !strings.Contains(string(line), h.dir) || (kind != "runsc-sandbox" && kind != "runsc-gofer") {
			continue
		}
		status, err := os.ReadFile(filepath.Join(filepath.Dir(path), "status"))
		if err != nil {
			continue // it has ended
		}
		seen[kind]++
		for _, want := range []string{"NoNewPrivs:\t1", "Seccomp:\t2"} {
			if !strings.Contains(string(status), want) {
				h.t.Errorf("%s lacks %q:\n%s", kind, want, status)
			}
		}
		// The capabilities about files, with which gVisor's kernel uses the folders that are bound, and tracing, with which it
		// runs what is inside.
		if kind == "runsc-sandbox" && !strings.Contains(string(status), "CapBnd:\t000000000008001f") {
			h.t.Errorf("%s has other capabilities than it had:\n%s", kind, status)
		}
		entries, err := os.ReadDir(filepath.Join(filepath.Dir(path), "root"))
		names := ""
		for _, e := range entries {
			names += e.Name() + " "
		}
		if kind == "runsc-sandbox" && (err != nil || strings.Contains(names, "root") || strings.Contains(names, "home")) {
			h.t.Errorf("%s sees the host's files: %s, %v", kind, names, err)
		}
		h.t.Logf("%s: root has %s", kind, names)
	}
	if seen["runsc-sandbox"] == 0 {
		h.t.Error("no sandbox was looked at")
	}
}
