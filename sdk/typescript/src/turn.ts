import type { HumanContent, InputContent } from "./content.js"
import type { AnswerControl, Answered, Question } from "./question.js"

/** Why a Turn or a process was told to stop. */
export type CancelReason = "interrupted" | "cancelled" | "deadline" | "shutdown"

/** Where a Turn came from. */
export interface TurnSource {
  readonly kind: "client" | "slack" | "trigger" | "session"
  readonly requesterSessionId?: string
  readonly originTurnId?: string
}

/** Output of a Turn: live, ordered and durable. */
export interface TurnOutput {
  /** Resolves once the content is durable, with the sequence of its event. */
  write(content: HumanContent): Promise<{ readonly sequence: number }>
  /**
   * Writes every item of an iterable, joining small text parts; resolves when all are durable. When it ends early
   * (a refused item, a failing iterable, the signal) it closes the iterable and rejects; accepted items stay.
   */
  pipe(items: AsyncIterable<HumanContent> | Iterable<HumanContent>, options?: { readonly signal?: AbortSignal }): Promise<void>
}

/** One input and its handling, as the handler of an Agent sees it. */
export interface Turn {
  readonly id: string
  /** Admission number within the Session, from 1. */
  readonly sequence: number
  /** RFC 3339, UTC. */
  readonly createdAt: string
  readonly input: InputContent
  readonly source: TurnSource
  /** Aborts when the Turn has to stop. Its reason is an `AbortError`. */
  readonly signal: AbortSignal
  readonly output: TurnOutput
  /** Registers cleanup for an abort; all callbacks start at the abort and must settle within 10 seconds. */
  onCancel(callback: (event: { readonly reason: CancelReason }) => unknown): void
  /** Stages the response people see when the Turn completes; once per Turn. */
  respond(content: HumanContent): Promise<void>
  /** Asks a person and resolves with the answer. */
  ask<const C extends AnswerControl>(question: Question & { readonly answer: C }, options?: { readonly signal?: AbortSignal }): Promise<Answered<C>>
  /** Registers the handler of live Messages, called one at a time in order; once per Turn. */
  onMessage(handler: (data: InputContent) => unknown): void
}
