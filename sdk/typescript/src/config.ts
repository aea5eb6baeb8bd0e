import { array, deepFreeze, isRecord, list, plain, record, refuse, show, text } from "./check.js"
import { isBuilder, type Builder } from "./builder.js"
import { projectPath } from "./image.js"

/** Content of `helmr.config.ts`. */
export interface HelmrConfig {
  /** Directories to index, from the project root. Default `["agents"]`. */
  readonly dirs?: readonly string[]
  /** Globs left out of discovery: `*`, `?`, and `**` as a whole segment. */
  readonly ignorePatterns?: readonly string[]
  readonly build?: {
    /** Prepares the build environment. */
    readonly builder?: Builder
    /** Installs dependencies, in place of the detected package manager. */
    readonly installCommand?: string
    /** Packages installed beside the bundle instead of being bundled. */
    readonly external?: readonly string[]
    /** Globs of files shipped under their own paths. */
    readonly assets?: readonly string[]
    /** Names of host environment variables that dependency installation can read. */
    readonly secrets?: readonly string[]
  }
}

/** Checks and freezes the configuration. Throws TypeError when a key is unknown or a value invalid. */
export function defineConfig(config: HelmrConfig): HelmrConfig {
  return checkConfig(config)
}

/** Checks what `helmr.config.ts` exports by default, also when it was not made by {@link defineConfig}. */
export function checkConfig(value: unknown): HelmrConfig {
  if (!isPlain(value)) refuse("helmr.config.ts: the default export", `is ${show(value)}`, "export default defineConfig({ ... }); an empty object is fine")
  const given = plainRecord("config", value, ["dirs", "ignorePatterns", "build"])
  const result: Record<string, unknown> = {}
  if (given["dirs"] !== undefined) result["dirs"] = dirs("config: dirs", given["dirs"])
  if (given["ignorePatterns"] !== undefined) result["ignorePatterns"] = globs("config: ignorePatterns", given["ignorePatterns"])
  if (given["build"] !== undefined) result["build"] = buildConfig("config: build", given["build"])
  return deepFreeze(result)
}

function buildConfig(field: string, value: unknown): object {
  const given = plainRecord(field, value, ["builder", "installCommand", "external", "assets", "secrets"])
  const result: Record<string, unknown> = {}
  if (given["builder"] !== undefined) {
    if (!isBuilder(given["builder"])) refuse(`${field}.builder`, `is ${show(given["builder"])}`, "use a value made with builder()")
    result["builder"] = given["builder"]
  }
  if (given["installCommand"] !== undefined) result["installCommand"] = text(`${field}.installCommand`, given["installCommand"])
  if (given["external"] !== undefined) result["external"] = names(`${field}.external`, given["external"], /^(@[a-z0-9~-][a-z0-9._~-]*\/)?[a-z0-9~-][a-z0-9._~-]*$/, 'a package name such as "sharp"')
  if (given["assets"] !== undefined) result["assets"] = globs(`${field}.assets`, given["assets"])
  if (given["secrets"] !== undefined) result["secrets"] = names(`${field}.secrets`, given["secrets"], /^[A-Za-z_][A-Za-z0-9_]*$/, 'the name of an environment variable such as "NPM_TOKEN"')
  return result
}

function dirs(field: string, value: unknown): readonly string[] {
  const entries = array(field, value)
  if (entries.length === 0) refuse(field, "is empty", 'name at least one directory such as "agents"')
  return unique(field, entries.map((entry, i) => projectPath(`${field}[${i}]`, entry)))
}

function names(field: string, value: unknown, form: RegExp, what: string): readonly string[] {
  return unique(field, array(field, value).map((entry, i) => {
    if (typeof entry !== "string" || !form.test(entry)) refuse(`${field}[${i}]`, `is ${show(entry)}`, `give ${what}`)
    return entry
  }))
}

function globs(field: string, value: unknown): readonly string[] {
  return array(field, value).map((entry, i) => glob(`${field}[${i}]`, entry))
}

function glob(field: string, value: unknown): string {
  const pattern = text(field, value)
  const allowed = "allowed are * and ? within a name and ** as a whole segment, in a path from the project root"
  if (pattern.startsWith("!")) refuse(field, `is ${show(pattern)}, a negation`, allowed)
  if (/[[\]{}\\]/.test(pattern)) refuse(field, `is ${show(pattern)}, which contains brackets, braces or a backslash`, allowed)
  if (pattern.startsWith("/") || pattern.endsWith("/")) refuse(field, `is ${show(pattern)}, which begins or ends with /`, allowed)
  for (const segment of pattern.split("/")) {
    if (segment === "" || segment === "." || segment === "..") refuse(field, `is ${show(pattern)}, which has the segment ${show(segment)}`, allowed)
    if (segment.includes("**") && segment !== "**") refuse(field, `is ${show(pattern)}, where ** is part of a name`, allowed)
  }
  return pattern
}

function unique(field: string, entries: readonly string[]): readonly string[] {
  entries.forEach((entry, i) => {
    if (entries.indexOf(entry) !== i) refuse(`${field}[${i}]`, `repeats ${show(entry)}`, "name each one once")
  })
  return entries
}

function isPlain(value: unknown): value is Record<string, unknown> {
  if (!isRecord(value)) return false
  const proto: unknown = Object.getPrototypeOf(value)
  // A plain object of another realm has a prototype whose own prototype is null.
  return proto === null || Object.getPrototypeOf(proto) === null
}

/** Like `record`, for plain objects without getters only. */
function plainRecord(field: string, value: unknown, allowed: readonly string[]): Record<string, unknown> {
  if (!isPlain(value)) refuse(field, `is ${show(value)}, not a plain object`, `give an object with ${list(allowed)}`)
  for (const [key, property] of Object.entries(Object.getOwnPropertyDescriptors(value))) {
    if (property.get !== undefined || property.set !== undefined) refuse(`${field}.${plain("config: a key", key)}`, "is a getter or setter", "give a plain value")
  }
  return record(field, value, allowed)
}
