/**
 * Marks that tell our values apart from look-alikes. They are registered symbols, so that a value made by one copy of
 * the SDK is recognised by another: a bundled program and the host that runs it each carry their own.
 */

const brand = Symbol.for("@helmr/sdk.brand")

/** What a marked value is. */
export type Brand = "agent" | "template" | "image" | "source" | "trigger" | "builder" | "ContentError" | "MessageRejected" | "HelmrError"

/** Marks a value, invisibly to spread, `Object.keys` and JSON. */
export function mark<T extends object>(value: T, kind: Brand): T {
  Object.defineProperty(value, brand, { value: kind })
  return value
}

/** Whether the value, or its prototype, was marked as this kind by any copy of the SDK. */
export function isMarked(value: unknown, kind: Brand): boolean {
  return (typeof value === "object" || typeof value === "function") && value !== null
    && (value as Record<symbol, unknown>)[brand] === kind
}

/** `instanceof` for a marked class: by mark for the class itself, by prototype as usual for classes derived from it. */
export function hasInstance(asked: unknown, marked: unknown, value: unknown, kind: Brand): boolean {
  return asked === marked ? isMarked(value, kind) : Function.prototype[Symbol.hasInstance].call(asked, value)
}
