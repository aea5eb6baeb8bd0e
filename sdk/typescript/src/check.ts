/**
 * Small checks shared by every authoring function. Each failure is a TypeError that names the field, says what is
 * wrong with it and what is allowed.
 */

/** Declared IDs of Agents, Templates, Triggers and Secrets. */
const declaredID = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/

/** Throws the one kind of error authoring code gets: field, problem, remedy. */
export function refuse(field: string, problem: string, allowed: string): never {
  throw new TypeError(`${field} ${problem}; ${allowed}`)
}

/** A short rendering of a wrong value for an error message. */
export function show(value: unknown): string {
  if (typeof value === "string") return JSON.stringify(value.length > 60 ? `${value.slice(0, 57)}...` : value)
  if (value === null || value === undefined || typeof value === "number" || typeof value === "boolean") return String(value)
  if (typeof value === "bigint") return `${value}n`
  if (typeof value === "function") return "a function"
  if (Array.isArray(value)) return "an array"
  return typeof value === "symbol" ? "a symbol" : "an object"
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value)
}

/** Requires an object whose keys are all in `allowed`. A key that holds `undefined` counts as absent. */
export function record(field: string, value: unknown, allowed: readonly string[]): Record<string, unknown> {
  if (!isRecord(value)) refuse(field, `is ${show(value)}, not an object`, `give an object with ${list(allowed)}`)
  const result: Record<string, unknown> = {}
  for (const key of Reflect.ownKeys(value)) {
    if (typeof key !== "string" || !allowed.includes(key)) {
      refuse(field, `has the unknown field ${typeof key === "string" ? JSON.stringify(key) : "[symbol]"}`, `allowed are ${list(allowed)}`)
    }
    const item = value[key]
    if (item !== undefined) result[key] = item
  }
  return result
}

export function list(words: readonly string[]): string {
  if (words.length < 2) return words.join("")
  return `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`
}

export function declaredId(field: string, value: unknown): string {
  if (typeof value === "string" && declaredID.test(value)) return value
  const problem = typeof value === "string" && value.trim() === "" ? "is blank" : `is ${show(value)}`
  refuse(field, problem, "use 1 to 128 letters, digits, dots, underscores or hyphens, beginning with a letter or digit")
}

/** A string with something in it besides whitespace, without NUL and with valid Unicode. */
export function text(field: string, value: unknown): string {
  if (typeof value !== "string") refuse(field, `is ${show(value)}, not a string`, "give a non-blank string")
  if (value.trim() === "") refuse(field, "is blank", "give a non-blank string")
  return plain(field, value)
}

/** Any string, also an empty one, without NUL and with valid Unicode. */
export function plain(field: string, value: unknown): string {
  if (typeof value !== "string") refuse(field, `is ${show(value)}, not a string`, "give a string")
  if (value.includes("\0")) refuse(field, "contains a NUL character", "remove it")
  if (!value.isWellFormed()) refuse(field, "contains a lone surrogate, which is not valid Unicode", "give valid Unicode text")
  return value
}

export function array(field: string, value: unknown): readonly unknown[] {
  if (!Array.isArray(value)) refuse(field, `is ${show(value)}, not an array`, "give an array")
  return value
}

/** Requires argv: at least one string, the first one not blank. */
export function argv(field: string, value: unknown): readonly string[] {
  if (!Array.isArray(value) || value.length === 0) {
    refuse(field, `is ${Array.isArray(value) ? "empty" : show(value)}`, 'give a non-empty array of strings such as ["apt-get", "update"]')
  }
  const words = value.map((word, i) => plain(`${field}[${i}]`, word))
  text(`${field}[0]`, words[0])
  return Object.freeze(words)
}

export function callback(field: string, value: unknown): (...args: never[]) => unknown {
  if (typeof value !== "function") refuse(field, `is ${show(value)}, not a function`, "give a function")
  return value as (...args: never[]) => unknown
}

/** Freezes a value built by us, all the way down through plain objects and arrays. */
export function deepFreeze<T>(value: T): T {
  if (typeof value === "object" && value !== null && !Object.isFrozen(value)) {
    const proto: unknown = Object.getPrototypeOf(value)
    if (proto === Object.prototype || proto === Array.prototype || proto === null) {
      Object.freeze(value)
      for (const key of Object.keys(value)) deepFreeze((value as Record<string, unknown>)[key])
    }
  }
  return value
}
