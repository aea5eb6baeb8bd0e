import type { Duration } from "../duration.js"
import { HelmrError } from "./error.js"
import { connectionFailed, segment, type Http, type RequestOptions } from "./http.js"
import { Renewal } from "./retry.js"
import { serverEvents } from "./sse.js"
import { waiter, type TimedWaitResult } from "./wait.js"
import { fromWire, given, noneOpaque } from "./wire.js"

export type CommandStatus = "pending" | "starting" | "running" | "stopping" | "exited" | "failed" | "cancelled" | "timed_out" | "lost"

interface Ended {
  readonly commandId: string
  readonly terminalAt: string
}

/** How a Command ended. An exit code other than 0 is an ordinary end. */
export type CommandOutcome =
  | (Ended & { readonly kind: "exited"; readonly exitCode: number })
  | (Ended & { readonly kind: "cancelled" | "timed_out" })
  | (Ended & {
    readonly kind: "system_failed"
    readonly failure: { readonly reason: "placement_failed" | "guest_failure" | "scope_termination_failed"; readonly message?: string }
  })

export interface CommandInfo {
  readonly id: string
  readonly computerId: string
  readonly status: CommandStatus
  /** No process of it is left for certain; may turn true after the outcome is known. */
  readonly processReconciled: boolean
  readonly createdAt: string
  /** Exactly when the status is terminal. */
  readonly outcome?: CommandOutcome
}

export type TimedCommandWaitResult = TimedWaitResult<CommandOutcome>

/** The cancellation is accepted: the same receipt every time, and no proof that a process has ended. */
export interface CommandCancelReceipt {
  readonly id: string
  readonly targetId: string
  readonly status: "accepted"
}

interface Logged {
  readonly cursor: string
  readonly stream: "stdout" | "stderr"
}

/** A piece of output: bytes, neither lines nor characters, in order within its stream. Or pieces that are lost. */
export type CommandLogRecord =
  | (Logged & { readonly kind: "output"; readonly content: Uint8Array; readonly observedAt: string })
  | (Logged & { readonly kind: "gap"; readonly fromSequence: string; readonly throughSequence: string })

export interface CommandLogReadPage {
  readonly outputState: "open" | "closed" | "unavailable"
  readonly logs: readonly CommandLogRecord[]
  /** Cursor of the last record. An empty page has none, which is not the end while the output is open. */
  readonly nextCursor?: string
}

/** Output of one Command. */
export interface CommandLogs {
  list(query?: { readonly cursor?: string; readonly limit?: number }, options?: RequestOptions): Promise<CommandLogReadPage>
  /**
   * Follows output after a cursor until all of it has come. Reconnects by itself from the last record, for up to two
   * minutes at a time; nothing is lost or doubled. Throws HelmrError `command_output_unavailable` when the rest is lost.
   */
  stream(query?: { readonly after?: string }, options?: RequestOptions): AsyncIterable<CommandLogRecord>
}

/** A Command by its ID; making one asks nothing of the server. */
export interface CommandRef {
  readonly id: string
  readonly logs: CommandLogs
  get(options?: RequestOptions): Promise<CommandInfo>
  /** Waits for the outcome. A `signal` ends only the observation. Outages up to two minutes are bridged. */
  wait(options?: RequestOptions): Promise<CommandOutcome>
  /** Waits at most this long; the Command goes on. */
  wait(options: RequestOptions & { readonly timeout: Duration }): Promise<TimedCommandWaitResult>
  /** Asks its processes to end; they are killed after 10 seconds. */
  cancel(options?: RequestOptions): Promise<CommandCancelReceipt>
}

export interface Commands {
  ref(id: string): CommandRef
}

export interface ComputerCommandRequest {
  /** The program and its arguments; no shell is involved. */
  readonly command: readonly string[]
  /** A clean absolute path; that of the image by default. */
  readonly cwd?: string
  /** Variables beyond those of the image. */
  readonly env?: Readonly<Record<string, string>>
  readonly stdin?: Uint8Array
  /** Bounds the execution: 1ms to 24h, 5m by default. */
  readonly timeout?: Duration
  readonly idempotencyKey?: string
}

