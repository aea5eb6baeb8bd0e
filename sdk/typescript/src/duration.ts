import { refuse, show } from "./check.js"

/** `"30m"`, `"7d"`, `"250ms"`: a positive whole number with ms, s, m, h or d; or a positive number of milliseconds. */
export type Duration = `${number}${"ms" | "s" | "m" | "h" | "d"}` | number

/** A duration, or `"never"`. */
export type DurationOrNever = Duration | "never"

const units = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const
const form = /^([1-9][0-9]*)(ms|s|m|h|d)$/

/** Milliseconds of a duration, rounded up to a whole one. Throws TypeError for anything that is not a duration. */
export function milliseconds(field: string, value: unknown): number {
  let result = Number.NaN
  if (typeof value === "number") {
    result = Math.ceil(value)
  } else if (typeof value === "string") {
    const match = form.exec(value)
    if (match) result = Number(match[1]) * units[match[2] as keyof typeof units]
  }
  if (!Number.isSafeInteger(result) || result <= 0) {
    refuse(field, `is ${show(value)}, not a duration`,
      'use a positive whole number with ms, s, m, h or d such as "30m", or a positive number of milliseconds')
  }
  return result
}

/** Like {@link milliseconds}; `"never"` gives null. */
export function millisecondsOrNever(field: string, value: unknown): number | null {
  if (value === "never") return null
  if (typeof value === "number" || (typeof value === "string" && form.test(value))) return milliseconds(field, value)
  return refuse(field, `is ${show(value)}, neither a duration nor "never"`,
    'use a positive whole number with ms, s, m, h or d such as "7d", a positive number of milliseconds, or "never"')
}
