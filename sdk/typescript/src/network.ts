import { array, isRecord, record, refuse, show } from "./check.js"

/** An entry of `allowDomains`. A string permits public IPv4 destinations; an object is bounded by its own ranges. */
export type AllowedDomain =
  | string
  | { readonly domain: string; readonly ipRanges: readonly string[] }

/** Outbound network of a Computer: everything public, nothing, or named domains only. */
export type NetworkPolicy =
  | { readonly blockAll: boolean; readonly allowDomains?: never }
  | { readonly allowDomains: readonly AllowedDomain[]; readonly blockAll?: never }

const maxDomains = 256
const maxRanges = 64
const maxNameLength = 253
const label = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/

/** Checks a policy and returns it with normalized names, frozen. Throws TypeError. */
export function normalizeNetwork(field: string, value: unknown): NetworkPolicy {
  const allowed = "use { blockAll: true }, { blockAll: false } or { allowDomains: [...] }"
  if (!isRecord(value)) refuse(field, `is ${show(value)}`, allowed)
  const policy = record(field, value, ["blockAll", "allowDomains"])
  const block = policy["blockAll"]
  const domains = policy["allowDomains"]
  if (block === undefined && domains === undefined) refuse(field, "is empty", allowed)
  if (block !== undefined && domains !== undefined) refuse(field, "has both blockAll and allowDomains", "give one of them")
  if (domains === undefined) {
    if (typeof block !== "boolean") refuse(`${field}.blockAll`, `is ${show(block)}`, "give true or false")
    return Object.freeze({ blockAll: block })
  }
  return Object.freeze({ allowDomains: normalizeDomains(`${field}.allowDomains`, domains) })
}

function normalizeDomains(field: string, value: unknown): readonly AllowedDomain[] {
  const entries = array(field, value)
  if (entries.length > maxDomains) refuse(field, `has ${entries.length} entries`, `at most ${maxDomains} are allowed`)
  const seen = new Set<string>()
  const result = entries.map((entry, i): AllowedDomain => {
    const where = `${field}[${i}]`
    const normalized = typeof entry === "string" ? normalizePattern(where, entry) : normalizeEntry(where, entry)
    const name = patternOf(normalized)
    if (seen.has(name)) refuse(where, `names ${show(name)} again`, "name each domain once")
    seen.add(name)
    return normalized
  })
  return Object.freeze(result)
}

function normalizeEntry(field: string, value: unknown): AllowedDomain {
  if (!isRecord(value)) refuse(field, `is ${show(value)}`, 'give a name such as "api.example.com" or { domain, ipRanges }')
  const entry = record(field, value, ["domain", "ipRanges"])
  if (typeof entry["domain"] !== "string") refuse(`${field}.domain`, `is ${show(entry["domain"])}`, 'give a name such as "git.corp.example"')
  const domain = normalizePattern(`${field}.domain`, entry["domain"])
  const ranges = array(`${field}.ipRanges`, entry["ipRanges"])
  if (ranges.length < 1 || ranges.length > maxRanges) refuse(`${field}.ipRanges`, `has ${ranges.length} entries`, `give 1 to ${maxRanges} IPv4 CIDRs such as "10.20.0.0/16"`)
  const seen = new Set<string>()
  ranges.forEach((range, i) => {
    const cidr = checkCidr(`${field}.ipRanges[${i}]`, range)
    if (seen.has(cidr)) refuse(`${field}.ipRanges[${i}]`, `repeats ${show(cidr)}`, "name each range once")
    seen.add(cidr)
  })
  return Object.freeze({ domain, ipRanges: Object.freeze([...seen]) })
}

/** Normalizes a name or `*.` pattern: lower case, one final dot dropped. */
export function normalizePattern(field: string, value: string): string {
  // Before lower case is made of it: that turns the Kelvin sign into an ordinary k.
  const ascii = /^[\x20-\x7e]*$/.test(value)
  const pattern = ascii ? value.toLowerCase().replace(/\.$/, "") : value
  const name = pattern.startsWith("*.") ? pattern.slice(2) : pattern
  if (name.includes("*")) refuse(field, `is ${show(value)}`, 'one wildcard is allowed, in front of at least two labels: "*.example.com"')
  if (pattern.length > maxNameLength) refuse(field, `is ${show(value)}, which has ${pattern.length} characters`, `at most ${maxNameLength} are allowed, a leading "*." included`)
  const problem = nameProblem(name)
  if (problem !== undefined) {
    refuse(field, `is ${show(value)}, which ${problem}`,
      'give a DNS name of at least two labels such as "api.example.com", international names as A-labels (xn--...), without scheme, port or path')
  }
  return pattern
}

/** What keeps a lower-case name from being a DNS host name with at least two labels; undefined if nothing does. */
export function nameProblem(name: string): string | undefined {
  // eslint-disable-next-line no-control-regex
  if (/[^\x00-\x7f]/.test(name)) return "is not ASCII"
  if (/\s/.test(name)) return "contains white space"
  if (/[:/?#@[\]]/.test(name)) return "is not a bare name"
  const labels = name.split(".")
  if (labels.every((part) => /^[0-9]+$/.test(part))) return "is an IP literal or a name of digits only"
  if (labels[labels.length - 1] === "localhost" || name === "localhost.localdomain") return "is a localhost name"
  if (labels.length < 2) return "has a single label"
  const bad = labels.find((part) => !label.test(part))
  if (bad !== undefined) return `has the invalid label ${show(bad)} (1 to 63 letters, digits or hyphens, no hyphen at either end)`
  return undefined
}

function checkCidr(field: string, value: unknown): string {
  const remedy = 'give a canonical IPv4 CIDR with its host bits zero, such as "10.20.0.0/16"'
  if (typeof value !== "string") refuse(field, `is ${show(value)}`, remedy)
  const match = /^(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})\/(0|[1-9][0-9]?)$/.exec(value)
  const octets = match?.slice(1, 5).map(Number) ?? []
  const bits = Number(match?.[5])
  if (!match || octets.some((octet) => octet > 255) || bits > 32) refuse(field, `is ${show(value)}`, remedy)
  const address = octets.reduce((sum, octet) => sum * 256 + octet, 0)
  if (address % 2 ** (32 - bits) !== 0) refuse(field, `is ${show(value)}, whose host bits are not zero`, remedy)
  return value
}

/** The name or pattern of an entry. */
export function patternOf(entry: AllowedDomain): string {
  return typeof entry === "string" ? entry : entry.domain
}

/** Whether a normalized pattern matches a lower-case host name: exactly, or at any depth below a wildcard's suffix. */
export function matchesPattern(pattern: string, host: string): boolean {
  return pattern.startsWith("*.") ? host.length > pattern.length - 1 && host.endsWith(pattern.slice(1)) : host === pattern
}
