import { spawn, type ChildProcessByStdio } from "node:child_process"
import { EventEmitter, on, once } from "node:events"
import { mkdirSync, writeFileSync } from "node:fs"
import { createInterface } from "node:readline"
import type { Readable, Writable } from "node:stream"
import { setTimeout as pause } from "node:timers/promises"

/** The records of Pi's RPC mode that are used here. */
type Command = { type: "prompt" | "steer"; message: string } | { type: "abort" }
type Reply = { type: "response"; id: string; success: boolean; error?: string }
type PiEvent =
  | { type: "message_update"; assistantMessageEvent: { type: string; delta?: string } }
  | { type: "message_end"; message: { role: string; content: { type: string; text?: string }[]; stopReason?: string; errorMessage?: string } }
  | { type: "tool_execution_start"; toolName: string; args: { command?: string; path?: string } }
  | { type: "agent_settled" }

/** An answer while it is made. `end` settles when Pi has settled, and only if `text` is read. */
export interface Answer {
  readonly text: AsyncIterable<string>
  readonly end: Promise<{ readonly text: string; readonly error?: string }>
}

/** Pi as a child process, with one native session that lasts as long as the Session. */
export class Pi {
  readonly #process: ChildProcessByStdio<Writable, Readable, null>
  readonly #events = new EventEmitter()
  #commands = 0

  /** Opens the native session with this id: Pi keeps it on disk, so it is the one of an earlier process, or a new one. */
  static async start(session: string, signal: AbortSignal): Promise<Pi> {
    const folder = `/var/lib/pi/${session}` // of each Session its own, as Sessions may share a Computer
    mkdirSync(folder, { recursive: true })
    const environment: NodeJS.ProcessEnv = { ...process.env, PI_CODING_AGENT_DIR: folder }
    if (!environment["OPENAI_API_KEY"]) {
      // Without a key, a scripted model that only differs in its address.
      environment["OPENAI_API_KEY"] = "scripted"
      writeFileSync(`${folder}/models.json`, JSON.stringify({ providers: { openai: { baseUrl: `${await scriptedModel(signal)}/v1` } } }))
    }
    return new Pi(session, environment, signal)
  }

  private constructor(session: string, env: NodeJS.ProcessEnv, signal: AbortSignal) {
    const options = ["--mode", "rpc", "--offline", "--session-id", session, "--model", "openai/gpt-5-mini"]
    const rules = "Analyse data with a script analysis.mjs for Node.js that writes report.md, so that anybody can run it again."
    this.#process = spawn("pi", [...options, "--append-system-prompt", rules], { env, signal, stdio: ["pipe", "pipe", "inherit"] })
    // A dead harness is a dead process: helmr then starts a new one, whose init opens the same native session.
    for (const event of ["error", "exit"]) {
      this.#process.on(event, (why) => {
        if (signal.aborted) return
        console.error("Pi has died:", why)
        process.exit(1)
      })
    }
    let rest = ""
    this.#process.stdout.setEncoding("utf8").on("data", (chunk: string) => {
      const lines = (rest + chunk).split("\n") // not readline: it also cuts at other separators, which JSON may contain
      rest = lines.pop() ?? ""
      for (const record of lines.map((line) => JSON.parse(line) as Reply | PiEvent)) {
        if (record.type === "response") this.#events.emit(record.id, record)
        else this.#events.emit("event", record)
      }
    })
  }

  /** Sends a command and waits for Pi's reply. */
  async #call(command: Command): Promise<void> {
    const id = String(++this.#commands)
    const replied = once(this.#events, id)
    this.#process.stdin.write(`${JSON.stringify({ id, ...command })}\n`)
    const [reply] = (await replied) as [Reply]
    if (!reply.success) throw new Error(`Pi refused the command ${command.type}: ${reply.error}`)
  }

  /** Gives the native session a request. */
  prompt(request: string): Answer {
    const end = Promise.withResolvers<Awaited<Answer["end"]>>()
    end.promise.catch(() => {}) // whoever reads the text sees the same error
    const read = async function* (pi: Pi): AsyncGenerator<string> {
      try {
        let last: Awaited<Answer["end"]> = { text: "" }
        const happened = on(pi.#events, "event") as AsyncIterableIterator<[PiEvent]>
        await pi.#call({ type: "prompt", message: request })
        for await (const [event] of happened) {
          if (event.type === "message_update" && event.assistantMessageEvent.type === "text_delta") yield event.assistantMessageEvent.delta ?? ""
          else if (event.type === "tool_execution_start") yield `\n[${event.toolName}] ${event.args.command ?? event.args.path ?? ""}\n`
          else if (event.type === "message_end" && event.message.role === "assistant") last = result(event.message)
          else if (event.type === "agent_settled") return end.resolve(last)
        }
      } catch (error) {
        end.reject(error)
        throw error
      } finally {
        end.reject(new Error("the answer was not read to its end"))
      }
    }
    return { text: read(this), end: end.promise }
  }

  /** Adds to a request while Pi works on it. */
  steer(message: string): Promise<void> {
    return this.#call({ type: "steer", message })
  }

  /** Aborts an answer and waits for its end. An abort that comes before Pi has begun does nothing, so it is repeated. */
  async abort(answer: Answer): Promise<void> {
    const ended = answer.end.then(() => true, () => true)
    do await this.#call({ type: "abort" })
    while (!(await Promise.race([ended, pause(200, false)])))
  }
}

function result(message: Extract<PiEvent, { type: "message_end" }>["message"]): Awaited<Answer["end"]> {
  const text = message.content.map((part) => part.text ?? "").join("")
  return message.stopReason === "error" ? { text, error: message.errorMessage ?? "an error" } : { text }
}

/** Starts the scripted model and gives its address. */
async function scriptedModel(signal: AbortSignal): Promise<string> {
  const model = spawn("node", ["/opt/model/scripted-model.mjs", "/opt/model/script.mjs"], { stdio: ["ignore", "pipe", "inherit"], signal })
  model.on("error", (error) => signal.aborted || console.error(error))
  const [address] = (await once(createInterface(model.stdout), "line")) as [string]
  return address
}
