package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
)

// TestCommands drives Commands on real sandboxes, on each database; its parts share one helmr and use Computers of their own
// where they break them.
func TestCommands(t *testing.T) {
	t.Parallel()
	for _, kind := range []db.Kind{db.SQLite, db.PostgreSQL} {
		t.Run(string(kind), func(t *testing.T) {
			h := start(t, kind)
			h.deploy("testdata/project")
			box := h.newComputer("box", "shared")
			t.Run("outcomes", func(t *testing.T) { outcomes(t, h, box) })
			t.Run("input and surroundings", func(t *testing.T) { surroundings(t, h, box) })
			t.Run("scopes are private and end whole", func(t *testing.T) { scopes(t, h, box) })
			t.Run("timeout and cancel", func(t *testing.T) { endings(t, h, box) })
			t.Run("bytes and streams", func(t *testing.T) { streams(t, h, box) })
			t.Run("a large output", func(t *testing.T) { largeOutput(t, h, box, 24<<20) })
			t.Run("a hundred at once", func(t *testing.T) { hundred(t, h, box) })
			t.Run("command line", func(t *testing.T) { commandLine(t, h) })
			t.Run("helmr is killed in the middle", func(t *testing.T) { killedInTheMiddle(t, h, box) })
			t.Run("the sandbox is killed", func(t *testing.T) { sandboxKilled(t, h) })
			t.Run("deletion", func(t *testing.T) { deletion(t, h) })
			t.Run("an orderly stop", func(t *testing.T) { orderlyStop(t, h, box) })
		})
	}
}

// TestSoakLargeOutput brings 300 MB through. It is part of the long tests: HELMR_TEST_LARGE_OUTPUT sets another size in MB.
func TestSoakLargeOutput(t *testing.T) {
	size := 300
	if s := os.Getenv("HELMR_TEST_LARGE_OUTPUT"); s == "" {
		t.Skip("set HELMR_TEST_LARGE_OUTPUT=300 to bring 300 MB through")
	} else if _, err := fmt.Sscan(s, &size); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []db.Kind{db.SQLite, db.PostgreSQL} {
		t.Run(string(kind), func(t *testing.T) {
			h := start(t, kind)
			h.deploy("testdata/project")
			largeOutput(t, h, h.newComputer("box", "large"), size*1_000_000)
		})
	}
}

func (h *helmr) newComputer(template, key string) string {
	h.t.Helper()
	r, err := h.CreateComputer(context.Background(), api.ComputerCreateRequest{Template: template, Key: key})
	if err != nil {
		h.t.Fatalf("create computer: %v", err)
	}
	return r.ComputerID
}

// exec admits a Command.
func (h *helmr) exec(computerID string, req api.CommandCreateRequest) string {
	h.t.Helper()
	r, err := h.CreateCommand(context.Background(), computerID, req)
	if err != nil {
		h.t.Fatalf("exec: %v", err)
	}
	return r.CommandID
}

func (h *helmr) sh(computerID, script string) string {
	h.t.Helper()
	return h.exec(computerID, api.CommandCreateRequest{Command: []string{"bash", "-c", script}})
}

// ended is a Command with all it wrote.
type ended struct {
	api.Command
	stdout, stderr string
}

// outcome waits for the outcome of a Command and all of its output.
func (h *helmr) outcome(commandID string) ended {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	k, err := h.WaitCommand(ctx, commandID)
	if err != nil {
		h.t.Fatalf("wait for command %s: %v", commandID, err)
	}
	e := ended{Command: k}
	for r, err := range h.StreamCommandLogs(ctx, commandID, "") {
		if err != nil {
			h.t.Fatalf("output of command %s: %v", commandID, err)
		}
		switch {
		case r.Kind != "output":
			h.t.Fatalf("output has a gap: %+v", r)
		case r.Stream == "stdout":
			e.stdout += string(r.Content)
		default:
			e.stderr += string(r.Content)
		}
	}
	return e
}

// wantExit waits for a Command that must exit with a code.
func (h *helmr) wantExit(commandID string, code int32) ended {
	h.t.Helper()
	e := h.outcome(commandID)
	if e.Status != "exited" || *e.Outcome.ExitCode != code || !e.ProcessReconciled {
		text, _ := json.Marshal(e.Command)
		h.t.Fatalf("command is %s, want exit %d\nstdout %q\nstderr %q", text, code, e.stdout, e.stderr)
	}
	return e
}

