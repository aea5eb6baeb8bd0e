package build

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/klauspost/compress/zstd"

	"helmr.dev/helmr/internal/build/bundle"
	"helmr.dev/helmr/internal/build/lend"
)

// The tests build with build.secrets, for which the program starts itself anew.
func TestMain(m *testing.M) {
	lend.Main()
	os.Exit(m.Run())
}

// scan looks for a value in every file below a folder, also in those that are compressed.
func scan(t *testing.T, dir, value string) (files int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		files++
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if d, err := zstd.NewReader(bytes.NewReader(data)); err == nil {
			if plain, err := io.ReadAll(d); err == nil {
				data = append(data, plain...)
			}
			d.Close()
		}
		if bytes.Contains(data, []byte(value)) || strings.Contains(name, value) {
			t.Errorf("%s holds the value", name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// The installation sees the file; what it prints is masked; what comes after it, the bundle and what is left on the
// machine know nothing of it.
func TestSpec_02_BuildSecretsAreForTheInstallationOnly(t *testing.T) {
	const value = "hush-4711-do-not-tell"
	t.Setenv("HELMR_TEST_TOKEN", value)
	temporary := t.TempDir()
	if err := os.Chmod(temporary, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", temporary)
	for dir := filepath.Dir(temporary); dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { // so that nobody can come to it
			t.Fatal(err)
		}
	}
	dir := project(t, "helmr.config.ts", `export default { build: { secrets: ["HELMR_TEST_TOKEN"], installCommand: `+"`"+`
	echo "it is $(cat /run/secrets/HELMR_TEST_TOKEN)"; echo "it is $(cat /run/secrets/HELMR_TEST_TOKEN)" >&2
	test "$(cat /run/secrets/HELMR_TEST_TOKEN | wc -c)" = `+fmt.Sprint(len(value))+`
	test -z "\${HELMR_TEST_TOKEN:-}"
	test "$(stat -c '%a %u' /run/secrets/HELMR_TEST_TOKEN)" = "400 $(id -u)"
	test "$(stat -f -c %T /run/secrets)" = tmpfs
	mkdir -p node_modules/made && echo "export const length = $(wc -c < /run/secrets/HELMR_TEST_TOKEN)" > node_modules/made/index.js
	! mount -t tmpfs tmpfs /mnt 2>/dev/null
	`+"`"+` } }`,
		"agents/one.ts", imports+`
import { length } from "made"
import { existsSync } from "node:fs"
export const one = agent({ id: "one", template: box, turn: () => [length, existsSync("/run/secrets/HELMR_TEST_TOKEN")] })
if (existsSync("/run/secrets/HELMR_TEST_TOKEN") || (process.env.HELMR_TEST_TOKEN && !process.env.HELMR_TEST_RUNS)) throw new Error("the index sees it")`)
	b, r, err := prepared(t, dir)
	if err != nil {
		t.Fatalf("%v\n%v", err, r.events)
	}
	folder := assembled(t, b)
	log := fmt.Sprint(r.events)
	if strings.Contains(log, value) || strings.Count(log, "it is ***") != 2 {
		t.Errorf("the log: %s", log)
	}
	if n := scan(t, folder.Dir, value); n < 2 {
		t.Errorf("only %d files were looked at", n)
	}
	scan(t, unpacked(t, folder), value)
	scan(t, b.source, value)
	scan(t, b.shared, value)
	t.Setenv("HELMR_TEST_RUNS", "1") // with the environment of the test
	if got := evaluate(t, unpacked(t, folder), `console.log(JSON.stringify(program.agents.get("one").turn()))`); got != fmt.Sprintf("[%d,false]", len(value)) {
		t.Errorf("the program: %s", got)
	}
	if _, err := os.Lstat(filepath.Join(lend.Dir, "HELMR_TEST_TOKEN")); err == nil {
		t.Error("the machine sees the file")
	}

	// A failing installation that prints it, and one that would carry it away.
	_, _, err = prepared(t, project(t, "helmr.config.ts", `export default { build: { secrets: ["HELMR_TEST_TOKEN"], installCommand: "cat /run/secrets/HELMR_TEST_TOKEN; exit 7" } }`))
	if text := refused(t, err, "exit status 7", "***"); strings.Contains(text, value) {
		t.Errorf("the error: %s", text)
	}
	_, _, err = prepared(t, project(t, "helmr.config.ts", `export default { build: { secrets: ["HELMR_TEST_TOKEN"],
		installCommand: 'mkdir -p node_modules/bad && echo "export const x = \\"$(cat /run/secrets/HELMR_TEST_TOKEN)\\"" > node_modules/bad/index.js' } }`,
		"agents/one.ts", imports+`
import { x } from "bad"
export const one = agent({ id: "one", template: box, turn: () => x })`))
	if text := refused(t, err, "build.secrets", "the value of HELMR_TEST_TOKEN is in", bundle.Entry); strings.Contains(text, value) {
		t.Errorf("the error: %s", text)
	}
}

// An ordinary user has a user namespace instead of root's rights.
func TestBuildSecretsOfAnOrdinaryUser(t *testing.T) {
	const value = "as-nobody"
	if os.Getenv("HELMR_TEST_LEND") == "" {
		if os.Geteuid() != 0 {
			t.Skip("the other tests run as an ordinary user already")
		}
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		dir, err := os.MkdirTemp("/tmp", "helmr-lend-test-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		program, err := os.ReadFile(self)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "test"), program, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "test"), "-test.run", "^"+t.Name()+"$", "-test.v")
		cmd.Dir, cmd.Env = dir, []string{"HELMR_TEST_LEND=1", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `cat /run/secrets/T; echo; id -u; stat -c '%a %u' /run/secrets/T; ls /run | sort | tr '\n' ' '; grep CapEff /proc/self/status`)
	release, err := lend.Wrap(cmd, map[string][]byte{"T": []byte(value)}, nobody)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), value+"\n65534\n400 65534\n") || !strings.Contains(string(out), "CapEff:\t0000000000000000") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := os.Lstat(filepath.Join(lend.Dir, "T")); err == nil {
		t.Error("the machine sees the file")
	}
	t.Logf("%s", out)
}
