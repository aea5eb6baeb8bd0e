import type { CancelReason } from "@helmr/sdk"
import { ContentError } from "@helmr/sdk/internal"

/** A call on a Turn that failed for another reason than its content. */
export class TurnCallError extends Error {
  constructor(readonly code: string, message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = "TurnCallError"
  }
}

/** The reason of an aborted `turn.signal` or `ctx.signal`. */
export class AbortError extends Error {
  constructor(readonly code: CancelReason | "closed", what: string) {
    super(`${what}: ${code}`)
    this.name = "AbortError"
  }
}

const contentCodes = ["invalid_arguments", "content_limit_exceeded", "content_kind_unsupported", "answer_invalid"] as const

/** The error of an operation that the server refused. */
export function refusal(error: { readonly code: string; readonly message?: string }, what: string): Error {
  const code = contentCodes.find((known) => known === error.code)
  const message = error.message ?? `${what} was refused (${error.code})`
  return code === undefined ? new TurnCallError(error.code, message) : new ContentError(code, message)
}

const longestMessage = 8 * 1024

/** What people are told about a value that Agent code threw. */
export function messageOf(thrown: unknown): string {
  let text: string
  try {
    text = thrown instanceof Error ? thrown.message || thrown.name : String(thrown)
  } catch {
    text = "a value that cannot be shown was thrown"
  }
  return text.length > longestMessage ? `${text.slice(0, longestMessage - 3)}...`.toWellFormed() : text.toWellFormed()
}

/** Prints what Agent code threw to its log, with stack and causes. */
export function report(what: string, thrown: unknown): void {
  console.error(`helmr: ${what}:`, thrown)
}
