import { array, declaredId, isRecord, record, refuse, show } from "./check.js"
import { matchesPattern, nameProblem, patternOf, type NetworkPolicy } from "./network.js"

/** Places a Secret on a Computer. It holds the Secret's stable ID, never a value. */
export type SecretBinding = { readonly secret: string } & (
  | { readonly env: { readonly name: string; readonly mode: "protected"; readonly allowedOrigins: readonly string[] } }
  | { readonly env: { readonly name: string; readonly mode: "raw" } }
  | { readonly file: { readonly path: string } }
)

const maxBindings = 64
const maxOriginsOfBinding = 16
const maxOrigins = 256
const maxPathBytes = 4096

const reservedNames = new Set([
  "NODE_OPTIONS", "NODE_PATH", "NODE_ICU_DATA", "OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES", "GCONV_PATH", "LOCPATH",
])
const reservedInAnyCase = new Set(["SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "NODE_USE_SYSTEM_CA"])
const reservedPaths = ["/dev", "/proc", "/sys", "/opt/helmr", "/run/helmr", "/var/lib/helmr"]

/** Checks bindings and returns them normalized (origins sorted, each once) and frozen. Throws TypeError. */
export function normalizeBindings(field: string, value: unknown): readonly SecretBinding[] {
  const entries = array(field, value)
  if (entries.length > maxBindings) refuse(field, `has ${entries.length} bindings`, `at most ${maxBindings} are allowed`)
  const result = entries.map((entry, i) => normalizeBinding(`${field}[${i}]`, entry))
  checkTogether(field, result)
  return Object.freeze(result)
}

function normalizeBinding(field: string, value: unknown): SecretBinding {
  if (!isRecord(value)) refuse(field, `is ${show(value)}`, "give { secret, env } or { secret, file }")
  const binding = record(field, value, ["secret", "env", "file"])
  const secret = declaredId(`${field}.secret`, binding["secret"])
  const { env, file } = binding
  if ((env === undefined) === (file === undefined)) {
    refuse(field, env === undefined ? "has neither env nor file" : "has both env and file", "give exactly one of them")
  }
  if (file !== undefined) {
    const path = filePath(`${field}.file.path`, record(`${field}.file`, file, ["path"])["path"])
    return Object.freeze({ secret, file: Object.freeze({ path }) })
  }
  return Object.freeze({ secret, env: normalizeEnv(`${field}.env`, env) }) as SecretBinding
}

function normalizeEnv(field: string, value: unknown): object {
  const env = record(field, value, ["name", "mode", "allowedOrigins"])
  const name = envName(`${field}.name`, env["name"])
  const { mode, allowedOrigins } = env
  if (mode === "raw") {
    if (allowedOrigins !== undefined) refuse(`${field}.allowedOrigins`, 'is given with mode "raw"', 'leave it out, or use mode "protected"')
    return Object.freeze({ name, mode })
  }
  if (mode !== "protected") refuse(`${field}.mode`, `is ${show(mode)}`, 'name it: "protected" or "raw"')
  const origins = new Set(array(`${field}.allowedOrigins`, allowedOrigins).map((origin, i) => normalizeOrigin(`${field}.allowedOrigins[${i}]`, origin)))
  if (origins.size === 0) refuse(`${field}.allowedOrigins`, "is empty", 'name at least one origin such as "https://api.example.com"')
  if (origins.size > maxOriginsOfBinding) refuse(`${field}.allowedOrigins`, `has ${origins.size} different origins`, `at most ${maxOriginsOfBinding} are allowed`)
  return Object.freeze({ name, mode, allowedOrigins: Object.freeze([...origins].sort()) })
}

function envName(field: string, value: unknown): string {
  if (typeof value !== "string" || !/^[A-Za-z_][A-Za-z0-9_]*$/.test(value)) {
    refuse(field, `is ${show(value)}`, "use letters, digits and underscores, not beginning with a digit")
  }
  if (value.startsWith("HELMR_") || value.startsWith("LD_") || reservedNames.has(value) || reservedInAnyCase.has(value.toUpperCase())) {
    refuse(field, `is ${show(value)}, which the platform or the loader reserves`, "choose another name")
  }
  return value
}

function filePath(field: string, value: unknown): string {
  if (typeof value !== "string" || !value.startsWith("/")) refuse(field, `is ${show(value)}`, 'give an absolute path such as "/etc/app/token"')
  if (value.includes("\0")) refuse(field, "contains a NUL character", "remove it")
  if (!value.isWellFormed()) refuse(field, "is not valid Unicode", "give valid Unicode text")
  if (new TextEncoder().encode(value).byteLength > maxPathBytes) refuse(field, "is too long", `at most ${maxPathBytes} bytes are allowed`)
  const segments = value.slice(1).split("/")
  if (value === "/" || segments.some((segment) => segment === "" || segment === "." || segment === "..")) {
    refuse(field, `is ${show(value)}`, 'give a file below / without empty, "." or ".." segments')
  }
  const reserved = reservedPaths.find((path) => value === path || value.startsWith(`${path}/`))
  if (reserved !== undefined) refuse(field, `is ${show(value)}, at or under ${reserved}`, `not allowed are ${reservedPaths.join(", ")}`)
  return value
}

/** An HTTPS origin with a lower-case DNS host; `:443` and a final `/` are dropped. */
export function normalizeOrigin(field: string, value: unknown): string {
  const remedy = 'give an HTTPS origin such as "https://api.example.com": lower-case DNS name, no wildcard, IP address, user, path, query or fragment'
  const match = typeof value === "string" ? /^https:\/\/([^/:?#@]+)(?::([1-9][0-9]{0,4}))?\/?$/.exec(value) : null
  const host = match?.[1] ?? ""
  const port = Number(match?.[2] ?? 443)
  if (!match || host !== host.toLowerCase() || port > 65535 || host.length > 253 || nameProblem(host) !== undefined) {
    refuse(field, `is ${show(value)}, not an allowed origin`, remedy)
  }
  return `https://${host}${port === 443 ? "" : `:${port}`}`
}

function checkTogether(field: string, bindings: readonly SecretBinding[]): void {
  const names = new Set<string>()
  const paths: string[] = []
  let origins = 0
  bindings.forEach((binding, i) => {
    if ("file" in binding) {
      const { path } = binding.file
      const other = paths.find((seen) => seen === path || seen.startsWith(`${path}/`) || path.startsWith(`${seen}/`))
      if (other !== undefined) refuse(`${field}[${i}].file.path`, `is ${show(path)}, which is equal to or nested with ${show(other)}`, "give paths that lie apart")
      paths.push(path)
      return
    }
    if (names.has(binding.env.name)) refuse(`${field}[${i}].env.name`, `is ${show(binding.env.name)}, which an earlier binding sets`, "bind each name once")
    names.add(binding.env.name)
    if (binding.env.mode === "protected") origins += binding.env.allowedOrigins.length
  })
  if (origins > maxOrigins) refuse(field, `has ${origins} allowed origins`, `at most ${maxOrigins} are allowed on one Computer`)
}

/** Requires that protected bindings can work under the policy of their phase. Throws TypeError. */
export function checkBindingsFit(field: string, bindings: readonly SecretBinding[], policy: NetworkPolicy, policyField: string): void {
  bindings.forEach((binding, i) => {
    if (!("env" in binding) || binding.env.mode !== "protected") return
    const where = `${field}[${i}]`
    if (policy.blockAll === true) refuse(where, `is protected, but ${policyField} blocks all connections`, 'allow its origins, or use mode "raw"')
    if (policy.allowDomains === undefined) return
    for (const origin of binding.env.allowedOrigins) {
      const [host = "", port] = origin.slice("https://".length).split(":")
      if (port !== undefined) refuse(`${where}.env.allowedOrigins`, `has ${show(origin)}, but with ${policyField}.allowDomains only port 443 can be reached`, "drop the port")
      if (!policy.allowDomains.some((entry) => matchesPattern(patternOf(entry), host))) {
        refuse(`${where}.env.allowedOrigins`, `has ${show(origin)}, which no entry of ${policyField}.allowDomains matches`, `add ${show(host)} there`)
      }
    }
  })
}
