package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
)

// TestRules tests rules of the contract that only a real Computer can show. Its subtests are named after them and use
// one helmr; none of it depends on the database.
func TestRules(t *testing.T) {
	h := start(t, db.SQLite)
	if _, err := h.CreateSecret(t.Context(), api.SecretCreateRequest{Name: "MODEL_KEY", Value: "sk-of-a-model"}); err != nil {
		t.Fatal(err)
	}
	h.deploy("testdata/rules")
	t.Run("Spec_01_11_SessionsShareFilesNetworkAndRights", func(t *testing.T) { sharing(t, h) })
	t.Run("Spec_01_12_ComputersAreApart", func(t *testing.T) { apart(t, h) })
	t.Run("Spec_03_21_KillingTheTreeIsContainment", func(t *testing.T) { containment(t, h) })
	t.Run("Spec_03_24_AHarnessRunsAsItIs", func(t *testing.T) { unmodified(t, h) })
	t.Run("Spec_03_25_BackgroundWorkOutlivesATurn", func(t *testing.T) { background(t, h) })
	t.Run("Spec_03_26_ModelKeysReachAHarness", func(t *testing.T) { modelKey(t, h) })
	t.Run("Spec_08_07_CommandsHaveScopesOfTheirOwn", func(t *testing.T) { privateScopes(t, h) })
	t.Run("Spec_08_11_AgentCodeHasNoRightsOfHelmr", func(t *testing.T) { noRights(t, h) })
	t.Run("Spec_18_06_WhatAProcessPrintsIsNoEvent", func(t *testing.T) { printed(t, h) })
	t.Run("Spec_07_11_TheWholeRootFilesystemIsDurable", func(t *testing.T) { durable(t, h) })
}

// did is what the shell and the harness return.
type did struct {
	Turns, PID                        int
	Stdout, Said, Refused, Own, Child string
	Env                               []string
}

// ask is one request to the shell.
type ask struct {
	Do     string `json:"do"`
	Script string `json:"script"`
	Works  *bool  `json:"works,omitempty"`
}

func (a ask) input() json.RawMessage {
	raw, _ := json.Marshal(a) // strings only
	return input(string(raw))
}

func (h *helmr) did(sessionID, turnID string) did {
	h.t.Helper()
	v := h.settled(sessionID, turnID)
	if v.Status != "completed" {
		h.t.Fatalf("turn %s is %s: %+v\n%s", turnID, v.Status, v.Error, h.describe(sessionID))
	}
	var d did
	if err := json.Unmarshal(v.Result, &d); err != nil {
		h.t.Fatalf("result %s: %v", v.Result, err)
	}
	return d
}

// shell makes a Session of the shell, on a Computer or, with "", on a new one.
func (h *helmr) shell(computerID string, first ask) api.SessionCreateReceipt {
	h.t.Helper()
	r, err := h.CreateSession(context.Background(), api.SessionCreateRequest{Agent: "shell", Input: first.input(), ComputerID: computerID})
	if err != nil {
		h.t.Fatalf("create: %v", err)
	}
	return r
}

func (h *helmr) does(sessionID string, a ask) did {
	h.t.Helper()
	r, err := h.Enqueue(context.Background(), sessionID, api.EnqueueRequest{Input: a.input()})
	if err != nil {
		h.t.Fatalf("enqueue: %v", err)
	}
	return h.did(sessionID, r.TurnID)
}

func (h *helmr) computerOf(sessionID string) string {
	h.t.Helper()
	s, err := h.GetSession(context.Background(), sessionID)
	if err != nil {
		h.t.Fatal(err)
	}
	return s.ComputerID
}

// rights says who a process is and what it may do, and in which network.
const rights = "grep -E '^(Uid|Gid|CapEff):' /proc/self/status; readlink /proc/self/ns/net"

const serve = `exec node -e 'require("http").createServer((q, s) => s.end("served")).listen(4711, "127.0.0.1", () => require("fs").writeFileSync("/work/serving", ""))'`

func sharing(t *testing.T, h *helmr) {
	h = with(t, h)
	a := h.shell("", ask{Do: "leave", Script: serve})
	h.did(a.SessionID, a.TurnID)
	b := h.shell(h.computerOf(a.SessionID), ask{Do: "run", Script: rights})
	who := h.did(b.SessionID, b.TurnID).Stdout
	if got := h.does(a.SessionID, ask{Do: "run", Script: "umask 077; echo mine >/work/mine; " + rights}).Stdout; got != who || !strings.Contains(who, "CapEff") {
		t.Errorf("one Session is\n%sanother\n%s", got, who)
	}
	h.until("the server of the one Session listens", func() bool {
		return h.does(b.SessionID, ask{Do: "run", Script: "ls /work"}).Stdout != "mine\n"
	})
	got := h.does(b.SessionID, ask{Do: "run", Script: `cat /work/mine; echo theirs >/work/mine; node -e 'fetch("http://127.0.0.1:4711").then(async (r) => console.log(await r.text()))'`}).Stdout
	if got != "mine\nserved\n" {
		t.Errorf("the other Session reads %q", got)
	}
	if got := h.does(a.SessionID, ask{Do: "run", Script: "cat /work/mine"}).Stdout; got != "theirs\n" {
		t.Errorf("the first Session reads %q", got)
	}
}

