package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
)

// TestOneHelmr is what needs a running helmr with a deployed project, but not one of its own.
func TestOneHelmr(t *testing.T) {
	t.Parallel()
	h := start(t, db.SQLite)
	h.deploy("testdata/project")
	for _, part := range []struct {
		name string
		test func(t *testing.T, h *helmr)
	}{
		{"refusals", refusals},
		{"commands", commands},
		{"following", following},
		{"holds", holds},
		{"logins", logins},
		{"the SDK", sdk},
	} {
		t.Run(part.name, func(t *testing.T) {
			mine := with(t, h)
			part.test(t, mine)
			mine.t = h.t
			*h = *mine // it may have been started again
		})
	}
	t.Run("Spec_13_13_DeployBuildsUploadsFinalizesAndPromotes", func(t *testing.T) { project(t, with(t, h)) }) // last: it promotes
}

// commandTree gives every command of helmr with its help.
func commandTree(t *testing.T) map[string]string {
	t.Helper()
	help := map[string]string{}
	var walk func(path []string)
	walk = func(path []string) {
		text := program{}.run(t, append(slices.Clone(path), "--help")...).ok(t)
		name := strings.Join(append([]string{"helmr"}, path...), " ")
		help[name] = text
		if !strings.Contains(text, name+" [command]") {
			return
		}
		for line := range strings.Lines(program{}.run(t, slices.Concat([]string{"__complete"}, path, []string{""})...).stdout) {
			if child, _, ok := strings.Cut(line, "\t"); ok && child != "help" {
				walk(append(slices.Clone(path), child))
			}
		}
	}
	walk(nil)
	return help
}

var longFlag = regexp.MustCompile(`\s(--[a-z][a-z-]*)`)

// TestHelp walks all commands: each has a help with examples, and the examples use commands and flags that exist.
func TestHelp(t *testing.T) {
	t.Parallel()
	all := commandTree(t)
	for _, name := range []string{"dev", "server", "worker", "migrate", "login", "logout", "whoami", "init", "build", "deploy", "deployment list", "deployment get",
		"deployment promote", "agent list", "agent get", "template list", "template get", "session create", "session list", "session get", "session enqueue",
		"session events", "session interrupt", "session resume", "session close", "session cancel", "session turn list", "session turn get",
		"session turn wait", "computer get", "computer list", "image import", "image base", "image list", "doctor", "completion", "version",
		"server check-config", "server bootstrap", "server worker-token"} {
		if _, ok := all["helmr "+name]; !ok {
			t.Errorf("there is no helmr %s", name)
		}
	}
	for name, help := range all {
		_, examples, ok := strings.Cut(help, "\nExamples:\n")
		if !ok || !strings.Contains(help, "Usage:\n") {
			t.Errorf("the help of %s has no usage or no example:\n%s", name, help)
			continue
		}
		examples, _, _ = strings.Cut(examples, "\n\n")
		for example := range strings.Lines(examples) {
			checkExample(t, all, name, strings.TrimSpace(example))
		}
		if examples == "" || !strings.Contains(examples, "helmr") {
			t.Errorf("the examples of %s show no helmr: %q", name, examples)
		}
	}
}

// checkExample looks for what an example uses in the help of its commands.
func checkExample(t *testing.T, all map[string]string, of, example string) {
	t.Helper()
	for _, part := range regexp.MustCompile(`\|\|?|&&|<\(`).Split(example, -1) {
		_, call, ok := strings.Cut(" "+part, " helmr ")
		if !ok {
			continue
		}
		name := "helmr"
		for _, word := range strings.Fields(call) {
			if _, ok := all[name+" "+word]; !ok {
				break
			}
			name += " " + word
		}
		if name == "helmr" && !strings.HasPrefix(call, "-") {
			t.Errorf("an example of %s calls no command: %s", of, example)
		}
		call, _, _ = strings.Cut(call, " -- ")
		for _, flag := range longFlag.FindAllStringSubmatch(" "+call, -1) {
			if !strings.Contains(all[name], flag[1]+" ") {
				t.Errorf("an example of %s uses %s, which %s lacks: %s", of, flag[1], name, example)
			}
		}
	}
}

