import type { HumanContent } from "@helmr/sdk"
import { ContentError, encodeHuman, type EncodedContent } from "@helmr/sdk/internal"
import type { Channel } from "./channel.js"
import { refusal, TurnCallError } from "./errors.js"
import { Pipe } from "./pipe.js"
import { tracked, type Tracked } from "./tracked.js"

/** Most bytes of output and Questions of one Turn, as JSON. */
const maxTurnBytes = 8 * 1024 * 1024

type Written = { readonly sequence: number }

/**
 * The output queue of one Turn. Operations go out in the order of the calls; what a pipe has accepted goes before what
 * is called later. It knows when all output is durable and which failures nobody saw.
 */
export class Output {
  private bytes = 0
  private unacknowledged = 0
  private waiters: { readonly condition: () => boolean; readonly resolve: () => void }[] = []
  private readonly failures: Tracked<unknown>[] = []
  private pipe_: Pipe | undefined
  private over = false

  /** `mayWrite` says whether the present caller may still write. */
  constructor(private readonly channel: Channel, private readonly turnField: string, private readonly mayWrite: () => boolean) {}

  write(content: HumanContent): Promise<Written> {
    if (!this.mayWrite()) return closed()
    let encoded: EncodedContent
    try {
      encoded = encodeHuman(content)
      this.pipe_?.flush()
      this.charge(encoded.bytes)
    } catch (error) {
      return rejected(error)
    }
    return this.sendOutput(encoded.json)
  }

  pipe(items: unknown, options: { readonly signal?: AbortSignal } = {}): Promise<void> {
    if (!this.mayWrite()) return closed()
    if (this.pipe_ !== undefined) return rejected(new ContentError("invalid_arguments", "another pipe of this Turn is still open; await it first"))
    let pipe: Pipe
    try {
      pipe = new Pipe(items, options.signal, {
        reserve: (bytes) => this.reserve(bytes),
        send: (json, bytes) => {
          this.charge(bytes)
          return this.sendOutput(json)
        },
      })
    } catch (error) {
      return rejected(error)
    }
    this.pipe_ = pipe
    const done = tracked<void>()
    const end = (settle: () => void): void => {
      this.pipe_ = undefined
      settle()
      this.settle()
    }
    pipe.run().then(() => end(() => done.resolve()), (error: unknown) => end(() => {
      this.note(done.promise, error)
      done.reject(error)
    }))
    return done.promise
  }

  /** Sends what the open pipe has accepted, before an operation that was called later. */
  flushPipe(): void {
    this.pipe_?.flush()
  }

  /** Counts bytes of output or a Question into the total of the Turn; throws ContentError when they pass it. */
  charge(bytes: number): void {
    this.reserve(bytes)
    this.bytes += bytes
  }

  /** Resolves when no pipe is open. */
  pipesEnded(): Promise<void> {
    return this.when(() => this.pipe_ === undefined)
  }

  /** Resolves when no pipe is open and every write is acknowledged. */
  idle(): Promise<void> {
    return this.when(() => this.pipe_ === undefined && this.unacknowledged === 0)
  }

  /** The first failure other than of content that nobody looked at; a seen one is the handler's own affair. */
  unseenFailure(): Error | undefined {
    const failed = this.failures.find((promise) => !promise.observed)
    if (failed === undefined) return undefined
    return failed.reason instanceof Error ? failed.reason : new Error(String(failed.reason))
  }

  /** The Turn has failed: what the open pipe accepted is sent, and it is told to end. */
  stop(): void {
    this.pipe_?.flush()
    this.over = true
    this.pipe_?.stop(new TurnCallError("output_closed", "the Turn has ended"))
  }

  private reserve(bytes: number): void {
    if (this.bytes + bytes > maxTurnBytes) {
      throw new ContentError("content_limit_exceeded", `output and Questions of a Turn total at most ${maxTurnBytes} bytes`)
    }
  }

  private sendOutput(json: string): Tracked<Written> {
    if (this.over) return closed()
    const written = tracked<Written>()
    this.unacknowledged++
    this.channel.send("output", `${this.turnField},"content":${json}`, (ack) => {
      this.unacknowledged--
      if (ack.error === undefined) {
        written.resolve({ sequence: ack.result?.sequence ?? 0 })
      } else {
        const error = refusal(ack.error, "output")
        this.note(written.promise, error)
        written.reject(error)
      }
      this.settle()
    })
    return written.promise
  }

  /** Remembers a failure that can fail the Turn. */
  private note(promise: Tracked<unknown>, error: unknown): void {
    if (!(error instanceof ContentError)) this.failures.push(promise)
  }

  private when(condition: () => boolean): Promise<void> {
    if (condition()) return Promise.resolve()
    return new Promise((resolve) => this.waiters.push({ condition, resolve }))
  }

  private settle(): void {
    if (this.waiters.length === 0) return
    const ready = this.waiters.filter(({ condition }) => condition())
    this.waiters = this.waiters.filter((waiter) => !ready.includes(waiter))
    for (const { resolve } of ready) resolve()
  }
}

function rejected<T>(error: unknown): Tracked<T> {
  const result = tracked<T>()
  result.reject(error)
  return result.promise
}

function closed<T>(): Tracked<T> {
  return rejected(new TurnCallError("output_closed", "the handler has returned; only its message callbacks and open pipes may still write"))
}
