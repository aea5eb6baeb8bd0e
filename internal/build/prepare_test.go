package build

import (
	"testing"

	"helmr.dev/helmr/internal/build/bundle"
)

const preparedModule = imports + `import { furnish } from "./lib/furnish.js"
const base = { image: image("box").from("node:24"), resources: { cpu: 1, memory: "1GiB" } } as const
const secrets = [{ secret: "T", env: { name: "T", mode: "raw" } }] as const
export const shared = template({ ...base, id: "shared", prepare: furnish, prepareNetwork: { blockAll: true }, refresh: { every: "12h" } })
export const again = template({ ...base, id: "again", prepare: furnish, prepareSecrets: secrets })
export const closure = template({ ...base, id: "closure", prepare: () => furnish({ name: base.resources.memory } as any) })
export const plain = template({ ...base, id: "plain", refresh: { every: "1h" } })
export const one = agent({ id: "one", template: template({ ...base, id: "hidden", prepare: async () => {} }), turn: () => null })
`

// Callbacks are part of the program, with what they import and close over; each is named by the first Template that has it.
func TestSpec_09_05_CallbacksShareTheProgram(t *testing.T) {
	t.Parallel()
	b, _, err := prepared(t, project(t, "agents/one.ts", preparedModule,
		"agents/lib/furnish.ts", `export const furnish = async (p: { name?: string }) => { (globalThis as any).ran = "furnished " + p.name }`))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bundle.Template{}
	for _, template := range b.index.plan.Templates {
		found[template.ID] = template
	}
	for id, callback := range map[string]string{"shared": "again", "again": "again", "closure": "closure", "hidden": "hidden", "plain": ""} {
		if got := found[id].Prepare; got != callback {
			t.Errorf("the callback of %s is %q, want %q", id, got, callback)
		}
	}
	if p := found["shared"]; p.PrepareNetwork == nil || !p.PrepareNetwork.BlockAll || p.RefreshEveryMs == nil || *p.RefreshEveryMs != 12*3600_000 || p.PrepareSecrets != nil {
		t.Errorf("%+v", p)
	}
	again, plain := found["again"], found["plain"]
	if again.PrepareNetwork != nil || len(again.PrepareSecrets) != 1 || again.PreparePolicy().BlockAll || !plain.PreparePolicy().BlockAll {
		t.Errorf("%+v", again)
	}
	dir := unpacked(t, assembled(t, b))
	got := evaluate(t, dir, `await program.templates.get("closure").prepare(); console.log([...program.templates.keys()].sort().join(), globalThis.ran)`)
	if got != "again,closure,hidden,plain,shared furnished 1GiB" {
		t.Errorf("the program has %s", got)
	}
}
