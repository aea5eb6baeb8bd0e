import type { AgentDefinition, CancelReason, HumanContent, Turn, TurnContext } from "@helmr/sdk"
import { encodeHuman, encodeJson, utf8Length } from "@helmr/sdk/internal"
import { Cancellation } from "./cancel.js"
import { field, type Channel } from "./channel.js"
import { messageOf, report, TurnCallError } from "./errors.js"
import { Inbox, inCallback } from "./inbox.js"
import { Output } from "./output.js"
import type { FailureCode, TurnEvent, TurnMessage } from "./protocol.js"
import { Questions } from "./questions.js"

const cleanupPeriod = 10_000
const maxResultBytes = 16 * 1024 * 1024

/** A failure of the Turn that is none of the handler's. */
class TurnFailure extends Error {
  constructor(readonly code: FailureCode, message: string) {
    super(message)
  }
}

/** What became of a Turn from this process's view. `stuck`: something did not settle, the process serves no more. */
export type TurnEnd = "recorded" | "aborted" | "stuck"

/**
 * One Turn in this process: calls the handler once, drains what it started, reports the result; or, told to stop,
 * runs the cleanup and reports how it went.
 *
 * Phases: handling (handler runs) -> draining (processing closed) -> recording (result or failure on its way to the
 * server) -> over. An abort in the first two leads to cleanup; one that meets recording waits for the server's word,
 * because a recorded Turn is not affected by it.
 */
export class TurnRun {
  private readonly output: Output
  private readonly inbox: Inbox
  private readonly questions: Questions
  private readonly cancellation = new Cancellation(this)
  private readonly aborted: Promise<void>
  private announceAbort!: () => void
  private abandonWait: (() => void) | undefined
  private returned = false
  private recording = false
  private late: CancelReason | undefined
  private response: string | undefined
  private readonly turnField: string

  constructor(private readonly channel: Channel, private readonly message: TurnMessage, private readonly agent: AgentDefinition, private readonly ctx: TurnContext<unknown>) {
    this.turnField = field("turnId", message.id)
    this.output = new Output(channel, this.turnField, () => !this.returned || inCallback(this))
    this.inbox = new Inbox(channel, this.turnField, this)
    this.questions = new Questions(channel, this.turnField, this.output, ctx.session.parent !== undefined)
    this.aborted = new Promise((resolve) => {
      this.announceAbort = resolve
    })
  }

  get id(): string {
    return this.message.id
  }

  /** Runs the Turn to its end. Never rejects. */
  async run(): Promise<TurnEnd> {
    const work = this.work()
    const first = await Promise.race([work, this.aborted])
    if (first === "recorded") return "recorded"
    if (this.cancellation.reason === undefined && first === "refused") {
      // The server knows something about this Turn that we don't yet: an abort is on its way, or the Turn is over.
      await Promise.race([this.aborted, new Promise<void>((resolve) => (this.abandonWait = resolve))])
      if (this.cancellation.reason === undefined) return "recorded"
    }
    return this.cleanup(work)
  }

  /** Tells the Turn to stop. */
  abort(reason: CancelReason): void {
    if (this.recording) {
      this.late ??= reason
      return
    }
    this.inbox.close(true)
    this.questions.cancelAll()
    this.cancellation.abort(reason)
    this.announceAbort()
  }

  /** A later Turn arrived: whatever the server refused about this one, it is over. */
  abandon(): void {
    this.abandonWait?.()
  }

  /** Takes a message from the guest for this Turn. */
  receive(message: TurnEvent): void {
    switch (message.type) {
      case "abort": return this.abort(message.reason)
      case "message": return this.inbox.offer(message.messageId, message.data)
      case "answer": return this.questions.answered(message.questionId, { answer: message.answer as never, respondedBy: message.respondedBy })
      case "question_cancelled": return this.questions.cancelled(message.questionId)
    }
  }

  private async work(): Promise<"recorded" | "refused" | "aborted"> {
    let fields: string
    try {
      const result = await this.callHandler()
      this.returned = true
      if (this.cancellation.reason !== undefined) return "aborted"
      const json = encodeResult(result)
      this.response = this.response === undefined ? "" : `,"response":${this.response}`
      await this.drain()
      if (this.cancellation.reason !== undefined) return "aborted"
      fields = `,"result":${json}${this.response}`
    } catch (error) {
      this.returned = true
      if (this.cancellation.reason !== undefined) return "aborted"
      return this.fail(error)
    }
    return this.record("turn_result", fields)
  }

  /** Calls the handler once; also a synchronous throw becomes a rejection. */
  private async callHandler(): Promise<unknown> {
    return this.agent.turn(this.facade(), this.ctx)
  }

