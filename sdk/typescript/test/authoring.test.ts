import assert from "node:assert/strict"
import { test } from "node:test"
import { actor, agent, builder, ContentError, defineConfig, image, MessageRejected, source, task, template, tokens, triggers } from "../src/index.js"
import { describe, describeConfig, kindOf } from "../src/internal.js"
import { refuses } from "./helpers.js"

const box = template({ id: "box", image: image("box").from("node:24-bookworm-slim"), resources: { cpu: 1, memory: "1GiB" } })
const config = { id: "a", template: box, turn: () => null }
const broken = (change: object): unknown => agent({ ...config, ...change } as never)

test("Spec_02_04 agent returns a frozen definition", () => {
  const definition = agent(config)
  assert.equal(definition.kind, "agent")
  assert.ok(Object.isFrozen(definition))
  assert.throws(() => Object.assign(definition, { id: "b" }))
  assert.equal(kindOf(definition), "agent")
  assert.equal(kindOf({ ...definition }), undefined, "a copy is not a definition")
})

test("Spec_02_04 agent names the field that is wrong", () => {
  refuses(() => broken({ id: " " }), /agent: id is blank; use 1 to 128/)
  for (const id of ["-a", "a b", "a".repeat(129), 7, undefined]) refuses(() => broken({ id }), /agent: id is/)
  agent({ ...config, id: "a".repeat(128) })
  refuses(() => broken({ template: undefined }), /agent "a": template is missing/)
  refuses(() => broken({ template: { ...box } }), /agent "a": template is an object, not a Template/)
  refuses(() => broken({ turn: "x" }), /agent "a": turn is "x", not a function/)
  refuses(() => broken({ turn: undefined }), /turn is missing/)
  refuses(() => broken({ init: 1 }), /init is 1, not a function/)
  refuses(() => broken({ colour: "red" }), /unknown field "colour"; allowed are id, template/)
  refuses(() => agent(null as never), /agent is null, not an object/)
  const daily = triggers.cron("t", "0 8 * * *", { timezone: "UTC", input: [] })
  refuses(() => broken({ triggers: [daily, daily] }), /triggers\[1\] has the ID "t" of an earlier Trigger/)
  refuses(() => broken({ triggers: [{ ...daily }] }), /triggers\[0\] is an object; use a value made with triggers.cron/)
})

test("Spec_02_04 durations", () => {
  for (const bad of ["10 minutes", "0s", "-1s", "1.5h", "m", "", 0, -1, Number.NaN, Number.POSITIVE_INFINITY, "9007199254740991d", null, true, "never"]) {
    refuses(() => broken({ maxTurnDuration: bad }), /agent "a": maxTurnDuration is .*not a duration; use a positive whole number/)
  }
  refuses(() => broken({ closeAfterIdle: "soon" }), /closeAfterIdle is "soon", neither a duration nor "never"/)
  const ms = (value: unknown): unknown => describe(broken({ maxTurnDuration: value }))["max_turn_duration_ms"]
  assert.deepEqual(["250ms", "2s", "3m", "4h", "5d", 1500, 0.5].map(ms), [250, 2000, 180_000, 14_400_000, 432_000_000, 1500, 1])
})

test("an Agent as JSON", () => {
  assert.deepEqual(describe(agent(config)), { id: "a", template: "box", has_init: false, close_after_idle_ms: 604_800_000, hibernate_after_idle_ms: null, triggers: [] })
  const full = agent({
    ...config, init: () => 1, maxTurnDuration: "20m", closeAfterIdle: "never", hibernateAfterIdle: "15m",
    triggers: [triggers.cron("weekdays", "0 8 * * 1-5", { timezone: "Europe/Berlin", input: [{ type: "text", text: "Sort" }], slack: { channelId: "C0123" } })],
  })
  assert.deepEqual(describe(full), {
    id: "a", template: "box", has_init: true, max_turn_duration_ms: 1_200_000, close_after_idle_ms: null, hibernate_after_idle_ms: 900_000,
    triggers: [{ id: "weekdays", cron: "0 8 * * 1-5", timezone: "Europe/Berlin", input: [{ type: "text", text: "Sort" }], slack: { channel_id: "C0123" } }],
  })
})

