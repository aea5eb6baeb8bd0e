package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func contains(t *testing.T, what, have string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(have, want) {
			t.Errorf("%s lacks %q:\n%s", what, want, have)
		}
	}
}

func TestSpec_17_01_CredentialOrder(t *testing.T) {
	t.Parallel()
	w := setup(t)
	// A login is saved with mode 0600 and is then the default server and key.
	delete(w.env, "HELMR_API_KEY")
	delete(w.env, "HELMR_API_URL")
	if r := w.runIn(t.Context(), w.key+"\n", "login", w.url); r.status != 0 {
		t.Fatalf("login: %+v", r)
	}
	file := filepath.Join(w.env["HELMR_CONFIG_DIR"], "logins.json")
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("saved login: %v, %v", info, err)
	}
	if me := w.object(t, "whoami"); me["api_url"] != w.url || me["auth_source"] != "api_key" || me["key_from"] != "login" {
		t.Errorf("whoami %v", me)
	}
	// HELMR_API_KEY beats the saved login, -a beats HELMR_API_URL, and that beats the last login.
	w.env["HELMR_API_KEY"] = w.key
	if me := w.object(t, "whoami"); me["key_from"] != "HELMR_API_KEY" {
		t.Errorf("whoami %v", me)
	}
	w.env["HELMR_API_URL"] = "http://127.0.0.1:1"
	if r := w.run(t, "whoami"); r.status != 1 || !strings.Contains(r.stderr, "127.0.0.1:1 does not answer") {
		t.Errorf("HELMR_API_URL is not used: %+v", r)
	}
	if me := w.object(t, "whoami", "-a", w.url+"/"); me["api_url"] != w.url {
		t.Errorf("whoami %v", me)
	}
	// Without anything the message says what to do.
	w.env = map[string]string{"HELMR_CONFIG_DIR": t.TempDir()}
	r := w.run(t, "session", "list")
	if r.status != 1 {
		t.Errorf("status %d", r.status)
	}
	contains(t, "stderr", r.stderr, "there is no key for http://127.0.0.1:8080", "helmr dev", "helmr login", "HELMR_API_KEY")
}

func TestLoginRefusesAnUnknownKey(t *testing.T) {
	t.Parallel()
	w := setup(t)
	r := w.runIn(t.Context(), "hlmr_sk_wrong", "login", w.url)
	if r.status != 1 {
		t.Fatalf("%+v", r)
	}
	contains(t, "stderr", r.stderr, "the key was not saved", "authentication_required")
	if _, err := os.Stat(filepath.Join(w.env["HELMR_CONFIG_DIR"], "logins.json")); !os.IsNotExist(err) {
		t.Errorf("something was saved: %v", err)
	}
}

func TestLogoutForgets(t *testing.T) {
	t.Parallel()
	w := setup(t)
	if r := w.runIn(t.Context(), w.key, "login", w.url); r.status != 0 {
		t.Fatalf("%+v", r)
	}
	w.ok(t, "logout", w.url)
	delete(w.env, "HELMR_API_KEY")
	if r := w.run(t, "whoami"); r.status != 1 || !strings.Contains(r.stderr, "there is no key") {
		t.Errorf("%+v", r)
	}
	if r := w.run(t, "logout"); r.status != 1 {
		t.Errorf("a second logout: %+v", r)
	}
}

func TestSpec_17_02_ProjectAndEnvAreRefusedWithAKey(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for _, flag := range []string{"-p", "-e"} {
		if r := w.run(t, "session", "list", flag, "x"); r.status != 2 || !strings.Contains(r.stderr, "already names both") {
			t.Errorf("%s: %+v", flag, r)
		}
	}
}

