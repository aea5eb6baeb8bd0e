import type { Content, InputContent } from "../content.js"
import type { JsonValue } from "../json.js"
import type { AnswerControl, Question } from "../question.js"
import type { Recovery } from "../agent.js"
import type { TurnSource } from "../turn.js"
import { HelmrError } from "./error.js"
import { connectionFailed, segment, type Http, type RequestOptions } from "./http.js"
import { Renewal } from "./retry.js"
import { serverEvents } from "./sse.js"
import type { TurnError } from "./turns.js"
import { fromWire, noneOpaque } from "./wire.js"

/** Who used a control. */
export type ControlBy = Readonly<Record<string, JsonValue>>

interface MessageEventData {
  readonly messageId: string
  readonly status: string
  readonly delivery: "admitted" | "started" | "delivered" | "not_delivered" | "uncertain"
  readonly reason?: string
  /** On admission only. */
  readonly data?: InputContent
}

/** What each kind of event carries. Every `data` is null once the history has expired. */
export interface SessionEventData {
  "turn.queued": { readonly sequence: number; readonly source: TurnSource; readonly input: InputContent }
  "turn.running": { readonly epoch: number; readonly recovery: Recovery }
  "turn.output": Content
  "turn.finalizing": { readonly saveId: string }
  "turn.completed": { readonly result?: JsonValue; readonly response?: Content; readonly saveId: string }
  "turn.failed": { readonly error: TurnError }
  "turn.interrupted": { readonly error: TurnError }
  "turn.cancelled": Readonly<Record<string, never>>
  "message.admitted": MessageEventData
  "message.started": MessageEventData
  "message.delivered": MessageEventData
  "message.rejected": MessageEventData
  "question.created": { readonly questionId: string; readonly question: Question }
  "question.responded": { readonly questionId: string; readonly answer: JsonValue; readonly respondedByUserId?: string; readonly respondedByApiKeyId?: string }
  "question.cancelled": { readonly questionId: string }
  "session.interrupt": { readonly holdId: string; readonly by: ControlBy }
  "session.held": { readonly holdId: string; readonly reason: string }
  "session.resume": { readonly holdId: string; readonly by: ControlBy }
  "session.close": { readonly cause: "control" | "idle"; readonly by?: ControlBy }
  "session.closed": Readonly<Record<string, never>>
  "session.cancel": { readonly cause: "control" | "parent" | "agent_deleted"; readonly by?: ControlBy }
  "session.cancelled": Readonly<Record<string, never>>
  "session.deadline": { readonly turnId: string }
  "session.process_stopped": { readonly epoch: number; readonly reason: string }
  "session.process_failed": { readonly epoch: number; readonly reason: string; readonly consecutiveFailures: number }
  "session.failed": { readonly error: TurnError }
  "slack.delivery_unavailable": { readonly reason: string }
}

/** A record of a Session's durable history. `kind` tells the shape of `data`. */
export type SessionEvent = {
  [K in keyof SessionEventData]: {
    readonly sessionId: string
    readonly turnId: string | null
    /** Position in the Session's history, from 1, increasing. */
    readonly sequence: number
    readonly kind: K
    readonly data: SessionEventData[K]
    readonly createdAt: string
  }
}[keyof SessionEventData]

export interface SessionEventPage {
  readonly records: readonly SessionEvent[]
  readonly nextAfter: number
  /** False means caught up, not finished. */
  readonly hasMore: boolean
  readonly retainedAfter: number
}

/** Events of one Session. */
export interface SessionEvents {
  /** Reads recorded events after a sequence (default 0), at most `limit` (default 100, 1 to 1000). */
  list(query?: { readonly after?: number; readonly limit?: number }, options?: RequestOptions): Promise<SessionEventPage>
  /**
   * Follows events after a sequence (default 0) as they happen, until the Session is terminal and released. Reconnects
   * by itself from the last one, for up to two minutes at a time; nothing is lost or doubled.
   */
  stream(query?: { readonly after?: number }, options?: RequestOptions): AsyncIterable<SessionEvent>
}

export function sessionEvents(http: Http, sessionId: string): SessionEvents {
  const path = `/v1/sessions/${segment(sessionId)}/events`
  return {
    async list({ after, limit } = {}, options) {
      const page = (await http.get(path, { after, limit }, options)) as { records: unknown[] }
      const rest = fromWire({ ...page, records: undefined }, noneOpaque) as Omit<SessionEventPage, "records">
      return { ...rest, records: page.records.map(eventFromWire) }
    },
    stream: ({ after = 0 } = {}, options) => follow(http, `${path}/stream`, after, options),
  }
}

async function* follow(http: Http, path: string, after: number, options?: RequestOptions): AsyncGenerator<SessionEvent> {
  const renewal = new Renewal()
  let last = after
  let connected = false
  for (;;) {
    try {
      const headers: Record<string, string> = connected ? { "Last-Event-ID": String(last) } : {}
      const response = await http.stream(path, { after: last }, headers, options)
      connected = true
      if (response.body === null) throw new Error("the answer has no body")
      for await (const event of serverEvents(response.body)) {
        if (event.event === "end") return
        const record = eventFromWire(JSON.parse(event.data))
        renewal.succeeded()
        if (record.sequence <= last) continue
        last = record.sequence
        yield record
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

const opaqueKeys = new Set(["input", "result", "response", "answer", "prompt", "value", "data"])

/** Converts the names of an event, leaving alone what belongs to users. */
export function eventFromWire(value: unknown): SessionEvent {
  const { data, ...envelope } = value as { kind: string; data: unknown }
  const event = fromWire(envelope, noneOpaque) as Record<string, unknown>
  if (envelope.kind === "turn.output") return { ...event, data } as SessionEvent
  if (envelope.kind !== "question.created" || data === null) return { ...event, data: fromWire(data, opaqueKeys) } as SessionEvent
  // Here `answer` is the control, which has names of ours.
  const { question, ...rest } = data as { question: { prompt: Content; answer: AnswerControl } }
  return {
    ...event,
    data: { ...(fromWire(rest, noneOpaque) as object), question: { prompt: question.prompt, answer: fromWire(question.answer, opaqueKeys) } },
  } as unknown as SessionEvent
}
