import type { CancelReason } from "@helmr/sdk"
import { AbortError, report } from "./errors.js"
import { asCallback } from "./inbox.js"

type Callback = (event: { readonly reason: CancelReason }) => unknown

/** The abort of one Turn: its signal and its cleanup callbacks. */
export class Cancellation {
  private readonly controller = new AbortController()
  private readonly callbacks: Callback[] = []
  private running = 0
  private waiters: (() => void)[] = []
  /** Why the Turn has to stop; undefined as long as it has not. */
  reason: CancelReason | undefined
  /** A callback threw or rejected. */
  failed = false

  constructor(private readonly turn: object) {}

  get signal(): AbortSignal {
    return this.controller.signal
  }

  register(callback: Callback): void {
    if (typeof callback !== "function") throw new TypeError("turn.onCancel takes a function ({ reason }) => ...")
    if (this.reason === undefined) this.callbacks.push(callback)
    else this.start(callback, this.reason)
  }

  /** Starts all callbacks and aborts the signal. Only the first call counts. */
  abort(reason: CancelReason): void {
    if (this.reason !== undefined) return
    this.reason = reason
    for (const callback of this.callbacks.splice(0)) this.start(callback, reason)
    this.controller.abort(new AbortError(reason, "the Turn has to stop"))
  }

  /** Resolves when all callbacks have settled. */
  settled(): Promise<void> {
    if (this.running === 0) return Promise.resolve()
    return new Promise((resolve) => this.waiters.push(resolve))
  }

  /** Whether a callback failed or is still running. */
  get uncertain(): boolean {
    return this.failed || this.running > 0
  }

  private start(callback: Callback, reason: CancelReason): void {
    this.running++
    asCallback(this.turn, () => callback({ reason }))
      .catch((error: unknown) => {
        this.failed = true
        report("a cancellation callback failed", error)
      })
      .finally(() => {
        this.running--
        if (this.running === 0) for (const resolve of this.waiters.splice(0)) resolve()
      })
  }
}
