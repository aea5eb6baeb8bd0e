import assert from "node:assert/strict"
import { readFileSync } from "node:fs"
import { test } from "node:test"
import { checkBindingsFit, normalizeBindings, normalizeOrigin } from "../src/secrets.js"
import { normalizeNetwork } from "../src/network.js"

// The same vectors as the server's rules are tested with.
const vectors = JSON.parse(readFileSync(new URL("../../../../internal/secret/binding/testdata/vectors.json", import.meta.url), "utf8")) as {
  bindings: { in: unknown[]; out?: unknown[] }[]
  goodNames: string[]
  badNames: string[]
  goodPaths: string[]
  badPaths: string[]
  origins: { in: string; out: string }[]
  badOrigins: string[]
  policies: { policy: unknown; origin: string; ok: boolean }[]
}
const env = (name: string): unknown => [{ secret: "K", env: { name, mode: "raw" } }]
const file = (path: string): unknown => [{ secret: "K", file: { path } }]

test("Spec_10_03 bindings are normalized as the server does", () => {
  for (const { in: given, out } of vectors.bindings) {
    if (out === undefined) assert.throws(() => normalizeBindings("secrets", given), TypeError, JSON.stringify(given))
    else assert.deepEqual(normalizeBindings("secrets", given), out)
  }
})

test("Spec_10_05 names are refused as the server does", () => {
  for (const name of vectors.goodNames) normalizeBindings("secrets", env(name))
  for (const name of vectors.badNames) assert.throws(() => normalizeBindings("secrets", env(name)), TypeError, name)
})

test("Spec_10_06 paths are refused as the server does", () => {
  for (const path of vectors.goodPaths) normalizeBindings("secrets", file(path))
  for (const path of vectors.badPaths) assert.throws(() => normalizeBindings("secrets", file(path)), TypeError, path)
})

test("Spec_10_07 origins are normalized as the server does", () => {
  for (const { in: given, out } of vectors.origins) assert.equal(normalizeOrigin("origin", given), out)
  for (const origin of vectors.badOrigins) assert.throws(() => normalizeOrigin("origin", origin), TypeError, origin)
})

test("Spec_09_19 protected bindings fit their policy as the server has it", () => {
  for (const { policy, origin, ok } of vectors.policies) {
    const check = (): void => checkBindingsFit("secrets",
      normalizeBindings("secrets", [{ secret: "K", env: { name: "K", mode: "protected", allowedOrigins: [origin] } }]), normalizeNetwork("network", policy), "network")
    if (ok) check()
    else assert.throws(check, TypeError, `${origin} ${JSON.stringify(policy)}`)
  }
})
