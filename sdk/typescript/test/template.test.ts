import assert from "node:assert/strict"
import { test } from "node:test"
import { image, template, type NetworkPolicy, type SecretBinding } from "../src/index.js"
import { describe } from "../src/internal.js"
import { matchesPattern } from "../src/network.js"
import { refuses } from "./helpers.js"

const base = { id: "t", image: image("t").from("debian:12"), resources: { cpu: 1, memory: "1GiB" } } as const
const make = (change: object): ReturnType<typeof template> => template({ ...base, ...change } as never)
const prepare = (): void => undefined

test("Spec_09_01 template returns a frozen definition", () => {
  const definition = template(base)
  assert.equal(definition.kind, "template")
  assert.ok(Object.isFrozen(definition) && Object.isFrozen(definition.resources))
  assert.deepEqual(describe(definition), {
    id: "t", image: { key: "t", steps: [{ op: "from", ref: "debian:12" }] }, resources: { milli_cpu: 1000, memory_mib: 1024 },
    network: { blockAll: false }, has_prepare: false, delete_after_unused_ms: null,
  })
})

test("Spec_09_01 template names the field that is wrong", () => {
  refuses(() => make({ id: "" }), /template: id is blank/)
  refuses(() => make({ image: undefined }), /template "t": image is missing/)
  refuses(() => make({ image: "debian:12" }), /image is "debian:12"; use a value made with image/)
  refuses(() => make({ resources: undefined }), /resources is missing/)
  refuses(() => make({ resources: { memory: "1GiB" } }), /resources.cpu is missing; give a positive number/)
  refuses(() => make({ resources: { cpu: 1 } }), /resources.memory is missing; use a positive whole number with MiB or GiB/)
  for (const cpu of [0, -1, "2", Number.NaN, Number.POSITIVE_INFINITY]) refuses(() => make({ resources: { cpu, memory: "1GiB" } }), /resources.cpu is/)
  for (const memory of ["1GB", "1.5GiB", "0MiB", "GiB", 1024, "99999999999GiB"]) refuses(() => make({ resources: { cpu: 1, memory } }), /resources.memory is .*not a size/)
  refuses(() => make({ resources: { cpu: 1, memory: "1GiB", disk: "big" } }), /resources.disk is "big"/)
  refuses(() => make({ resources: { cpu: 1, memory: "1GiB", gpu: 1 } }), /unknown field "gpu"/)
  refuses(() => make({ colour: 1 }), /unknown field "colour"/)
  refuses(() => make({ prepare: "make" }), /prepare is "make", not a function/)
  refuses(() => make({ refresh: { every: "often" } }), /refresh.every is "often"/)
  refuses(() => make({ refresh: "1d" }), /refresh is "1d", not an object/)
  refuses(() => make({ deleteAfterUnused: "soon" }), /deleteAfterUnused is "soon", neither/)
})

test("resources as JSON: fractions of CPUs are rounded up", () => {
  const resources = (cpu: number, memory: string, disk?: string): unknown => describe(make({ resources: { cpu, memory, ...(disk ? { disk } : {}) } }))["resources"]
  assert.deepEqual(resources(0.5, "512MiB"), { milli_cpu: 1000, memory_mib: 512 })
  assert.deepEqual(resources(2.1, "2GiB", "20GiB"), { milli_cpu: 3000, memory_mib: 2048, disk_mib: 20_480 })
})

test("what the platform cannot do yet is carried", () => {
  const json = describe(make({
    prepare, prepareNetwork: { blockAll: true }, prepareSecrets: [{ secret: "S", env: { name: "S", mode: "raw" } }], refresh: { every: "12h" },
    secrets: [{ secret: "F", file: { path: "/etc/f" } }], deleteAfterUnused: "30d", network: { allowDomains: ["A.Example.", { domain: "git.corp.example", ipRanges: ["10.20.0.0/16"] }] },
  }))
  assert.equal(json["has_prepare"], true)
  assert.deepEqual(json["prepare_network"], { blockAll: true })
  assert.deepEqual(json["prepare_secrets"], [{ secret: "S", env: { name: "S", mode: "raw" } }])
  assert.equal(json["refresh_every_ms"], 43_200_000)
  assert.deepEqual(json["secrets"], [{ secret: "F", file: { path: "/etc/f" } }])
  assert.equal(json["delete_after_unused_ms"], 2_592_000_000)
  assert.deepEqual(json["network"], { allowDomains: ["a.example", { domain: "git.corp.example", ipRanges: ["10.20.0.0/16"] }] })
})

