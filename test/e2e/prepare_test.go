package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
)

// TestPrepare has Templates prepared by real sandboxes, and starts Computers from what they made.
func TestPrepare(t *testing.T) {
	t.Parallel()
	for _, kind := range []db.Kind{db.SQLite, db.PostgreSQL} {
		t.Run(string(kind), func(t *testing.T) {
			h := start(t, kind)
			for _, name := range []string{"TOKEN", "KEY", "TURN"} {
				if _, err := h.CreateSecret(t.Context(), api.SecretCreateRequest{Name: name, Value: "value of " + name}); err != nil {
					t.Fatal(err)
				}
			}
			h.deploy("testdata/prepared")
			h.preparesOnce()
			h.preparationFails()
			h.preparationIsRefused()
			h.preparesUnderItsPolicy()
			h.preparesWithSecrets()
			h.preparesThroughKills()
			h.preparesAfterLosses()
			h.until("nothing of a preparation is left", func() bool { return h.preparationPID() == 0 })
		})
	}
}

// says runs a script on a Computer and gives what it wrote.
func (h *helmr) says(computerID, script string) string {
	h.t.Helper()
	return h.wantExit(h.sh(computerID, script), 0).stdout
}

// preparesOnce: TestSpec_09_04, 09_05, 09_06, 07_05 and 07_11 on real sandboxes.
func (h *helmr) preparesOnce() {
	h.t.Helper()
	if _, err := h.LastPreparation(context.Background(), "furnished", ""); code(err) != "not_found" {
		h.t.Fatalf("a Template that nobody used was prepared: %v", err)
	}
	const look = "cat /work/prepared /work/named; greet; ls /run/volatile /dev/shm/volatile 2>/dev/null | wc -l; pgrep -c sleep || true; cat /work/when"
	first := h.newComputer("furnished", "")
	got := h.says(first, look)
	if !strings.HasPrefix(got, "once\nfurnished\nhello from greeter\n0\n") {
		h.t.Fatalf("the first Computer has\n%s", got)
	}
	p, err := h.LastPreparation(context.Background(), "furnished", "")
	if err != nil || p.Status != "succeeded" || p.Reason != "needed" {
		h.t.Fatalf("%+v, %v", p, err)
	}
	// The same callback under another name is the same preparation; what a Computer changes is its own.
	h.says(first, "echo changed > /work/prepared")
	for _, template := range []string{"furnished", "likewise"} {
		if other := h.says(h.newComputer(template, ""), look); other != got {
			h.t.Fatalf("another Computer of %s has\n%s\nthe first one has\n%s", template, other, got)
		}
	}
	again, err := h.LastPreparation(context.Background(), "likewise", "")
	if err != nil || again.ID != p.ID {
		h.t.Fatalf("%+v, %v", again, err)
	}
	r := h.create("reader", "look")
	if v := h.settled(r.SessionID, r.TurnID); v.Status != "completed" || !strings.Contains(string(v.Result), `"prepared":"once\n"`) {
		h.t.Fatalf("%+v %s", v, h.describe(r.SessionID))
	}
	if stdout, stderr, code := h.command("template", "logs", "furnished"); code != 0 || !strings.Contains(stdout, "furnished\n") {
		h.t.Fatalf("exit %d: %s%s", code, stdout, stderr)
	}
	if stdout, stderr, code := h.command("template", "get", "furnished"); code != 0 || !strings.Contains(stdout, "succeeded") {
		h.t.Fatalf("exit %d: %s%s", code, stdout, stderr)
	}
	page, err := h.ListComputers(context.Background(), client.ComputerFilter{})
	if err != nil || len(page.Computers) != 4 {
		h.t.Fatalf("%d Computers are listed, %v", len(page.Computers), err)
	}
}

// preparationFails: the Computers that waited never start, and the log says why.
func (h *helmr) preparationFails() {
	h.t.Helper()
	computerID := h.newComputer("broken", "")
	k := h.outcome(h.sh(computerID, "true"))
	if k.Status != "failed" || k.Outcome.Failure.Reason != "placement_failed" || !strings.Contains(k.Outcome.Failure.Message, "helmr template logs broken") {
		h.t.Fatalf("%+v", k.Outcome)
	}
	c, err := h.GetComputer(context.Background(), computerID)
	if err != nil || c.Residency != "unavailable" || c.Error == nil || c.Error.Code != "computer_preparation_exhausted" {
		h.t.Fatalf("%+v, %v", c, err)
	}
	if _, err := h.CreateCommand(context.Background(), computerID, api.CommandCreateRequest{Command: []string{"true"}}); code(err) != "computer_preparation_exhausted" {
		h.t.Fatal(err)
	}
	stdout, stderr, exit := h.command("template", "logs", "broken", "--follow")
	if exit != 0 || !strings.Contains(stdout, "looking for the machine") || !strings.Contains(stderr, "the machine is broken") || !strings.Contains(stderr, "ended with exit code 7") {
		h.t.Fatalf("exit %d\n%s\n%s", exit, stdout, stderr)
	}
}