// createOn creates a Session of the counter on a Computer; it is cancelled when the test ends. An environment has few
// Computers, and a Computer little memory.
func (h *helmr) createOn(computerID, text string) api.SessionCreateReceipt {
	h.t.Helper()
	r, err := h.CreateSession(context.Background(), api.SessionCreateRequest{Agent: "counter", Input: input(text), ComputerID: computerID})
	if err != nil {
		h.t.Fatalf("create session: %v", err)
	}
	h.t.Cleanup(func() { h.program().run(h.t, "session", "cancel", r.SessionID) })
	return r
}

// computer makes a Computer for the Sessions of a test.
func (h *helmr) computer() string {
	h.t.Helper()
	s, err := h.GetSession(context.Background(), h.create("counter", "hello").SessionID)
	if err != nil {
		h.t.Fatal(err)
	}
	return s.ComputerID
}

// running waits until a Turn is with its handler.
func (h *helmr) running(r api.SessionCreateReceipt) {
	h.t.Helper()
	h.until("the handler runs", func() bool {
		v, err := h.GetTurn(context.Background(), r.SessionID, r.TurnID)
		return err == nil && v.Status == "running"
	})
}

// commands runs every command that shows or controls something, for people and for scripts.
func commands(t *testing.T, h *helmr) {
	r := h.create("counter", "hello")
	h.completed(r.SessionID, r.TurnID)
	s, err := h.GetSession(context.Background(), r.SessionID)
	if err != nil {
		t.Fatal(err)
	}
	input := filepath.Join(writeFiles(t, t.TempDir(), map[string]string{"in.json": `[{"type":"text","text":"from a file"}]`}), "in.json")
	closed := h.createOn(s.ComputerID, "hello")
	h.completed(closed.SessionID, closed.TurnID)
	for name, test := range map[string]struct {
		args  []string
		stdin string
		human []string // parts of the text for people
		json  string   // a field of the JSON object
	}{
		"version":              {[]string{"version"}, "", []string{"helmr ", "go1."}, "version"},
		"whoami":               {[]string{"whoami"}, "", []string{"auth_source:   api_key", h.info.URL}, "auth_source"},
		"agent list":           {[]string{"agent", "list"}, "", []string{"ID", "counter", "moody"}, "agents"},
		"agent list, one":      {[]string{"agent", "list", "--limit", "1"}, "", []string{"ID"}, "next_cursor"},
		"agent list all":       {[]string{"agent", "list", "--all"}, "", []string{"counter"}, "agents"},
		"agent get":            {[]string{"agent", "get", "counter"}, "", []string{"counter", "box", s.DeploymentID}, "id"},
		"template list":        {[]string{"template", "list"}, "", []string{"box", "512 MiB"}, "templates"},
		"template get":         {[]string{"template", "get", "box"}, "", []string{"512 MiB", "1 GiB"}, "template"},
		"deployment list":      {[]string{"deployment", "list"}, "", []string{"VERSION", s.DeploymentID, "yes"}, "deployments"},
		"deployment get":       {[]string{"deployment", "get", s.DeploymentID}, "", []string{"counter on box"}, "bundle_digest"},
		"deployment current":   {[]string{"deployment", "get", "current"}, "", []string{s.DeploymentID}, "id"},
		"deployment events":    {[]string{"deployment", "events", s.DeploymentID}, "", []string{"promoted"}, "events"},
		"session list":         {[]string{"session", "list"}, "", []string{r.SessionID, "counter", "open"}, "sessions"},
		"session list by":      {[]string{"session", "list", "--agent", "counter", "--status", "open", "--computer", s.ComputerID}, "", []string{r.SessionID}, "sessions"},
		"session get":          {[]string{"session", "get", r.SessionID}, "", []string{"counter", "open", s.ComputerID, r.TurnID}, "computer_id"},
		"session events":       {[]string{"session", "events", r.SessionID, "--limit", "3"}, "", []string{"turn.queued", "#1", `"hello"`, "There is more: add --after 3"}, ""},
		"session events after": {[]string{"session", "events", r.SessionID, "--after", "4"}, "", []string{"turn.completed", "did hello"}, ""},
		"turn list":            {[]string{"session", "turn", "list", r.SessionID}, "", []string{r.TurnID, "completed", "hello"}, "turns"},
		"turn get":             {[]string{"session", "turn", "get", r.SessionID, r.TurnID}, "", []string{"completed", "did hello", `"turns":1`}, "status"},
		"turn wait":            {[]string{"session", "turn", "wait", r.SessionID, r.TurnID}, "", []string{`"settled"`, `"completed"`}, "outcome"},
		"computer list":        {[]string{"computer", "list"}, "", []string{s.ComputerID, "box", "running"}, "computers"},
		"computer get":         {[]string{"computer", "get", s.ComputerID}, "", []string{"box", "available", "running"}, "residency"},
		"computer get --id":    {[]string{"computer", "get", "--id", s.ComputerID}, "", []string{s.ComputerID}, "id"},
		"image list":           {[]string{"image", "list"}, "", []string{"IMAGE"}, ""},
		"session create":       {[]string{"session", "create", "counter", "--text", "x"}, "", []string{"session_id: ", "\nturn_id: "}, "created"},
		"create with a key":    {[]string{"session", "create", "counter", "--computer", s.ComputerID, "--key", "one", "--input-json", `[{"type":"text","text":"x"}]`}, "", []string{"session_id: "}, "sequence"},
		"create on a computer": {[]string{"session", "create", "counter", "--computer", s.ComputerID, "--input-file", input}, "", []string{"session_id: "}, "session_id"},
		"session enqueue":      {[]string{"session", "enqueue", r.SessionID, "--input-file", "-"}, `[{"type":"text","text":"x"}]`, []string{"turn_id: "}, "turn_id"},
		"session close":        {[]string{"session", "close", closed.SessionID}, "", []string{"close: accepted"}, "status"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := h.program()
			p.stdin = test.stdin
			human := p.run(t, test.args...)
			text := human.ok(t) + human.stderr
			for _, part := range test.human {
				if !strings.Contains(text, part) {
					t.Errorf("does not show %q:\n%s", part, text)
				}
			}
			asJSON := p.run(t, append(slices.Clone(test.args), "--json")...)
			switch {
			case strings.HasPrefix(name, "session events"):
				if n := len(jsonLines(t, asJSON.ok(t))); n == 0 {
					t.Error("no events")
				}
			case test.json == "":
				if !json.Valid([]byte(asJSON.ok(t))) {
					t.Errorf("not JSON:\n%s", asJSON.stdout)
				}
			default:
				if _, ok := asJSON.object(t)[test.json]; !ok {
					t.Errorf("--json has no %s:\n%s", test.json, asJSON.stdout)
				}
			}
			if asJSON.stderr != "" {
				t.Errorf("--json says on stderr: %s", asJSON.stderr)
			}
		})
	}
}

