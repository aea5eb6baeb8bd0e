import type { InputContent } from "../content.js"
import { sessionEvents, type SessionEvents } from "./events.js"
import { segment, type Http, type RequestOptions } from "./http.js"
import { pages, type CursorPage, type PagePromise, type PageQuery } from "./page.js"
import { sessionTurns, type Turns, type TurnStatus } from "./turns.js"
import { fromWire, given, noneOpaque } from "./wire.js"

export type SessionStatus = "open" | "closing" | "closed" | "cancelled"

/** A block on dispatching queued Turns. */
export interface Hold {
  readonly id: string
  /** The Session that owns the hold: this one or an ancestor. */
  readonly sessionId: string
  readonly scope: "local" | "subtree"
  readonly reason: "interrupt" | "process_failures" | "cancellation_failed" | "computer_lost"
  readonly createdAt: string
}

export interface Session {
  readonly id: string
  /** Declared ID of its Agent. */
  readonly agentId: string
  readonly deploymentId: string
  readonly computerId: string
  readonly rootSessionId: string
  readonly parentSessionId: string | null
  readonly requesterSessionId: string | null
  readonly slackChannelId?: string
  readonly key?: string
  readonly initialTurn: { readonly id: string; readonly status: TurnStatus } | null
  readonly status: SessionStatus
  readonly createdAt: string
  readonly holds: readonly Hold[]
}

export interface SessionCreateRequest {
  /** Declared ID of an Agent in the current Deployment. */
  readonly agent: string
  readonly input: InputContent
  /** With a taken key the input goes to the Session that has it. */
  readonly key?: string
  /** Runs the Session on an existing Computer. */
  readonly computerId?: string
  readonly slack?: { readonly channelId: string }
  readonly idempotencyKey?: string
}

export interface SessionCreateReceipt {
  readonly sessionId: string
  readonly turnId: string
  readonly sequence: number
  /** False when the key was taken and the input was queued on that Session. */
  readonly created: boolean
}

export interface EnqueueReceipt {
  readonly sessionId: string
  readonly turnId: string
  readonly sequence: number
}

/** What the data became: a Message to the running Turn, or a new Turn. */
export type SendReceipt =
  | { readonly id: string; readonly kind: "messaged"; readonly turnId: string; readonly messageId: string }
  | { readonly id: string; readonly kind: "enqueued"; readonly turnId: string }

/** The control is accepted; later state is read from the Session or its events. */
export interface SessionControlReceipt {
  readonly id: string
  readonly sessionId: string
  readonly status: "accepted"
}

/** The receipt of an interrupt or resume names its hold. */
export interface SessionHoldReceipt extends SessionControlReceipt {
  readonly holdId: string
}

export interface SessionListQuery extends PageQuery {
  readonly status?: SessionStatus | readonly SessionStatus[]
  readonly agentId?: string
  /** Together with `agentId` only. */
  readonly key?: string
  readonly computerId?: string
  readonly parentSessionId?: string
  readonly requesterSessionId?: string
}

export interface SessionPage extends CursorPage<Session> {
  readonly sessions: readonly Session[]
}

interface Control {
  readonly idempotencyKey?: string
}

/** A Session by its ID; making one asks nothing of the server. */
export interface SessionRef {
  readonly id: string
  readonly events: SessionEvents
  readonly turns: Turns
  get(options?: RequestOptions): Promise<Session>
  /** Gives data to the running Turn if that takes Messages, otherwise queues it as a new Turn. */
  send(request: Control & { readonly data: InputContent }, options?: RequestOptions): Promise<SendReceipt>
  /** Queues input as a new Turn. */
  enqueue(request: Control & { readonly input: InputContent }, options?: RequestOptions): Promise<EnqueueReceipt>
  /** Aborts the running Turns of the Session and the Sessions it owns, and holds their queues until resumed. */
  interrupt(request?: Control, options?: RequestOptions): Promise<SessionHoldReceipt>
  /** Releases one hold of this Session. */
  resume(request: Control & { readonly holdId: string }, options?: RequestOptions): Promise<SessionHoldReceipt>
  /** Refuses new Turns and ends the Session when accepted work is done. */
  close(request?: Control, options?: RequestOptions): Promise<SessionControlReceipt>
  /** Ends the Session and the Sessions it owns now. */
  cancel(request?: Control, options?: RequestOptions): Promise<SessionControlReceipt>
}

export interface Sessions {
  create(request: SessionCreateRequest, options?: RequestOptions): Promise<SessionCreateReceipt>
  get(id: string, options?: RequestOptions): Promise<Session>
  /** Latest first. */
  list(query?: SessionListQuery, options?: RequestOptions): PagePromise<SessionPage>
  ref(id: string): SessionRef
}

export function sessions(http: Http): Sessions {
  const get = async (id: string, options?: RequestOptions): Promise<Session> =>
    fromWire(await http.get(`/v1/sessions/${segment(id)}`, {}, options), noneOpaque) as Session
  return {
    async create({ agent, input, key, computerId, slack, idempotencyKey }, options) {
      const body = given({
        agent, input, key, computer_id: computerId, slack: slack && { channel_id: slack.channelId }, idempotency_key: idempotencyKey,
      })
      return fromWire(await http.post("/v1/sessions", body, options), noneOpaque) as SessionCreateReceipt
    },
    get,
    list: (query = {}, options) => pages(async (at) => {
      const page = fromWire(await http.get("/v1/sessions", {
        status: query.status, agent_id: query.agentId, key: query.key, computer_id: query.computerId,
        parent_session_id: query.parentSessionId, requester_session_id: query.requesterSessionId, cursor: at, limit: query.limit,
      }, options), noneOpaque) as SessionPage
      return { ...page, items: page.sessions }
    }, query.cursor),
    ref: (id) => sessionRef(http, id, get),
  }
}

function sessionRef(http: Http, id: string, get: Sessions["get"]): SessionRef {
  const path = `/v1/sessions/${segment(id)}`
  const post = async (action: string, body: Record<string, unknown>, options?: RequestOptions): Promise<unknown> =>
    fromWire(await http.post(`${path}/${action}`, given(body), options), noneOpaque)
  const control = (action: string) => async ({ idempotencyKey }: Control = {}, options?: RequestOptions) =>
    (await post(action, { idempotency_key: idempotencyKey }, options)) as SessionControlReceipt
  return {
    id,
    events: sessionEvents(http, id),
    turns: sessionTurns(http, id),
    get: (options) => get(id, options),
    send: async ({ data, idempotencyKey }, options) =>
      (await post("send", { data, idempotency_key: idempotencyKey }, options)) as SendReceipt,
    enqueue: async ({ input, idempotencyKey }, options) =>
      (await post("enqueue", { input, idempotency_key: idempotencyKey }, options)) as EnqueueReceipt,
    interrupt: control("interrupt") as SessionRef["interrupt"],
    resume: async ({ holdId, idempotencyKey }, options) =>
      (await post("resume", { hold_id: holdId, idempotency_key: idempotencyKey }, options)) as SessionHoldReceipt,
    close: control("close"),
    cancel: control("cancel"),
  }
}
