import type { Content } from "@helmr/sdk"
import { ContentError, encodeHuman, maxContentBytes, maxContentParts, utf8Length } from "@helmr/sdk/internal"

const flushBytes = 16 * 1024
const flushAfter = 100

/** Where a pipe puts its batches. */
export interface Sink {
  /** Throws ContentError when the Turn has no room for this many bytes. */
  reserve(bytes: number): void
  /** Sends one batch; resolves when it is durable. */
  send(json: string, bytes: number): Promise<unknown>
}

type Part = Content[number]
type Next = { readonly done: boolean; readonly value?: unknown }

/**
 * Reads an iterable into batches: neighbouring texts joined, JSON parts whole, sent after 100 ms or 16 KiB. While a
 * batch is on its way no further item is asked for, so that a slow server slows the producer down.
 */
export class Pipe {
  private readonly iterator: AsyncIterator<unknown> | Iterator<unknown>
  private batch: Part[] = []
  private bytes = 0
  private timer: NodeJS.Timeout | undefined
  private sending: Promise<unknown> | undefined
  private readonly stopped: Promise<never>
  private stopWith!: (reason: unknown) => void

  /** Throws ContentError when `items` is no iterable. */
  constructor(items: unknown, private readonly signal: AbortSignal | undefined, private readonly sink: Sink) {
    this.iterator = iteratorOf(items)
    this.stopped = new Promise<never>((_, reject) => {
      this.stopWith = reject
    })
    this.stopped.catch(() => undefined)
  }

  /** Ends the pipe early: it rejects with this reason. */
  stop(reason: unknown): void {
    this.stopWith(reason)
  }

  /** Sends what has been accepted. */
  flush(): void {
    clearTimeout(this.timer)
    this.timer = undefined
    if (this.batch.length === 0) return
    const json = JSON.stringify(this.batch)
    const bytes = this.bytes
    this.batch = []
    this.bytes = 0
    const before = this.sending
    const sent = this.sink.send(json, bytes)
    this.sending = before === undefined ? sent : Promise.all([before, sent])
    this.sending.catch((error: unknown) => this.stopWith(error))
  }

  /** Resolves when every item is durable. */
  async run(): Promise<void> {
    const onAbort = (): void => this.stopWith(this.signal?.reason)
    if (this.signal?.aborted) onAbort()
    this.signal?.addEventListener("abort", onAbort, { once: true })
    let pulling = false
    let finished = false
    try {
      for (;;) {
        if (this.signal?.aborted) await this.stopped
        pulling = true
        const next = await Promise.race([this.stopped, this.pull()])
        pulling = false
        if (next.done) break
        this.accept(next.value)
        if (this.sending !== undefined) await this.durable()
      }
      finished = true
      this.flush()
      await this.durable()
    } catch (error) {
      // A producer that is still working on an item may take its time to notice; nobody waits for that.
      if (!finished) await this.close(pulling)
      this.flush()
      await this.durable()
      throw error
    } finally {
      clearTimeout(this.timer)
      this.signal?.removeEventListener("abort", onAbort)
    }
  }

  private async pull(): Promise<Next> {
    const result = (await this.iterator.next()) as { readonly done?: boolean; readonly value: unknown }
    // A synchronous iterable may hold promises.
    return { done: result.done === true, value: result.done === true ? undefined : await result.value }
  }

  private accept(item: unknown): void {
    const { parts, bytes } = encodeHuman(item)
    // The whole item or nothing of it: alone it is never smaller than what it adds to a batch.
    this.sink.reserve(this.bytes + bytes)
    for (const part of parts) this.append(part)
    if (this.bytes >= flushBytes) this.flush()
    else if (this.batch.length > 0) this.timer ??= setTimeout(() => this.flush(), flushAfter)
  }

  private append(part: Part): void {
    const last = this.batch.at(-1)
    if (part.type === "text" && last?.type === "text") {
      const size = utf8Length(JSON.stringify(part.text)) - 2
      if (this.bytes + size <= maxContentBytes) {
        this.batch[this.batch.length - 1] = { type: "text", text: last.text + part.text }
        this.bytes += size
        return
      }
    }
    const size = utf8Length(JSON.stringify(part))
    if (this.batch.length === maxContentParts || this.bytes + size + 1 > maxContentBytes) this.flush()
    // Two brackets around the first part, a comma before every other.
    this.bytes += size + (this.batch.length === 0 ? 2 : 1)
    this.batch.push(part)
  }

  /** Resolves when all batches sent so far are durable. */
  private async durable(): Promise<void> {
    while (this.sending !== undefined) {
      const sending = this.sending
      await sending
      if (this.sending === sending) this.sending = undefined
    }
  }

  private async close(pulling: boolean): Promise<void> {
    const returned = Promise.resolve()
      .then(() => this.iterator.return?.())
      .catch(() => undefined)
    if (!pulling) await Promise.race([returned, this.stopped.catch(() => undefined)])
  }
}

function iteratorOf(items: unknown): AsyncIterator<unknown> | Iterator<unknown> {
  if (typeof items === "object" && items !== null) {
    const source = items as AsyncIterable<unknown> & Iterable<unknown>
    if (typeof source[Symbol.asyncIterator] === "function") return source[Symbol.asyncIterator]()
    if (typeof source[Symbol.iterator] === "function") return source[Symbol.iterator]()
  }
  throw new ContentError("invalid_arguments", "pipe takes an iterable or async iterable of content, such as a stream or an array of strings")
}
