package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/id"
)

const (
	boxModule = `import { image, template } from "@helmr/sdk"
export const box = template({ id: "box", image: image("box").from("node:24-bookworm-slim"), resources: { cpu: 1, memory: "512MiB", disk: "1GiB" } })
`
	oneModule = `import { agent } from "@helmr/sdk"
import { box } from "./box.js"

export const one = agent({ id: "one", template: box, turn: () => null })
`
)

// smallProject makes a project that is fine but for the files given; "-" leaves one out.
func smallProject(t testing.TB, files map[string]string) string {
	t.Helper()
	all := map[string]string{
		"package.json":    `{ "name": "small", "private": true, "type": "module" }`,
		"helmr.config.ts": "import { defineConfig } from \"@helmr/sdk\"\n\nexport default defineConfig({ dirs: [\"agents\"] })\n",
		"agents/box.ts":   boxModule,
		"agents/one.ts":   oneModule,
	}
	for name, content := range files {
		all[name] = content
	}
	return writeFiles(t, t.TempDir(), all)
}

// TestBadProjects deploys what is broken: each gets a message that names the place, what is wrong and what to do, and
// leaves neither a deployment nor a file.
func TestBadProjects(t *testing.T) {
	t.Parallel()
	h := start(t, db.SQLite)
	one := func(extra string) string { return strings.Replace(oneModule, "turn:", extra+", turn:", 1) }
	box := func(from string) string { return strings.Replace(boxModule, `.from("node:24-bookworm-slim")`, from, 1) }
	t.Run("all", func(t *testing.T) {
		for name, test := range map[string]struct {
			files map[string]string
			parts []string
		}{
			"no project":         {map[string]string{"package.json": "-", "helmr.config.ts": "-"}, []string{"package.json", "is missing", "helmr init"}},
			"broken config":      {map[string]string{"helmr.config.ts": "export default {\n  dirs: [\"agents\"\n}\n"}, []string{"helmr.config.ts:3:1", `Expected "]"`}},
			"unknown field":      {map[string]string{"helmr.config.ts": "export default { dir: ['agents'] }"}, []string{"helmr.config.ts", `unknown field "dir"`, "dirs"}},
			"does not compile":   {map[string]string{"agents/one.ts": "const x: = 1\n"}, []string{"agents/one.ts:1:10", "const x: = 1"}},
			"throws at import":   {map[string]string{"agents/one.ts": "const key = undefined as any\nexport const n = key.length\n"}, []string{"agents/one.ts:2:22", "threw when it was imported", "TypeError"}},
			"one ID twice":       {map[string]string{"agents/two.ts": oneModule}, []string{"agents/two.ts", `agent "one"`, "agents/one.ts"}},
			"no template":        {map[string]string{"agents/one.ts": "import { agent } from '@helmr/sdk'\nexport const one = agent({ id: 'one', turn: () => null } as any)\n"}, []string{"agents/one.ts:2:20", `agent "one"`, "template"}},
			"template not there": {map[string]string{"agents/box.ts": "-"}, []string{"agents/one.ts:2:21", "./box.js"}},
			"bad duration":       {map[string]string{"agents/one.ts": one(`maxTurnDuration: "20 minutes"`)}, []string{"agents/one.ts:4:20", "maxTurnDuration", `"20 minutes"`, `"30m"`}},
			"bad memory":         {map[string]string{"agents/box.ts": strings.Replace(boxModule, "512MiB", "much", 1)}, []string{"agents/box.ts:2:20", "memory", `"much"`}},
			"cannot be pulled":   {map[string]string{"agents/box.ts": box(`.from("127.0.0.1:1/nobody/nothing:1")`)}, []string{"agents/box.ts", `template "box"`, "127.0.0.1:1/nobody/nothing:1", "helmr image import"}},
			"no image reference": {map[string]string{"agents/box.ts": box(`.from("Not An Image")`)}, []string{"agents/box.ts", "Not An Image"}},
			"no Node":            {map[string]string{"agents/box.ts": box(`.from("node:24-bookworm-slim").env("PATH", "/nowhere")`)}, []string{"agents/box.ts", `template "box"`, "does not run Node.js", "Node.js 22 or later"}},
			"step fails":         {map[string]string{"agents/box.ts": box(`.from("node:24-bookworm-slim").run(["sh", "-c", "echo no luck >&2; exit 9"])`)}, []string{"agents/box.ts", `template "box"`, "no luck", "9"}},
			"copies nothing":     {map[string]string{"agents/box.ts": strings.Replace(box(`.from("node:24-bookworm-slim").copy(source.file("gone.txt"), "/x")`), "image, template", "image, source, template", 1)}, []string{"agents/box.ts", "gone.txt"}},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				project, tmp := smallProject(t, test.files), t.TempDir()
				h.program("TMPDIR="+tmp).run(t, "deploy", project).refused(t, 1, append(test.parts, "error: ")...)
				if left := entries(t, tmp); len(left) > 0 {
					t.Errorf("the deploy left %q", left)
				}
				if _, err := os.Stat(filepath.Join(project, ".helmr")); err == nil {
					t.Error("the deploy left .helmr in the project")
				}
			})
		}
	})
	page, err := h.ListDeployments(context.Background(), "", 10)
	if err != nil || len(page.Deployments) > 0 {
		t.Errorf("deployments: %+v, %v", page.Deployments, err)
	}
	h.program().run(t, "session", "create", "one", "--text", "x").refused(t, 1, "no current Deployment", "helmr deploy PATH")
	h.program().run(t, "deploy", filepath.Join(t.TempDir(), "gone")).refused(t, 1, "gone")
}