test("Spec_02_07 triggers.cron", () => {
  const options = { timezone: "UTC", input: [{ type: "text", text: "x" }] as const }
  const trigger = triggers.cron("t", "* * * * *", options)
  assert.ok(Object.isFrozen(trigger) && Object.isFrozen(trigger.input) && Object.isFrozen(trigger.input[0]))
  refuses(() => triggers.cron("", "* * * * *", options), /triggers.cron: id is blank/)
  refuses(() => triggers.cron("t", " ", options), /trigger "t": expression is blank/)
  refuses(() => triggers.cron("t", "* * * * *", { ...options, timezone: "" }), /timezone is blank/)
  for (const input of ["text", null, { parts: [] }, [{ type: "json", value: 1 }]]) {
    refuses(() => triggers.cron("t", "* * * * *", { ...options, input } as never), /trigger "t": input is not InputContent/)
  }
  for (const channelId of ["D0123", "C", "c0123", `C${"A".repeat(100)}`]) {
    refuses(() => triggers.cron("t", "* * * * *", { ...options, slack: { channelId } }), /slack.channelId is/)
  }
  refuses(() => triggers.cron("t", "* * * * *", { ...options, slack: { channelId: "C0123", thread: 1 } } as never), /slack has the unknown field "thread"/)
})

test("Spec_09_02 image builders are immutable", () => {
  const base = image("app").from("node:24-bookworm")
  const withTool = base.run(["apt-get", "install", "-y", "git"])
  const other = image("other").from("debian:12")
  const full = withTool.copy(source.file("./a.txt"), "/a").copy(source.directory("data"), "/data").copyFrom("/bin/x", other, "/bin/y").workdir("/w").env("A", "").user("app")
  const steps = (value: typeof base): unknown => (describe(template({ id: "t", image: value, resources: { cpu: 1, memory: "1GiB" } }))["image"] as { steps: unknown }).steps
  assert.deepEqual(steps(base), [{ op: "from", ref: "node:24-bookworm" }])
  assert.deepEqual(steps(full), [
    { op: "from", ref: "node:24-bookworm" }, { op: "run", argv: ["apt-get", "install", "-y", "git"] },
    { op: "copy", source: { kind: "file", path: "a.txt" }, destination: "/a" }, { op: "copy", source: { kind: "directory", path: "data" }, destination: "/data" },
    { op: "copyFrom", destination: "/bin/x", image: { key: "other", steps: [{ op: "from", ref: "debian:12" }] }, sourcePath: "/bin/y" },
    { op: "workdir", path: "/w" }, { op: "env", key: "A", value: "" }, { op: "user", name: "app" },
  ])
  refuses(() => image(""), /image: key is blank/)
  refuses(() => base.run([]), /run is empty/)
  refuses(() => base.run("ls" as never), /run is "ls"; give a non-empty array/)
  refuses(() => base.copy("a.txt" as never, "/a"), /copy source is "a.txt"; use source.file/)
  refuses(() => base.copyFrom("/a", { key: "x" } as never, "/b"), /copyFrom image is an object/)
  refuses(() => base.env("1A", "x"), /env key is "1A"/)
  for (const path of ["/etc/passwd", "../x", "a/../../x", "a\\b", ""]) refuses(() => source.file(path), /source.file: path/)
})