// following gives the output of a Command as it comes, until done says that it has what it wants.
func (h *helmr) following(commandID string, done func(stdout string) bool) (cursor string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var stdout strings.Builder
	for r, err := range h.StreamCommandLogs(ctx, commandID, "") {
		if err != nil {
			h.t.Fatalf("output of command %s: %v", commandID, err)
		}
		if r.Stream == "stdout" {
			stdout.Write(r.Content)
		}
		if done(stdout.String()) {
			return r.Cursor
		}
	}
	h.t.Fatalf("command %s ended first; it wrote %q", commandID, stdout.String())
	return ""
}

func outcomes(t *testing.T, h *helmr, box string) {
	h = with(t, h)
	argv := func(a ...string) string { return h.exec(box, api.CommandCreateRequest{Command: a}) }
	h.wantExit(argv("true"), 0)
	h.wantExit(argv("false"), 1)
	h.wantExit(argv("sh", "-c", "exit 42"), 42)
	h.wantExit(argv("sh", "-c", "kill -TERM $$"), 143)
	h.wantExit(argv("sh", "-c", "kill -KILL $$"), 137)
	if e := h.wantExit(argv("no-such-program"), 127); !strings.Contains(e.stderr, "no-such-program") {
		t.Errorf("stderr is %q", e.stderr)
	}
	h.wantExit(argv("/no/such/program"), 127)
	h.wantExit(argv("/etc/passwd"), 126)
	h.wantExit(argv("/etc"), 126)
	h.wantExit(h.exec(box, api.CommandCreateRequest{Command: []string{"true"}, Cwd: "/no/such/folder"}), 126)
}

func surroundings(t *testing.T, h *helmr, box string) {
	h = with(t, h)
	stdin := strings.Repeat("line\n", 200_000) // as much as is allowed, about
	e := h.wantExit(h.exec(box, api.CommandCreateRequest{Command: []string{"sh", "-c", "cat | sha256sum; cat"}, StdinBase64: base64.StdEncoding.EncodeToString([]byte(stdin))}), 0)
	if want := sha256.Sum256([]byte(stdin)); strings.Fields(e.stdout)[0] != hex.EncodeToString(want[:]) {
		t.Errorf("stdin came as %s", e.stdout)
	}
	if e := h.wantExit(h.exec(box, api.CommandCreateRequest{Command: []string{"cat"}}), 0); e.stdout != "" { // stdin is closed
		t.Errorf("%q", e.stdout)
	}
	// Image variables, then env; each name once; the image's working directory unless another is given.
	e = h.wantExit(h.exec(box, api.CommandCreateRequest{Command: []string{"sh", "-c", "pwd; env; tr '\\0' '\\n' </proc/self/environ | cut -d= -f1 | sort | uniq -d"},
		Env: map[string]string{"NODE_VERSION": "mine", "B": "x=y z\n2"}}), 0)
	if lines := strings.Split(e.stdout, "\n"); lines[0] != "/work" || !strings.Contains(e.stdout, "NODE_VERSION=mine\n") || !strings.Contains(e.stdout, "B=x=y z\n2\n") ||
		strings.Count(e.stdout, "NODE_VERSION=") != 1 || !strings.Contains(e.stdout, "PATH=/usr/local/sbin:") {
		t.Errorf("%s", e.stdout)
	}
	if e := h.wantExit(h.exec(box, api.CommandCreateRequest{Command: []string{"pwd"}, Cwd: "/usr/lib"}), 0); e.stdout != "/usr/lib\n" {
		t.Errorf("%q", e.stdout)
	}
}

// processes lists what runs in a Computer beside the guest, as the sandbox itself sees it.
func (h *helmr) processes(computerID string) []string {
	h.t.Helper()
	out, err := exec.Command(binary(h.t, "runsc"), "--root", filepath.Join(h.dir, "worker", "sandboxes", "runsc"), "ps", computerID).Output()
	if err != nil {
		h.t.Fatalf("runsc ps: %v\n%s", err, out)
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		// "exe" are first processes of scopes, some of which wait for the next Command.
		if fields := strings.Fields(line); len(fields) > 2 && fields[1] != "PID" && fields[1] != "1" && fields[len(fields)-1] != "exe" {
			names = append(names, fields[len(fields)-1])
		}
	}
	return names
}

