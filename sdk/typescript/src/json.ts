/** A value that JSON can carry. */
export type JsonValue = null | boolean | number | string | readonly JsonValue[] | { readonly [key: string]: JsonValue }

/** Thrown by {@link encodeJson}: `path` leads to the offending value. */
export class JsonProblem extends Error {
  constructor(readonly path: string, readonly problem: string) {
    super(`${path === "" ? "the value" : `the value at ${path}`} ${problem}`)
    this.name = "JsonProblem"
  }
}

const maxDepth = 1000

/**
 * Encodes a value as JSON text that says what the value says. Stricter than JSON.stringify: cycles, numbers that are
 * not finite, lone surrogates and values that JSON would silently change (functions, symbols, bigints, Maps, Sets,
 * undefined in arrays) throw {@link JsonProblem}. Properties that hold undefined are left out and `toJSON` is honoured,
 * as usual. The length of the text in UTF-8 is the size of the value in canonical JSON: only the order of keys differs.
 */
export function encodeJson(value: unknown): string {
  const plain = simplify(value, "", [])
  return JSON.stringify(plain)
}

function simplify(value: unknown, path: string, above: object[]): JsonValue {
  switch (typeof value) {
    case "string":
      if (!value.isWellFormed()) throw new JsonProblem(path, "is not valid Unicode: it contains a lone surrogate")
      return value
    case "boolean":
      return value
    case "number":
      if (!Number.isFinite(value)) throw new JsonProblem(path, `is ${value}, and JSON has finite numbers only`)
      return value
    case "object":
      return value === null ? null : simplifyObject(value, path, above)
    default:
      throw new JsonProblem(path, value === undefined ? "is undefined" : `is a ${typeof value}, which JSON cannot carry`)
  }
}

function simplifyObject(value: object, path: string, above: object[]): JsonValue {
  if (above.includes(value)) throw new JsonProblem(path, "refers back to an object that contains it")
  if (above.length >= maxDepth) throw new JsonProblem(path, `is nested more than ${maxDepth} levels deep`)
  above.push(value)
  try {
    if (Array.isArray(value)) {
      const items: JsonValue[] = []
      for (let i = 0; i < value.length; i++) items.push(simplify(value[i], `${path}[${i}]`, above))
      return items
    }
    const { toJSON } = value as { toJSON?: unknown }
    if (typeof toJSON === "function") return simplify(toJSON.call(value), path, above)
    const tag = Object.prototype.toString.call(value)
    if (tag !== "[object Object]") {
      throw new JsonProblem(path, `is ${/^\[object [AEIOU]/.test(tag) ? "an" : "a"} ${tag.slice(8, -1)}, which JSON cannot carry`)
    }
    const result: Record<string, JsonValue> = {}
    for (const key of Object.keys(value)) {
      const item = (value as Record<string, unknown>)[key]
      if (item === undefined) continue
      if (!key.isWellFormed()) throw new JsonProblem(path, "has a key that is not valid Unicode")
      set(result, key, simplify(item, path === "" ? key : `${path}.${key}`, above))
    }
    return result
  } finally {
    above.pop()
  }
}

/** Sets an own property also when the key is `__proto__`. */
function set(target: Record<string, JsonValue>, key: string, value: JsonValue): void {
  if (key === "__proto__") Object.defineProperty(target, key, { value, enumerable: true, configurable: true, writable: true })
  else target[key] = value
}

const encoder = new TextEncoder()

/** Length of a text in UTF-8 bytes. */
export function utf8Length(text: string): number {
  return encoder.encode(text).byteLength
}