test("Spec_02_10 defineConfig takes plain objects with known keys", () => {
  assert.deepEqual(describeConfig(defineConfig({})), { dirs: ["agents"], ignore_patterns: [], build: { external: [], assets: [], secrets: [] } })
  for (const bad of [undefined, null, () => ({}), [], "x", new Map()]) refuses(() => describeConfig(bad), /the default export is/)
  refuses(() => describeConfig({ get dirs() { return ["a"] } }), /config.dirs is a getter/)
  refuses(() => describeConfig({ build: { get assets() { return [] } } }), /config: build.assets is a getter/)
  refuses(() => describeConfig({ outDir: "x" }), /unknown field "outDir"; allowed are dirs, ignorePatterns and build/)
})

test("defineConfig checks every value", () => {
  assert.deepEqual(describeConfig({ dirs: ["./agents", "more/agents/"] })["dirs"], ["agents", "more/agents"])
  refuses(() => defineConfig({ dirs: [] }), /config: dirs is empty/)
  for (const dir of ["../x", "a\\b", "/abs", ""]) refuses(() => defineConfig({ dirs: [dir] }), /config: dirs\[0\]/)
  refuses(() => defineConfig({ dirs: ["a", "./a"] }), /dirs\[1\] repeats "a"/)
  for (const pattern of ["!a", "[ab]", "{a,b}", "../a", "/a", "a/", "a**", "a//b", ""]) {
    refuses(() => defineConfig({ ignorePatterns: [pattern] }), /config: ignorePatterns\[0\]/)
    refuses(() => defineConfig({ build: { assets: [pattern] } }), /config: build.assets\[0\]/)
  }
  defineConfig({ ignorePatterns: ["**/*.test.ts", "a/?.ts"], build: { assets: ["prompts/**"], external: ["sharp", "@scope/pkg"], secrets: ["NPM_TOKEN"], installCommand: "npm ci" } })
  refuses(() => defineConfig({ build: { external: ["Sharp!"] } }), /build.external\[0\] is "Sharp!"/)
  refuses(() => defineConfig({ build: { external: ["a", "a"] } }), /build.external\[1\] repeats "a"/)
  refuses(() => defineConfig({ build: { secrets: ["A-B"] } }), /build.secrets\[0\]/)
  refuses(() => defineConfig({ build: { installCommand: " " } }), /build.installCommand is blank/)
  refuses(() => defineConfig({ build: { builder: {} as never } }), /build.builder is an object; use a value made with builder/)
  const steps = builder().copy("tools/setup.sh", "/tmp/setup.sh").run(["sh", "/tmp/setup.sh"])
  assert.deepEqual((describeConfig({ build: { builder: steps } })["build"] as { builder: unknown }).builder, {
    steps: [{ op: "copy", source: "tools/setup.sh", destination: "/tmp/setup.sh" }, { op: "run", argv: ["sh", "/tmp/setup.sh"] }],
  })
  for (const destination of ["/opt/helmr", "/opt/helmr/x", "/nix/store", "/workspace", "/a/../nix", "rel"]) refuses(() => builder().copy("a", destination), /builder: copy destination/)
  refuses(() => builder().copy("../a", "/b"), /builder: copy source/)
})

test("what is not available yet says so", () => {
  for (const use of [() => actor({}), () => task({}), () => tokens.create(), () => tokens.wait("x"), () => tokens.complete("x")]) refuses(use, /not available in this version/)
})

test("errors are recognised across copies of the SDK", async () => {
  // Another URL is another evaluation of the module, with a class of its own.
  const copy = (await import(new URL("../src/message.js?copy", import.meta.url).href)) as typeof import("../src/message.js")
  assert.notEqual(copy.MessageRejected, MessageRejected)
  assert.ok(new copy.MessageRejected("no") instanceof MessageRejected)
  class Special extends MessageRejected {}
  assert.ok(new Special() instanceof MessageRejected && new Special() instanceof Special)
  assert.equal(new MessageRejected() instanceof Special, false)
  assert.equal(new MessageRejected() instanceof ContentError, false)
  assert.equal(new Error("x") instanceof MessageRejected, false)
})
