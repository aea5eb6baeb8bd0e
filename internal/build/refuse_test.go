package build

import (
	"encoding/json"
	"strings"
	"testing"
)

const imports = `import { agent, image, template, triggers, builder, defineConfig } from "@helmr/sdk"
const box = template({ id: "box", image: image("box").from("node:24"), resources: { cpu: 1, memory: "1GiB" } })
`

// agentWith is a module with one Agent that has more fields.
func agentWith(fields string) string {
	return imports + `export const one = agent({ id: "one", template: box, turn: () => null, ` + fields + ` })` + "\n"
}

// templateWith is a module with one Agent whose Template has more fields.
func templateWith(fields string) string {
	return imports + `const other = template({ id: "other", image: image("other").from("node:24"), resources: { cpu: 1, memory: "1GiB" }, ` + fields + ` })
export const one = agent({ id: "one", template: other, turn: () => null })` + "\n"
}

func TestBadProjectsAreRefused(t *testing.T) {
	t.Parallel()
	const module = "agents/one.ts"
	for name, test := range map[string]struct {
		files []string
		parts []string
	}{
		"no package.json":     {[]string{"package.json", "-"}, []string{"package.json: is missing", "helmr init"}},
		"no config":           {[]string{"helmr.config.ts", "-"}, []string{"helmr.config.ts: is missing", "helmr init"}},
		"broken package.json": {[]string{"package.json", `{"name":`}, []string{"package.json"}},

		"syntax error in config":     {[]string{"helmr.config.ts", "export default {\n  dirs: [\n"}, []string{"helmr.config.ts:3:1", "end of file"}},
		"no default export":          {[]string{"helmr.config.ts", "export const config = {}"}, []string{"helmr.config.ts", "no default export", "export default defineConfig({})"}},
		"null config":                {[]string{"helmr.config.ts", "export default null"}, []string{"helmr.config.ts", "the default export is null"}},
		"function config":            {[]string{"helmr.config.ts", "export default () => ({})"}, []string{"helmr.config.ts", "the default export is a function"}},
		"unknown key":                {[]string{"helmr.config.ts", "export default { dir: ['agents'] }"}, []string{"helmr.config.ts", `unknown field "dir"`, "Allowed are dirs"}},
		"getter":                     {[]string{"helmr.config.ts", "export default { get dirs() { return ['agents'] } }"}, []string{"helmr.config.ts", "dirs is a getter"}},
		"empty dirs":                 {[]string{"helmr.config.ts", "export default { dirs: [] }"}, []string{"helmr.config.ts", "dirs is empty"}},
		"parent in dirs":             {[]string{"helmr.config.ts", "export default { dirs: ['../other'] }"}, []string{"helmr.config.ts", "dirs[0]", ".."}},
		"doubled dirs":               {[]string{"helmr.config.ts", "export default { dirs: ['agents', './agents'] }"}, []string{"helmr.config.ts", "dirs[1]", "repeats"}},
		"brackets in ignorePatterns": {[]string{"helmr.config.ts", "export default { ignorePatterns: ['a[b]'] }"}, []string{"helmr.config.ts", "ignorePatterns[0]", "brackets"}},
		"config throws":              {[]string{"helmr.config.ts", "const x = 1\nthrow new Error('no luck')"}, []string{"helmr.config.ts:2:7", "no luck"}},
		"config exits":               {[]string{"helmr.config.ts", "process.exit(0)\nexport default {}"}, []string{"helmr.config.ts:1:9", "process.exit(0) was called"}},
		"config fails":               {[]string{"helmr.config.ts", "console.log('bye'); process.exit(3);\nexport default {}"}, []string{"helmr.config.ts:1:29", "process.exit(3) was called"}},
		"config kills itself":        {[]string{"helmr.config.ts", "console.log('bye'); process.kill(process.pid, 'SIGKILL')\nexport default {}"}, []string{"helmr.config.ts", "signal: killed", "bye"}},
		"config never ends":          {[]string{"helmr.config.ts", "await new Promise(() => {})\nexport default {}"}, []string{"helmr.config.ts", "never finishes loading", "await"}},
		"config imports package":     {[]string{"helmr.config.ts", "import 'dotenv/config'\nexport default {}"}, []string{"helmr.config.ts:1:8", `Could not resolve "dotenv/config"`}},
		"builder":                    {[]string{"helmr.config.ts", imports + "export default { build: { builder: builder().run(['true']) } }"}, []string{"helmr.config.ts", "build.builder", "not supported"}},
		"build secret not set":       {[]string{"helmr.config.ts", "export default { build: { secrets: ['HELMR_TEST_NOT_SET'] } }"}, []string{"helmr.config.ts", "build.secrets[0]", "HELMR_TEST_NOT_SET", "not set"}},
		"build secret twice":         {[]string{"helmr.config.ts", "export default { build: { secrets: ['PATH', 'PATH'] } }"}, []string{"helmr.config.ts", "build.secrets[1]", "repeats"}},
		"missing dir":                {[]string{"helmr.config.ts", "export default { dirs: ['agents', 'more'] }"}, []string{"helmr.config.ts", "dirs[1]", `no folder "more"`}},
		"dir is a file":              {[]string{"helmr.config.ts", "export default { dirs: ['package.json'] }"}, []string{"helmr.config.ts", "dirs[0]", "not a folder"}},
		"no assets":                  {[]string{"helmr.config.ts", "export default { build: { assets: ['prompts/**'] } }"}, []string{"helmr.config.ts", "build.assets[0]", "matches no file"}},
		"external not declared":      {[]string{"helmr.config.ts", "export default { build: { external: ['sharp'] } }"}, []string{"helmr.config.ts", "build.external[0]", `"sharp" is not declared`}},

		"no modules":          {[]string{module, "-", "agents/readme.md", "x"}, []string{"helmr.config.ts", "no modules", "agents"}},
		"only tests":          {[]string{module, "-", "agents/a.test.ts", "x", "agents/b.d.ts", "x"}, []string{"no modules"}},
		"nothing exported":    {[]string{module, "export const x = 1"}, []string{"agents", "no module exports an Agent", module}},
		"syntax error":        {[]string{module, "export const x = 1\nconst y: = 2"}, []string{module + ":2:10", "const y: = 2", "^"}},
		"missing import":      {[]string{module, "import './gone.js'"}, []string{module + ":1:8", "./gone.js", "Check the path"}},
		"missing package":     {[]string{module, "import 'zod'"}, []string{module + ":1:8", "zod", "dependencies"}},
		"outside import":      {[]string{module, "import '/etc/hostname'"}, []string{module}},
		"missing sdk part":    {[]string{module, "import '@helmr/sdk/secret'"}, []string{module, "@helmr/sdk/secret"}},
		"config imported":     {[]string{module, "import config from '../helmr.config.js'\n" + agentModule("one", "box") + "console.log(config)"}, []string{module, "imports helmr.config.ts"}},
		"module throws":       {[]string{module, "const key = undefined as any\nfunction load() { return key.length }\nexport const x = load()"}, []string{module + ":2:30", "threw when it was imported", "TypeError", "at load", module + ":3:18"}},
		"module rejects":      {[]string{module, "import './lib/late.js'\n", "agents/lib/late.ts", "await Promise.reject(new Error('too late'))"}, []string{"agents/lib/late.ts:1:22", "too late"}},
		"module throws text":  {[]string{module, "throw 'just text'"}, []string{"just text"}},
		"module exits":        {[]string{module, "process.exit()"}, []string{module + ":1:9", "process.exit() was called"}},
		"module hangs":        {[]string{module, "await new Promise(() => {})"}, []string{module, "never finishes loading"}},
		"bad agent ID":        {[]string{module, imports + `export const x = agent({ id: "two words", template: box, turn: () => null })`}, []string{module + ":3:18", "two words", "Use 1 to 128 letters"}},
		"no template":         {[]string{module, imports + `export const x = agent({ id: "x", template: { id: "box" }, turn: () => null } as any)`}, []string{module + ":3:18", `agent "x"`, "template"}},
		"bad duration":        {[]string{module, agentWith(`maxTurnDuration: "20 minutes"`)}, []string{module + ":3:20", "maxTurnDuration", `"20 minutes"`, `"30m"`}},
		"no turn":             {[]string{module, imports + `export const x = agent({ id: "x", template: box } as any)`}, []string{module, "turn"}},
		"same agent twice":    {[]string{"agents/two.ts", agentModule("one", "other")}, []string{"agents/two.ts", `agent "one"`, "agents/one.ts"}},
		"same template twice": {[]string{"agents/two.ts", agentModule("two", "box")}, []string{"agents/two.ts", `template "box"`, "two.template", "one.template"}},

		"triggers":      {[]string{module, agentWith(`triggers: [triggers.cron("t", "0 8 * * 1", { timezone: "UTC", input: [] })]`)}, []string{module, `agent "one"`, "triggers", "not supported"}},
		"prepare":       {[]string{module, templateWith(`prepareNetwork: { blockAll: true }`)}, []string{module, `template "other"`, "prepareNetwork is given without prepare"}},
		"refresh":       {[]string{module, templateWith(`refresh: { every: "often" }`)}, []string{module, `template "other"`, "refresh.every"}},
		"delete unused": {[]string{module, templateWith(`deleteAfterUnused: "soon"`)}, []string{module, `template "other"`, "deleteAfterUnused"}},
		"task":          {[]string{module, "import { task } from '@helmr/sdk'\nexport const t = task({ id: 't' })"}, []string{module + ":2:18", "task()"}},

		"dependencies without lockfile": {[]string{"package.json", `{"dependencies":{"zod":"^3"}}`}, []string{"package.json", "lockfile"}},
		"two lockfiles":                 {[]string{"package.json", `{"dependencies":{"zod":"^3"}}`, "package-lock.json", "{}", "yarn.lock", ""}, []string{"package-lock.json, yarn.lock", "packageManager"}},
		"odd packageManager":            {[]string{"package.json", `{"packageManager":"cargo@1.0.0","dependencies":{"zod":"^3"}}`}, []string{"package.json", "cargo@1.0.0"}},
		"install fails":                 {[]string{"helmr.config.ts", "export default { build: { installCommand: 'echo broken pipe; false' } }"}, []string{"install", "exit status 1", "broken pipe"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := prepared(t, project(t, test.files...))
			text := refused(t, err, test.parts...)
			if strings.Contains(text, t.TempDir()[:10]) && !strings.Contains(name, "package.json") && name != "no config" {
				t.Errorf("names a temporary folder:\n%s", text)
			}
			t.Log(text)
		})
	}
}

func TestNetworkPoliciesAreIndexed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                             `{"blockAll":false}`,
		"network: { blockAll: true }":  `{"blockAll":true}`,
		"network: { blockAll: false }": `{"blockAll":false}`,
		`network: { allowDomains: ["API.example.com.", { domain: "*.corp.example", ipRanges: ["10.20.0.0/16"] }] }`: `{"allowDomains":["api.example.com",{"domain":"*.corp.example","ipRanges":["10.20.0.0/16"]}]}`,
	} {
		p, _, err := prepared(t, project(t, "agents/one.ts", templateWith(text)))
		if err != nil {
			t.Fatal(err)
		}
		for _, template := range p.index.plan.Templates {
			if got, err := json.Marshal(template.Network); template.ID == "other" && (err != nil || string(got) != want) {
				t.Errorf("%s: %s, %v", text, got, err)
			}
		}
	}
}
