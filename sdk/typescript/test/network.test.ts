import assert from "node:assert/strict"
import { readFileSync } from "node:fs"
import { test } from "node:test"
import { image, template } from "../src/index.js"
import { describe } from "../src/internal.js"
import { matchesPattern, normalizeNetwork } from "../src/network.js"

// The same vectors as the program that enforces policies is tested with.
const vectors = JSON.parse(readFileSync(new URL("../../../../internal/egress/policy/testdata/vectors.json", import.meta.url), "utf8")) as {
  policies: { in: unknown; out?: unknown }[]
  fields: { in: unknown; field: string }[]
  badNames: string[]
  matches: { pattern: string; yes: string[]; no: string[] }[]
}
const network = (policy: unknown): unknown =>
  describe(template({ id: "t", image: image("t").from("debian:12"), resources: { cpu: 1, memory: "1GiB" }, network: policy } as never))["network"]

test("Spec_09_09 policies are normalized as the enforcement does", () => {
  for (const { in: given, out } of vectors.policies) {
    if (out === undefined) assert.throws(() => network(given), TypeError, JSON.stringify(given))
    else assert.deepEqual(network(given), out)
  }
})

test("Spec_09_09 errors name the field as the enforcement does", () => {
  for (const { in: given, field } of vectors.fields) {
    assert.throws(() => normalizeNetwork("network", given), (e) => e instanceof TypeError && e.message.startsWith(field) && e.message.includes("; "), JSON.stringify(given))
  }
})

test("Spec_09_12 names are refused as the enforcement does", () => {
  for (const name of vectors.badNames) assert.throws(() => network({ allowDomains: [name] }), TypeError, JSON.stringify(name))
})

test("Spec_09_13 patterns match as the enforcement does", () => {
  for (const { pattern, yes, no } of vectors.matches) {
    for (const name of yes) assert.ok(matchesPattern(pattern, name), `${pattern} ${name}`)
    for (const name of no) assert.ok(!matchesPattern(pattern, name), `${pattern} ${name}`)
  }
})