// refusals are commands that cannot be done, against a helmr with a project.
func refusals(t *testing.T, h *helmr) {
	gone := id.New()
	for name, test := range map[string]struct {
		args  []string
		env   []string
		code  int
		parts []string
	}{
		"unknown agent":         {[]string{"session", "create", "nobody", "--text", "x"}, nil, 1, []string{"nobody", "helmr agent list"}},
		"unknown session":       {[]string{"session", "get", gone}, nil, 1, []string{"session ", "does not exist", "not_found", "helmr whoami"}},
		"unknown computer":      {[]string{"computer", "get", gone}, nil, 1, []string{"computer_not_found", "helmr computer list"}},
		"unknown deployment":    {[]string{"deployment", "promote", gone}, nil, 1, []string{"deployment_not_found", "helmr deployment list"}},
		"wrong key":             {[]string{"agent", "list"}, []string{"HELMR_API_KEY=hlmr_sk_wrong"}, 1, []string{"authentication_required", "helmr login"}},
		"wrong key at a deploy": {[]string{"deploy", "testdata/project"}, []string{"HELMR_API_KEY=hlmr_sk_wrong"}, 1, []string{"authentication_required", "helmr login"}},
		"no key":                {[]string{"agent", "list", "-a", "http://127.0.0.1:9"}, nil, 1, []string{"no key for http://127.0.0.1:9", "helmr login"}},
		"no server":             {[]string{"agent", "list", "-a", "http://127.0.0.1:9"}, []string{"HELMR_API_KEY=x"}, 1, []string{"http://127.0.0.1:9 does not answer", "helmr dev"}},
		"no server of the name": {[]string{"agent", "list", "-a", "http://helmr.invalid"}, []string{"HELMR_API_KEY=x"}, 1, []string{"http://helmr.invalid does not answer", "-a URL"}},
		"no helmr there":        {[]string{"agent", "list", "-a", h.info.URL + "/elsewhere"}, []string{"HELMR_API_KEY=x"}, 1, []string{"not_found", "helmr whoami"}},
		"no URL":                {[]string{"agent", "list", "-a", "localhost"}, nil, 2, []string{"--api-url", `"localhost"`, "http://HOST:PORT"}},
		"no command":            {[]string{"sesion"}, nil, 2, []string{`"sesion"`, "--help"}},
		"no subcommand":         {[]string{"session", "make"}, nil, 2, []string{`"make"`, "helmr session --help"}},
		"no such flag":          {[]string{"agent", "list", "--colour"}, nil, 2, []string{"--colour", "helmr agent list --help"}},
		"no argument":           {[]string{"session", "create", "--text", "x"}, nil, 2, []string{"AGENT"}},
		"two arguments":         {[]string{"session", "create", "counter", "hello"}, nil, 2, []string{`"hello"`}},
		"no input":              {[]string{"session", "create", "counter"}, nil, 2, []string{"--text", "--input-json", "--input-file"}},
		"two inputs":            {[]string{"session", "create", "counter", "--text", "x", "--input-json", "[]"}, nil, 2, []string{"exactly one"}},
		"input is no JSON":      {[]string{"session", "create", "counter", "--input-json", "[{]"}, nil, 2, []string{"--input-json", "not JSON", "byte"}},
		"input is no content":   {[]string{"session", "create", "counter", "--input-json", `[{"type":"song"}]`}, nil, 1, []string{"input"}},
		"input file is missing": {[]string{"session", "create", "counter", "--input-file", "gone.json"}, nil, 2, []string{"--input-file", "gone.json"}},
		"no ID":                 {[]string{"session", "get", "one"}, nil, 2, []string{`"one" is not the ID of a session`}},
		"limit":                 {[]string{"session", "list", "--limit", "101"}, nil, 2, []string{"--limit", "1 to 100", "101"}},
		"limit is no number":    {[]string{"session", "list", "--limit", "many"}, nil, 2, []string{"--limit", "many", "a number"}},
		"cursor":                {[]string{"session", "list", "--cursor", "x"}, nil, 1, []string{"cursor"}},
		"status":                {[]string{"session", "list", "--status", "busy"}, nil, 2, []string{"--status", `"busy"`, "open"}},
		"key without agent":     {[]string{"session", "list", "--key", "x"}, nil, 2, []string{"--key needs --agent"}},
		"timeout":               {[]string{"session", "turn", "wait", gone, gone, "--timeout", "10 min"}, nil, 2, []string{"--timeout", `"10 min"`, "30s"}},
		"one of two IDs":        {[]string{"session", "turn", "get", gone}, nil, 2, []string{"ID of a session and the ID of one of its turns"}},
		"project with a key":    {[]string{"agent", "list", "-p", "one"}, nil, 2, []string{"--project"}},
		"bundle is missing":     {[]string{"deploy", "--bundle", "/nonexistent/bundle"}, nil, 1, []string{"/nonexistent/bundle"}},
		"path and bundle":       {[]string{"deploy", ".", "--bundle", "x"}, nil, 2, []string{"--bundle"}},
		"dev for all to reach":  {[]string{"dev", "--data-dir", filepath.Join(h.dir, "other"), "--addr", "0.0.0.0:0"}, nil, 2, []string{"--addr", "helmr server"}},
		"dev twice":             {[]string{"dev", "--data-dir", h.dir, "--addr", "127.0.0.1:0"}, nil, 1, []string{"another helmr dev runs on " + h.dir, "--data-dir"}},
		"dev on a taken port":   {[]string{"dev", "--data-dir", filepath.Join(h.dir, "other"), "--addr", strings.TrimPrefix(h.info.URL, "http://")}, nil, 1, []string{"in use", "--addr"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h.program(test.env...).run(t, test.args...).refused(t, test.code, append(test.parts, "error: ")...)
			asJSON := h.program(test.env...).run(t, append(test.args, "--json")...)
			if asJSON.code != test.code || asJSON.stdout != "" {
				t.Errorf("with --json: exit %d, stdout %q", asJSON.code, asJSON.stdout)
			}
			said := jsonLines(t, asJSON.stderr)
			problem, _ := said[len(said)-1]["error"].(map[string]any)
			if text, _ := problem["message"].(string); text == "" {
				t.Errorf("with --json: stderr %q", asJSON.stderr)
			}
		})
	}
}