func TestSpec_17_03_Output(t *testing.T) {
	t.Parallel()
	w := setup(t)
	deployed := w.deploy(t, "reviewer")
	if deployed["current"] != true || deployed["version"] != 1.0 {
		t.Errorf("deploy printed %v", deployed)
	}
	made := w.object(t, "session", "create", "reviewer", "--text", "Review APP-42")
	session, turn := made["session_id"].(string), made["turn_id"].(string)
	if made["created"] != true || made["sequence"] != 1.0 {
		t.Errorf("create printed %v", made)
	}
	human := w.ok(t, "session", "create", "reviewer", "--text", "x", "--key", "k")
	contains(t, "create", human, "session_id: ", "turn_id: ")
	if s := w.object(t, "session", "get", session); s["id"] != session || s["status"] != "open" {
		t.Errorf("session get printed %v", s)
	}
	contains(t, "session get", w.ok(t, "session", "get", session), "agent:", "reviewer", "computer:", "initial turn:", turn+" (queued)")
	if tt := w.object(t, "session", "turn", "get", session, turn); tt["status"] != "queued" {
		t.Errorf("turn get printed %v", tt)
	}
	contains(t, "turn list", w.ok(t, "session", "turn", "list", session), turn, "Review APP-42", "queued")
	contains(t, "events", w.ok(t, "session", "events", session), "turn.queued", `#1  "Review APP-42"`)
	lines := strings.Split(strings.TrimSpace(w.ok(t, "session", "events", session, "--jsonl")), "\n")
	var event struct{ Sequence int }
	if err := json.Unmarshal([]byte(lines[0]), &event); err != nil || len(lines) != 1 || event.Sequence != 1 {
		t.Errorf("events --jsonl printed %q (%v)", lines, err)
	}
	computer := w.object(t, "session", "get", session)["computer_id"].(string)
	contains(t, "computer get", w.ok(t, "computer", "get", "--id", computer), computer, "box", "available")
	contains(t, "computer list", w.ok(t, "computer", "list"), computer)
	contains(t, "agent list", w.ok(t, "agent", "list"), "reviewer")
	contains(t, "agent get", w.ok(t, "agent", "get", "reviewer"), "template:", "box", "no bound")
	contains(t, "template get", w.ok(t, "template", "get", "box"), "1 GiB")
	contains(t, "deployment get", w.ok(t, "deployment", "get", "current"), "reviewer on box")
	contains(t, "deployment events", w.ok(t, "deployment", "events", deployed["id"].(string)), "deployment.promoted")

	// Lists take --limit and --cursor; what more there is is said on stderr.
	r := w.run(t, "session", "list", "--limit", "1")
	if r.status != 0 || !strings.Contains(r.stderr, "There is more: add --cursor ") {
		t.Fatalf("list --limit 1: %+v", r)
	}
	cursor := strings.TrimSpace(strings.TrimPrefix(r.stderr, "There is more: add --cursor "))
	next := w.object(t, "session", "list", "--limit", "1", "--cursor", cursor)
	if all := next["sessions"].([]any); len(all) != 1 || all[0].(map[string]any)["id"] != session {
		t.Errorf("second page %v", next)
	}
	if found := w.object(t, "session", "list", "--agent", "reviewer", "--key", "k")["sessions"].([]any); len(found) != 1 {
		t.Errorf("by key %v", found)
	}
	// An error with --json is an object on stderr with code and request ID; stdout stays empty.
	r = w.run(t, "session", "create", "nobody", "--text", "x", "--json")
	var problem struct {
		Error struct {
			Code      string `json:"code"`
			RequestID string `json:"request_id"`
			Hint      string `json:"hint"`
		} `json:"error"`
	}
	if err := json.Unmarshal([]byte(r.stderr), &problem); err != nil || r.stdout != "" || r.status != 1 {
		t.Fatalf("%+v (%v)", r, err)
	}
	if p := problem.Error; p.Code != "agent_not_in_current_deployment" || p.RequestID == "" || p.Hint == "" {
		t.Errorf("problem %+v", p)
	}
}