// following is what --follow and wait show, and what their exit statuses say.
func following(t *testing.T, h *helmr) {
	one, two := h.computer(), h.computer()
	t.Run("create", func(t *testing.T) {
		t.Parallel()
		h := with(t, h)
		r := h.program().run(t, "session", "create", "counter", "--computer", one, "--text", "hello", "--follow")
		inOrder(t, r.ok(t), "session_id: ", "turn_id: ", "turn.queued", `#1  "hello"`, "turn.running", "turn.output", "\n    run ", "turn.finalizing", "turn.completed",
			"response: did hello", `result: {"inits":`, `"turns":1}`)
		sessionID := strings.TrimPrefix(strings.Split(r.stdout, "\n")[0], "session_id: ")
		again := h.program().run(t, "session", "enqueue", sessionID, "--text", "once more", "--follow")
		inOrder(t, again.ok(t), "turn_id: ", "turn.queued", `#2  "once more"`, "turn.running", "turn.completed", `"turns":2`)
		if strings.Contains(again.stdout, "#1") {
			t.Errorf("the followed turn begins with the one before:\n%s", again.stdout)
		}
	})
	t.Run("create as JSON", func(t *testing.T) {
		t.Parallel()
		h := with(t, h)
		lines := jsonLines(t, h.program().run(t, "session", "create", "counter", "--computer", one, "--text", "hello", "--follow", "--json").ok(t))
		var kinds []string
		for _, line := range lines[1:] {
			kinds = append(kinds, line["kind"].(string))
		}
		if got := strings.Join(kinds, " "); lines[0]["session_id"] == nil || got != "turn.queued turn.running turn.output turn.finalizing turn.completed" {
			t.Errorf("%v", lines)
		}
	})
	t.Run("a key that is taken", func(t *testing.T) {
		t.Parallel()
		h := with(t, h)
		h.program().run(t, "session", "create", "counter", "--computer", two, "--key", "follow", "--text", "first", "--follow").ok(t)
		r := h.program().run(t, "session", "create", "counter", "--computer", two, "--key", "follow", "--text", "second", "--follow")
		inOrder(t, r.ok(t), `#2  "second"`, "turn.completed", `"turns":2`)
		if strings.Contains(r.stdout, "first") {
			t.Errorf("shows the turn before:\n%s", r.stdout)
		}
	})
	t.Run("a turn that fails", func(t *testing.T) {
		t.Parallel()
		h := with(t, h)
		r := h.program().run(t, "session", "create", "counter", "--computer", two, "--text", "throw", "--follow")
		if r.code != 1 || !strings.Contains(r.stderr, "error: turn failed: handler_failed: thrown on purpose") || !strings.Contains(r.stdout, "turn.failed") {
			t.Errorf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
		}
		ids := strings.Fields(r.stdout)
		wait := h.program().run(t, "session", "turn", "wait", ids[1], ids[3])
		if wait.code != 1 || !strings.Contains(wait.stdout, `"failed"`) || !json.Valid([]byte(wait.stdout)) {
			t.Errorf("wait: exit %d\n%s%s", wait.code, wait.stdout, wait.stderr)
		}
	})
	t.Run("a wait that times out", func(t *testing.T) {
		t.Parallel()
		h := with(t, h)
		r := h.createOn(one, "patient 40")
		wait := h.program().run(t, "session", "turn", "wait", r.SessionID, r.TurnID, "--timeout", "1ms")
		if wait.code != 124 || strings.Join(strings.Fields(wait.stdout), "") != `{"status":"timeout"}` || wait.stderr != "" {
			t.Errorf("exit %d\n%s%s", wait.code, wait.stdout, wait.stderr)
		}
		h.program().run(t, "session", "turn", "wait", r.SessionID, r.TurnID, "--timeout", "5m").ok(t)
	})
	t.Run("Ctrl-C", func(t *testing.T) {
		t.Parallel()
		h := with(t, h)
		r := h.createOn(two, "patient 100000")
		for what, args := range map[string][]string{
			"enqueue": {"session", "enqueue", r.SessionID, "--text", "x", "--follow"},
			"events":  {"session", "events", r.SessionID, "--follow"},
			"wait":    {"session", "turn", "wait", r.SessionID, r.TurnID},
		} {
			h.running(r)
			l := h.program().start(t, args...)
			switch what {
			case "wait":
				// It says nothing; once the server knows of the request, it waits.
				h.until("the wait reaches the server", func() bool { return connected(l.cmd.Process.Pid) })
			case "enqueue":
				l.says("is still queued: turn 1 is running")
			default:
				l.says("step 3")
			}
			l.signal(os.Interrupt)
			got := l.wait()
			if got.code != 1 || !strings.Contains(got.stderr, "Stopped w") || !strings.Contains(got.stderr, "goes on") || !strings.Contains(got.stderr, "helmr session cancel "+r.SessionID) {
				t.Errorf("%s: exit %d\n%s%s", args, got.code, got.stdout, got.stderr)
			}
			if again := regexp.MustCompile(`(?m)^  helmr (session (events|turn wait) .*)$`).FindStringSubmatch(got.stderr); again == nil {
				t.Errorf("%s: does not say how to look again:\n%s", args, got.stderr)
			} else {
				look := h.program().start(t, strings.Fields(again[1])...)
				h.until("the second look reaches the server", func() bool { return connected(look.cmd.Process.Pid) })
				look.signal(os.Interrupt)
				look.wait()
			}
			if v, err := h.GetTurn(context.Background(), r.SessionID, r.TurnID); err != nil || v.Status != "running" {
				t.Errorf("the turn that was watched is %s, %v", v.Status, err)
			}
		}
	})
	t.Run("the end of a session", func(t *testing.T) {
		t.Parallel()
		h := with(t, h)
		r := h.createOn(two, "hello")
		l := h.program().start(t, "session", "events", r.SessionID, "--follow")
		l.says("turn.completed")
		h.program().run(t, "session", "cancel", r.SessionID).ok(t)
		inOrder(t, l.wait().ok(t), "turn.completed", "session.cancel ", "session.cancelled")
		h.program().run(t, "session", "enqueue", r.SessionID, "--text", "x").refused(t, 1, "create a new one")
	})
}

