import type { AgentDefinition, CancelReason, InitContext, TurnContext } from "@helmr/sdk"
import { field, type Channel } from "./channel.js"
import { AbortError, messageOf, report } from "./errors.js"
import { loadAgent } from "./program.js"
import type { AckMessage, Incoming, StartMessage, StopReason, TurnEvent, TurnMessage } from "./protocol.js"
import { shutdownSignal, type ShutdownSignal } from "./shutdown.js"
import { TurnRun } from "./turn.js"

/** How long a stopping process waits for an `init` that is still running. */
const initGrace = 8_000
/** How long a stopping process waits for the acknowledgement of what the guest already has. */
const ackGrace = 2_000

/** A Turn that waits for the one before it, or for init, and the Messages that came for it meanwhile. */
interface Waiting {
  readonly turn: TurnMessage
  readonly early: TurnEvent[]
}

/**
 * One Session process: starting (init runs) -> ready <-> serving a Turn -> stopping. It serves one Turn at a time, in
 * the order in which the guest hands them over.
 */
export class SessionProcess {
  private readonly queue: Waiting[] = []
  private readonly shutdown: ShutdownSignal = shutdownSignal()
  private agent: AgentDefinition | undefined
  private ctx: TurnContext<unknown> | undefined
  private current: { readonly run: TurnRun; readonly end: Promise<unknown> } | undefined
  private initialising: Promise<void> | undefined
  private stopping = false
  private stuck = false

  /** `exit` ends the process. */
  constructor(private readonly channel: Channel, private readonly exit: (code: number) => void) {}

  receive(message: Exclude<Incoming, AckMessage>): void {
    switch (message.type) {
      case "start":
        this.initialising ??= this.start(message)
        return
      case "turn":
        this.queue.push({ turn: message.turn, early: [] })
        this.current?.run.abandon()
        return this.serve()
      case "abort":
      case "message":
      case "answer":
      case "question_cancelled":
        if (this.current?.run.id === message.turnId) this.current.run.receive(message)
        else if (message.type === "abort") this.abortQueued(message.turnId)
        else this.queue.find(({ turn }) => turn.id === message.turnId)?.early.push(message)
        return
      case "stop":
        if (!this.stopping) void this.stop(message.reason)
        return
    }
  }

  private async start(message: StartMessage): Promise<void> {
    const { session, computer, deployment, recovery } = message
    const ctx: InitContext = {
      session: Object.freeze({ ...session }),
      computer: Object.freeze({ ...computer }),
      deployment: Object.freeze({ ...deployment }),
      recovery: Object.freeze({ ...recovery }),
      signal: this.shutdown.signal,
      mcp: Object.freeze({
        getConnectionOptions: () => Promise.reject(new Error("delegation between Agents (ctx.mcp) is not available in this version of helmr")),
      }),
    }
    let initResult: unknown
    try {
      const agent = await loadAgent(message.program, message.agentId)
      if (agent.init !== undefined) initResult = await agent.init(Object.freeze({ ...ctx }))
      this.agent = agent
    } catch (error) {
      await this.failInit(error)
      return
    }
    if (this.stopping) return
    this.ctx = Object.freeze({ ...ctx, initResult })
    this.channel.send("init_done", "", () => undefined)
    this.serve()
  }

  private async failInit(error: unknown): Promise<void> {
    report("init failed", error)
    if (this.stopping) return
    await Promise.race([this.channel.request("init_failed", field("error", { message: messageOf(error) })), sleep(ackGrace)])
    this.exit(1)
  }

  private serve(): void {
    if (this.current !== undefined || this.agent === undefined || this.ctx === undefined || this.stopping || this.stuck) return
    const next = this.queue.shift()
    if (next === undefined) return
    const run = new TurnRun(this.channel, next.turn, this.agent, this.ctx)
    for (const message of next.early) run.receive(message)
    const end = run.run().then((how) => {
      this.current = undefined
      // The guest ends a process in which something did not settle.
      this.stuck ||= how === "stuck"
      this.serve()
    })
    this.current = { run, end }
  }

  /** A Turn that has not begun has nothing to clean up. */
  private abortQueued(turnId: string): void {
    const at = this.queue.findIndex(({ turn }) => turn.id === turnId)
    if (at < 0) return
    this.queue.splice(at, 1)
    this.channel.send("turn_aborted", `${field("turnId", turnId)},"settled":true`, () => undefined)
  }

  private async stop(reason: StopReason): Promise<void> {
    this.stopping = true
    const turnReason: CancelReason = reason === "closed" ? "shutdown" : reason
    this.current?.run.abort(turnReason)
    const handlers = this.shutdown.abort(new AbortError(reason, "the Session process shuts down"))
    if (this.agent === undefined && this.initialising !== undefined) await Promise.race([this.initialising, sleep(initGrace)])
    await this.current?.end
    await handlers
    await Promise.race([this.channel.settled(), sleep(ackGrace)])
    this.exit(0)
  }
}

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}
