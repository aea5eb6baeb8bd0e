import { randomFillSync } from "node:crypto"
import type { Answered, Question } from "@helmr/sdk"
import { encodeQuestion } from "@helmr/sdk/internal"
import { field, type Channel } from "./channel.js"
import { refusal, TurnCallError } from "./errors.js"
import type { Output } from "./output.js"
import { tracked, type Deferred } from "./tracked.js"

/** Questions of one Turn. */
export class Questions {
  private readonly pending = new Map<string, Deferred<Answered>>()
  private open = true
  private waiters: (() => void)[] = []

  constructor(private readonly channel: Channel, private readonly turnField: string, private readonly output: Output, private readonly isChild: boolean) {}

  ask(question: Question, options: { readonly signal?: AbortSignal } = {}): Promise<Answered> {
    const asked = tracked<Answered>()
    const { signal } = options
    if (this.isChild) asked.reject(new TurnCallError("root_session_required", "only a root Session can ask Questions; this one has a parent"))
    else if (!this.open || signal?.aborted) asked.reject(cancelled())
    else {
      try {
        const { json, bytes } = encodeQuestion(question)
        this.output.flushPipe()
        this.output.charge(bytes)
        this.send(asked, json, signal)
      } catch (error) {
        asked.reject(error)
      }
    }
    return asked.promise
  }

  answered(id: string, answer: Answered): void {
    this.settle(id, (asked) => asked.resolve(answer))
  }

  cancelled(id: string): void {
    this.settle(id, (asked) => asked.reject(cancelled()))
  }

  /** No new Questions. */
  close(): void {
    this.open = false
  }

  /** No new Questions, and the pending ones reject. */
  cancelAll(): void {
    this.open = false
    for (const id of [...this.pending.keys()]) this.cancelled(id)
  }

  /** Whether a Question is pending that nobody awaits. */
  abandoned(): boolean {
    return [...this.pending.values()].some(({ promise }) => !promise.observed)
  }

  /** Resolves when no Question is pending. */
  settled(): Promise<void> {
    if (this.pending.size === 0) return Promise.resolve()
    return new Promise((resolve) => this.waiters.push(resolve))
  }

  private send(asked: Deferred<Answered>, json: string, signal: AbortSignal | undefined): void {
    const id = uuidv7()
    const fields = `${this.turnField}${field("questionId", id)}`
    this.pending.set(id, asked)
    this.channel.send("question", `${fields},"question":${json}`, (ack) => {
      const { error } = ack
      if (error !== undefined) this.settle(id, () => asked.reject(refusal(error, "the Question")))
    })
    if (signal === undefined) return
    // Whichever the server sees first counts: if that is an answer, it refuses the withdrawal and the answer follows.
    const withdraw = (): void => this.channel.send("question_withdrawn", fields, ({ error }) => {
      if (error?.code !== "question_already_responded") this.cancelled(id)
    })
    signal.addEventListener("abort", withdraw, { once: true })
    Promise.prototype.then.call(asked.promise, undefined, () => undefined).then(() => signal.removeEventListener("abort", withdraw))
  }

  private settle(id: string, how: (asked: Deferred<Answered>) => void): void {
    const asked = this.pending.get(id)
    if (asked === undefined) return
    this.pending.delete(id)
    how(asked)
    if (this.pending.size === 0) for (const resolve of this.waiters.splice(0)) resolve()
  }
}

function cancelled(): TurnCallError {
  return new TurnCallError("question_cancelled", "the Question was cancelled")
}

/** A time-ordered ID, as every ID of the platform is. */
export function uuidv7(): string {
  const bytes = randomFillSync(Buffer.alloc(16))
  bytes.writeUIntBE(Date.now(), 0, 6)
  bytes[6] = (bytes[6]! & 0x0f) | 0x70
  bytes[8] = (bytes[8]! & 0x3f) | 0x80
  const hex = bytes.toString("hex")
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`
}