test("preparation settings without a callback are errors", () => {
  refuses(() => make({ prepareNetwork: { blockAll: true } }), /prepareNetwork is given without prepare/)
  refuses(() => make({ prepareSecrets: [{ secret: "S", env: { name: "S", mode: "raw" } }] }), /prepareSecrets has entries without prepare/)
  make({ prepareSecrets: [] })
})

const network = (policy: unknown): unknown => describe(make({ network: policy }))["network"]

test("Spec_09_09 Spec_09_10 a policy has one of two forms", () => {
  assert.deepEqual([network({ blockAll: true }), network({ blockAll: false }), network(undefined)], [{ blockAll: true }, { blockAll: false }, { blockAll: false }])
  for (const bad of [{}, null, true, [], "open", { blockAll: false, allowDomains: [] }, { blockAll: 1 }, { blockAll: null }, { open: true }, { blockAll: true, more: 1 }, { allowDomains: "x" }]) {
    refuses(() => network(bad), /template "t": network/)
  }
})

test("Spec_09_11 at most 256 patterns, unique after normalization", () => {
  const names = Array.from({ length: 257 }, (_, n) => `n${n}.example`)
  assert.deepEqual(network({ allowDomains: names.slice(1) }), { allowDomains: names.slice(1) })
  refuses(() => network({ allowDomains: names }), /has 257 entries; at most 256/)
  refuses(() => network({ allowDomains: ["a.example", "A.EXAMPLE."] }), /allowDomains\[1\] names "a.example" again/)
  refuses(() => network({ allowDomains: ["a.example", { domain: "a.example", ipRanges: ["10.0.0.0/8"] }] }), /allowDomains\[1\] names "a.example" again/)
})

test("Spec_09_12 Spec_09_13 names", () => {
  const label = "a".repeat(63)
  const long = `${label}.${label}.${label}.${"a".repeat(61)}`
  assert.equal(long.length, 253)
  assert.deepEqual(network({ allowDomains: ["API.Example.COM.", "*.Shop.example", "xn--bcher-kva.example", long, "1.a.example", "*.co.uk"] }),
    { allowDomains: ["api.example.com", "*.shop.example", "xn--bcher-kva.example", long, "1.a.example", "*.co.uk"] })
  const bad = [
    "", "com", "*", "*.com", "a.*.example", "*.*.example", "**.example.com", "a*.example", `${long}a`, `*.${long}`, `${label}a.example`, "-a.example", "a-.example", "a..example", "a.example..",
    "bücher.example", "a b.example", " a.example", "a.example:443", "https://a.example", "a.example/x", "a@b.example", "1.2.3.4", "[::1]", "::1", "123.456", "12345", "localhost", "a.localhost", "localhost.localdomain", "a_b.example",
  ]
  for (const name of bad) refuses(() => network({ allowDomains: [name] }), /network.allowDomains\[0\] is/)
  refuses(() => network({ allowDomains: [7] }), /allowDomains\[0\] is 7/)
})

test("Spec_09_13 matching", () => {
  for (const [pattern, host, matches] of [
    ["shop.example", "shop.example", true], ["shop.example", "a.shop.example", false], ["*.shop.example", "a.shop.example", true],
    ["*.shop.example", "a.b.shop.example", true], ["*.shop.example", "shop.example", false], ["*.shop.example", "myshop.example", false], ["*.shop.example", ".shop.example", false],
  ] as const) assert.equal(matchesPattern(pattern, host), matches, `${pattern} ${host}`)
})

