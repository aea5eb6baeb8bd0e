import type { Content, InputContent } from "../content.js"
import { milliseconds, type Duration } from "../duration.js"
import type { JsonValue } from "../json.js"
import type { TurnSource } from "../turn.js"
import { connectionFailed, segment, type Http, type RequestOptions } from "./http.js"
import { pages, type CursorPage, type PagePromise, type PageQuery } from "./page.js"
import { turnQuestions, type Questions } from "./questions.js"
import { Renewal } from "./retry.js"
import { fromWire, given, noneOpaque } from "./wire.js"

export type TurnStatus = "queued" | "running" | "finalizing" | "completed" | "failed" | "interrupted" | "cancelled"

export interface TurnError {
  readonly code: string
  readonly message?: string
}

/** A Turn as the server knows it. */
export interface TurnInfo {
  readonly id: string
  readonly sessionId: string
  readonly sequence: number
  readonly status: TurnStatus
  readonly source: TurnSource
  readonly input?: InputContent | null
  /** Only when completed. */
  readonly result?: JsonValue
  /** Only when completed, and only if the handler gave one. */
  readonly response?: Content | null
  readonly error?: TurnError
  readonly createdAt: string
  readonly startedAt?: string
  readonly terminalAt?: string
  readonly completionSaveId?: string
  readonly payloadExpiredAt?: string
}

/** How a Turn ended. */
export interface TurnOutcome {
  readonly status: "completed" | "failed" | "interrupted" | "cancelled"
  readonly result?: JsonValue
  readonly response?: Content | null
  readonly error?: TurnError
  readonly payloadExpiredAt?: string
}

export type TimedTurnWaitResult = { readonly status: "timeout" } | { readonly status: "settled"; readonly outcome: TurnOutcome }

/** The Message is accepted; whether the handler got it is told by the events. */
export interface MessageReceipt {
  readonly id: string
  readonly turnId: string
  readonly messageId: string
  readonly status: "accepted"
}

export interface TurnPage extends CursorPage<TurnInfo> {
  readonly turns: readonly TurnInfo[]
}

/** A Turn by its ID; making one asks nothing of the server. */
export interface TurnRef {
  readonly id: string
  readonly sessionId: string
  readonly questions: Questions
  get(options?: RequestOptions): Promise<TurnInfo>
  /** Gives a Message to the running Turn. */
  send(request: { readonly data: InputContent; readonly idempotencyKey?: string }, options?: RequestOptions): Promise<MessageReceipt>
  /** Waits until the Turn is terminal. A `signal` ends only the observation. Outages up to two minutes are bridged. */
  wait(options?: RequestOptions): Promise<TurnOutcome>
  /** Waits at most this long. */
  wait(options: RequestOptions & { readonly timeout: Duration }): Promise<TimedTurnWaitResult>
}

/** Turns of one Session, oldest first. */
export interface Turns {
  list(query?: PageQuery, options?: RequestOptions): PagePromise<TurnPage>
  get(id: string, options?: RequestOptions): Promise<TurnInfo>
  ref(id: string): TurnRef
}

const opaque = new Set(["input", "result", "response"])
const longestPoll = 30_000

export function sessionTurns(http: Http, sessionId: string): Turns {
  const path = `/v1/sessions/${segment(sessionId)}/turns`
  const get = async (id: string, options?: RequestOptions): Promise<TurnInfo> =>
    fromWire(await http.get(`${path}/${segment(id)}`, {}, options), opaque) as TurnInfo
  return {
    list: ({ cursor, limit } = {}, options) => pages(async (at) => {
      const page = fromWire(await http.get(path, { cursor: at, limit }, options), opaque) as TurnPage
      return { ...page, items: page.turns }
    }, cursor),
    get,
    ref(id) {
      const turnPath = `${path}/${segment(id)}`
      return {
        id, sessionId,
        questions: turnQuestions(http, turnPath),
        get: (options) => get(id, options),
        send: async ({ data, idempotencyKey }, options) =>
          fromWire(await http.post(`${turnPath}/messages`, given({ data, idempotency_key: idempotencyKey }), options), noneOpaque) as MessageReceipt,
        wait: waiter(http, turnPath),
      }
    },
  }
}

function waiter(http: Http, path: string): TurnRef["wait"] {
  async function wait(options: RequestOptions & { readonly timeout?: Duration } = {}): Promise<TurnOutcome | TimedTurnWaitResult> {
    const deadline = options.timeout === undefined ? undefined : Date.now() + milliseconds("wait: timeout", options.timeout)
    const renewal = new Renewal()
    for (;;) {
      const left = deadline === undefined ? longestPoll : deadline - Date.now()
      if (left <= 0) return { status: "timeout" }
      const poll = Math.min(left, longestPoll)
      let turn: TurnInfo
      try {
        turn = await observe(http, path, poll, deadline !== undefined, options.signal)
      } catch (error) {
        options.signal?.throwIfAborted()
        if (deadline !== undefined && Date.now() >= deadline) return { status: "timeout" }
        await renewal.failed(error, options.signal)
        continue
      }
      renewal.succeeded()
      const outcome = outcomeOf(turn)
      if (outcome !== undefined) return deadline === undefined ? outcome : { status: "settled", outcome }
    }
  }
  return wait as TurnRef["wait"]
}

/** One long-poll. With a deadline the request may not outlast its time by much, whatever the network does. */
async function observe(http: Http, path: string, poll: number, bounded: boolean, signal: AbortSignal | undefined): Promise<TurnInfo> {
  const limit = AbortSignal.timeout(poll + (bounded ? 1_000 : 15_000))
  const either = signal === undefined ? limit : AbortSignal.any([signal, limit])
  try {
    return fromWire(await http.get(path, { wait: `${Math.ceil(poll)}ms` }, { signal: either }), opaque) as TurnInfo
  } catch (error) {
    if (limit.aborted && signal?.aborted !== true) throw connectionFailed(error, undefined, `GET ${path}`)
    throw error
  }
}

function outcomeOf(turn: TurnInfo): TurnOutcome | undefined {
  const { status, result, response, error, payloadExpiredAt } = turn
  if (status === "queued" || status === "running" || status === "finalizing") return undefined
  return {
    status,
    ...(result === undefined ? {} : { result }),
    ...(response === undefined ? {} : { response }),
    ...(error === undefined ? {} : { error }),
    ...(payloadExpiredAt === undefined ? {} : { payloadExpiredAt }),
  }
}
