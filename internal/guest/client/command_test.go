package client_test

import (
	"strings"
	"testing"
	"time"

	"helmr.dev/helmr/internal/guest/client"
	"helmr.dev/helmr/internal/guest/proto"
)

// commandExit waits for the end of a Command.
func (h *harness) commandExit(id string) client.CommandExit {
	h.t.Helper()
	return await(h, "the end of command "+id, func(r *recorder) (client.CommandExit, bool) {
		if len(r.exits[id]) == 0 {
			return client.CommandExit{}, false
		}
		return r.exits[id][0], true
	})
}

func (h *harness) exec(id string, timeout time.Duration, script string, stdin string) {
	h.t.Helper()
	h.ok(h.c.ExecCommand(h.ctx, client.ExecCommand{
		ID: id, Argv: []string{"bash", "-c", script}, Env: []string{"PATH=/usr/bin:/bin", "A=b"}, Cwd: "/tmp", Stdin: []byte(stdin), Timeout: timeout,
	}))
}

func TestCommandRuns(t *testing.T) {
	h := setup(t)
	h.exec("c", 0, `cat; pwd; echo $A >&2; exit 5`, "input\n")
	if got := h.commandExit("c"); got.End != proto.CommandEnd_COMMAND_END_EXITED || got.ExitCode != 5 {
		t.Fatalf("%+v", got)
	}
	await(h, "events", func(r *recorder) (int, bool) {
		if r.started["c"] != 1 || r.output["c/1"] != "input\n/tmp\n" || r.output["c/2"] != "b\n" {
			t.Fatalf("%v %v", r.started, r.output)
		}
		return 0, true
	})
	// Everything comes again until acknowledged, then nothing does.
	if hello := h.reconnect(); len(hello.Commands) != 1 || !hello.Commands[0].Exited {
		t.Fatalf("%+v", hello.Commands)
	}
	h.commandExit("c")
	last := await(h, "output", func(r *recorder) ([]chunk, bool) { return r.chunks, true })
	through := map[proto.Stream]int64{}
	for _, c := range last {
		if c.seq != through[c.stream]+1 {
			t.Fatalf("%+v", last)
		}
		through[c.stream] = c.seq
	}
	h.ok(h.c.AckCommand(client.AckCommand{ID: "c", Started: true, Exited: true, StdoutThrough: through[1], StderrThrough: through[2]}))
	h.exec("c", 0, "echo again", "") // the same id does nothing
	h.ok(h.c.ForgetCommand(h.ctx, "c"))
	h.exec("c", 0, "echo again", "")
	if hello := h.reconnect(); len(hello.Commands) != 0 {
		t.Fatalf("%+v", hello.Commands)
	}
}

func TestSpec_08_08_CommandLeavesNoDaemon(t *testing.T) {
	h := setup(t)
	h.exec("c", 0, `setsid sleep 1000 & (sleep 1000 &) ; exit 0`, "")
	if got := h.commandExit("c"); got.ExitCode != 0 || got.End != proto.CommandEnd_COMMAND_END_EXITED {
		t.Fatalf("%+v", got)
	}
}

func TestCommandExitCodes(t *testing.T) {
	h := setup(t)
	h.exec("signal", 0, `kill -USR1 $$`, "")
	h.ok(h.c.ExecCommand(h.ctx, client.ExecCommand{ID: "missing", Argv: []string{"no-such-program"}}))
	h.ok(h.c.ExecCommand(h.ctx, client.ExecCommand{ID: "data", Argv: []string{"/etc/passwd"}}))
	for id, want := range map[string]int32{"signal": 128 + 10, "missing": 127, "data": 126} {
		if got := h.commandExit(id); got.ExitCode != want || got.End != proto.CommandEnd_COMMAND_END_EXITED {
			t.Errorf("%s: %+v, want %d", id, got, want)
		}
	}
}

func TestCommandCancelAndTimeout(t *testing.T) {
	h := setup(t)
	h.exec("cancel", 0, `trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done`, "")
	await(h, "up", func(r *recorder) (int, bool) { return 0, r.output["cancel/1"] == "up\n" })
	h.ok(h.c.CancelCommand(h.ctx, "cancel"))
	if got := h.commandExit("cancel"); got.End != proto.CommandEnd_COMMAND_END_CANCELLED {
		t.Fatalf("%+v", got)
	}
	await(h, "bye", func(r *recorder) (int, bool) { return 0, r.output["cancel/1"] == "up\nbye\n" })
	h.exec("timeout", 20*time.Millisecond, `sleep 1000`, "")
	if got := h.commandExit("timeout"); got.End != proto.CommandEnd_COMMAND_END_TIMED_OUT {
		t.Fatalf("%+v", got)
	}
}

func TestCommandOutputWaitsForAcks(t *testing.T) {
	h := setup(t)
	const size = 4 << 20
	h.exec("c", 0, `head -c 4194304 /dev/zero | tr '\0' x`, "")
	for acked := int64(0); ; {
		last, done := await2(h, acked)
		h.ok(h.c.AckCommand(client.AckCommand{ID: "c", StdoutThrough: last}))
		if done {
			break
		}
		acked = last
	}
	got := await(h, "output", func(r *recorder) (string, bool) { return r.output["c/1"], true })
	if len(got) != size || strings.Trim(got, "x") != "" {
		t.Fatalf("%d bytes", len(got))
	}
}

// await2 waits for a chunk after acked or the end.
func await2(h *harness, acked int64) (last int64, done bool) {
	h.t.Helper()
	last = await(h, "more output", func(r *recorder) (int64, bool) {
		n := int64(len(r.chunks))
		done = len(r.exits["c"]) > 0
		return n, n > acked || done
	})
	return last, done
}