func scopes(t *testing.T, h *helmr, box string) {
	h = with(t, h)
	// Files are shared, processes are not.
	a := h.sh(box, "echo secret >/work/shared; exec sleep 1000")
	h.until("the first Command runs", func() bool { return strings.Contains(strings.Join(h.processes(box), " "), "sleep") })
	e := h.wantExit(h.sh(box, "cat /work/shared; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; kill -9 -1; true"), 0)
	if !strings.HasPrefix(e.stdout, "secret\n") || strings.Contains(e.stdout, "sleep") {
		t.Errorf("another Command sees %q", e.stdout)
	}
	if k, err := h.GetCommand(context.Background(), a); err != nil || k.Status != "running" {
		t.Errorf("%+v %v", k, err)
	}
	if _, err := h.CancelCommand(context.Background(), a, api.ControlRequest{}); err != nil {
		t.Fatal(err)
	}
	if e := h.outcome(a); e.Status != "cancelled" || !e.ProcessReconciled {
		t.Errorf("%+v", e.Command)
	}
	// What is left in the background ends with the main process, however it hides.
	h.wantExit(h.sh(box, "sleep 1001 & setsid sleep 1002 & (setsid sh -c 'trap \"\" TERM HUP; sleep 1003 & sleep 1004' &) ; nohup sleep 1005 >/dev/null 2>&1 & exit 0"), 0)
	if left := h.processes(box); len(left) > 0 {
		t.Errorf("the scope has ended, and there are still %v", left)
	}
}