test("Spec_09_15 ipRanges are canonical, distinct IPv4 CIDRs", () => {
  const ranges = (ipRanges: unknown): unknown => network({ allowDomains: [{ domain: "a.example", ipRanges }] })
  const many = Array.from({ length: 65 }, (_, n) => `10.${n}.0.0/16`)
  ranges(many.slice(1))
  ranges(["0.0.0.0/0", "10.0.0.1/32"])
  refuses(() => ranges(many), /ipRanges has 65 entries; give 1 to 64/)
  refuses(() => ranges([]), /ipRanges has 0 entries/)
  refuses(() => ranges(["10.0.0.0/8", "10.0.0.0/8"]), /ipRanges\[1\] repeats/)
  refuses(() => ranges(["10.0.0.1/8"]), /host bits are not zero/)
  for (const bad of ["10.0.0.0", "10.0.0.0/33", "10.0.0/8", "010.0.0.0/8", "256.0.0.0/8", "::/0", "10.0.0.0/08", 7]) refuses(() => ranges([bad]), /ipRanges\[0\] is/)
  refuses(() => network({ allowDomains: [{ domain: "a.example" }] }), /ipRanges is undefined, not an array/)
  refuses(() => network({ allowDomains: [{ domain: "a.example", ipRanges: ["10.0.0.0/8"], port: 1 }] }), /unknown field "port"/)
})

const secrets = (bindings: unknown, policy?: NetworkPolicy): unknown => describe(make({ secrets: bindings, ...(policy ? { network: policy } : {}) }))["secrets"]
const guarded = (...allowedOrigins: string[]): SecretBinding => ({ secret: "K", env: { name: "K", mode: "protected", allowedOrigins } })

test("Spec_10_03 a binding has env or file", () => {
  for (const [bad, pattern] of [
    [{ secret: "K" }, /secrets\[0\] has neither env nor file/],
    [{ secret: "K", env: { name: "K", mode: "raw" }, file: { path: "/k" } }, /has both env and file/],
    [{ secret: "", file: { path: "/k" } }, /secrets\[0\].secret is blank/],
    [{ secret: "K", env: { name: "K" } }, /env.mode is undefined; name it/],
    [{ secret: "K", env: { name: "K", mode: "raw", allowedOrigins: [] } }, /allowedOrigins is given with mode "raw"/],
    [{ secret: "K", env: { name: "K", mode: "protected" } }, /allowedOrigins is undefined, not an array/],
    [{ secret: "K", env: { name: "K", mode: "protected", allowedOrigins: [] } }, /allowedOrigins is empty/],
    [{ secret: "K", file: { path: "/k", mode: 1 } }, /file has the unknown field "mode"/],
    [{ secret: "K", value: "x", file: { path: "/k" } }, /unknown field "value"/],
    ["K", /secrets\[0\] is "K"/],
  ] as const) refuses(() => secrets([bad]), pattern)
})

test("Spec_10_04 limits of bindings and origins", () => {
  const raw = (n: number): object => ({ secret: "K", env: { name: `K${n}`, mode: "raw" } })
  secrets(Array.from({ length: 64 }, (_, n) => raw(n)))
  refuses(() => secrets(Array.from({ length: 65 }, (_, n) => raw(n))), /has 65 bindings; at most 64/)
  const origins = Array.from({ length: 17 }, (_, n) => `https://n${n}.example.com`)
  secrets([guarded(...origins.slice(1), ...origins.slice(1))])
  refuses(() => secrets([guarded(...origins)]), /has 17 different origins; at most 16/)
  const wide = (n: number): object => ({ secret: "K", env: { name: `K${n}`, mode: "protected", allowedOrigins: origins.slice(1) } })
  secrets(Array.from({ length: 16 }, (_, n) => wide(n)))
  refuses(() => secrets(Array.from({ length: 17 }, (_, n) => wide(n))), /has 272 allowed origins; at most 256/)
})