export function commands(http: Http): Commands {
  return { ref: (id) => commandRef(http, id) }
}

export function commandRef(http: Http, id: string): CommandRef {
  const path = `/v1/commands/${segment(id)}`
  return {
    id,
    logs: {
      async list({ cursor, limit } = {}, options) {
        const page = (await http.get(`${path}/logs`, { cursor, limit }, options)) as { logs: unknown[] }
        const rest = fromWire({ ...page, logs: undefined }, noneOpaque) as Omit<CommandLogReadPage, "logs">
        return { ...rest, logs: page.logs.map(record) }
      },
      stream: ({ after } = {}, options) => follow(http, `${path}/logs/stream`, after, options),
    },
    get: async (options) => fromWire(await http.get(path, {}, options), noneOpaque) as CommandInfo,
    wait: waiter(http, path, (answer) => (fromWire(answer, noneOpaque) as CommandInfo).outcome),
    cancel: async (options) => fromWire(await http.post(`${path}/cancel`, {}, options), noneOpaque) as CommandCancelReceipt,
  }
}

/** Admits a Command on a Computer. */
export async function exec(http: Http, computerPath: string, request: ComputerCommandRequest, options?: RequestOptions): Promise<CommandRef> {
  const { command, cwd, env, stdin, timeout, idempotencyKey } = request
  const body = given({
    command, cwd, env, idempotency_key: idempotencyKey,
    stdin_base64: stdin && base64(stdin),
    timeout: typeof timeout === "number" ? `${Math.ceil(timeout)}ms` : timeout,
  })
  const { command_id } = (await http.post(`${computerPath}/commands`, body, options)) as { command_id: string }
  return commandRef(http, command_id)
}

function record(value: unknown): CommandLogRecord {
  const { content_base64, ...rest } = value as { kind: string; content_base64?: string }
  const converted = fromWire(rest, noneOpaque) as CommandLogRecord
  return rest.kind === "output" ? { ...converted, content: bytes(content_base64 ?? "") } as CommandLogRecord : converted
}

async function* follow(http: Http, path: string, after: string | undefined, options?: RequestOptions): AsyncGenerator<CommandLogRecord> {
  const renewal = new Renewal()
  let last = after
  let connected = false
  for (;;) {
    try {
      const response = await http.stream(path, { after: last }, {}, options)
      connected = true
      if (response.body === null) throw new Error("the answer has no body")
      for await (const event of serverEvents(response.body)) {
        if (event.event === "end") return
        if (event.event === "error") throw ended(event.data)
        const next = record(JSON.parse(event.data))
        renewal.succeeded()
        last = next.cursor
        yield next
      }
      throw new Error("the stream ended early")
    } catch (error) {
      // A first attempt that fails is most likely a wrong address: say so at once.
      options?.signal?.throwIfAborted()
      const named = error instanceof HelmrError ? error : connectionFailed(error, options, path)
      if (!connected) throw named
      await renewal.failed(named, options?.signal)
    }
  }
}

/** The error that ended a stream from the server's side. */
function ended(data: string): HelmrError {
  const { code, message, status, request_id } = JSON.parse(data) as { code: string; message: string; status: number; request_id?: string }
  return new HelmrError(message, { status, code, requestId: request_id })
}

function base64(data: Uint8Array): string {
  if (typeof Buffer === "function") return Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("base64")
  let text = ""
  for (let i = 0; i < data.length; i += 0x8000) text += String.fromCharCode(...data.subarray(i, i + 0x8000))
  return btoa(text)
}

function bytes(text: string): Uint8Array {
  if (typeof Buffer === "function") return new Uint8Array(Buffer.from(text, "base64"))
  const binary = atob(text)
  const data = new Uint8Array(binary.length)
  for (let i = 0; i < data.length; i += 1) data[i] = binary.charCodeAt(i)
  return data
}