func apart(t *testing.T, h *helmr) {
	h = with(t, h)
	a := h.shell("", ask{Do: "leave", Script: serve})
	h.did(a.SessionID, a.TurnID)
	h.until("its server listens", func() bool {
		return strings.Contains(h.does(a.SessionID, ask{Do: "run", Script: "echo secret >/work/secret; ls /work"}).Stdout, "serving")
	})
	address := strings.TrimSpace(h.does(a.SessionID, ask{Do: "run", Script: `node -p 'Object.values(os.networkInterfaces()).flat().find((i) => !i.internal).address'`}).Stdout)
	b := h.shell("", ask{Do: "run", Script: `ls -A /work; for at in 127.0.0.1 ` + address + `; do
		node -e 'fetch("http://'$at':4711", { signal: AbortSignal.timeout(3000) }).then(() => console.log("reached"), () => console.log("not reached"))'
	done`})
	if got := h.did(b.SessionID, b.TurnID).Stdout; address == "" || got != "not reached\nnot reached\n" {
		t.Errorf("another Computer than %s sees %q", address, got)
	}
}

func containment(t *testing.T, h *helmr) {
	h = with(t, h)
	beats := func(sessionID string) string {
		return h.wantExit(h.sh(h.computerOf(sessionID), "a=$(wc -c </work/beats); sleep 0.5; b=$(wc -c </work/beats); [ $a != $b ] && echo beats; cat /work/aborts"), 0).stdout
	}
	for _, works := range []bool{true, false} {
		r := h.shell("", ask{Do: "abort", Script: "while :; do printf x >>/work/beats; sleep 0.1; done", Works: &works})
		h.wrote(r.SessionID, r.TurnID, "started")
		if _, err := h.InterruptSession(context.Background(), r.SessionID, api.ControlRequest{}); err != nil {
			t.Fatal(err)
		}
		if v := h.settled(r.SessionID, r.TurnID); v.Status != "interrupted" {
			t.Fatalf("turn %+v", v)
		}
		if works { // the harness has ended its work: nothing is killed, whatever it left
			if got := beats(r.SessionID); got != "beats\nnative abort\n" {
				t.Errorf("after an abort that worked: %q", got)
			}
			continue
		}
		// It was asked all the same, and failed: its whole tree is killed.
		h.await(r.SessionID, "session.held", 1)
		if got := beats(r.SessionID); got != "native abort\n" {
			t.Errorf("after an abort that failed: %q", got)
		}
	}
}

func unmodified(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.create("harness", "x=41")
	first := h.did(r.SessionID, r.TurnID)
	if got := h.did(r.SessionID, h.enqueue(r.SessionID, "echo $((x+1))")); got.Said != "42" || got.PID != first.PID {
		t.Fatalf("the second Turn of one native conversation: %+v, before %+v", got, first)
	}
	const want = "x=41\necho $((x+1))\n"
	native := func() string {
		return h.wantExit(h.sh(h.computerOf(r.SessionID), "cat /work/native_history"), 0).stdout
	}
	if got := native(); got != want {
		t.Errorf("native history is %q", got)
	}
	h.wantExit(h.sh(h.computerOf(r.SessionID), "sync"), 0)
	if _, err := h.CloseSession(context.Background(), r.SessionID, api.ControlRequest{}); err != nil {
		t.Fatal(err)
	}
	// A later Session goes on by the harness's own way to resume.
	again, err := h.CreateSession(context.Background(), api.SessionCreateRequest{Agent: "harness", Input: input("history 3"), ComputerID: h.computerOf(r.SessionID)})
	if err != nil {
		t.Fatal(err)
	}
	if got := h.did(again.SessionID, again.TurnID); !strings.Contains(got.Said, "x=41") || got.PID == 0 {
		t.Errorf("a later Session remembers %q", got.Said)
	}
	if got := native(); got != want+"history 3\n" {
		t.Errorf("native history is %q", got)
	}
}

func background(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.shell("", ask{Do: "leave", Script: serve})
	h.did(r.SessionID, r.TurnID)
	h.until("the server of a Turn that has ended listens", func() bool {
		return strings.Contains(h.does(r.SessionID, ask{Do: "run", Script: "ls /work"}).Stdout, "serving")
	})
	got := h.does(r.SessionID, ask{Do: "run", Script: `node -e 'fetch("http://127.0.0.1:4711").then(async (r) => console.log(await r.text()))'`})
	if got.Stdout != "served\n" || got.Turns < 2 {
		t.Errorf("a later Turn gets %+v", got)
	}
}

