import { spawn, type ChildProcess } from "node:child_process"
import { once } from "node:events"
import path from "node:path"
import type { Duplex } from "node:stream"
import type { TestContext } from "node:test"

/** An operation of the host, or "exit". */
export interface Op {
  readonly seq: number
  readonly type: string
  readonly turnId?: string
  readonly [field: string]: unknown
}

export interface Reply {
  readonly result?: object
  readonly error?: { readonly code: string; readonly message?: string }
}

const home = path.resolve(import.meta.dirname, "../../../../..")

/** What the real helmr-guest does with a Session process, played by a test: the channel on fd 3, acknowledgements. */
export class Guest {
  readonly ops: Op[] = []
  /** Answers an operation; null withholds the acknowledgement. */
  reply: (op: Op) => Reply | null = () => ({})
  stderr = ""
  private readonly listeners: (() => void)[] = []
  private outputs = 0
  private readonly child: ChildProcess
  private readonly channel: Duplex
  private readonly waiters: { readonly match: (op: Op) => boolean; readonly resolve: (op: Op) => void }[] = []
  private readonly exited: Promise<{ readonly code: number | null; readonly signal: string | null }>

  constructor(t: TestContext) {
    const child = spawn(process.execPath, [path.join(home, "dist/host.mjs")], { stdio: ["ignore", "pipe", "pipe", "pipe"] })
    this.child = child
    this.channel = child.stdio[3] as Duplex
    let rest = ""
    this.channel.setEncoding("utf8").on("data", (chunk: string) => {
      const lines = (rest + chunk).split("\n")
      rest = lines.pop() ?? ""
      for (const line of lines) this.take(JSON.parse(line) as Op)
    })
    this.channel.on("error", () => undefined)
    child.stderr?.setEncoding("utf8").on("data", (text: string) => {
      this.stderr += text
      for (const listener of this.listeners.splice(0)) listener()
    })
    this.exited = once(child, "close").then(([code, signal]) => ({ code: code as number | null, signal: signal as string | null }))
    t.after(() => void child.kill("SIGKILL"))
  }

  send(message: object): void {
    this.channel.write(`${JSON.stringify(message)}\n`)
  }

  /** Sends several messages in one write. */
  sendAll(...messages: object[]): void {
    this.channel.write(messages.map((message) => `${JSON.stringify(message)}\n`).join(""))
  }

  acknowledge(op: Op, { result, error }: Reply = {}): void {
    const output = op.type === "output" && error === undefined ? { result: { sequence: 100 + ++this.outputs } } : {}
    this.send({ type: "ack", seq: op.seq, ...output, ...(result ? { result } : {}), ...(error ? { error } : {}) })
  }

  /** The first operation, past or to come, that fits. Fails when the process exits first. */
  async op(type: string, match: (op: Op) => boolean = () => true): Promise<Op> {
    const fits = (op: Op): boolean => op.type === type && match(op)
    const seen = this.ops.find(fits)
    if (seen !== undefined) return seen
    const coming = new Promise<Op>((resolve) => this.waiters.push({ match: fits, resolve }))
    const gone = this.exited.then(({ code, signal }): never => {
      throw new Error(`the host exited (${code ?? signal}) before ${type}; it said: ${this.stderr}`)
    })
    return Promise.race([coming, gone])
  }

  /** What stderr says, once it fits: it comes by another way than the operations, so it may come after them. */
  async said(pattern: RegExp): Promise<RegExpExecArray> {
    for (;;) {
      const found = pattern.exec(this.stderr)
      if (found !== null) return found
      const more = new Promise<void>((resolve) => this.listeners.push(resolve))
      const gone = this.exited.then((): never => {
        throw new Error(`the host exited before it said ${pattern}; it said: ${this.stderr}`)
      })
      await Promise.race([more, gone])
    }
  }

  kill(signal: NodeJS.Signals): void {
    this.child.kill(signal)
  }

  /** How the process ended. */
  exit(): Promise<{ readonly code: number | null; readonly signal: string | null }> {
    return this.exited
  }

  /** The types of the operations so far. */
  types(): string[] {
    return this.ops.map(({ type }) => type)
  }

  private take(op: Op): void {
    this.ops.push(op)
    const reply = this.reply(op)
    if (reply !== null) this.acknowledge(op, reply)
    for (const waiter of this.waiters.filter(({ match }) => match(op))) {
      this.waiters.splice(this.waiters.indexOf(waiter), 1)
      waiter.resolve(op)
    }
  }
}

export function startMessage(agentId: string, more: object = {}): object {
  return {
    type: "start", agentId,
    session: { id: "session-1" }, computer: { id: "computer-1" }, deployment: { id: "deployment-1" },
    recovery: { kind: "initial" }, program: path.join(home, "build/program.mjs"), ...more,
  }
}

let turns = 0

/** A Turn with an ID of its own. */
export function turnMessage(text = "", more: object = {}): { readonly type: "turn"; readonly turn: { readonly id: string; readonly [field: string]: unknown } } {
  turns++
  return {
    type: "turn",
    turn: { id: `turn-${turns}`, sequence: turns, createdAt: "2026-01-02T03:04:05.678Z", input: text === "" ? [] : [{ type: "text", text }], source: { kind: "client" }, ...more },
  }
}

/** A host that serves one Agent of the test program, ready. */
export async function ready(t: TestContext, agentId: string, more: object = {}): Promise<Guest> {
  const guest = new Guest(t)
  guest.send(startMessage(agentId, more))
  await guest.op("init_done")
  return guest
}

/** Runs one Turn to its end and gives the operation that ended it. */
export async function runTurn(guest: Guest, text = ""): Promise<Op> {
  const message = turnMessage(text)
  guest.send(message)
  return ended(guest, message.turn.id)
}

export function ended(guest: Guest, turnId: string): Promise<Op> {
  return Promise.race(["turn_result", "turn_failed", "turn_aborted"].map((type) => guest.op(type, (op) => op.turnId === turnId)))
}
