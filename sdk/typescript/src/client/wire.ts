/** Names on the wire are snake_case, names in the SDK camelCase. JSON that belongs to users is never touched. */

/** Converts the names of an answer. The values of the keys in `opaque` (wire names) are users' JSON: taken as they are. */
export function fromWire(value: unknown, opaque: ReadonlySet<string>): unknown {
  if (Array.isArray(value)) return value.map((item) => fromWire(item, opaque))
  if (typeof value !== "object" || value === null) return value
  const result: Record<string, unknown> = {}
  for (const [key, item] of Object.entries(value)) result[camel(key)] = opaque.has(key) ? item : fromWire(item, opaque)
  return result
}

/** Nothing of this answer is users' JSON. */
export const noneOpaque: ReadonlySet<string> = new Set<string>()

function camel(key: string): string {
  return key.replace(/_mib$/, "MiB").replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase())
}

/** Leaves out undefined values, so that they are not sent. */
export function given(fields: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined))
}