// preparationIsRefused: whoever reads the log of a preparation that was refused the network reads what was refused, and why, also
// when it failed at once and its Computer is gone.
func (h *helmr) preparationIsRefused() {
	h.t.Helper()
	if k := h.outcome(h.sh(h.newComputer("refused", ""), "true")); k.Status != "failed" {
		h.t.Fatalf("%+v", k.Outcome)
	}
	var found string
	h.until("the refusal of a preparation is listed", func() bool {
		stdout, stderr, code := h.command("template", "network", "refused")
		if code != 0 {
			h.t.Fatalf("exit %d: %s", code, stderr)
		}
		found = stdout
		return strings.Contains(found, "packages.refused.example")
	})
	if !strings.Contains(found, "refused") || !strings.Contains(found, "name_not_allowed") {
		h.t.Fatal(found)
	}
	h.until("nothing of the preparation is left", func() bool { return h.preparationPID() == 0 })
	if stdout, _, _ := h.command("template", "network", "refused"); !strings.Contains(stdout, "packages.refused.example") {
		h.t.Fatalf("gone with the Computer of the preparation: %s", stdout)
	}
}

// preparesUnderItsPolicy: prepareNetwork, not network, holds while the callback runs.
func (h *helmr) preparesUnderItsPolicy() {
	h.t.Helper()
	computerID := h.newComputer("closed", "")
	if got := h.says(computerID, "cat /work/interfaces"); got != `["lo"]` && got != "[]" {
		h.t.Fatalf("under blockAll the callback had the interfaces %s", got)
	}
	if got := h.says(computerID, "ls /sys/class/net 2>/dev/null; cat /etc/resolv.conf"); got == "" {
		h.t.Fatal("the Computer has no network of its own")
	}
	info, err := h.GetTemplate(context.Background(), "closed", "")
	if err != nil || string(info.PrepareNetwork) != `{"blockAll":true}` || string(info.Network) != `{"allowDomains":["allowed.example"]}` {
		h.t.Fatalf("%s %s %v", info.PrepareNetwork, info.Network, err)
	}
	if info, err = h.GetTemplate(context.Background(), "plain", ""); err != nil || string(info.PrepareNetwork) != `{"blockAll":true}` || string(info.Network) != `{"blockAll":false}` {
		h.t.Fatalf("%s %s %v", info.PrepareNetwork, info.Network, err)
	}
}

// preparesWithSecrets: the callback is given the values, its Computers are found by them, and a revoked one starts none.
func (h *helmr) preparesWithSecrets() {
	h.t.Helper()
	first := h.newComputer("secretive", "")
	if got, want := h.says(first, "cat /work/token /work/key; ls /run/secrets 2>/dev/null; echo $TOKEN"), digest("value of TOKEN")+"\n"+digest("value of KEY")+"\n\n"; got != want {
		h.t.Fatalf("prepared with\n%s\nwant\n%s", got, want)
	}
	if got := h.exposed("TOKEN"); got != first+"=image" {
		h.t.Fatalf("exposed are %s", got)
	}
	if _, err := h.RevokeSecret(context.Background(), "TOKEN", api.SecretRevokeRequest{IdempotencyKey: "1"}); err != nil {
		h.t.Fatal(err)
	}
	second := h.newComputer("secretive", "")
	if k := h.outcome(h.sh(second, "true")); k.Status != "failed" || !strings.Contains(k.Outcome.Failure.Message, "revoked") {
		h.t.Fatalf("%+v", k.Outcome)
	}
	h.says(first, "true")
}

// preparesThroughKills: a preparation survives the end of helmr, and is run again when its sandbox is gone.
func (h *helmr) preparesThroughKills() {
	h.t.Helper()
	computerID := h.newComputer("slow", "")
	commandID := h.sh(computerID, "cat /work/attempts")
	begun := func() bool {
		p, err := h.LastPreparation(context.Background(), "slow", "")
		if err != nil {
			return false
		}
		page, err := h.ListPreparationLogs(context.Background(), p.ID, "", 100)
		return err == nil && len(page.Logs) > 0
	}
	h.until("the callback runs", begun)
	if c, err := h.GetComputer(context.Background(), computerID); err != nil || c.Residency != "cold" || c.ExecutionWait == nil || *c.ExecutionWait != "scheduling" {
		h.t.Fatalf("%+v, %v", c, err)
	}
	h.kill()
	h.run()
	if got := h.wantExit(commandID, 0).stdout; got != "begun\ndone\n" {
		h.t.Fatalf("the disk says %q", got)
	}
}

