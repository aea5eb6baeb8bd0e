import type { Content } from "../content.js"
import type { JsonValue } from "../json.js"
import type { AnswerControl } from "../question.js"
import { segment, type Http, type RequestOptions } from "./http.js"
import { pages, type CursorPage, type PagePromise, type PageQuery } from "./page.js"
import { fromWire } from "./wire.js"

export type QuestionStatus = "pending" | "responded" | "cancelled"

/** A Question as the server knows it. */
export interface QuestionInfo {
  readonly id: string
  readonly sessionId: string
  readonly turnId: string
  readonly status: QuestionStatus
  /** Absent in the answer to a response, and once the history has expired. */
  readonly prompt?: Content
  /** How it is answered; absent where `prompt` is. */
  readonly answerControl?: AnswerControl
  readonly answer?: JsonValue
  readonly payloadExpired?: boolean
  readonly createdAt: string
  readonly respondedAt?: string
  readonly cancelledAt?: string
  readonly respondedByUserId?: string
  readonly respondedByApiKeyId?: string
}

export interface QuestionPage extends CursorPage<QuestionInfo> {
  readonly questions: readonly QuestionInfo[]
}

export interface QuestionResponse {
  /** A string for a text control, `{ selected: [{ id, value }], text? }` for a choice. */
  readonly answer: JsonValue
  /** Sent again with the same answer it is one response; made up when missing. */
  readonly responseId?: string
}

/** Questions of one Turn, oldest first. */
export interface Questions {
  list(query?: PageQuery, options?: RequestOptions): PagePromise<QuestionPage>
  get(id: string, options?: RequestOptions): Promise<QuestionInfo>
  /** Answers a Question; the first valid response counts. */
  respond(id: string, response: QuestionResponse, options?: RequestOptions): Promise<QuestionInfo>
}

const opaque = new Set(["prompt", "answer_control", "answer"])

export function turnQuestions(http: Http, turnPath: string): Questions {
  const path = `${turnPath}/questions`
  return {
    list: ({ cursor, limit } = {}, options) => pages(async (at) => {
      const page = fromWire(await http.get(path, { cursor: at, limit }, options), opaque) as QuestionPage
      return { ...page, items: page.questions }
    }, cursor),
    get: async (id, options) => fromWire(await http.get(`${path}/${segment(id)}`, {}, options), opaque) as QuestionInfo,
    respond: async (id, { answer, responseId = crypto.randomUUID() }, options) =>
      fromWire(await http.post(`${path}/${segment(id)}/respond`, { answer, response_id: responseId }, options), opaque) as QuestionInfo,
  }
}
