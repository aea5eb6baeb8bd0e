import type { Content, InputContent } from "../content.js"
import type { Duration } from "../duration.js"
import type { JsonValue } from "../json.js"
import type { TurnSource } from "../turn.js"
import { segment, type Http, type RequestOptions } from "./http.js"
import { pages, type CursorPage, type PagePromise, type PageQuery } from "./page.js"
import { turnQuestions, type Questions } from "./questions.js"
import { waiter, type TimedWaitResult } from "./wait.js"
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

export type TimedTurnWaitResult = TimedWaitResult<TurnOutcome>

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
        wait: waiter(http, turnPath, (answer) => outcomeOf(fromWire(answer, opaque) as TurnInfo)),
      }
    },
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