// connected tells whether a process has a connection.
func connected(pid int) bool {
	found, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range found {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:") {
			return true
		}
	}
	return false
}

func inOrder(t testing.TB, text string, parts ...string) {
	t.Helper()
	rest := text
	for _, part := range parts {
		_, after, ok := strings.Cut(rest, part)
		if !ok {
			t.Errorf("%q is not there, or not in order:\n%s", part, text)
			return
		}
		rest = after
	}
}

// holds is what people see of a Session that waits for them.
func holds(t *testing.T, h *helmr) {
	box := h.computer()
	t.Run("an init that never works", func(t *testing.T) {
		t.Parallel()
		h := with(t, h)
		r := h.program().run(t, "session", "create", "broken", "--computer", box, "--text", "x", "--follow")
		inOrder(t, r.stdout, "session.process_failed  init_failed (1 in a row)\n", "Error: never", "(3 in a row)  as before", "session.held", "process_failures")
		if r.code != 1 || !strings.Contains(r.stderr, "error: turn 1 stays queued") {
			t.Errorf("exit %d\n%s", r.code, r.stderr)
		}
		sessionID := strings.Fields(r.stdout)[1]
		second := h.program().run(t, "session", "enqueue", sessionID, "--text", "x", "--follow")
		if second.code != 1 || !strings.Contains(second.stderr, "error: turn 2 stays queued") {
			t.Errorf("enqueue: exit %d\n%s", second.code, second.stderr)
		}
		text := h.program().run(t, "session", "get", sessionID).ok(t)
		inOrder(t, text, "held:", "process_failures")
	})
	t.Run("interrupt and resume", func(t *testing.T) {
		t.Parallel()
		h := with(t, h)
		r := h.createOn(box, "patient 100000")
		h.running(r)
		running := h.program().start(t, "session", "events", r.SessionID, "--follow")
		running.says("step 1")
		queued := h.program().start(t, "session", "enqueue", r.SessionID, "--text", "hello", "--follow")
		queued.says("turn 2 is still queued: turn 1 is running")
		h.program().run(t, "session", "interrupt", r.SessionID).ok(t)
		got := queued.wait()
		if got.code != 1 {
			t.Errorf("exit %d\n%s", got.code, got.stderr)
		}
		inOrder(t, got.stderr, "error: turn 2 stays queued", "interrupt", "let it go on:")
		resume := regexp.MustCompile(`helmr (session resume \S+ --hold \S+)`).FindStringSubmatch(got.stderr)
		if resume == nil {
			t.Fatalf("no command to resume:\n%s", got.stderr)
		}
		h.program().run(t, strings.Fields(resume[1])...).ok(t)
		turns, err := h.ListTurns(context.Background(), r.SessionID, "", 10)
		if err != nil {
			t.Fatal(err)
		}
		h.completed(r.SessionID, turns.Turns[1].ID)
		running.says("turn.completed")
		running.signal(os.Interrupt)
		seen := running.wait().stdout
		inOrder(t, seen, "session.interrupt", "session.resume")
		inOrder(t, seen, "session.interrupt", "turn.interrupted   #1  interrupted\n", "turn.running       #2\n")
	})
	t.Run("cancel", func(t *testing.T) {
		t.Parallel()
		h := with(t, h)
		r := h.createOn(box, "patient 100000")
		next := h.program().start(t, "session", "enqueue", r.SessionID, "--text", "hello", "--follow")
		next.says("turn.queued")
		h.program().run(t, "session", "cancel", r.SessionID, "--json").object(t)
		if got := next.wait(); got.code != 1 || !strings.Contains(got.stderr, "error: turn cancelled") {
			t.Errorf("exit %d\n%s%s", got.code, got.stdout, got.stderr)
		}
	})
}

