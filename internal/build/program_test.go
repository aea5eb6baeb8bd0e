package build

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helmr.dev/helmr/internal/build/bundle"
)

// unpacked gives the folder of the bundle's program, as a Worker has it.
func unpacked(t *testing.T, folder *bundle.Folder) string {
	t.Helper()
	file, err := os.Open(folder.ObjectPath(folder.Manifest.Program.Digest))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }() // only read, nothing can be lost
	dir := filepath.Join(t.TempDir(), "program")
	if err := bundle.UnpackProgram(file, folder.Manifest.Program.Digest, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// evaluate runs JavaScript with the program's exports as `program`, and gives what it prints.
func evaluate(t *testing.T, dir, code string) string {
	t.Helper()
	script := `const program = await import("` + filepath.Join(dir, bundle.Entry) + `"); ` + code
	out, err := exec.CommandContext(t.Context(), "node", "--enable-source-maps", "--input-type=module", "--eval", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestSpec_13_07_EqualSourceGivesAnEqualDigest(t *testing.T) {
	t.Parallel()
	files := []string{
		"agents/two.ts", agentModule("two", "box-two"), "agents/lib/text.ts", "export const text = 'x'", "prompts/a.md", "# a",
		"helmr.config.ts", "export default { build: { assets: ['prompts/*.md'] } }", ".helmrignore", "*.log\n",
	}
	var digests []string
	for i := range 2 {
		dir := project(t, files...)
		if i == 1 {
			write(t, dir, "noise.log", "left out")
			write(t, dir, ".git/HEAD", "left out")
			if err := os.Chmod(filepath.Join(dir, "prompts/a.md"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		b, _, err := prepared(t, dir)
		if err != nil {
			t.Fatal(err)
		}
		folder := assembled(t, b)
		if strings.Contains(string(b.index.program), b.work) || strings.Contains(string(b.index.program), dir) {
			t.Error("the program names a folder of this machine")
		}
		digests = append(digests, folder.Digest)
	}
	if digests[0] != digests[1] {
		t.Errorf("digests differ: %v", digests)
	}
	b, _, err := prepared(t, project(t, append(files, "prompts/a.md", "# b")...))
	if err != nil {
		t.Fatal(err)
	}
	if folder := assembled(t, b); folder.Digest == digests[0] {
		t.Error("other source gives the same digest")
	}
}

func TestSpec_02_02_DefinitionsAreCollected(t *testing.T) {
	t.Parallel()
	b, _, err := prepared(t, project(t,
		"helmr.config.ts", "export default { dirs: ['agents', './flows'], ignorePatterns: ['agents/old/**', '**/*.draft.ts'] }",
		"agents/shared.ts", imports+"export const shared = box\nexport { box as again }",
		"agents/one.ts", `import { agent } from "@helmr/sdk"
import { shared } from "./shared.js"
export const b = agent({ id: "same", template: shared, turn: () => 1, closeAfterIdle: "never", maxTurnDuration: "20m" })
export default b`,
		"agents/old/broken.ts", "syntax error here", "agents/x.draft.ts", "syntax error here", "agents/x.test.ts", "syntax error here", "agents/types.d.ts", "syntax error here",
		"flows/deep/two.mjs", strings.ReplaceAll(agentModule("two", "hidden"), "export const two", "export const zwei"),
		"flows/three.tsx", agentModule("three", "third"), "flows/four.js", agentModule("four", "fourth"), "flows/five.mts", agentModule("five", "fifth"),
		"elsewhere/six.ts", "syntax error here",
	))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range b.index.plan.Agents {
		got = append(got, strings.Join([]string{a.ID, a.Module, a.Export, a.Template}, " "))
	}
	want := []string{
		"five flows/five.mts five fifth", "four flows/four.js four fourth", "same agents/one.ts b box", "three flows/three.tsx three third", "two flows/deep/two.mjs zwei hidden",
	}
	if !slices.Equal(got, want) {
		t.Errorf("agents %q\nwant   %q", got, want)
	}
	got = nil
	for _, template := range b.index.plan.Templates {
		got = append(got, strings.Join([]string{template.ID, template.Module, template.Export}, " "))
	}
	want = []string{
		"box agents/shared.ts again", "fifth flows/five.mts five.template", "fourth flows/four.js four.template",
		"hidden flows/deep/two.mjs zwei.template", "third flows/three.tsx three.template",
	}
	if !slices.Equal(got, want) {
		t.Errorf("templates %q\nwant      %q", got, want)
	}
	same := b.index.plan.Agents[2]
	if same.CloseAfterIdleMs != nil || same.HibernateAfterIdleMs != nil || *same.MaxTurnDurationMs != 1_200_000 || same.HasInit {
		t.Errorf("%+v", same)
	}
	if five := b.index.plan.Agents[0]; *five.CloseAfterIdleMs != 7*86_400_000 {
		t.Errorf("default of closeAfterIdle: %+v", five)
	}
}

func TestProgramExportsAgents(t *testing.T) {
	t.Parallel()
	b, _, err := prepared(t, project(t, "agents/one.ts", imports+`
import { readFileSync } from "node:fs"
export const one = agent({ id: "one", template: box, turn: () => readFileSync(new URL("./prompts/a.md", import.meta.url), "utf8") })`,
		"prompts/a.md", "be kind", "helmr.config.ts", "export default { build: { assets: ['prompts/**', '**/a.md'] } }"))
	if err != nil {
		t.Fatal(err)
	}
	dir := unpacked(t, assembled(t, b))
	got := evaluate(t, dir, `const one = program.agents.get("one"); console.log(one.id, one.kind, one.turn(), program.agents.size)`)
	if got != "one agent be kind 1" {
		t.Error(got)
	}
}

func TestStackTracesNameTheSource(t *testing.T) {
	t.Parallel()
	b, _, err := prepared(t, project(t, "agents/one.ts", imports+`
export const one = agent({ id: "one", template: box, turn() {
  throw new Error("here") } })`))
	if err != nil {
		t.Fatal(err)
	}
	dir := unpacked(t, assembled(t, b))
	got := evaluate(t, dir, `try { program.agents.get("one").turn() } catch (error) { console.log(error.stack) }`)
	if !strings.Contains(got, "agents/one.ts:5:9") {
		t.Error(got)
	}
}

func TestCommonJSPackagesAreBundled(t *testing.T) {
	t.Parallel()
	b, _, err := prepared(t, project(t, "agents/one.ts", imports+`
import value from "legacy"
export const one = agent({ id: "one", template: box, turn: () => value })`,
		"vendor/legacy/package.json", `{"name":"legacy","version":"1.0.0"}`, "vendor/legacy/index.js", `const path = require("path"); module.exports = path.basename(__filename) && typeof __dirname`,
		"helmr.config.ts", "export default { build: { installCommand: 'mkdir node_modules; cp -r vendor/legacy node_modules/' } }"))
	if err != nil {
		t.Fatal(err)
	}
	dir := unpacked(t, assembled(t, b))
	if got := evaluate(t, dir, `console.log(program.agents.get("one").turn())`); got != "string" {
		t.Error(got)
	}
}

// externalsProject installs, by copying, ext (which needs dep 1 and opt) and tool (which needs dep 2 inside itself).
func externalsProject(t *testing.T, dependencies string) string {
	t.Helper()
	return project(t, "agents/one.ts", imports+`
import ext from "ext"
import tool from "@scope/tool"
export const one = agent({ id: "one", template: box, turn: () => [ext, tool] })`,
		"package.json", dependencies,
		"helmr.config.ts", `export default { build: { external: ["ext", "@scope/tool"], installCommand: "cp -r vendor node_modules" } }`,
		"vendor/ext/package.json", `{"name":"ext","version":"1.0.0","main":"main.js","dependencies":{"dep":"1"},"optionalDependencies":{"absent":"1"},"peerDependencies":{"peer":"*"}}`,
		"vendor/ext/main.js", `module.exports = "ext:" + require("dep")`,
		"vendor/ext/bin/run", "#!/bin/sh\n",
		"vendor/dep/package.json", `{"name":"dep","version":"1.0.0","dependencies":{"deeper":"1"}}`,
		"vendor/dep/index.js", `module.exports = "dep1:" + require("deeper")`,
		"vendor/deeper/package.json", `{"name":"deeper","version":"1.0.0","dependencies":{"dep":"1"}}`,
		"vendor/deeper/index.js", `module.exports = "deeper"`,
		"vendor/@scope/tool/package.json", `{"name":"@scope/tool","version":"1.0.0","dependencies":{"dep":"2"}}`,
		"vendor/@scope/tool/index.js", `module.exports = "tool:" + require("dep")`,
		"vendor/@scope/tool/node_modules/dep/package.json", `{"name":"dep","version":"2.0.0"}`,
		"vendor/@scope/tool/node_modules/dep/index.js", `module.exports = "dep2"`,
		"vendor/unused/package.json", `{"name":"unused","version":"1.0.0"}`,
	)
}

func TestExternalPackagesTravelWithTheirDependencies(t *testing.T) {
	t.Parallel()
	b, _, err := prepared(t, externalsProject(t, `{"dependencies":{"ext":"^1.0.0","@scope/tool":"1.x || >=2"}}`))
	if err != nil {
		t.Fatal(err)
	}
	dir := unpacked(t, assembled(t, b))
	if got := evaluate(t, dir, `console.log(program.agents.get("one").turn().join())`); got != "ext:dep1:deeper,tool:dep2" {
		t.Error(got)
	}
	if fileExists(filepath.Join(dir, "node_modules/unused/package.json")) {
		t.Error("a package that nothing needs is shipped")
	}
	if strings.Contains(string(b.index.program), "dep1:") {
		t.Error("an external package is bundled")
	}
}

func TestExternalPackagesNeedARange(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"file:vendor/ext", "latest", "npm:other@1", "https://example.org/x.tgz", "workspace:*", "git+ssh://x/y", ""} {
		asked, err := json.Marshal(version)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = prepared(t, externalsProject(t, `{"dependencies":{"@scope/tool":"1.x","ext":`+string(asked)+`}}`))
		refused(t, err, "package.json", `dependencies["ext"]`, "semver range")
	}
}

func TestAssetsThatCannotBeShipped(t *testing.T) {
	t.Parallel()
	dir := project(t, "index.mjs", "", "helmr.config.ts", "export default { build: { assets: ['index.*'] } }")
	_, _, err := prepared(t, dir)
	refused(t, err, "build.assets[0]", "index.mjs", "a name that the program needs itself")

	dir = project(t, "helmr.config.ts", "export default { build: { assets: ['*.md'] } }", "docs/a.md", "x")
	link(t, dir, "b.md", "docs/a.md")
	_, _, err = prepared(t, dir)
	refused(t, err, "build.assets[0]", "the link b.md")
}

func TestInstalledSDKIsUsed(t *testing.T) {
	t.Parallel()
	b, _, err := prepared(t, project(t,
		"agents/one.ts", `import { made } from "@helmr/sdk"`+"\nexport const one = made",
		"vendor/@helmr/sdk/package.json", `{"name":"@helmr/sdk","version":"9.9.9","type":"module","exports":{".":"./index.js","./internal":"./internal.js"}}`,
		"vendor/@helmr/sdk/index.js", `export const made = { id: "installed", template: { id: "t" } }`,
		"vendor/@helmr/sdk/internal.js", `import { made } from "./index.js"
export const kindOf = (value) => value === made ? "agent" : undefined
export const describe = (value) => value === made
  ? { id: value.id, template: "t", has_init: false, close_after_idle_ms: null, hibernate_after_idle_ms: null, triggers: [] }
  : { id: "t", image: { key: "t", steps: [] }, resources: { milli_cpu: 1000, memory_mib: 1 }, network: { blockAll: true }, has_prepare: false, delete_after_unused_ms: null }`,
		"helmr.config.ts", "export default { build: { installCommand: 'cp -r vendor node_modules' } }"))
	if err != nil {
		t.Fatal(err)
	}
	if b.index.sdk != "9.9.9" || b.index.plan.Agents[0].ID != "installed" {
		t.Errorf("%s %+v", b.index.sdk, b.index.plan)
	}
}

func TestModulesDoNotSeeTheEnvironmentOfTheBuild(t *testing.T) {
	t.Setenv("HELMR_TEST_TOKEN", "hush")
	_, _, err := prepared(t, project(t,
		"helmr.config.ts", "if (process.env.HELMR_TEST_TOKEN !== 'hush') throw new Error('the configuration may read it')\nexport default {}",
		"agents/one.ts", agentModule("one", "box")+"if (process.env.HELMR_TEST_TOKEN) throw new Error('seen')"))
	if err != nil {
		t.Error(err)
	}
}

func TestSpec_02_11_ConfigIsNoPartOfAProgram(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]string{
		"static": `import config from "../helmr.config.js"; console.log(config)`, "dynamic": `console.log(await import("../helmr.config.ts"))`,
		"query": `import config from "../helmr.config.ts?again"; console.log(config)`, "required": `console.log(require("../helmr.config.ts"))`,
		"linked": `import config from "./linked.ts"; console.log(config)`, "through another": `import { config } from "./lib/through.js"; console.log(config)`,
		"re-exported": `export { default as config } from "../helmr.config.ts"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := project(t, "agents/one.ts", agentModule("one", "box")+code,
				"agents/lib/through.ts", "export const config = 1")
			if name == "through another" {
				write(t, dir, "agents/lib/through.ts", `export { default as config } from "../../helmr.config.ts"`)
			}
			if name == "linked" {
				link(t, dir, "agents/linked.ts", "../helmr.config.ts")
			}
			_, _, err := prepared(t, dir)
			refused(t, err, "agents/", "imports helmr.config.ts")
		})
	}
}

func TestRootCanBeIndexed(t *testing.T) {
	t.Parallel()
	b, _, err := prepared(t, project(t, "helmr.config.ts", "export default { dirs: ['.'] }", "root.ts", agentModule("root", "other")))
	if err != nil {
		t.Fatal(err)
	}
	if agents := b.index.plan.Agents; len(agents) != 2 || agents[1].Module != "root.ts" {
		t.Errorf("%+v", agents)
	}
}
