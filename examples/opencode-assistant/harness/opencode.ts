import { spawn } from "node:child_process"
import { EventEmitter, on, once } from "node:events"
import { createInterface } from "node:readline"
import { setTimeout as pause } from "node:timers/promises"
import { createOpencode, type Event, type OpencodeClient, type PermissionRequest } from "@opencode-ai/sdk/v2"

/** OpenCode's server, and the one conversation in it that belongs to a Session. */
export interface OpenCode {
  readonly client: OpencodeClient
  readonly conversation: string
  /** Emits "event" with everything that happens in OpenCode. */
  readonly events: EventEmitter
}

/** Starts OpenCode and opens the conversation with this title: the one of an earlier process, or a new one. */
export async function start(title: string, signal: AbortSignal): Promise<OpenCode> {
  const { client } = await createOpencode({
    port: 0, // any free one: Sessions may share a Computer
    timeout: 60_000,
    signal,
    config: {
      model: "anthropic/claude-sonnet-4-5",
      provider: { anthropic: { options: await service(signal) } },
      // OpenCode's own permission model: it may change files here, and asks before it runs commands.
      permission: { edit: "allow", bash: "ask" },
      share: "disabled",
      autoupdate: false,
    },
  })
  const events = await watch(client, signal)
  const known = (await client.session.list({}, strict)).data.find((session) => session.title === title)
  const session = known ?? (await client.session.create({ title }, strict)).data
  return { client, conversation: session.id, events }
}

/** The real service when there is a key, otherwise a scripted model that only differs in its address. */
async function service(signal: AbortSignal): Promise<{ apiKey: string; baseURL?: string }> {
  const key = process.env["ANTHROPIC_API_KEY"]
  if (key) return { apiKey: key }
  const model = spawn("node", ["/opt/model/scripted-model.mjs", "/opt/model/script.mjs"], { stdio: ["ignore", "pipe", "inherit"], signal })
  model.on("error", (error) => signal.aborted || console.error(error))
  const [address] = (await once(createInterface(model.stdout), "line")) as [string]
  return { apiKey: "scripted", baseURL: `${address}/v1` }
}

/** Follows OpenCode for as long as it lives. A dead harness is a dead process: helmr then starts a new one. */
async function watch(client: OpencodeClient, signal: AbortSignal): Promise<EventEmitter> {
  const events = new EventEmitter()
  const { stream } = await client.event.subscribe({}, { signal, sseMaxRetryAttempts: 1 })
  await stream.next() // connected: nothing from here on is missed
  const follow = async () => {
    for await (const event of stream) events.emit("event", event)
    if (signal.aborted) return
    console.error("OpenCode has died")
    process.exit(1)
  }
  void follow()
  return events
}

/** An answer while it is made. `end` settles when OpenCode is idle again, and only if `text` is read. */
export interface Answer {
  readonly text: AsyncIterable<string>
  readonly end: Promise<{ readonly text: string; readonly error?: string }>
}

/** Gives the conversation a request. */
export function prompt({ client, conversation, events }: OpenCode, request: string, onPermission: (asked: PermissionRequest) => Promise<void>): Answer {
  const end = Promise.withResolvers<Awaited<Answer["end"]>>()
  end.promise.catch(() => {}) // whoever reads the text sees the same error
  async function* text(): AsyncGenerator<string> {
    const happened = on(events, "event") as AsyncIterableIterator<[Event]>
    await client.session.promptAsync({ sessionID: conversation, parts: [{ type: "text", text: request }] }, strict)
    const texts = new Set<string>()
    let busy = false
    for await (const [event] of happened) {
      if (!("sessionID" in event.properties) || event.properties.sessionID !== conversation) continue
      if (event.type === "session.status") busy ||= event.properties.status.type === "busy"
      else if (event.type === "permission.asked") await onPermission(event.properties)
      else if (event.type === "message.part.delta" && texts.has(event.properties.partID)) yield event.properties.delta
      else if (event.type === "message.part.updated") {
        const { part } = event.properties
        if (part.type === "text") texts.add(part.id) // other parts have deltas too: thoughts, arguments of tools
        if (part.type === "tool" && part.state.status === "completed") yield `\n[${part.tool}] ${part.state.title}\n`
      } else if (event.type === "session.idle" && busy) return // before it is busy, this is about an earlier request
    }
  }
  async function* whole(): AsyncGenerator<string> {
    try {
      yield* text()
      end.resolve(await lastMessage(client, conversation))
    } catch (error) {
      end.reject(error)
      throw error
    } finally {
      end.reject(new Error("the answer was not read to its end"))
    }
  }
  return { text: whole(), end: end.promise }
}

async function lastMessage(client: OpencodeClient, conversation: string): Promise<Awaited<Answer["end"]>> {
  const [last] = (await client.session.messages({ sessionID: conversation, limit: 1 }, strict)).data
  if (last?.info.role !== "assistant") return { text: "" }
  const text = last.parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n")
  const failure = last.info.error
  return failure ? { text, error: `${failure.name}: ${"message" in failure.data ? failure.data.message : ""}` } : { text }
}

/** Aborts an answer and waits for its end. An abort that comes before OpenCode has begun does nothing, so it is repeated. */
export async function abort({ client, conversation }: OpenCode, answer: Answer): Promise<void> {
  const ended = answer.end.then(() => true, () => true)
  do await client.session.abort({ sessionID: conversation }, strict)
  while (!(await Promise.race([ended, pause(200, false)])))
}

/** Makes calls of the client reject instead of returning the error. */
const strict = { throwOnError: true } as const
