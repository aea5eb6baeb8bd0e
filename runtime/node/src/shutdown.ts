import { getEventListeners } from "node:events"
import { report } from "./errors.js"

type Listener = (this: AbortSignal, event: Event) => unknown
type Change = (type: string, listener: Listener, options?: unknown) => void

/** `ctx.signal`, with the means to abort it and to learn when its handlers are done. */
export interface ShutdownSignal {
  readonly signal: AbortSignal
  /** Aborts; resolves when the handlers of the signal have settled. */
  abort(reason: unknown): Promise<void>
}

/** What handlers without a promise get for work they have begun, such as telling a child process to end. */
const grace = 250

/**
 * Event targets drop what their listeners return. Here an async listener of "abort" is awaited, so that an Agent can
 * put its affairs in order at shutdown; the stop deadline that the guest enforces bounds it.
 */
export function shutdownSignal(): ShutdownSignal {
  const controller = new AbortController()
  const { signal } = controller
  const running: Promise<unknown>[] = []
  const wrappers = new WeakMap<object, Listener>()
  const wrap = (listener: Listener): Listener => {
    if (typeof listener !== "function") return listener
    let wrapper = wrappers.get(listener)
    if (wrapper === undefined) {
      wrapper = (event) => {
        const result: unknown = listener.call(signal, event)
        if (result instanceof Promise) running.push(result.catch((error: unknown) => report("a shutdown handler failed", error)))
      }
      wrappers.set(listener, wrapper)
    }
    return wrapper
  }
  const add = signal.addEventListener.bind(signal) as Change
  const remove = signal.removeEventListener.bind(signal) as Change
  Object.defineProperties(signal, {
    addEventListener: { value: ((type, listener, options) => add(type, wrap(listener), options)) satisfies Change },
    removeEventListener: { value: ((type, listener, options) => remove(type, wrap(listener), options)) satisfies Change },
  })
  return {
    signal,
    async abort(reason) {
      const listeners = getEventListeners(signal, "abort").length
      controller.abort(reason)
      await Promise.allSettled(running)
      if (listeners > running.length) await new Promise((resolve) => setTimeout(resolve, grace))
    },
  }
}