  /** After the return: no new Messages and Questions; then callbacks, pipes, writes and Questions end, in this order. */
  private async drain(): Promise<void> {
    this.inbox.close(false)
    this.questions.close()
    this.channel.send("processing_closed", this.turnField, () => undefined)
    await this.inbox.idle()
    if (this.inbox.failure !== undefined) throw new TurnFailure("drain_failed", `a message handler failed: ${messageOf(this.inbox.failure)}`)
    await this.output.pipesEnded()
    await this.output.idle()
    const failure = this.output.unseenFailure()
    if (failure !== undefined) throw new TurnFailure("drain_failed", `output failed and nobody handled it: ${messageOf(failure)}`)
    if (this.questions.abandoned()) throw new TurnFailure("drain_failed", "a Question is still open and nobody awaits it")
    await this.questions.settled()
  }

  private fail(thrown: unknown): Promise<"recorded" | "refused"> {
    const code = thrown instanceof TurnFailure ? thrown.code : "handler_failed"
    if (code === "handler_failed") report(`Turn ${this.id} failed`, thrown)
    this.inbox.close(true)
    this.questions.cancelAll()
    this.output.stop()
    return this.record("turn_failed", field("error", { code, message: messageOf(thrown) }))
  }

  /** Sends the outcome; the Turn is over once it is durable. */
  private async record(type: string, fields: string): Promise<"recorded" | "refused"> {
    this.recording = true
    const { error } = await this.channel.request(type, `${this.turnField}${fields}`)
    this.recording = false
    if (error === undefined) return "recorded"
    if (this.late !== undefined) this.abort(this.late)
    return "refused"
  }

  /** After an abort: everything has to settle within the cleanup period. */
  private async cleanup(work: Promise<unknown>): Promise<TurnEnd> {
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<"late">((resolve) => {
      timer = setTimeout(() => resolve("late"), cleanupPeriod)
    })
    const settled = Promise.all([this.cancellation.settled(), work, this.inbox.idle()])
      // Callbacks may write until they settle, and register further callbacks.
      .then(() => Promise.all([this.output.idle(), this.questions.settled(), this.cancellation.settled()]))
    const end = await Promise.race([settled, late])
    clearTimeout(timer)
    this.returned = true
    const stuck = end === "late" || this.cancellation.failed
    const outcome = stuck ? { settled: false, cause: this.cancellation.uncertain ? "callback" : "work" } : { settled: true }
    if (stuck) this.output.stop()
    await this.channel.request("turn_aborted", `${this.turnField},${JSON.stringify(outcome).slice(1, -1)}`)
    return stuck ? "stuck" : "aborted"
  }

  private async respond(content: HumanContent): Promise<void> {
    if (this.returned) throw new TurnCallError("response_closed", "the handler has returned; respond before it does")
    if (this.response !== undefined) throw new TurnCallError("response_already_staged", "turn.respond was called before; a Turn has one response")
    const { json } = encodeHuman(content)
    this.output.flushPipe()
    this.response = json
  }

  /** The Turn as the handler sees it: plain functions, so that they work detached from it too. */
  private facade(): Turn {
    const { output, questions, inbox, cancellation } = this
    const { id, sequence, createdAt, input, source } = this.message
    const turn: Turn = {
      id, sequence, createdAt, input, source,
      signal: cancellation.signal,
      output: Object.freeze({
        write: (content: HumanContent) => output.write(content),
        pipe: (items: AsyncIterable<HumanContent> | Iterable<HumanContent>, options?: { readonly signal?: AbortSignal }) => output.pipe(items, options),
      }),
      onCancel: (callback) => cancellation.register(callback),
      respond: (content) => quiet(this.respond(content)),
      ask: (question, options) => questions.ask(question, options) as never,
      onMessage: (handler) => inbox.register(handler),
    }
    return Object.freeze(turn)
  }
}

/** A refused call that nobody awaits is not a crash of the process. */
function quiet<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => undefined)
  return promise
}

/** JSON text of what the handler returned; a handler that returns nothing has the result null. Throws TurnFailure. */
function encodeResult(result: unknown): string {
  if (result === undefined) return "null"
  let json: string
  try {
    json = encodeJson(result)
  } catch (error) {
    throw new TurnFailure("result_invalid", `the result is not a JSON value: ${messageOf(error)}`)
  }
  const bytes = utf8Length(json)
  if (bytes > maxResultBytes) throw new TurnFailure("result_too_large", `the result has ${bytes} bytes as JSON; at most ${maxResultBytes} are allowed`)
  return json
}

