/**
 * A promise that knows whether anybody looks at it. What we hand to Agent code and nobody awaits must not bring the
 * process down when it rejects; the drain of the Turn decides what it means.
 */
export class Tracked<T> extends Promise<T> {
  /** Somebody attached a handler: `await`, `then`, `catch`, `Promise.all` and so on. */
  observed = false
  state: "pending" | "fulfilled" | "rejected" = "pending"
  reason: unknown

  static override get [Symbol.species](): PromiseConstructor {
    return Promise
  }

  override then<A = T, B = never>(onfulfilled?: ((value: T) => A | PromiseLike<A>) | null, onrejected?: ((reason: unknown) => B | PromiseLike<B>) | null): Promise<A | B> {
    this.observed = true
    return super.then(onfulfilled, onrejected)
  }
}

export interface Deferred<T> {
  readonly promise: Tracked<T>
  resolve(value: T): void
  reject(reason: unknown): void
}

/** A tracked promise with its ends. Only the first call of resolve or reject counts. */
export function tracked<T>(): Deferred<T> {
  let fulfil!: (value: T) => void
  let refuse!: (reason: unknown) => void
  const promise = new Tracked<T>((resolve, reject) => {
    fulfil = resolve
    refuse = reject
  })
  const settle = (state: "fulfilled" | "rejected", reason?: unknown): boolean => {
    if (promise.state !== "pending") return false
    promise.state = state
    promise.reason = reason
    return true
  }
  return {
    promise,
    resolve(value) {
      if (settle("fulfilled")) fulfil(value)
    },
    reject(reason) {
      if (!settle("rejected", reason)) return
      // Attached behind the back of `then`, so that it does not count as observation.
      Promise.prototype.then.call(promise, undefined, () => undefined)
      refuse(reason)
    },
  }
}