// logins is login, whoami and logout, and the files of them.
func logins(t *testing.T, h *helmr) {
	config := t.TempDir()
	p := program{env: []string{"HELMR_CONFIG_DIR=" + config, "HELMR_API_KEY=", "HELMR_API_URL="}}
	p.run(t, "whoami").refused(t, 1, "there is no key for http://127.0.0.1:8080", "helmr login http://127.0.0.1:8080")
	p.stdin = "hlmr_sk_wrong\n"
	p.run(t, "login", h.info.URL).refused(t, 1, "the key was not saved", "authentication_required")
	p.stdin = ""
	p.run(t, "login", h.info.URL).refused(t, 2, "no API key was given")
	if left := entries(t, config); len(left) > 0 {
		t.Errorf("refused logins left %q", left)
	}
	p.stdin = h.info.APIKey + "\n"
	if got := p.run(t, "login", h.info.URL+"/").ok(t); got != "Logged in to "+h.info.URL+".\n" {
		t.Errorf("login says %q", got)
	}
	info, err := os.Stat(filepath.Join(config, "logins.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("logins.json: %v, %v", info, err)
	}
	me := p.run(t, "whoami", "--json").object(t)
	if me["auth_source"] != "api_key" || me["key_from"] != "login" || me["api_url"] != h.info.URL {
		t.Errorf("whoami: %v", me)
	}
	other := p
	other.env = append(slices.Clone(p.env), "HELMR_API_URL="+h.info.URL, "HELMR_API_KEY="+h.info.APIKey)
	if me := other.run(t, "whoami", "--json").object(t); me["key_from"] != "HELMR_API_KEY" {
		t.Errorf("whoami with a key: %v", me)
	}
	p.run(t, "logout").ok(t)
	p.run(t, "logout", h.info.URL).refused(t, 1, "no saved login")
	p.run(t, "agent", "list", "-a", h.info.URL).refused(t, 1, "no key for "+h.info.URL)
	if offered := h.program().run(t, "__complete", "session", "create", "").stdout; !strings.Contains(offered, "counter\nhasty\n") {
		t.Errorf("the shell is offered %q", offered)
	}
}

// TestCompletionAndDoctor runs what needs no server.
func TestCompletionAndDoctor(t *testing.T) {
	t.Parallel()
	p := program{env: []string{"HELMR_CONFIG_DIR=" + t.TempDir()}}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if script := p.run(t, "completion", shell).ok(t); !strings.Contains(script, "__complete") {
			t.Errorf("%s: %s", shell, script)
		}
	}
	p.run(t, "completion", "csh").refused(t, 2, `"csh"`, "fish")
	if text := p.run(t, "--version").ok(t); !strings.HasPrefix(text, "helmr ") {
		t.Error(text)
	}
	text := p.run(t, "doctor").ok(t)
	inOrder(t, text, "runsc (gVisor)", "sandboxes", "one was started and removed", "Node.js", "image builder", "base image", "disk")
	findings, _ := p.run(t, "doctor", "--json").object(t)["findings"].([]any)
	if len(findings) < 8 {
		t.Errorf("findings: %v", findings)
	}
}

