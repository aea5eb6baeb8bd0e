import { isMarked, mark } from "./brand.js"
import { callback, declaredId, record, refuse, show } from "./check.js"
import { milliseconds, millisecondsOrNever, type Duration, type DurationOrNever } from "./duration.js"
import { imageSteps, isImage, type ImageBuilder } from "./image.js"
import { normalizeNetwork, type NetworkPolicy } from "./network.js"
import { checkBindingsFit, normalizeBindings, type SecretBinding } from "./secrets.js"

/** What `prepare` works with. */
export interface PrepareContext {
  readonly signal: AbortSignal
  /** Runs a shell command (string) or a program (argv); rejects when it does not exit with 0. */
  exec(command: string | readonly string[], options?: { readonly cwd?: string; readonly env?: Readonly<Record<string, string>> }): Promise<void>
}

/** Size of a Computer. */
export interface TemplateResources {
  /** Number of CPUs; fractions are rounded up to whole ones. */
  readonly cpu: number
  /** `"<n>MiB"` or `"<n>GiB"`. */
  readonly memory: string
  /** Same form as memory. */
  readonly disk?: string
}

/** The recipe of a Computer. */
export interface TemplateConfig {
  /** Declared ID: letters, digits, `.`, `_`, `-`, at most 128. */
  readonly id: string
  readonly image: ImageBuilder
  readonly resources: TemplateResources
  /** Outbound network at run time; everything public when left out. */
  readonly network?: NetworkPolicy
  /** Runs once to prepare the disk that new Computers start with. */
  readonly prepare?: (prepare: PrepareContext) => void | Promise<void>
  /** Outbound network during `prepare`; `network` when left out. */
  readonly prepareNetwork?: NetworkPolicy
  /** Secrets that `prepare` gets. */
  readonly prepareSecrets?: readonly SecretBinding[]
  /** How often to renew the prepared disk. */
  readonly refresh?: { readonly every: Duration }
  /** Secrets of Sessions and Commands. */
  readonly secrets?: readonly SecretBinding[]
  /** How long an unused Computer is kept; `"never"` deletes none and is the default. */
  readonly deleteAfterUnused?: DurationOrNever
}

/** A value made by {@link template}. */
export interface TemplateDefinition extends TemplateConfig {
  readonly kind: "template"
}

const fields = ["id", "image", "resources", "network", "prepare", "prepareNetwork", "prepareSecrets", "refresh", "secrets", "deleteAfterUnused"] as const

/** Declares a Template. Throws TypeError when a field is missing, unknown or invalid; the message says which and why. */
export function template(config: TemplateConfig): TemplateDefinition {
  const given = record("template", config, fields)
  const id = declaredId("template: id", given["id"])
  const where = `template ${show(id)}:`
  if (!isImage(given["image"])) refuse(`${where} image`, given["image"] === undefined ? "is missing" : `is ${show(given["image"])}`, 'use a value made with image(key), such as image("app").from("node:24-bookworm")')
  const definition: Record<string, unknown> = { kind: "template", id, image: given["image"], resources: resources(`${where} resources`, given["resources"]) }
  const network = given["network"] === undefined ? { blockAll: false } : normalizeNetwork(`${where} network`, given["network"])
  if (given["network"] !== undefined) definition["network"] = network
  preparation(where, given, definition, network)
  if (given["secrets"] !== undefined) {
    const secrets = bindings(`${where} secrets`, given["secrets"], given["image"])
    checkBindingsFit(`${where} secrets`, secrets, network, `${where} network`)
    definition["secrets"] = secrets
  }
  if (given["deleteAfterUnused"] !== undefined) {
    millisecondsOrNever(`${where} deleteAfterUnused`, given["deleteAfterUnused"])
    definition["deleteAfterUnused"] = given["deleteAfterUnused"]
  }
  return Object.freeze(mark(definition, "template")) as unknown as TemplateDefinition
}

export function isTemplate(value: unknown): value is TemplateDefinition {
  return isMarked(value, "template")
}

function preparation(where: string, given: Record<string, unknown>, definition: Record<string, unknown>, network: NetworkPolicy): void {
  const { prepare, prepareNetwork, prepareSecrets, refresh } = given
  if (prepare !== undefined) definition["prepare"] = callback(`${where} prepare`, prepare)
  if (prepareNetwork !== undefined) {
    definition["prepareNetwork"] = normalizeNetwork(`${where} prepareNetwork`, prepareNetwork)
    if (prepare === undefined) refuse(`${where} prepareNetwork`, "is given without prepare", "leave it out or add a prepare callback")
  }
  if (prepareSecrets !== undefined) {
    const secrets = bindings(`${where} prepareSecrets`, prepareSecrets, given["image"] as ImageBuilder)
    if (prepare === undefined && secrets.length > 0) refuse(`${where} prepareSecrets`, "has entries without prepare", "leave it out or add a prepare callback")
    const [policy, name] = definition["prepareNetwork"] === undefined ? [network, "network"] : [definition["prepareNetwork"] as NetworkPolicy, "prepareNetwork"]
    checkBindingsFit(`${where} prepareSecrets`, secrets, policy, `${where} ${name}`)
    definition["prepareSecrets"] = secrets
  }
  if (refresh !== undefined) {
    const every = record(`${where} refresh`, refresh, ["every"])["every"]
    milliseconds(`${where} refresh.every`, every)
    definition["refresh"] = Object.freeze({ every })
  }
}

function bindings(field: string, value: unknown, image: ImageBuilder): readonly SecretBinding[] {
  const result = normalizeBindings(field, value)
  const set = new Set(imageSteps(image).flatMap((step) => (step.op === "env" ? [step.key] : [])))
  result.forEach((binding, i) => {
    if ("env" in binding && set.has(binding.env.name)) {
      refuse(`${field}[${i}].env.name`, `is ${show(binding.env.name)}, which the image sets too`, "rename one of them")
    }
  })
  return result
}

function resources(field: string, value: unknown): TemplateResources {
  if (value === undefined) refuse(field, "is missing", 'give { cpu: 1, memory: "1GiB" }')
  const given = record(field, value, ["cpu", "memory", "disk"])
  const cpu = given["cpu"]
  if (typeof cpu !== "number" || !Number.isFinite(cpu) || cpu <= 0 || !Number.isSafeInteger(Math.ceil(cpu) * 1000)) {
    refuse(`${field}.cpu`, cpu === undefined ? "is missing" : `is ${show(cpu)}`, "give a positive number of CPUs such as 2")
  }
  const memory = given["memory"]
  mebibytes(`${field}.memory`, memory)
  const disk = given["disk"]
  if (disk !== undefined) mebibytes(`${field}.disk`, disk)
  return Object.freeze({ cpu, memory: memory as string, ...(disk === undefined ? {} : { disk: disk as string }) })
}

/** MiB of a size such as `"512MiB"` or `"2GiB"`. Throws TypeError for anything else. */
export function mebibytes(field: string, value: unknown): number {
  const match = typeof value === "string" ? /^([1-9][0-9]*)(MiB|GiB)$/.exec(value) : null
  const result = match ? Number(match[1]) * (match[2] === "GiB" ? 1024 : 1) : Number.NaN
  if (!Number.isSafeInteger(result * 1024 * 1024)) {
    refuse(field, value === undefined ? "is missing" : `is ${show(value)}, not a size`, 'use a positive whole number with MiB or GiB such as "2GiB"')
  }
  return result
}
