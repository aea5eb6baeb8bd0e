import assert from "node:assert/strict"
import { test } from "node:test"
import { ContentError } from "../src/index.js"
import { encodeContent, encodeHuman, encodeInput, encodeJson, JsonProblem } from "../src/internal.js"

function code(make: () => unknown): string {
  try {
    make()
    return "accepted"
  } catch (error) {
    return error instanceof ContentError ? error.code : String(error)
  }
}

test("Spec_02_08 input is an array of text parts", () => {
  assert.deepEqual(encodeInput([{ type: "text", text: "x" }]).parts, [{ type: "text", text: "x" }])
  assert.deepEqual(encodeInput([]).parts, [])
  for (const bad of ["x", null, { input: [] }, 7]) assert.equal(code(() => encodeInput(bad)), "invalid_arguments")
  assert.equal(code(() => encodeInput([{ type: "json", value: 1 }])), "content_kind_unsupported")
})

test("Spec_23_01 256 KiB and 64 parts are accepted, one more is not", () => {
  const most = 256 * 1024 - '[{"type":"text","text":""}]'.length
  assert.equal(encodeHuman("x".repeat(most)).bytes, 256 * 1024)
  assert.equal(code(() => encodeHuman("x".repeat(most + 1))), "content_limit_exceeded")
  assert.equal(code(() => encodeContent([{ type: "text", text: "é".repeat(most / 2 + 1) }])), "content_limit_exceeded")
  const part = { type: "json", value: null }
  assert.equal(code(() => encodeContent(Array(64).fill(part))), "accepted")
  assert.equal(code(() => encodeContent(Array(65).fill(part))), "content_limit_exceeded")
})

test("encodeJson says what the value says, or where it cannot", () => {
  assert.equal(encodeJson({ b: [1, "é", true, null], a: { skipped: undefined }, when: new Date(0) }), '{"b":[1,"é",true,null],"a":{},"when":"1970-01-01T00:00:00.000Z"}')
  assert.equal(encodeJson(JSON.parse('{"__proto__":{"x":1}}')), '{"__proto__":{"x":1}}')
  const shared = { x: 1 }
  assert.equal(encodeJson([shared, shared]), '[{"x":1},{"x":1}]', "a value may stand in two places")
  const cycle: { inner: { back?: unknown } } = { inner: {} }
  cycle.inner.back = cycle
  let deep: unknown = null
  for (let i = 0; i < 5000; i++) deep = [deep]
  for (const [bad, path] of [
    [cycle, "inner.back"], [{ a: [Number.NaN] }, "a[0]"], [{ a: Number.POSITIVE_INFINITY }, "a"], [{ f: () => 1 }, "f"], [[undefined], "[0]"], [undefined, ""],
    [1n, ""], [Symbol("x"), ""], [new Map(), ""], [{ p: Promise.resolve() }, "p"], [new Uint8Array(2), ""], [{ e: new Error("x") }, "e"], ["\ud800", ""],
  ] as const) {
    assert.throws(() => encodeJson(bad), (error: unknown) => error instanceof JsonProblem && error.path === path, path)
  }
  assert.throws(() => encodeJson(deep), JsonProblem)
})
