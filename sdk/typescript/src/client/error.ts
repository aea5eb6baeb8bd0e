import { hasInstance, mark } from "../brand.js"

/**
 * A call that failed. `code` is stable, the message is for people. A server that could not be reached gives status 0
 * and code `connection_failed`, with the cause. `instanceof` works across copies of the SDK.
 */
export class HelmrError extends Error {
  /** HTTP status, 0 without an answer. */
  readonly status: number
  readonly code: string
  /** The server's `X-Request-Id`; name it when you ask for help. */
  readonly requestId: string | undefined
  readonly details: Readonly<Record<string, unknown>> | undefined

  constructor(message: string, fields: { status: number; code: string; requestId?: string | undefined; details?: Record<string, unknown> | undefined }, options?: ErrorOptions) {
    super(message, options)
    this.name = "HelmrError"
    this.status = fields.status
    this.code = fields.code
    this.requestId = fields.requestId
    this.details = fields.details
  }

  static override [Symbol.hasInstance](value: unknown): boolean {
    return hasInstance(this, HelmrError, value, "HelmrError")
  }
}
mark(HelmrError.prototype, "HelmrError")
