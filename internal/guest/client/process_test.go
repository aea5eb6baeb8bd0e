package client_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"helmr.dev/helmr/internal/guest/client"
	"helmr.dev/helmr/internal/guest/proto"
)

func turn(id string) []byte { return fmt.Appendf(nil, `{"type":"turn","turn":{"id":%q}}`, id) }

func TestTurnReachesProcessAndOperationsReturn(t *testing.T) {
	h := setup(t)
	h.start("s", "echo")
	// init_done, heard start
	ops := h.ops("s", 2)
	if ops[0].Type != "init_done" || ops[1].Text != "start " {
		t.Fatalf("%+v", ops)
	}
	if already, err := h.c.DeliverTurn(h.ctx, "s", 1, "t1", turn("t1")); err != nil || already {
		t.Fatal(already, err)
	}
	if got := h.ops("s", 4); got[2].Text != "turn t1 acks " || got[3].Type != "turn_result" {
		t.Fatalf("%+v", got)
	}
}

func TestTurnIsDeliveredAtMostOnce(t *testing.T) {
	h := setup(t)
	h.start("s", "echo")
	h.ops("s", 2)
	for i := range 5 {
		if already, err := h.c.DeliverTurn(h.ctx, "s", 1, "t1", turn("t1")); err != nil || already != (i > 0) {
			t.Fatal(i, already, err)
		}
		h.ops("s", 4)
		hello := h.reconnect()
		if p := hello.Processes[0]; len(p.TurnIDs) != 1 || p.TurnIDs[0] != "t1" || p.State != proto.ProcessState_PROCESS_STATE_READY || p.LastSeq != 4 {
			t.Fatalf("%+v", p)
		}
	}
	if already, err := h.c.DeliverTurn(h.ctx, "s", 1, "t2", turn("t2")); err != nil || already {
		t.Fatal(already, err)
	}
	if got := h.ops("s", 6); len(got) != 6 || got[4].Text != "turn t2 acks " {
		t.Fatalf("%+v", got)
	}
}

func TestControlsReachProcessAtMostOnce(t *testing.T) {
	h := setup(t)
	h.start("s", "echo")
	for range 3 {
		h.control("s", `{"type":"message","turnId":"t","messageId":"m1"}`)
		h.control("s", `{"type":"answer","turnId":"t","questionId":"q1"}`)
		h.control("s", `{"type":"question_cancelled","turnId":"t","questionId":"q2"}`)
		h.control("s", `{"type":"abort","turnId":"t","reason":"interrupted"}`)
		h.reconnect()
	}
	h.control("s", `{"type":"message","turnId":"t","messageId":"m2"}`)
	var texts []string
	for _, o := range h.ops("s", 7) {
		texts = append(texts, o.Text)
	}
	if got := strings.Join(texts, "|"); got != "|start |message m1|answer |question_cancelled |abort |message m2" {
		t.Fatal(got)
	}
	for _, line := range []string{`{"type":"turn","turn":{"id":"x"}}`, `{"type":"message"}`, `{}`, `x`, "{\n}", ""} {
		if err := h.c.Control(h.ctx, "s", 1, []byte(line)); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%q: %v, want ErrInvalid", line, err)
		}
	}
}

func TestEpochsAreChecked(t *testing.T) {
	h := setup(t)
	h.start("s", "echo")
	h.ops("s", 2)
	h.start("s", "echo") // the same again does nothing
	start := func(epoch int64) error {
		return h.c.StartProcess(h.ctx, client.StartProcess{SessionID: "s", Epoch: epoch, Argv: []string{"/bin/true"}, Start: []byte("{}")})
	}
	want := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	want("next epoch while one lives", start(2), client.ErrBusy)
	_, err := h.c.DeliverTurn(h.ctx, "s", 2, "t", turn("t"))
	want("turn for another epoch", err, client.ErrWrongEpoch)
	_, err = h.c.DeliverTurn(h.ctx, "other", 1, "t", turn("t"))
	want("turn for an unknown session", err, client.ErrUnknown)
	want("kill of another epoch", h.c.Kill(h.ctx, "s", 3), client.ErrWrongEpoch)
	want("forget of a living process", h.c.Forget(h.ctx, "s", 1), client.ErrBusy)

	h.ok(h.c.Kill(h.ctx, "s", 1))
	exited := h.exit("s")
	if exited.Cause != "killed" || exited.Signal == nil || *exited.Signal != "SIGKILL" || exited.Code != nil {
		t.Fatalf("%+v", exited)
	}
	_, err = h.c.DeliverTurn(h.ctx, "s", 1, "t", turn("t"))
	want("turn for an exited process", err, client.ErrNotReady)
	want("forget before the acknowledgement", h.c.Forget(h.ctx, "s", 1), client.ErrBusy)
	h.ack("s", 1, 2, exited.Seq)
	h.ok(h.c.Forget(h.ctx, "s", 1))
	h.ok(h.c.Forget(h.ctx, "s", 1))
	h.start("s", "echo") // a forgotten epoch is not started again
	if hello := h.reconnect(); len(hello.Processes) != 0 {
		t.Fatalf("%+v", hello.Processes)
	}
	h.ok(start(5))
	want("older epoch", start(4), client.ErrWrongEpoch)
	if got := h.exit("s"); got.Code == nil || *got.Code != 0 || got.Cause != "exited" {
		t.Fatalf("%+v", got)
	}
}

