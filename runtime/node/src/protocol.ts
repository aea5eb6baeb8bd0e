import type { CancelReason, InputContent, JsonValue, Recovery, TurnSource } from "@helmr/sdk"

/** Lines from the guest to this process; see README.md for what each means. Unknown types are ignored. */
export type Incoming =
  | StartMessage
  | { readonly type: "turn"; readonly turn: TurnMessage }
  | { readonly type: "abort"; readonly turnId: string; readonly reason: CancelReason }
  | { readonly type: "message"; readonly turnId: string; readonly messageId: string; readonly data: InputContent }
  | { readonly type: "answer"; readonly turnId: string; readonly questionId: string; readonly answer: JsonValue; readonly respondedBy: { readonly kind: "user" | "api_key"; readonly id: string } }
  | { readonly type: "question_cancelled"; readonly turnId: string; readonly questionId: string }
  | AckMessage
  | { readonly type: "stop"; readonly reason: StopReason }

/** What concerns one Turn. */
export type TurnEvent = Extract<Incoming, { readonly turnId: string }>

export type StopReason = "closed" | "cancelled" | "shutdown" | "deadline"

export interface StartMessage {
  readonly type: "start"
  readonly agentId: string
  readonly session: { readonly id: string; readonly key?: string; readonly parent?: { readonly id: string } }
  readonly computer: { readonly id: string }
  readonly deployment: { readonly id: string }
  readonly recovery: Recovery
  /** Path of the program's entry module. */
  readonly program: string
}

export interface TurnMessage {
  readonly id: string
  readonly sequence: number
  readonly createdAt: string
  readonly input: InputContent
  readonly source: TurnSource
}

/** An operation of ours is durable, or was refused for its content or the state it met. */
export interface AckMessage {
  readonly type: "ack"
  readonly seq: number
  readonly result?: { readonly sequence?: number }
  readonly error?: { readonly code: string; readonly message?: string }
}

export type FailureCode = "handler_failed" | "result_invalid" | "result_too_large" | "drain_failed"