test("Spec_10_05 environment names", () => {
  const env = (name: string): unknown => secrets([{ secret: "K", env: { name, mode: "raw" } }])
  for (const name of ["A", "_a1", "Node_Options", "helmr_x"]) env(name)
  for (const name of ["1A", "A-B", "", "HELMR_X", "LD_PRELOAD", "NODE_OPTIONS", "NODE_PATH", "NODE_ICU_DATA", "OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES", "GCONV_PATH", "LOCPATH", "ssl_cert_file", "SSL_CERT_DIR", "Node_Extra_Ca_Certs", "NODE_USE_SYSTEM_CA"]) {
    refuses(() => env(name), /secrets\[0\].env.name is/)
  }
  refuses(() => secrets([{ secret: "A", env: { name: "K", mode: "raw" } }, { secret: "B", env: { name: "K", mode: "raw" } }]), /secrets\[1\].env.name is "K", which an earlier binding sets/)
  refuses(() => make({ image: base.image.env("K", "x"), secrets: [{ secret: "K", env: { name: "K", mode: "raw" } }] }), /which the image sets too/)
})

test("Spec_10_06 file paths", () => {
  const files = (...paths: unknown[]): unknown => secrets(paths.map((path) => ({ secret: "K", file: { path } })))
  files("/k", "/etc/app/token", "/etc/apple", "/device", `/${"a".repeat(4095)}`)
  for (const bad of ["k", "", "/", "/a/", "/a//b", "/a/./b", "/a/../b", "/a\0", "/dev", "/dev/x", "/proc/1", "/sys", "/opt/helmr", "/opt/helmr/x", "/run/helmr", "/var/lib/helmr/x", `/${"a".repeat(4096)}`, 7]) {
    refuses(() => files(bad), /secrets\[0\].file.path/)
  }
  for (const pair of [["/a", "/a"], ["/a", "/a/b"], ["/a/b", "/a"]]) refuses(() => files(...pair), /secrets\[1\].file.path is .*equal to or nested/)
})

test("Spec_10_07 origins", () => {
  const [binding] = secrets([guarded("https://b.example.com:443/", "https://a.example.com", "https://b.example.com", "https://a.example.com:8443")]) as { env: { allowedOrigins: string[] } }[]
  assert.deepEqual(binding?.env.allowedOrigins, ["https://a.example.com", "https://a.example.com:8443", "https://b.example.com"])
  for (const bad of ["http://a.example.com", "https://A.example.com", "https://*.example.com", "https://1.2.3.4", "https://u@a.example.com", "https://a.example.com/x", "https://a.example.com?", "https://a.example.com#x", "https://a.example.com:0", "https://a.example.com:65536", "https://localhost", "https://[::1]", "a.example.com", "https://a.example.com.", ""]) {
    refuses(() => secrets([guarded(bad)]), /allowedOrigins\[0\] is .*not an allowed origin/)
  }
})

test("Spec_09_19 protected bindings fit the policy of their phase", () => {
  const key = guarded("https://api.example.com")
  refuses(() => secrets([key], { blockAll: true }), /secrets\[0\] is protected, but template "t": network blocks all connections/)
  secrets([{ secret: "K", env: { name: "K", mode: "raw" } }], { blockAll: true })
  secrets([key], { allowDomains: ["*.example.com"] })
  secrets([key], { allowDomains: ["api.example.com"] })
  secrets([guarded("https://api.example.com:8443")])
  refuses(() => secrets([key], { allowDomains: ["example.com"] }), /has "https:\/\/api.example.com", which no entry of .*network.allowDomains matches; add "api.example.com"/)
  refuses(() => secrets([guarded("https://api.example.com:8443")], { allowDomains: ["api.example.com"] }), /only port 443/)
  refuses(() => make({ prepare, prepareNetwork: { blockAll: true }, prepareSecrets: [key] }), /prepareSecrets\[0\] is protected, but template "t": prepareNetwork blocks/)
  refuses(() => make({ prepare, network: { blockAll: true }, prepareSecrets: [key] }), /prepareSecrets\[0\] is protected, but template "t": network blocks/)
  make({ prepare, network: { blockAll: true }, prepareNetwork: { blockAll: false }, prepareSecrets: [key] })
})
