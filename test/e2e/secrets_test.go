package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/id"
)

// TestSecrets follows values from their creation into real sandboxes, and looks for them everywhere else.
func TestSecrets(t *testing.T) {
	for _, kind := range []db.Kind{db.SQLite, db.PostgreSQL} {
		t.Run(string(kind), func(t *testing.T) { secrets(t, start(t, kind)) })
	}
}

// kept is what the keeper Agent returns.
type kept struct {
	Token, Key, Mode string
	Mine             bool
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func secrets(t *testing.T, h *helmr) {
	ctx := t.Context()
	value := func(what string) string { return what + "-" + id.New() + "-" + id.New() }
	token, key, token2, key2 := value("token"), value("key"), value("token2"), value("key2")
	all := []string{token, key, token2, key2}

	// TestSpec_10_08: what does not exist fails finalization.
	if _, stderr, code := h.command("deploy", "testdata/secrets"); code != 1 || !strings.Contains(stderr, "TOKEN") || !strings.Contains(stderr, "helmr secret create") {
		t.Fatalf("deploy without Secrets: exit %d\n%s", code, stderr)
	}
	if out := h.commandWith(token+"\n", "secret", "create", "TOKEN"); strings.Contains(out, token) {
		t.Fatalf("create shows the value: %s", out)
	}
	if _, err := h.CreateSecret(ctx, api.SecretCreateRequest{Name: "KEY", Value: key}); err != nil {
		t.Fatal(err)
	}
	h.deploy("testdata/secrets")

	r := h.create("keeper", "look")
	want := kept{Token: digest(token), Key: digest(key), Mode: "600", Mine: true}
	if got := h.kept(r.SessionID, r.TurnID); got != want {
		t.Fatalf("the Agent was given %+v, want %+v\n%s", got, want, h.describe(r.SessionID))
	}
	s, err := h.GetSession(ctx, r.SessionID)
	if err != nil {
		t.Fatal(err)
	}
	look := []string{"sh", "-c", `printf %s "$TOKEN" | sha256sum; sha256sum /run/secrets/app/key; stat -c '%a %U' /run/secrets/app/key /run/secrets/app`}
	wantCommand := func(token, key string) {
		t.Helper()
		if got := h.output(s.ComputerID, look); got != digest(token)+"  -\n"+digest(key)+"  /run/secrets/app/key\n600 node\n755 node\n" {
			t.Fatalf("the Command was given\n%s", got)
		}
	}
	wantCommand(token, key)
	if _, err := h.CreateCommand(ctx, s.ComputerID, api.CommandCreateRequest{Command: []string{"true"}, Env: map[string]string{"TOKEN": "x"}}); code(err) != "invalid_computer_command" {
		t.Fatalf("a Command sets a bound name: %v", err)
	}
	for path, i := range h.scan(all) {
		t.Errorf("while the sandbox runs, value %d is in %s", i, path)
	}

	// The value is chosen when a process starts.
	if _, err := h.RotateSecret(ctx, "TOKEN", api.SecretRotateRequest{Value: token2, IdempotencyKey: "r1"}); err != nil {
		t.Fatal(err)
	}
	h.commandWith(key2, "secret", "rotate", "KEY")
	wantCommand(token2, key2)
	if got := h.kept(r.SessionID, h.enqueue(r.SessionID, "look")); got.Token != digest(token) {
		t.Fatalf("a running process was given another value: %+v", got)
	}
	other, err := h.CreateSession(ctx, api.SessionCreateRequest{Agent: "keeper", Input: input("look"), ComputerID: s.ComputerID})
	if err != nil {
		t.Fatal(err)
	}
	if got := h.kept(other.SessionID, other.TurnID); got.Token != digest(token2) || got.Key != digest(key2) {
		t.Fatalf("a new process was given an old value: %+v", got)
	}

	// This one goes to the durable disk, so its Computer's files on the host may hold it.
	loose := value("loose")
	if _, err := h.CreateSecret(ctx, api.SecretCreateRequest{Name: "LOOSE", Value: loose}); err != nil {
		t.Fatal(err)
	}
	bound, err := h.CreateComputer(ctx, api.ComputerCreateRequest{Template: "safe", Secrets: []api.SecretBinding{
		{Secret: "LOOSE", File: &api.SecretFile{Path: "/home/node/deep/er/loose"}}, {Secret: "LOOSE", File: &api.SecretFile{Path: "/usr"}}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := h.exposed("TOKEN"); got != s.ComputerID+"=received" {
		t.Fatalf("exposed are %s", got)
	}
	// A file that cannot be written is told to the author.
	cmd, err := h.CreateCommand(ctx, bound.ComputerID, api.CommandCreateRequest{Command: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	if done, err := h.WaitCommand(ctx, cmd.CommandID); err != nil || done.Status != "failed" || !strings.Contains(done.Outcome.Failure.Message, "/usr") {
		t.Fatalf("a Command whose file cannot be written: %+v %+v %v", done, done.Outcome, err)
	}
	if got := h.exposed("TOKEN"); got != bound.ComputerID+"=received "+s.ComputerID+"=received" {
		t.Fatalf("exposed are %s", got)
	}
	got, err := h.GetComputer(ctx, bound.ComputerID)
	if err != nil || len(got.Secrets) != 4 || got.Secrets[2].File.Path != "/home/node/deep/er/loose" {
		t.Fatalf("%+v, %v", got, err)
	}

	found := h.scan([]string{loose})
	if len(found) == 0 {
		t.Error("the scan does not find what is there")
	}
	for path := range found {
		if !strings.HasPrefix(path, filepath.Join(h.dir, "worker")) || !strings.Contains(path, bound.ComputerID) {
			t.Errorf("a file of a Computer's disk is also in %s", path)
		}
	}

	h.revoked(r.SessionID, s.ComputerID)
	h.answersLack(r.SessionID, all)
	h.stop()
	for path, i := range h.scan(all) {
		t.Errorf("after the stop, value %d is in %s", i, path)
	}
	h.run()
	if s, err := h.GetSecret(ctx, "KEY"); err != nil || s.Status != "active" || s.RotatedAt == nil {
		t.Fatalf("after a restart: %+v, %v", s, err)
	}
	info, err := os.Stat(filepath.Join(h.dir, "encryption.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the key file: %v, %v", info, err)
	}
}

// revoked revokes TOKEN and sees that what would be given it is refused.
func (h *helmr) revoked(sessionID, computerID string) {
	h.t.Helper()
	ctx := context.Background()
	h.commandWith("", "secret", "revoke", "TOKEN", "--yes")
	for what, err := range map[string]error{
		"a Turn":        second(h.Enqueue(ctx, sessionID, api.EnqueueRequest{Input: input("look")})),
		"a new Session": second(h.CreateSession(ctx, api.SessionCreateRequest{Agent: "keeper", Input: input("look")})),
		"a Command":     second(h.CreateCommand(ctx, computerID, api.CommandCreateRequest{Command: []string{"true"}})),
	} {
		if code(err) != "secret_unavailable" || !strings.Contains(err.Error(), "TOKEN") {
			h.t.Errorf("%s after the revocation: %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func code(err error) string {
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e.Code
	}
	return ""
}

// commandWith runs a command of the CLI with something on stdin and gives all it said.
func (h *helmr) commandWith(stdin string, args ...string) string {
	h.t.Helper()
	cmd := h.invoke(args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		h.t.Fatalf("helmr %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (h *helmr) kept(sessionID, turnID string) kept {
	h.t.Helper()
	v := h.settled(sessionID, turnID)
	var k kept
	if v.Status != "completed" || json.Unmarshal(v.Result, &k) != nil {
		h.t.Fatalf("turn %+v %+v\n%s", v, v.Error, h.describe(sessionID))
	}
	return k
}

// output runs a Command and gives what it wrote.
func (h *helmr) output(computerID string, argv []string) string {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd, err := h.CreateCommand(ctx, computerID, api.CommandCreateRequest{Command: argv})
	if err != nil {
		h.t.Fatal(err)
	}
	var out bytes.Buffer
	for record, err := range h.StreamCommandLogs(ctx, cmd.CommandID, "") {
		if err != nil {
			h.t.Fatal(err)
		}
		out.Write(record.Content)
	}
	return out.String()
}

func (h *helmr) exposed(secret string) string {
	h.t.Helper()
	page, err := h.ListComputers(context.Background(), client.ComputerFilter{Secret: secret})
	if err != nil {
		h.t.Fatal(err)
	}
	var out []string
	for _, c := range page.Computers {
		out = append(out, c.ID+"="+c.SecretExposure)
	}
	return strings.Join(out, " ")
}

// answersLack looks for values in what the API says.
func (h *helmr) answersLack(sessionID string, values []string) {
	h.t.Helper()
	ctx := context.Background()
	secrets, err1 := h.ListSecrets(ctx, client.SecretFilter{})
	computers, err2 := h.ListComputers(ctx, client.ComputerFilter{})
	deployment, err3 := h.CurrentDeployment(ctx)
	template, err4 := h.GetTemplate(ctx, "safe", "")
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		h.t.Fatal(err)
	}
	raw, err := json.Marshal([]any{secrets, computers, deployment, template, h.events(sessionID)})
	if err != nil {
		h.t.Fatal(err)
	}
	lacks(h.t, "the API", raw, values)
	lacks(h.t, "what helmr dev wrote", h.out.Bytes(), values)
}

func lacks(t testing.TB, where string, data []byte, values []string) {
	t.Helper()
	for i, v := range values {
		if bytes.Contains(data, []byte(v)) {
			t.Errorf("value %d is in %s", i, where)
		}
	}
}

// scan looks for values in every file of the data folder (database, logs, objects, and all that the Worker keeps) and gives
// the files that hold one, each with the place of that value in the list.
func (h *helmr) scan(values []string) map[string]int {
	h.t.Helper()
	found := map[string]int{}
	files := 0
	err := filepath.WalkDir(h.dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // sandboxes come and go
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		files++
		which, err := scanFile(path, values)
		if which >= 0 {
			found[path] = which
		}
		return err
	})
	if err != nil || files < 10 {
		h.t.Fatalf("scan of %d files: %v", files, err)
	}
	return found
}

// scanFile gives the place of the first value that a file holds, -1 if it holds none.
func scanFile(path string, values []string) (int, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return -1, nil
	}
	if err != nil {
		return -1, err
	}
	defer func() { _ = f.Close() }() // only read
	const overlap = 256
	buf, kept := make([]byte, 4<<20), 0
	for {
		n, err := io.ReadFull(f, buf[kept:])
		for i, v := range values {
			if bytes.Contains(buf[:kept+n], []byte(v)) {
				return i, nil
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return -1, nil
		}
		if err != nil {
			return -1, err
		}
		kept = copy(buf, buf[len(buf)-overlap:])
	}
}

// Whatever goes wrong, and however helmr dies, no value is in what is left of it.
func TestSpec_10_01_CrashesTellNoValue(t *testing.T) {
	h := prepare(t, db.SQLite)
	h.env = []string{"GOTRACEBACK=all"}
	h.run()
	values := []string{"token-" + id.New() + "-" + id.New(), "key-" + id.New() + "-" + id.New()}
	ctx := t.Context()
	for i, name := range []string{"TOKEN", "KEY"} {
		if _, err := h.CreateSecret(ctx, api.SecretCreateRequest{Name: name, Value: values[i]}); err != nil {
			t.Fatal(err)
		}
	}
	h.deploy("testdata/secrets")
	// Requests that are refused, with a value in them.
	for what, err := range map[string]error{
		"create again":       second(h.CreateSecret(ctx, api.SecretCreateRequest{Name: "TOKEN", Value: values[0]})),
		"a bad name":         second(h.CreateSecret(ctx, api.SecretCreateRequest{Name: "no name " + id.New(), Value: values[0]})),
		"rotate without key": second(h.RotateSecret(ctx, "TOKEN", api.SecretRotateRequest{Value: values[0]})),
		"rotate nothing":     second(h.RotateSecret(ctx, "NONE", api.SecretRotateRequest{Value: values[0], IdempotencyKey: "k"})),
	} {
		if err == nil {
			t.Errorf("%s: it was accepted", what)
			continue
		}
		lacks(t, "the error of "+what, []byte(err.Error()), values)
	}
	r := h.create("keeper", "look")
	h.kept(r.SessionID, r.TurnID)
	s, err := h.GetSession(ctx, r.SessionID)
	if err != nil {
		t.Fatal(err)
	}
	for _, wish := range []string{"throw", "exit", "abort"} {
		v := h.settled(r.SessionID, h.enqueue(r.SessionID, wish))
		if v.Status == "completed" {
			t.Errorf("%s: the Turn is completed", wish)
		}
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		lacks(t, "the Turn that should "+wish, raw, values)
	}
	// Values are under way when helmr dies with a dump of all its goroutines.
	for range 8 {
		if _, err := h.CreateCommand(ctx, s.ComputerID, api.CommandCreateRequest{Command: []string{"sh", "-c", `test -n "$TOKEN"`}}); err != nil {
			t.Fatal(err)
		}
	}
	_ = h.cmd.Process.Signal(syscall.SIGQUIT)
	if err := <-h.exited; err == nil {
		t.Error("helmr ended well")
	}
	h.cmd = nil
	if !bytes.Contains(h.out.Bytes(), []byte("goroutine ")) {
		t.Errorf("there is no dump:\n%s", h.out)
	}
	lacks(t, "the dump", h.out.Bytes(), values)
	for path, i := range h.scan(values) {
		t.Errorf("after the dump, value %d is in %s", i, path)
	}
	h.run()
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", h.info.PID))
	if err != nil || !regexp.MustCompile(`(?m)^Max core file size +1 +1 `).Match(limits) {
		t.Errorf("the kernel would write helmr's memory to a file: %v\n%s", err, limits)
	}
	if _, err := h.ResumeSession(ctx, r.SessionID, api.ResumeRequest{}); err != nil && code(err) == "" {
		t.Fatal(err)
	}
	if got := h.output(s.ComputerID, []string{"sh", "-c", `printf %s "$TOKEN" | sha256sum`}); got != digest(values[0])+"  -\n" {
		t.Errorf("after the crash a Command was given %s", got)
	}
	h.answersLack(r.SessionID, values)
	h.stop()
	for path, i := range h.scan(values) {
		t.Errorf("after the stop, value %d is in %s", i, path)
	}
}
