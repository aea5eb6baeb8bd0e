import { AsyncLocalStorage } from "node:async_hooks"
import type { InputContent } from "@helmr/sdk"
import { MessageRejected } from "@helmr/sdk/internal"
import { field, type Channel } from "./channel.js"
import { report } from "./errors.js"

/** Marks the code that a callback of a Turn runs, so that it may write after the handler returned. */
export const callbacks = new AsyncLocalStorage<{ turn: object; active: boolean }>()

/** Runs a callback of a Turn; until it settles, output calls made in it count as the callback's. */
export async function asCallback<T>(turn: object, run: () => T): Promise<Awaited<T>> {
  const scope = { turn, active: true }
  try {
    return await callbacks.run(scope, run)
  } finally {
    scope.active = false
  }
}

/** Whether the present code runs in a callback of this Turn that has not settled. */
export function inCallback(turn: object): boolean {
  const scope = callbacks.getStore()
  return scope !== undefined && scope.active && scope.turn === turn
}

type Handler = (data: InputContent) => unknown

/** Live Messages of one Turn: delivered one at a time, in the order of acceptance, once there is a handler. */
export class Inbox {
  private handler: Handler | undefined
  private readonly queue: { readonly id: string; readonly data: InputContent }[] = []
  private running: Promise<void> | undefined
  private open = true
  private aborted = false
  /** What a handler threw that was no MessageRejected; fails the drain. */
  failure: Error | undefined

  constructor(private readonly channel: Channel, private readonly turnField: string, private readonly turn: object) {}

  /** Throws when there is a handler already, or what is given is none. */
  register(handler: Handler): void {
    if (typeof handler !== "function") throw new TypeError("turn.onMessage takes a function (data) => ...")
    if (this.handler !== undefined) throw new Error("turn.onMessage was called before; a Turn has one message handler")
    this.handler = handler
    this.pump()
  }

  offer(id: string, data: InputContent): void {
    // After closing, the server rejects what was not started.
    if (!this.open) return
    this.queue.push({ id, data })
    this.pump()
  }

  /** No further Message is started. With `abort` neither is one whose start is still on its way. */
  close(abort: boolean): void {
    this.open = false
    this.aborted ||= abort
    this.queue.length = 0
  }

  /** Resolves when no handler call is running. */
  async idle(): Promise<void> {
    while (this.running !== undefined) await this.running
  }

  private pump(): void {
    if (this.running !== undefined || this.handler === undefined) return
    const next = this.queue.shift()
    if (next === undefined) return
    this.running = this.deliver(this.handler, next.id, next.data).finally(() => {
      this.running = undefined
      this.pump()
    })
  }

  private async deliver(handler: Handler, id: string, data: InputContent): Promise<void> {
    const fields = `${this.turnField}${field("messageId", id)}`
    // Started only once that is durable: a handler never sees a Message that the server has already rejected.
    const started = await this.channel.request("message_started", fields)
    if (started.error !== undefined || this.aborted) return
    try {
      await asCallback(this.turn, () => handler(data))
    } catch (error) {
      const rejected = error instanceof MessageRejected
      if (!rejected) {
        report("a message handler failed", error)
        this.failure ??= error instanceof Error ? error : new Error(String(error))
      }
      this.channel.send("message_rejected", `${fields}${field("reason", rejected ? "message_rejected" : "callback_failed")}`, () => undefined)
      return
    }
    this.channel.send("message_delivered", fields, () => undefined)
  }
}