// alone copies helmr to a folder without the programs that belong beside it, where other users may run it.
func alone(t *testing.T) (path string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "helmr-alone-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "helmr")
	if os.Link(binary(t, "helmr"), path) == nil {
		return path
	}
	content, err := os.ReadFile(binary(t, "helmr"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestMachineLacksSomething runs helmr where it cannot work: it says what is missing and makes nothing.
func TestMachineLacksSomething(t *testing.T) {
	t.Parallel()
	helmr := alone(t)
	t.Run("runsc", func(t *testing.T) {
		t.Parallel()
		data := filepath.Join(t.TempDir(), "data")
		p := program{path: helmr, env: []string{"PATH=/usr/bin:/bin", "HELMR_CONFIG_DIR=" + t.TempDir()}}
		p.run(t, "dev", "--data-dir", data, "--addr", "127.0.0.1:0").refused(t, 1, "runsc is missing", "make setup")
		if _, err := os.Stat(data); err == nil {
			t.Errorf("helmr dev left %q", entries(t, data))
		}
		if r := p.run(t, "doctor"); r.code != 1 || !strings.Contains(r.stdout, "runsc is missing") || !strings.Contains(r.stdout, "make setup") {
			t.Errorf("doctor: exit %d\n%s%s", r.code, r.stdout, r.stderr)
		}
	})
	t.Run("root rights", func(t *testing.T) {
		t.Parallel()
		// TempDir's parents are closed to others.
		home, err := os.MkdirTemp("", "helmr-nobody-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(home) })
		if err := os.Chown(home, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		nobody := program{path: "/usr/bin/setpriv", dir: home, env: []string{"HOME=" + home, "XDG_STATE_HOME=", "HELMR_CONFIG_DIR=" + filepath.Join(home, "config"), "TMPDIR=" + home,
			"HELMR_CACHE_DIR=" + filepath.Join(home, "cache")}}
		as := []string{"--reuid=65534", "--regid=65534", "--clear-groups", helmr}
		nobody.run(t, append(as, "dev", "--addr", "127.0.0.1:0")...).refused(t, 1, "needs root rights", "sudo helmr dev")
		nobody.env = append(nobody.env, "HELMR_BLOB_URL=file:"+home+"/blobs", "HELMR_SERVER_URL=http://127.0.0.1:1", "HELMR_WORKER_NAME=one", "HELMR_WORKER_WORK_DIR="+home+"/work",
			"HELMR_WORKER_ENROLLMENT_TOKEN_FILE=/dev/null", "HELMR_CHECKPOINT_ENCRYPTION_KEY="+rootKey())
		nobody.run(t, append(as, "worker")...).refused(t, 1, "needs root rights", "sudo")
		if left := entries(t, home); len(left) > 0 {
			t.Errorf("helmr dev and helmr worker left %q", left)
		}
		if r := nobody.run(t, append(as, "doctor")...); r.code != 1 || !strings.Contains(r.stdout, "root") {
			t.Errorf("doctor: exit %d\n%s%s", r.code, r.stdout, r.stderr)
		}
	})
}

// tinyDisk mounts a file system of so many MiB and gives its folder.
func tinyDisk(t *testing.T, mib int64) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "helmr-disk-")
	if err == nil {
		err = syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mib))
	}
	if err != nil {
		t.Fatalf("mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(syscall.Unmount(dir, 0), os.Remove(dir)); err != nil {
			t.Errorf("unmount the small disk: %v", err)
		}
	})
	return dir
}