func endings(t *testing.T, h *helmr, box string) {
	h = with(t, h)
	k := h.exec(box, api.CommandCreateRequest{Command: []string{"bash", "-c", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"}, Timeout: "1s"})
	if e := h.outcome(k); e.Status != "timed_out" || e.stdout != "up\nbye\n" || !e.ProcessReconciled {
		t.Errorf("%+v %q", e.Command, e.stdout)
	}
	// Nothing of this listens to SIGTERM.
	k = h.sh(box, "trap '' TERM; setsid bash -c 'trap \"\" TERM; while :; do sleep 1; done' & echo up; while :; do sleep 1; done")
	h.following(k, func(s string) bool { return strings.Contains(s, "up") })
	first, err := h.CancelCommand(context.Background(), k, api.ControlRequest{})
	if err != nil {
		t.Fatal(err)
	}
	again, err := h.CancelCommand(context.Background(), k, api.ControlRequest{})
	if err != nil || again != first {
		t.Errorf("%+v, %+v, %v", first, again, err)
	}
	if e := h.outcome(k); e.Status != "cancelled" || !e.ProcessReconciled {
		t.Errorf("%+v", e.Command)
	}
	if left := h.processes(box); len(left) > 0 {
		t.Errorf("the Command is cancelled, and there are still %v", left)
	}
	// A stopped process group ends as well.
	k = h.sh(box, "echo up; kill -STOP $$")
	h.following(k, func(s string) bool { return strings.Contains(s, "up") })
	if _, err := h.CancelCommand(context.Background(), k, api.ControlRequest{}); err != nil {
		t.Fatal(err)
	}
	if e := h.outcome(k); e.Status != "cancelled" {
		t.Errorf("%+v", e.Command)
	}
}

func streams(t *testing.T, h *helmr, box string) {
	h = with(t, h)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	e := h.wantExit(h.sh(box, `for i in $(seq 0 255); do printf "\\x$(printf %02x $i)"; done; printf '\xe2\x82' ; sleep 0.2; printf '\xac'; printf 'no line end' >&2`), 0)
	if e.stdout != string(all)+"€" || e.stderr != "no line end" {
		t.Errorf("stdout %q, stderr %q", e.stdout, e.stderr)
	}
	// Single bytes, far apart and close together, keep their order within each stream.
	e = h.wantExit(h.sh(box, "for i in $(seq 1 300); do printf \"$i,\"; printf \"$i;\" >&2; done"), 0)
	var out, errs strings.Builder
	for i := 1; i <= 300; i++ {
		fmt.Fprintf(&out, "%d,", i)
		fmt.Fprintf(&errs, "%d;", i)
	}
	if e.stdout != out.String() || e.stderr != errs.String() {
		t.Errorf("stdout %q, stderr %q", e.stdout, e.stderr)
	}
}

// largeOutput has a Command write size bytes to each stream, faster than they can be stored, and compares all of them.
func largeOutput(t *testing.T, h *helmr, box string, size int) {
	h = with(t, h)
	h.wantExit(h.exec(box, api.CommandCreateRequest{Timeout: "1h", Command: []string{"bash", "-c", fmt.Sprintf("head -c %d /dev/urandom >/work/0; head -c %d /dev/urandom >/work/1", size, size)}}), 0)
	began := time.Now()
	k := h.exec(box, api.CommandCreateRequest{Timeout: "1h", Command: []string{"bash", "-c", "cat /work/0 & cat /work/1 >&2 & wait"}})
	sums := [2][]byte{}
	lengths := [2]int{}
	sum := [2]interface {
		Write([]byte) (int, error)
		Sum([]byte) []byte
	}{sha256.New(), sha256.New()}
	for r, err := range h.StreamCommandLogs(context.Background(), k, "") {
		if err != nil || r.Kind != "output" {
			t.Fatalf("%v %+v", err, r.Kind)
		}
		i := 0
		if r.Stream == "stderr" {
			i = 1
		}
		lengths[i] += len(r.Content)
		_, _ = sum[i].Write(r.Content)
	}
	took := time.Since(began)
	for i := range sums {
		sums[i] = sum[i].Sum(nil)
	}
	if k, err := h.WaitCommand(context.Background(), k); err != nil || k.Status != "exited" {
		t.Fatalf("%+v %v", k, err)
	}
	e := h.wantExit(h.sh(box, "sha256sum /work/0 /work/1; rm /work/0 /work/1"), 0)
	want := strings.Fields(e.stdout)
	for i := range 2 {
		if lengths[i] != size || hex.EncodeToString(sums[i]) != want[2*i] {
			t.Errorf("stream %d: %d bytes with digest %x, want %d with %s", i+1, lengths[i], sums[i], size, want[2*i])
		}
	}
	t.Logf("%.1f MB/s", float64(2*size)/1e6/took.Seconds())
}

// hundred admits a hundred Commands at once, twice, and then three hundred. Each runs exactly once, with its own outcome and
// output, however short it is.
func hundred(t *testing.T, h *helmr, box string) {
	h = with(t, h)
	for round, many := range []int{100, 100, 300} {
		marks := fmt.Sprintf("/work/marks-%d", round)
		began := time.Now()
		var wg sync.WaitGroup
		for i := range many {
			wg.Go(func() {
				argv := []string{"sh", "-c", fmt.Sprintf("echo %d >>%s; echo out %d; echo err %d >&2; exit %d", i, marks, i, i, i%256)}
				code, wantOut, wantErrs := int32(i%256), fmt.Sprintf("out %d\n", i), fmt.Sprintf("err %d\n", i)
				if i%4 == 3 { // over before its start is noticed
					argv, code, wantOut, wantErrs = []string{"/bin/false"}, 1, "", ""
				}
				r, err := h.CreateCommand(context.Background(), box, api.CommandCreateRequest{Command: argv})
				if err != nil {
					t.Error(err)
					return
				}
				k, err := h.WaitCommand(context.Background(), r.CommandID)
				if err != nil || k.Status != "exited" || *k.Outcome.ExitCode != code {
					raw, _ := json.Marshal(k)
					t.Errorf("%d: %s, %v", i, raw, err)
					return
				}
				var out, errs string
				for r, err := range h.StreamCommandLogs(context.Background(), r.CommandID, "") {
					if err != nil {
						t.Error(err)
					} else if r.Stream == "stdout" {
						out += string(r.Content)
					} else {
						errs += string(r.Content)
					}
				}
				if out != wantOut || errs != wantErrs {
					t.Errorf("%d: %q %q", i, out, errs)
				}
			})
		}
		wg.Wait()
		t.Logf("%d Commands in %s", many, time.Since(began))
		e := h.wantExit(h.sh(box, "wc -l <"+marks+"; sort -u "+marks+" | wc -l"), 0)
		if want := many - many/4; e.stdout != fmt.Sprintf("%d\n%d\n", want, want) {
			t.Errorf("programs that ran, and different ones: %q, want %d", e.stdout, want)
		}
	}
	h.until("nothing occupies the Computer", func() bool {
		use, err := h.ListComputerCommands(context.Background(), box, "", 100)
		return err == nil && len(use.Commands) == 0
	})
}

func commandLine(t *testing.T, h *helmr) {
	h = with(t, h)
	stdout, stderr, code := h.command("computer", "create", "box", "--key", "cli")
	computerID := strings.TrimSpace(stdout)
	if code != 0 || computerID == "" {
		t.Fatalf("%d %s %s", code, stdout, stderr)
	}
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("echo to stdout $A; echo to stderr >&2; pwd; exit 9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code = h.command("computer", "exec", "--key", "cli", "--cwd", "/tmp", "--set-env", "A=b=c d", "--stdin", script, "--", "sh")
	if code != 9 || stdout != "to stdout b=c d\n/tmp\n" || stderr != "to stderr\n" {
		t.Fatalf("%d %q %q", code, stdout, stderr)
	}
	if _, stderr, code = h.command("computer", "exec", "--key", "cli", "--timeout", "100ms", "--", "sleep", "100"); code != 1 || !strings.Contains(stderr, "timed out") {
		t.Fatalf("%d %q", code, stderr)
	}
	for _, args := range [][]string{{"--key", "cli"}, {"--key", "cli", "ls"}, {"--", "ls"}, {"--key", "cli", "--set-env", "x", "--", "ls"}, {"--key", "cli", "--timeout", "soon", "--", "ls"}} {
		if _, stderr, code = h.command(append([]string{"computer", "exec"}, args...)...); code != 2 {
			t.Errorf("%v: %d %q", args, code, stderr)
		}
	}
	// Detached, waited for, read again.
	stdout, _, code = h.command("computer", "exec", "--key", "cli", "--detach", "--", "sh", "-c", "echo hello; echo oh >&2; exit 3")
	commandID := strings.TrimSpace(stdout)
	if code != 0 {
		t.Fatalf("%d %q", code, stdout)
	}
	if stdout, _, code = h.command("command", "wait", commandID); code != 1 || !strings.Contains(stdout, `"exit_code": 3`) {
		t.Fatalf("%d %q", code, stdout)
	}
	if stdout, stderr, code = h.command("command", "logs", commandID, "--follow"); code != 0 || stdout != "hello\n" || stderr != "oh\n" {
		t.Fatalf("%d %q %q", code, stdout, stderr)
	}
	if stdout, _, code = h.command("command", "get", commandID, "--json"); code != 0 || !strings.Contains(stdout, `"process_reconciled": true`) {
		t.Fatalf("%d %q", code, stdout)
	}
	interrupted(t, h)
	if stdout, stderr, code = h.command("computer", "delete", "--key", "cli"); code != 0 || strings.TrimSpace(stdout) != computerID {
		t.Fatalf("%d %q %q", code, stdout, stderr)
	}
}

// interrupted leaves an exec with Ctrl-C, attaches again with what it said, and cancels the Command.
func interrupted(t *testing.T, h *helmr) {
	h = with(t, h)
	cmd := exec.Command(binary(t, "helmr"), "computer", "exec", "--key", "cli", "--", "bash", "-c", "echo one; sleep 1; echo two; exec sleep 1000")
	cmd.Env = append(os.Environ(), "HELMR_CONFIG_DIR="+h.config)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 4)
	if _, err := out.Read(first); err != nil || string(first) != "one\n" {
		t.Fatalf("%q %v", first, err)
	}
	_ = cmd.Process.Signal(os.Interrupt)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(errs.String(), "helmr command cancel ") {
		t.Fatalf("%d %q", code, errs.String())
	}
	var again []string
	for line := range strings.Lines(errs.String()) {
		if fields := strings.Fields(line); len(fields) > 3 && fields[1] == "command" && fields[2] == "logs" {
			again = fields[1:]
		}
	}
	if len(again) != 6 {
		t.Fatalf("it does not say how to look again: %s", errs.String())
	}
	commandID := again[2]
	h.following(commandID, func(s string) bool { return s == "one\ntwo\n" })
	stdout, stderr, code := h.command("command", "cancel", commandID)
	if code != 0 || stdout != "accepted\n" {
		t.Fatalf("%d %q %q", code, stdout, stderr)
	}
	if stdout, stderr, code = h.command(again...); code != 0 || stdout != "two\n" {
		t.Fatalf("%d %q %q", code, stdout, stderr)
	}
}

// restartable is with for a part that starts helmr again; back tells the others of it.
func restartable(t *testing.T, h *helmr) (c *helmr, back func()) {
	c = with(t, h)
	return c, func() {
		whole := h.t
		*h = *c
		h.t = whole
	}
}

// killedInTheMiddle kills helmr while Commands write. They go on; nothing of what they wrote is lost or doubled.
func killedInTheMiddle(t *testing.T, h *helmr, box string) {
	h, back := restartable(t, h)
	defer back()
	slow := h.sh(box, "for i in $(seq 1 200); do echo line $i; echo err $i >&2; sleep 0.03; done; exit 5")
	fast := h.sh(box, "for i in 1 2 3; do seq 1 100000; sleep 1; done")
	for _, line := range []string{"line 3\n", "line 60\n", "line 120\n"} {
		h.following(slow, func(s string) bool { return strings.Contains(s, line) })
		h.kill()
		h.run()
	}
	// One that is admitted before the Worker has found its sandboxes again.
	late := h.sh(box, "echo late")
	e := h.wantExit(slow, 5)
	var out, errs, many strings.Builder
	for i := 1; i <= 200; i++ {
		fmt.Fprintf(&out, "line %d\n", i)
		fmt.Fprintf(&errs, "err %d\n", i)
	}
	for range 3 {
		for i := 1; i <= 100000; i++ {
			fmt.Fprintln(&many, i)
		}
	}
	if e.stdout != out.String() || e.stderr != errs.String() {
		t.Errorf("output differs: %q %q", e.stdout, e.stderr)
	}
	if e := h.wantExit(fast, 0); e.stdout != many.String() {
		t.Errorf("%d bytes, want %d", len(e.stdout), many.Len())
	}
	if e := h.wantExit(late, 0); e.stdout != "late\n" {
		t.Errorf("%q", e.stdout)
	}
}

func sandboxKilled(t *testing.T, h *helmr) {
	h = with(t, h)
	box := h.newComputer("box", "killed")
	k := h.sh(box, "echo up; exec sleep 1000")
	h.following(k, func(s string) bool { return s == "up\n" })
	pid := h.sandboxPID(box)
	if pid == 0 {
		t.Fatal("the sandbox is not found")
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	got, err := h.WaitCommand(ctx, k)
	if err != nil || got.Status != "lost" || got.Outcome.Kind != "system_failed" || got.Outcome.Failure.Reason != "guest_failure" {
		t.Fatalf("%+v %v", got, err)
	}
	if _, stderr, code := h.command("command", "logs", k, "--follow"); code != 0 || !strings.Contains(stderr, "not available") {
		t.Errorf("%d %q", code, stderr)
	}
	h.wantExit(h.sh(box, "true"), 0) // the Computer comes back
}

func deletion(t *testing.T, h *helmr) {
	h = with(t, h)
	box := h.newComputer("box", "deleted")
	k := h.sh(box, "exec sleep 1000")
	h.until("the Command runs", func() bool {
		got, err := h.GetCommand(context.Background(), k)
		return err == nil && got.Status == "running"
	})
	if _, err := h.DeleteComputer(context.Background(), box, api.ControlRequest{}); err == nil || !strings.Contains(err.Error(), "computer_busy") {
		t.Fatal(err)
	}
	if _, err := h.CancelCommand(context.Background(), k, api.ControlRequest{}); err != nil {
		t.Fatal(err)
	}
	h.outcome(k)
	if _, err := h.DeleteComputer(context.Background(), box, api.ControlRequest{}); err != nil {
		t.Fatal(err)
	}
	h.until("the Computer is deleted", func() bool {
		c, err := h.GetComputer(context.Background(), box)
		return err == nil && c.Status == "deleted"
	})
	if pid := h.sandboxPID(box); pid != 0 {
		t.Errorf("a deleted Computer runs as %d", pid)
	}
	h.until("its files are gone", func() bool {
		_, err := os.Stat(filepath.Join(h.dir, "worker", "computers", box))
		return os.IsNotExist(err)
	})
	h.newComputer("box", "deleted") // its key is free
}

// orderlyStop ends helmr in order while a Command runs, and starts it again: the Command is cancelled, the disk is kept.
func orderlyStop(t *testing.T, h *helmr, box string) {
	h, back := restartable(t, h)
	defer back()
	k := h.sh(box, "trap 'echo asked >/work/asked; sync; exit 0' TERM; echo kept >/work/kept; echo up; while :; do sleep 0.05; done")
	h.following(k, func(s string) bool { return s == "up\n" })
	h.stop()
	h.run()
	if got := h.outcome(k); got.Status != "cancelled" || !got.ProcessReconciled {
		t.Fatalf("%+v", got.Command)
	}
	if e := h.wantExit(h.sh(box, "cat /work/kept /work/asked"), 0); e.stdout != "kept\nasked\n" {
		t.Errorf("%q", e.stdout)
	}
}
