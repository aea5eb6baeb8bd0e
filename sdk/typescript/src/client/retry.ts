import { HelmrError } from "./error.js"

const longestWait = 5_000
const patience = 2 * 60_000

/**
 * Paces the renewal of an observation (a stream, a long wait) that broke: backoff from 100 ms doubling to 5 s with
 * jitter, given up after two minutes without success. It serves observations only: it never repeats a change.
 */
export class Renewal {
  private failures = 0
  private failingSince: number | undefined

  /** The server answered; the next failure begins anew. */
  succeeded(): void {
    this.failures = 0
    this.failingSince = undefined
  }

  /** Waits before the next attempt; throws the error when it is none that passes, or for too long already. */
  async failed(error: unknown, signal: AbortSignal | undefined): Promise<void> {
    this.failingSince ??= Date.now()
    if (!passes(error) || Date.now() - this.failingSince > patience) throw error
    const asked = error instanceof HelmrError ? Number(error.details?.["retryAfter"] ?? 0) * 1000 : 0
    const backoff = Math.min(longestWait, 100 * 2 ** this.failures++)
    await sleep(Math.max(asked, backoff * (0.5 + Math.random() / 2)), signal)
  }
}

function passes(error: unknown): boolean {
  return error instanceof HelmrError && [0, 429, 502, 503, 504].includes(error.status)
}

function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason)
    const stop = (): void => {
      clearTimeout(timer)
      reject(signal?.reason)
    }
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop)
      resolve()
    }, ms)
    signal?.addEventListener("abort", stop, { once: true })
  })
}