// resize gives a tinyDisk another size; 0 leaves it no free byte.
func resize(t *testing.T, dir string, mib int64) {
	t.Helper()
	for range 1000 {
		bytes := mib << 20
		if mib == 0 {
			var fs syscall.Statfs_t
			if err := syscall.Statfs(dir, &fs); err != nil {
				t.Fatal(err)
			}
			bytes = int64(fs.Blocks-fs.Bfree) * fs.Bsize
		}
		switch err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, fmt.Sprintf("size=%d", bytes)); {
		case err == nil:
			return
		case !errors.Is(err, syscall.EINVAL) || mib != 0: // EINVAL: more was written meanwhile
			t.Fatalf("resize the small disk: %v", err)
		}
	}
	t.Fatal("resize the small disk: it never kept still")
}

// TestFullDisk runs out of disk at each place.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	t.Run("of a build", func(t *testing.T) {
		t.Parallel()
		for _, mib := range []int64{1, 40} { // full with the source, and with the image
			project, tmp := smallProject(t, map[string]string{"big.txt": strings.Repeat("x", 2<<20)}), tinyDisk(t, mib)
			program{env: []string{"TMPDIR=" + tmp}}.run(t, "build", project, "-o", filepath.Join(tmp, "out")).refused(t, 1, "no space is left", tmp, "TMPDIR")
			if left := entries(t, tmp); len(left) > 0 {
				t.Errorf("with %d MiB the build left %q", mib, left)
			}
		}
	})
	t.Run("of helmr dev", func(t *testing.T) {
		t.Parallel()
		disk := tinyDisk(t, 64)
		program{env: []string{"HELMR_CONFIG_DIR=" + t.TempDir()}}.run(t, "dev", "--data-dir", filepath.Join(disk, "data"), "--addr", "127.0.0.1:0").
			refused(t, 1, "the disk of "+filepath.Join(disk, "data")+" is full", "free some space")
	})
	t.Run("of a running helmr", func(t *testing.T) {
		t.Parallel()
		const size = 1500
		disk := tinyDisk(t, size)
		dir := filepath.Join(disk, "data")
		h := &helmr{t: t, dir: dir, config: filepath.Join(dir, "config"), database: "sqlite:" + filepath.Join(dir, "helmr.db")}
		t.Cleanup(h.close)
		h.run()
		h.deploy("testdata/project")
		r := h.create("counter", "hello")
		h.completed(r.SessionID, r.TurnID)
		slow := h.enqueue(r.SessionID, "slow 40")
		h.until("the handler runs", func() bool {
			v, err := h.GetTurn(context.Background(), r.SessionID, slow)
			return err == nil && v.Status == "running"
		})

		resize(t, disk, 0)
		const full = "A disk of the server is full"
		h.until("the disk is full", func() bool { // the write-ahead log of the database has a last page or two
			return strings.Contains(h.program().run(t, "session", "create", "counter", "--key", "k", "--text", "x").stderr, full)
		})
		h.program().run(t, "session", "enqueue", r.SessionID, "--text", "x").refused(t, 1, full, "Free some space")
		h.program().run(t, "deploy", smallProject(t, nil)).refused(t, 1, "server", "is full", "some space") // the database's or the object store's, whichever is written first
		if deployments, err := h.ListDeployments(context.Background(), "", 10); err != nil || len(deployments.Deployments) != 1 {
			t.Errorf("deployments %+v, %v", deployments, err)
		}

		resize(t, disk, size)
		if got := h.completed(r.SessionID, slow); got.Turns != 2 {
			t.Errorf("the turn that ran into the full disk: %+v", got)
		}
		steps := 0
		for _, e := range h.events(r.SessionID) {
			if e.Kind == "turn.output" && strings.Contains(string(e.Data), fmt.Sprintf(`"step %d"`, steps)) {
				steps++
			}
		}
		if steps != 40 {
			t.Errorf("%d of 40 outputs are there in order", steps)
		}
		if got := h.completed(r.SessionID, h.enqueue(r.SessionID, "hello")); got.Turns != 3 || got.Inits != 1 {
			t.Errorf("the turn after: %+v", got)
		}
	})
}

// TestInterruptedBuild presses Ctrl-C in the middle of an image step: the step ends, and nothing is left.
func TestInterruptedBuild(t *testing.T) {
	t.Parallel()
	// A step that is no other's: it is found by what it is called.
	step := "600." + fmt.Sprint(os.Getpid())
	project := smallProject(t, map[string]string{"agents/box.ts": strings.Replace(boxModule, `.from("node:24-bookworm-slim")`,
		`.from("node:24-bookworm-slim").run(["sleep", "`+step+`"])`, 1)})
	tmp := t.TempDir()
	sleeping := func() bool {
		for _, dir := range processes() {
			line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
			if err == nil && strings.HasSuffix(string(line), "sleep\x00"+step+"\x00") {
				return true
			}
		}
		return false
	}
	wait := &helmr{t: t}
	l := program{env: []string{"TMPDIR=" + tmp}}.start(t, "build", project, "-o", filepath.Join(tmp, "out"))
	wait.until("the step runs", sleeping)
	l.signal(os.Interrupt)
	l.wait().refused(t, 1, "interrupt")
	wait.until("the step ends", func() bool { return !sleeping() })
	if left := entries(t, tmp); len(left) > 0 {
		t.Errorf("the interrupted build left %q", left)
	}
}