func TestSpec_17_04_ExitStatus(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.deploy(t, "reviewer")
	made := w.object(t, "session", "create", "reviewer", "--text", "x")
	session, turn := made["session_id"].(string), made["turn_id"].(string)
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{
		{"session list", 0, ""},
		{"session create nobody --text x", 1, "helmr agent list"},
		{"session get 0197a1f3-5c1e-7d7a-9d0e-6f2b7c1a4e55", 1, "not_found"},
		{"session get nonsense", 2, "is not the ID of a session"},
		{"session create reviewer", 2, "exactly one of --text"},
		{"session create reviewer --text a --input-json []", 2, "exactly one of --text"},
		{"session create reviewer --input-json {", 2, "is not JSON"},
		{"session create reviewer --input-file /does/not/exist", 2, "/does/not/exist"},
		{"session create", 2, "needs AGENT"},
		{"session create a b --text x", 2, "quote a text"},
		{"session list --limit 101", 2, "1 to 100"},
		{"session list --limit zero", 2, "invalid argument"},
		{"session list --key k", 2, "needs --agent"},
		{"session list --status gone", 2, "open, closing, closed or cancelled"},
		{"session events nonsense", 2, "is not the ID"},
		{"computer get", 2, "one of --id and --key"},
		{"computer get --key none", 1, "no computer has the key"},
		{"agent list --all --deployment x", 2, "do not go together"},
		{"session wrong", 2, `no command "wrong"`},
		{"wrong", 2, `no command "wrong"`},
		{"session list --wrong", 2, "unknown flag"},
		{"deploy --bundle /does/not/exist", 1, "/does/not/exist"},
		{"-a nonsense session list", 2, "is not the URL of a server"},
		{"session turn wait " + session + " " + turn + " --timeout 1x", 2, "write 500ms"},
		{"session turn wait " + session + " " + turn + " --timeout 1ms", 124, ""},
	} {
		r := w.run(t, strings.Fields(c.args)...)
		if r.status != c.status {
			t.Errorf("helmr %s: status %d, want %d\n%s", c.args, r.status, c.status, r.stderr)
		}
		contains(t, "helmr "+c.args, r.stderr, c.says)
	}
	r := w.run(t, "session", "turn", "wait", session, turn, "--timeout", "5ms")
	contains(t, "turn wait", r.stdout, `"status": "timeout"`)
	// A Turn that ended otherwise than completed gives 1, and says how it ended.
	w.ok(t, "session", "cancel", session)
	r = w.run(t, "session", "turn", "wait", session, turn)
	if r.status != 1 {
		t.Errorf("wait on a cancelled turn: %+v", r)
	}
	contains(t, "turn wait", r.stdout, `"status": "settled"`, `"status": "cancelled"`)
}

func TestSpec_17_05_HelpAndCompletion(t *testing.T) {
	t.Parallel()
	a := &app{getenv: func(string) string { return "" }}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Name() != "help" {
			if c.Short == "" || c.Example == "" {
				t.Errorf("%s lacks a short text or an example", c.CommandPath())
			}
			if c.RunE == nil {
				t.Errorf("%s does nothing", c.CommandPath())
			}
		}
		for _, child := range c.Commands() {
			visit(child)
		}
	}
	visit(a.rootCommand())
	w := &world{env: map[string]string{}}
	contains(t, "help", w.ok(t, "session", "create", "--help"), "Examples:", "--follow")
	contains(t, "version", w.ok(t, "--version"), "helmr ")
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		contains(t, shell, w.ok(t, "completion", shell), "helmr")
	}
	if r := w.run(t, "completion", "tcsh"); r.status != 2 {
		t.Errorf("%+v", r)
	}
}

func TestSpec_17_06_LeavingDoesNotStopTheWork(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.deploy(t, "reviewer")
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	out, errs := &lockedBuffer{wrote: make(chan struct{}, 1)}, &lockedBuffer{}
	m := Main{Args: []string{"session", "create", "reviewer", "--text", "x", "--follow"}, Getenv: func(name string) string { return w.env[name] },
		Stdin: strings.NewReader(""), Stdout: out, Stderr: errs}
	status := make(chan int, 1)
	go func() { status <- m.Run(ctx) }()
	for !strings.Contains(out.String(), "turn.queued") {
		select {
		case <-out.wrote:
		case s := <-status:
			t.Fatalf("ended with %d: %s%s", s, out.String(), errs.String())
		}
	}
	leave()
	if s := <-status; s != 1 {
		t.Errorf("status %d", s)
	}
	contains(t, "stderr", errs.String(), "the work goes on", "helmr session events", "--follow --after 1", "helmr session cancel")
	first, _, _ := bufio.NewReader(strings.NewReader(out.String())).ReadLine()
	session := strings.TrimPrefix(string(first), "session_id: ")
	if s := w.object(t, "session", "get", session); s["status"] != "open" {
		t.Errorf("session %v", s)
	}
}