func modelKey(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.create("keyed-harness", "echo $MODEL_API_KEY $(cat /run/model/key) | rev") // not in the form that answers are searched for
	if got := h.did(r.SessionID, r.TurnID).Said; got != "ledom-a-fo-ks ledom-a-fo-ks" {
		t.Errorf("the harness has %q", got)
	}
	plain := h.create("harness", "echo ${MODEL_API_KEY:-none} $(ls /run/model 2>/dev/null)")
	if got := h.did(plain.SessionID, plain.TurnID).Said; got != "none " && got != "none" {
		t.Errorf("without a binding it has %q", got)
	}
}

func privateScopes(t *testing.T, h *helmr) {
	h = with(t, h)
	box := h.newComputer("box", "scopes")
	// No common shell: nothing but files goes from one to the next.
	h.wantExit(h.sh(box, "cd /; export LEFT=over; alias x=y; ulimit -n 99; echo file >/work/file"), 0)
	if e := h.wantExit(h.sh(box, "pwd; echo ${LEFT:-nothing}; ulimit -n; cat /work/file"), 0); !strings.HasPrefix(e.stdout, "/work\nnothing\n") ||
		strings.Contains(e.stdout, "\n99\n") || !strings.HasSuffix(e.stdout, "file\n") {
		t.Errorf("the next Command has %q", e.stdout)
	}
	// No process of another is visible, at once or by its number.
	first := h.sh(box, "echo $$; exec -a conspicuous sleep 1000")
	h.following(first, func(s string) bool { return strings.HasSuffix(s, "\n") })
	e := h.wantExit(h.sh(box, `cat /proc/[0-9]*/cmdline | tr '\0' ' '; kill -9 -1 2>/dev/null; true`), 0) // its own shell is spared
	if e.stdout == "" || strings.Contains(e.stdout, "conspicuous") {
		t.Errorf("another Command sees %q", e.stdout)
	}
	if k, err := h.GetCommand(context.Background(), first); err != nil || k.Status != "running" {
		t.Errorf("another Command reached the first: %+v, %v", k, err)
	}
	if _, err := h.CancelCommand(context.Background(), first, api.ControlRequest{}); err != nil {
		t.Fatal(err)
	}
	if e := h.outcome(first); e.Status != "cancelled" {
		t.Errorf("%+v", e.Command)
	}
}

func noRights(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.shell("", ask{Do: "client"})
	got := h.did(r.SessionID, r.TurnID)
	if !strings.Contains(got.Refused, "HELMR_API_KEY") || got.Own != "function" || len(got.Env) != 0 || got.Child != "" {
		t.Errorf("agent code has %+v", got)
	}
	page, err := h.ListComputerCommands(context.Background(), h.computerOf(r.SessionID), "", 10)
	if err != nil || len(page.Commands) != 0 {
		t.Errorf("child processes show as Commands: %+v, %v", page, err)
	}
}

func printed(t *testing.T, h *helmr) {
	h = with(t, h)
	r := h.shell("", ask{Do: "noise"})
	h.did(r.SessionID, r.TurnID)
	for _, e := range h.events(r.SessionID) {
		if e.Kind == "turn.output" || strings.Contains(string(e.Data), "to std") || strings.Contains(string(e.Data), "of a child") {
			t.Errorf("event %s is %s", e.Kind, e.Data)
		}
	}
}

// durable writes everywhere, has the Computer stopped in order, and looks at what is there after its next start.
func durable(t *testing.T, h *helmr) {
	mine := h
	h = with(t, h)
	box := h.newComputer("box", "durable")
	h.wantExit(h.sh(box, `set -e
		for dir in /tmp /root /etc /usr/local/bin /var/tmp /opt/new/deep /home /work; do mkdir -p $dir; echo $dir >$dir/kept; done
		chmod 4751 /tmp/kept; ln -s kept /tmp/link; chown 1234:5678 /root/kept; rm /etc/debian_version; mv /usr/share/doc/bash /srv/moved
		for dir in /run /dev/shm; do echo $dir >$dir/memory; done`), 0)
	h.stop()
	h.run()
	own := mine.t
	*mine = *h
	mine.t = own
	e := h.wantExit(h.sh(box, `cat /tmp/kept /root/kept /etc/kept /usr/local/bin/kept /var/tmp/kept /opt/new/deep/kept /home/kept /work/kept
		stat -c '%a' /tmp/kept; readlink /tmp/link; stat -c '%u:%g' /root/kept; ls /etc/debian_version /usr/share/doc/bash 2>/dev/null; ls -d /srv/moved
		ls /run/memory /dev/shm/memory 2>/dev/null; stat -f -c '%T' /proc /sys; true`), 0)
	want := "/tmp\n/root\n/etc\n/usr/local/bin\n/var/tmp\n/opt/new/deep\n/home\n/work\n4751\nkept\n1234:5678\n/srv/moved\nproc\nsysfs\n"
	if e.stdout != want {
		t.Errorf("after the restart: %q\nwant %q\nstderr %q", e.stdout, want, e.stderr)
	}
}
