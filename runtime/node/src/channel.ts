import { Socket } from "node:net"
import type { AckMessage, Incoming } from "./protocol.js"

type OnAck = (ack: AckMessage) => void

/**
 * The channel to the guest: JSON lines on one file descriptor. It numbers operations, remembers who waits for which
 * acknowledgement, and writes all lines of one tick at once. It knows nothing about Turns.
 */
export class Channel {
  private readonly socket: Socket
  private readonly waiting = new Map<number, OnAck>()
  private readonly settledWaiters: (() => void)[] = []
  private lastSeq = 0
  private lines = ""
  private flushScheduled = false
  private blocked = false
  private partial: string[] = []

  /** `onEnd` is told when the guest is gone or sends what is no line of JSON. */
  constructor(fd: number, private readonly onMessage: (message: Exclude<Incoming, AckMessage>) => void, private readonly onEnd: (why: Error) => void) {
    this.socket = new Socket({ fd, readable: true, writable: true })
    this.socket.setEncoding("utf8")
    this.socket.on("data", (chunk: string) => this.receive(chunk))
    this.socket.on("drain", () => {
      this.blocked = false
      this.flush()
    })
    this.socket.on("error", (error) => onEnd(error))
    this.socket.on("end", () => onEnd(new Error("the guest closed the channel")))
  }

  /** Sends an operation. `fields` is the JSON text of its members besides seq and type, each with a leading comma. */
  send(type: string, fields: string, onAck: OnAck): void {
    const seq = ++this.lastSeq
    this.waiting.set(seq, onAck)
    this.lines += `{"seq":${seq},"type":"${type}"${fields}}\n`
    if (this.flushScheduled || this.blocked) return
    this.flushScheduled = true
    process.nextTick(() => {
      this.flushScheduled = false
      this.flush()
    })
  }

  /** Sends an operation and resolves with its acknowledgement. */
  request(type: string, fields: string): Promise<AckMessage> {
    return new Promise((resolve) => this.send(type, fields, resolve))
  }

  /** Hands all lines to the system now, as far as it takes them; the rest follows when it takes more. */
  flush(): void {
    if (this.lines === "" || this.blocked) return
    const lines = this.lines
    this.lines = ""
    this.blocked = !this.socket.write(lines)
  }

  /** Resolves when every operation sent so far is acknowledged. */
  settled(): Promise<void> {
    if (this.waiting.size === 0) return Promise.resolve()
    return new Promise((resolve) => this.settledWaiters.push(resolve))
  }

  private receive(chunk: string): void {
    let from = 0
    for (;;) {
      const end = chunk.indexOf("\n", from)
      if (end < 0) break
      let line = chunk.slice(from, end)
      if (this.partial.length > 0) {
        line = this.partial.join("") + line
        this.partial = []
      }
      from = end + 1
      if (line !== "") this.handle(line)
    }
    if (from < chunk.length) this.partial.push(chunk.slice(from))
  }

  private handle(line: string): void {
    let message: Incoming
    try {
      message = JSON.parse(line) as Incoming
    } catch {
      this.onEnd(new Error("the guest sent a line that is not JSON"))
      return
    }
    if (message.type === "ack") this.acknowledge(message)
    else this.onMessage(message)
  }

  private acknowledge(ack: AckMessage): void {
    const onAck = this.waiting.get(ack.seq)
    if (onAck === undefined) return
    this.waiting.delete(ack.seq)
    onAck(ack)
    if (this.waiting.size === 0) for (const resolve of this.settledWaiters.splice(0)) resolve()
  }
}

/** One member of an operation: `,"name":value`. */
export function field(name: string, value: unknown): string {
  return `,"${name}":${JSON.stringify(value)}`
}