// Following ends with the followed Turn, starts with it and not with the whole history, and tells how it ended.
func TestFollowShowsOneTurn(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.deploy(t, "reviewer")
	session := w.object(t, "session", "create", "reviewer", "--text", "first")["session_id"].(string)
	for range 5 {
		w.ok(t, "session", "enqueue", session, "--text", "more")
	}
	out, errs := &lockedBuffer{wrote: make(chan struct{}, 1)}, &lockedBuffer{}
	m := Main{Args: []string{"session", "enqueue", session, "--text", "last", "--follow"}, Getenv: func(name string) string { return w.env[name] },
		Stdin: strings.NewReader(""), Stdout: out, Stderr: errs}
	status := make(chan int, 1)
	go func() { status <- m.Run(t.Context()) }()
	for !strings.Contains(out.String(), `#7  "last"`) {
		select {
		case <-out.wrote:
		case s := <-status:
			t.Fatalf("ended with %d: %s%s", s, out.String(), errs.String())
		}
	}
	w.ok(t, "session", "cancel", session)
	if s := <-status; s != 1 {
		t.Errorf("status %d", s)
	}
	if strings.Contains(out.String(), "first") || strings.Contains(out.String(), `"more"`) {
		t.Errorf("the history was shown:\n%s", out.String())
	}
	contains(t, "stdout", out.String(), "turn.cancelled")
	contains(t, "stderr", errs.String(), "cancelled")
}

func TestSessionEventsFollowEndsWithTheSession(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.deploy(t, "reviewer")
	session := w.object(t, "session", "create", "reviewer", "--text", "x")["session_id"].(string)
	w.ok(t, "session", "cancel", session)
	out := w.ok(t, "session", "events", session, "--follow")
	contains(t, "events", out, "turn.queued", "session.cancel", "turn.cancelled", "session.cancelled")
}

func TestDeployAgainUploadsNothingAndPromotesBack(t *testing.T) {
	t.Parallel()
	w := setup(t)
	first := w.deploy(t, "a")
	r := w.run(t, "deploy", "--bundle", makeBundle(t, "b"), "--skip-promotion")
	if r.status != 0 {
		t.Fatalf("%+v", r)
	}
	contains(t, "deploy", r.stdout, "Not promoted", "helmr deployment promote")
	contains(t, "progress", r.stderr, "Uploading 1 of 2 objects")
	if d := w.object(t, "deployment", "get", "current"); d["id"] != first["id"] {
		t.Errorf("current is %v", d)
	}
	second := w.deploy(t, "b")
	if second["current"] != true {
		t.Errorf("%v", second)
	}
	p := w.object(t, "deployment", "promote", first["id"].(string), "--reason", "back")
	if p["deployment_id"] != first["id"] {
		t.Errorf("%v", p)
	}
	contains(t, "list", w.ok(t, "deployment", "list"), "VERSION", "yes")
}

func TestResumeWithoutAHold(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.deploy(t, "reviewer")
	session := w.object(t, "session", "create", "reviewer", "--text", "x")["session_id"].(string)
	if r := w.run(t, "session", "resume", session); r.status != 1 || !strings.Contains(r.stderr, "no hold of its own") {
		t.Errorf("%+v", r)
	}
	w.ok(t, "session", "interrupt", session)
	contains(t, "get", w.ok(t, "session", "get", session), "held:", "interrupt")
	contains(t, "resume", w.ok(t, "session", "resume", session), "accepted")
}

func TestSendMessagesAndQuestions(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.deploy(t, "reviewer")
	made := w.object(t, "session", "create", "reviewer", "--text", "x")
	session, turn := made["session_id"].(string), made["turn_id"].(string)
	// Nothing runs here: the data becomes a Turn of its own, and a Turn that does not run takes no Message.
	sent := w.object(t, "session", "send", session, "--text", "more")
	if sent["kind"] != "enqueued" || sent["turn_id"] == turn {
		t.Errorf("send printed %v", sent)
	}
	if r := w.run(t, "session", "turn", "send", session, turn, "--data-json", `[]`); r.status != 1 || !strings.Contains(r.stderr, "message_closed") {
		t.Errorf("%+v", r)
	}
	if q := w.object(t, "session", "turn", "question", "list", session, turn)["questions"].([]any); len(q) != 0 {
		t.Errorf("questions %v", q)
	}
	for _, args := range [][]string{{"get"}, {"respond"}} {
		full := append(append([]string{"session", "turn", "question"}, args...), session, turn, "0197a1f3-5c1e-7d7a-9d0e-6f2b7c1a4e55")
		if args[0] == "respond" {
			full = append(full, "--answer-json", "true")
		}
		if r := w.run(t, full...); r.status != 1 || !strings.Contains(r.stderr, "not_found") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if r := w.run(t, "session", "turn", "question", "respond", session, turn, session); r.status != 2 || !strings.Contains(r.stderr, "--answer-json, --answer-file") {
		t.Errorf("%+v", r)
	}
}