// A request that cannot be encoded fails alone, not with the connection.
func TestRequestsAreCheckedBeforeTheyAreSent(t *testing.T) {
	h := setup(t)
	for name, p := range map[string]client.StartProcess{
		"no UTF-8":  {SessionID: "s", Epoch: 1, Argv: []string{"x"}, Env: []string{"A=\xff"}, Start: []byte("{}")},
		"long":      {SessionID: "s", Epoch: 1, Argv: []string{"x"}, Env: []string{strings.Repeat("x", proto.MaxLine+1)}, Start: []byte("{}")},
		"no argv":   {SessionID: "s", Epoch: 1, Start: []byte("{}")},
		"line feed": {SessionID: "s", Epoch: 1, Argv: []string{"x"}, Start: []byte("{\n}")},
		"epoch":     {SessionID: "s", Argv: []string{"x"}, Start: []byte("{}")},
	} {
		if err := h.c.StartProcess(h.ctx, p); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if _, err := h.c.DeliverTurn(h.ctx, "s", 1, "t", make([]byte, proto.MaxLine+1)); !errors.Is(err, client.ErrInvalid) {
		t.Error(err)
	}
	if err := h.c.Ack([]client.Ack{{SessionID: "\xff", Epoch: 1, Seq: 1}}); !errors.Is(err, client.ErrInvalid) {
		t.Error(err)
	}
	h.ok(h.c.Ping(h.ctx))
	if got := h.c.Stats().Connections; got != 1 {
		t.Errorf("%d connections", got)
	}
}

func TestTurnIsRefusedUntilReady(t *testing.T) {
	h := setup(t)
	h.start("s", "raw ")
	if _, err := h.c.DeliverTurn(h.ctx, "s", 1, "t", turn("t")); !errors.Is(err, client.ErrNotReady) {
		t.Fatal(err)
	}
}

func TestUnackedOperationsComeAgainInOrder(t *testing.T) {
	h := setup(t)
	h.start("s", "flood 300")
	got := h.ops("s", 302)
	if len(got) != 302 || got[301].Type != "exited" || *got[301].Code != 7 {
		t.Fatalf("%d operations, last %+v", len(got), got[len(got)-1])
	}
	for first := int64(1); first <= 302; first += 100 {
		hello := h.reconnect()
		if p := hello.Processes[0]; p.FirstUnacked != first || p.LastSeq != 302 || p.State != proto.ProcessState_PROCESS_STATE_EXITED {
			t.Fatalf("%+v", p)
		}
		again := h.ops("s", 303-int(first))
		for i, o := range again {
			if o.Seq != first+int64(i) {
				t.Fatalf("operation %d at place %d after %d", o.Seq, i, first)
			}
		}
		if len(again) != 303-int(first) {
			t.Fatalf("%d operations from %d on", len(again), first)
		}
		for seq := first; seq < first+100 && seq <= 302; seq++ {
			h.ack("s", seq)
		}
		h.ok(h.c.Ping(h.ctx)) // the acknowledgements before it are taken
	}
	h.ok(h.c.Forget(h.ctx, "s", 1))
}

// After a reconnect the Worker may answer later operations first, and ones that the guest did not repeat yet.
func TestAnswersReachProcessInOrder(t *testing.T) {
	h := setup(t)
	h.start("s", "echo")
	h.ops("s", 2)
	h.ack("s", 2)
	h.ack("s", 2)
	h.reconnect()
	h.ack("s", 1)
	h.ack("s", 1, 2)
	_, err := h.c.DeliverTurn(h.ctx, "s", 1, "t1", turn("t1"))
	h.ok(err)
	got := await(h, "the turn", func(r *recorder) (string, bool) {
		for _, o := range r.ops["s"] {
			if o.Type == "heard" && strings.HasPrefix(o.Text, "turn") {
				return o.Text, true
			}
		}
		return "", false
	})
	if got != "turn t1 acks 1,2" {
		t.Fatal(got)
	}
}

func TestAckOfUnknownOperationEndsTheConnection(t *testing.T) {
	h := setup(t)
	h.start("s", "echo")
	h.ops("s", 2)
	h.ack("s", 9)
	await(h, "another hello", func(r *recorder) (int, bool) { return 0, len(r.hellos) == 2 && len(r.ended) == 1 })
}

func TestBackPressureLosesNothing(t *testing.T) {
	h := setup(t)
	const n = 5000
	h.start("s", fmt.Sprintf("flood %d", n))
	h.ops("s", 1024)
	h.ok(h.c.Ping(h.ctx))
	// The process cannot have exited for the guest: its operations are not all read.
	hello := h.reconnect()
	if p := hello.Processes[0]; p.LastSeq != 1024 || p.State == proto.ProcessState_PROCESS_STATE_EXITED {
		t.Fatalf("%+v", p)
	}
	for seq := int64(1); seq <= n+2; seq++ {
		got := h.ops("s", int(seq))
		if got[seq-1].Seq != seq {
			t.Fatalf("operation %d at place %d", got[seq-1].Seq, seq)
		}
		h.ack("s", seq)
	}
	if last := h.exit("s"); last.Seq != n+2 || *last.Code != 7 {
		t.Fatalf("%+v", last)
	}
}

func TestLongestLinePassesAndLongerOneKills(t *testing.T) {
	h := setup(t)
	h.start("fits", fmt.Sprintf("big %d", proto.MaxLine))
	if got := h.ops("fits", 1); len(got[0].Text) < proto.MaxLine-100 {
		t.Fatal(len(got[0].Text))
	}
	h.start("long", fmt.Sprintf("big %d", proto.MaxLine+1))
	if got := h.exit("long"); got.Cause != "violation" || got.Seq != 1 || !strings.Contains(got.Detail, "20971520") {
		t.Fatalf("%+v", got)
	}
}

func TestProtocolViolationsKill(t *testing.T) {
	h := setup(t)
	for i, text := range []string{
		"nonsense\n", "[]\n", "null\n", "{}\n", `{"seq":2,"type":"init_done"}` + "\n", `{"seq":1}` + "\n",
		`{"seq":1,"type":"exited","code":0}` + "\n", `{"seq":"1","type":"init_done"}` + "\n", "\n", "\xff\n",
	} {
		session := fmt.Sprintf("s%d", i)
		h.start(session, fmt.Sprintf("raw %x", text))
		if got := h.exit(session); got.Cause != "violation" || got.Detail == "" || got.Seq != 1 {
			t.Errorf("%q: %+v", text, got)
		}
	}
	h.start("repeat", fmt.Sprintf("raw %x", `{"seq":1,"type":"init_done"}`+"\n"+`{"seq":1,"type":"init_done"}`+"\n"))
	if got := h.exit("repeat"); got.Cause != "violation" || got.Seq != 2 {
		t.Errorf("%+v", got)
	}
}

func TestExitedIsLastAndTellsTheSignal(t *testing.T) {
	h := setup(t)
	h.start("s", "die")
	exited := h.exit("s")
	if exited.Seq != 3 || exited.Cause != "exited" || exited.Signal == nil || *exited.Signal != "SIGKILL" || exited.Stderr != "about to die" {
		t.Fatalf("%+v", exited)
	}
}

func TestProgramThatCannotStart(t *testing.T) {
	h := setup(t)
	for name, p := range map[string]client.StartProcess{
		"missing":  {Argv: []string{"/no/such/program"}, Cwd: "/"},
		"no exec":  {Argv: []string{"/etc/passwd"}, Cwd: "/"},
		"no cwd":   {Argv: []string{"/bin/true"}, Cwd: "/no/such/folder"},
		"bad user": {Argv: []string{"/bin/true"}, User: "nobody-knows-me"},
	} {
		p.SessionID, p.Epoch, p.Start = strings.ReplaceAll(name, " ", "-"), 1, []byte("{}")
		h.ok(h.c.StartProcess(h.ctx, p))
		if got := h.exit(p.SessionID); got.Cause != "start_failed" || got.Detail == "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestUserAndHome(t *testing.T) {
	h := setup(t)
	h.ok(h.c.ExecCommand(h.ctx, client.ExecCommand{ID: "root", Argv: []string{"sh", "-c", `id -u; echo $HOME`}}))
	h.ok(h.c.ExecCommand(h.ctx, client.ExecCommand{ID: "named", User: "nobody", Argv: []string{"sh", "-c", `id -un`}}))
	h.ok(h.c.ExecCommand(h.ctx, client.ExecCommand{ID: "numbers", User: "12345:54321", Argv: []string{"sh", "-c", `id -u; id -g; id -G; echo $HOME`}}))
	for id, want := range map[string]string{"root": "0\n/root\n", "named": "nobody\n", "numbers": "12345\n54321\n54321\n/\n"} {
		if got := h.commandExit(id); got.ExitCode != 0 {
			t.Errorf("%s: %+v", id, got)
		}
		if got := await(h, "output", func(r *recorder) (string, bool) { return r.output[id+"/1"], true }); got != want {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
	}
}

// Spec 03.19 to 03.21 and the stop deadline: the whole tree dies, also what left the process group and the parent.
func TestSpec_03_19_KillReachesDoubleForkedAndSetsidChildren(t *testing.T) {
	h := setup(t)
	fifo := t.TempDir() + "/alive"
	// Each descendant holds the fifo open for writing; its reader sees the end only when all are gone.
	h.shell("s", fmt.Sprintf(`mkfifo %[1]s
		exec 9<>%[1]s
		setsid sleep 1000 &
		(setsid sh -c 'sleep 1000 & exec sleep 1000' &)
		(trap '' TERM HUP INT; sleep 1000) &
		printf '{"seq":1,"type":"init_done"}\n' >&3
		sleep 1000`, fifo))
	h.ops("s", 1)
	reader, err := os.Open(fifo)
	h.ok(err)
	defer reader.Close()
	h.ok(h.c.Kill(h.ctx, "s", 1))
	if exited := h.exit("s"); exited.Cause != "killed" || *exited.Signal != "SIGKILL" {
		t.Fatalf("%+v", exited)
	}
	if _, err := reader.Read(make([]byte, 1)); err == nil {
		t.Fatal("something was written to the fifo")
	}
}

// Children of Agent code live with the Session process: they end when it ends.
func TestSpec_08_10_ChildrenEndWithTheSessionProcess(t *testing.T) {
	h := setup(t)
	fifo := t.TempDir() + "/alive"
	h.shell("s", fmt.Sprintf(`mkfifo %[1]s; exec 9<>%[1]s
		setsid sleep 1000 &
		printf '{"seq":1,"type":"init_done"}\n' >&3; read line <&3; read line <&3; exit 3`, fifo))
	h.ops("s", 1)
	reader, err := os.Open(fifo)
	h.ok(err)
	defer reader.Close()
	_, err = h.c.DeliverTurn(h.ctx, "s", 1, "t", turn("t"))
	h.ok(err)
	if exited := h.exit("s"); *exited.Code != 3 || exited.Cause != "exited" {
		t.Fatalf("%+v", exited)
	}
	if _, err := reader.Read(make([]byte, 1)); err == nil {
		t.Fatal("something was written to the fifo")
	}
}

func TestStopDeadlineKills(t *testing.T) {
	h := setup(t, "-stop-deadline", "50ms")
	h.start("s", "deaf")
	h.ops("s", 1)
	h.control("s", `{"type":"stop","reason":"closed"}`)
	if _, err := h.c.DeliverTurn(h.ctx, "s", 1, "t", turn("t")); !errors.Is(err, client.ErrNotReady) {
		t.Fatal(err)
	}
	if exited := h.exit("s"); exited.Cause != "stop_deadline" {
		t.Fatalf("%+v", exited)
	}
}

func TestLogsAreForwardedAndBounded(t *testing.T) {
	h := setup(t)
	h.shell("s", `echo out; echo err >&2; read line <&3`)
	await(h, "both logs", func(r *recorder) (int, bool) {
		return 0, r.logs["s/1"] == "out\n" && r.logs["s/2"] == "err\n"
	})
	// Without a Worker only the last 64 KiB are kept.
	h.shell("noisy", `read line <&3; read line <&3; head -c 300000 /dev/zero | tr '\0' x; printf END; printf '{"seq":1,"type":"init_done"}\n' >&3; read line <&3`)
	h.control("noisy", `{"type":"message","messageId":"m"}`)
	h.c.Close()
	h.listen()
	log := await(h, "the end of the log", func(r *recorder) (string, bool) {
		return r.logs["noisy/1"], strings.HasSuffix(r.logs["noisy/1"], "END")
	})
	if got := int64(len(log)) + h.rec.dropped; got > 300003 {
		t.Fatalf("%d bytes and %d dropped", len(log), h.rec.dropped)
	}
}

func TestScopeSeesOnlyItself(t *testing.T) {
	h := setup(t)
	h.ok(h.c.ExecCommand(h.ctx, client.ExecCommand{ID: "c", Argv: []string{"sh", "-c", `ls /proc | grep -c '^[0-9]'; cat /proc/1/cmdline | tr '\0' ' '`}}))
	h.commandExit("c")
	got := await(h, "output", func(r *recorder) (string, bool) { return r.output["c/1"], true })
	// The scope's first process, sh, and the two ends of the pipeline at most.
	lines := strings.SplitN(got, "\n", 2)
	if len(lines) != 2 || len(lines[0]) != 1 || !strings.HasPrefix(lines[1], "helmr-guest scope ") {
		t.Fatalf("%q", got)
	}
}