// TestImageCommands keeps an image in a store of its own.
func TestImageCommands(t *testing.T) {
	t.Parallel()
	p := program{env: []string{"HELMR_CACHE_DIR=" + t.TempDir()}}
	root := writeFiles(t, t.TempDir(), map[string]string{"etc/motd": "hello"})
	inOrder(t, p.run(t, "image", "list").ok(t), "No images", "helmr image base")
	inOrder(t, p.run(t, "image", "import", "tiny:1", root).ok(t), "imported tiny:1", "sha256:")
	inOrder(t, p.run(t, "image", "list").ok(t), "IMAGE", "tiny:1", "import")
	if images, _ := p.run(t, "image", "list", "--json").object(t)["images"].([]any); len(images) != 1 {
		t.Errorf("images: %v", images)
	}
	p.run(t, "image", "import", "other:1", filepath.Join(root, "gone")).refused(t, 1, "gone", "no such file")
	p.run(t, "image", "import", "Not A Name", root).refused(t, 1, "Not A Name")
	p.run(t, "image", "remove", "tiny:1").ok(t)
	p.run(t, "image", "remove", "tiny:1").refused(t, 1, "tiny:1", "helmr image list")
	p.run(t, "image", "prune", "--json").object(t)
}

// project makes a project, builds it, deploys the bundle and goes back to the deployment of before.
func project(t *testing.T, h *helmr) {
	p := h.program()
	p.dir = t.TempDir()
	before := p.run(t, "deployment", "get", "current", "--json").object(t)["id"].(string)
	inOrder(t, p.run(t, "init", "--dir", "hello").ok(t), "hello/")
	p.run(t, "init", "--dir", "hello").refused(t, 1, "exists already", "--force")
	p.run(t, "init", "--dir", "hello", "--force").ok(t)
	first := p.run(t, "build", "hello", "-o", "first").ok(t)
	second := p.run(t, "build", "hello", "-o", "second", "--json")
	digest := second.object(t)["bundle_digest"]
	if first != filepath.Join(p.dir, "first")+"\n" {
		t.Errorf("build prints %q", first)
	}
	if steps := jsonLines(t, second.stderr); len(steps) < 8 {
		t.Errorf("%d lines of progress", len(steps))
	}
	p.run(t, "build", "hello", "-o", "first").refused(t, 1, "first", "exists")

	skipped := p.run(t, "deploy", "--bundle", "first", "--skip-promotion", "--json").object(t)
	if skipped["bundle_digest"] != digest || skipped["current"] != false {
		t.Errorf("deployment %v, want digest %v: equal source makes equal bundles", skipped, digest)
	}
	id := skipped["id"].(string)
	p.run(t, "session", "create", "reviewer", "--text", "x").refused(t, 1, "reviewer", "not in the current Deployment")
	inOrder(t, p.run(t, "deployment", "promote", id, "--reason", "try it").ok(t), id+" is current since")
	inOrder(t, p.run(t, "session", "create", "reviewer", "--text", "Review APP-42", "--follow").ok(t), "Review started", "turn.completed", `{"turns":1}`)
	inOrder(t, p.run(t, "deployment", "events", id).ok(t), "try it")

	out := p.run(t, "deploy", "--bundle", "second").ok(t)
	inOrder(t, out, "version:", "deployment:", "agent:", "reviewer\n")
	huge := smallProject(t, map[string]string{"agents/box.ts": strings.Replace(boxModule, "512MiB", "900GiB", 1)})
	built := p.run(t, "deploy", huge, "--json").object(t)
	if now := p.run(t, "deployment", "get", "current", "--json").object(t); built["current"] != true || now["id"] != built["id"] || now["bundle_digest"] == digest {
		t.Errorf("deploy says %v, current is %v", built, now)
	}
	waits := p.start(t, "session", "create", "one", "--text", "x", "--follow")
	waits.says("turn 1 is still queued: the environment's limits")
	waits.signal(os.Interrupt)
	got := waits.wait()
	inOrder(t, got.stderr, "(environment_limit)", "helmr computer get ", "Stopped watching")
	p.run(t, "session", "cancel", strings.Fields(got.stdout)[1]).ok(t)
	p.run(t, "deployment", "promote", before).ok(t)
	list := p.run(t, "deployment", "list", "--json").object(t)["deployments"].([]any)
	if len(list) < 3 || p.run(t, "deployment", "get", "current", "--json").object(t)["id"] != before {
		t.Errorf("deployments: %v", list)
	}
	var page api.DeploymentPage
	raw, _ := json.Marshal(map[string]any{"deployments": list})
	if err := json.Unmarshal(raw, &page); err != nil || fmt.Sprint(page.Deployments[len(page.Deployments)-1].Version) != "1" {
		t.Errorf("the list is not latest first: %v", err)
	}
}