// preparesAfterLosses: the sandbox of a preparation dies with the machine, twice; the third attempt begins from the image of
// the Template, and its image is published once.
func (h *helmr) preparesAfterLosses() {
	h.t.Helper()
	computerID := h.newComputer("slower", "")
	commandID := h.sh(computerID, "cat /work/attempts")
	log := func() string {
		p, err := h.LastPreparation(context.Background(), "slower", "")
		if err != nil {
			return ""
		}
		text := ""
		page, err := h.ListPreparationLogs(context.Background(), p.ID, "", 100)
		for ; err == nil && len(page.Logs) > 0; page, err = h.ListPreparationLogs(context.Background(), p.ID, page.NextCursor, 100) {
			for _, r := range page.Logs {
				text += string(r.Content)
			}
		}
		return text
	}
	for i := range 2 {
		h.until("the callback runs", func() bool { return strings.Count(log(), "begun\n") == i+1 })
		pid := h.preparationPID()
		if pid == 0 {
			h.t.Fatal("no sandbox of a preparation lives")
		}
		if i == 1 { // helmr too
			h.kill()
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			h.t.Fatal(err)
		}
		if i == 1 {
			h.run()
		}
	}
	if got := h.wantExit(commandID, 0).stdout; got != "begun\ndone\n" {
		h.t.Fatalf("the disk says %q", got)
	}
	p, err := h.LastPreparation(context.Background(), "slower", "")
	if err != nil || p.Status != "succeeded" {
		h.t.Fatalf("%+v, %v", p, err)
	}
	if got := log(); got != "begun\nbegun\nbegun\n" {
		h.t.Fatalf("the log is %q", got)
	}
}

// preparationPID gives the sandbox process of a Computer that is in no list, 0 if there is none.
func (h *helmr) preparationPID() int {
	h.t.Helper()
	page, err := h.ListComputers(context.Background(), client.ComputerFilter{Limit: 100})
	if err != nil {
		h.t.Fatal(err)
	}
	known := map[string]bool{}
	for _, c := range page.Computers {
		known[c.ID] = true
	}
	held, _ := filepath.Glob(filepath.Join(h.dir, "worker", "computers", "*"))
	for _, dir := range held {
		if id := filepath.Base(dir); !known[id] {
			return h.sandboxPID(id)
		}
	}
	return 0
}

// TestPrepareUnderKills kills helmr, or it and the sandbox, at random moments of preparations. Whatever is cut short, each
// image is whole, of the value of its time, and what Computers start from.
func TestPrepareUnderKills(t *testing.T) {
	t.Parallel()
	h := start(t, db.SQLite)
	random := chaosSeed(t)
	for name, value := range map[string]string{"TURN": "0", "TOKEN": "token", "KEY": "key"} {
		if _, err := h.CreateSecret(t.Context(), api.SecretCreateRequest{Name: name, Value: value}); err != nil {
			t.Fatal(err)
		}
	}
	h.deploy("testdata/prepared")
	rounds := 4
	if text := os.Getenv("HELMR_TEST_PREPARE_ROUNDS"); text != "" {
		if _, err := fmt.Sscan(text, &rounds); err != nil {
			t.Fatal(err)
		}
	}
	for round := range rounds {
		value := fmt.Sprint(round)
		if round > 0 {
			if _, err := h.RotateSecret(t.Context(), "TURN", api.SecretRotateRequest{Value: value, IdempotencyKey: value}); err != nil {
				t.Fatal(err)
			}
		}
		first, second := h.newComputer("restless", ""), h.newComputer("restless", "")
		const look = "cat /work/attempts; cd /work && sha256sum -c sum"
		commands := []string{h.sh(first, look), h.sh(second, look)}
		at := time.Duration(random.Int64N(int64(3 * time.Second)))
		sandbox := random.IntN(3) == 0
		t.Logf("round %d: helmr is killed after %s, the sandbox too: %v", round, at, sandbox)
		time.Sleep(at) // the moment is what is tried out
		pid := 0
		if sandbox {
			pid = h.preparationPID()
		}
		h.kill()
		if pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		h.run()
		for _, commandID := range commands {
			if got, want := h.outcome(commandID), value+" begun\n"+value+" done\ngoods: OK\n"; got.Status == "exited" && got.stdout != want {
				t.Fatalf("the disk says %q, want %q", got.stdout, want)
			} else if got.Status != "exited" && pid == 0 { // a Command on a Computer that ran when helmr died goes on
				t.Fatalf("command is %+v", got.Outcome)
			}
		}
		if got, want := h.says(h.newComputer("restless", ""), look), value+" begun\n"+value+" done\ngoods: OK\n"; got != want {
			t.Fatalf("a new Computer's disk says %q, want %q", got, want)
		}
		p, err := h.LastPreparation(t.Context(), "restless", "")
		if err != nil || p.Status != "succeeded" {
			t.Fatalf("%+v, %v", p, err)
		}
	}
	h.until("nothing of a preparation is left", func() bool { return h.preparationPID() == 0 })
}
