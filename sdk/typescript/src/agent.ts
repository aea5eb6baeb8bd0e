import { isMarked, mark } from "./brand.js"
import { array, callback, declaredId, record, refuse, show } from "./check.js"
import { milliseconds, millisecondsOrNever, type Duration, type DurationOrNever } from "./duration.js"
import { isTemplate, type TemplateDefinition } from "./template.js"
import { isTrigger, type CronTrigger } from "./triggers.js"
import type { Turn } from "./turn.js"

/** Whether this process is the first of its Session, or why it replaces another. */
export type Recovery =
  | { readonly kind: "initial" }
  | { readonly kind: "reconstructed"; readonly reason: "process_failed" | "deadline" | "cancellation_failed" | "computer_lost" | "shutdown" }

/** Address and credentials of the delegation endpoint inside the Computer. */
export interface McpConnectionOptions {
  readonly url: string
  readonly headers: Readonly<Record<string, string>>
}

/** What `init` gets. */
export interface InitContext {
  readonly session: { readonly id: string; readonly key?: string; readonly parent?: { readonly id: string } }
  readonly computer: { readonly id: string }
  readonly deployment: { readonly id: string }
  readonly recovery: Recovery
  /** Aborts when the Session process shuts down. */
  readonly signal: AbortSignal
  readonly mcp: {
    /** How to reach the tools for starting and steering other Agents' Sessions. */
    getConnectionOptions(): Promise<McpConnectionOptions>
  }
}

/** What `turn` gets besides the Turn. */
export interface TurnContext<Init = undefined> extends InitContext {
  /** What `init` resolved to: the same object in every Turn of this process. Undefined without `init`. */
  readonly initResult: Init
}

/** Definition of an Agent. */
export interface AgentConfig<Init = undefined> {
  /** Declared ID: letters, digits, `.`, `_`, `-`, at most 128. Callers name it to create a Session. */
  readonly id: string
  /** Recipe of the Computer that new Sessions get. */
  readonly template: TemplateDefinition
  /** Runs once per Session process, before its first Turn. */
  readonly init?: (ctx: InitContext) => Init | Promise<Init>
  /** Runs once for each Turn. What it returns, a JSON value, is the machine result. */
  readonly turn: (turn: Turn, ctx: TurnContext<Init>) => unknown
  /** Bounds the running time of a Turn, waits for people included. No default. */
  readonly maxTurnDuration?: Duration
  /** Closes an idle Session after this time. Default 7 days. */
  readonly closeAfterIdle?: DurationOrNever
  /** Hibernates the Computer of an idle Session after this time. Default `"never"`. */
  readonly hibernateAfterIdle?: DurationOrNever
  readonly triggers?: readonly CronTrigger[]
}

/** A value made by {@link agent}. */
export interface AgentDefinition<Init = unknown> extends Omit<AgentConfig<Init>, "turn"> {
  readonly kind: "agent"
  // A method, so that AgentDefinition<X> is an AgentDefinition<unknown>.
  turn(turn: Turn, ctx: TurnContext<Init>): unknown
}

const fields = ["id", "template", "init", "turn", "maxTurnDuration", "closeAfterIdle", "hibernateAfterIdle", "triggers"] as const

/** Declares an Agent. Throws TypeError when a field is missing, unknown or invalid; the message says which and why. */
export function agent<Init = undefined>(config: AgentConfig<Init>): AgentDefinition<Init> {
  const given = record("agent", config, fields)
  const id = declaredId("agent: id", given["id"])
  const where = `agent ${show(id)}:`
  if (!isTemplate(given["template"])) refuse(`${where} template`, given["template"] === undefined ? "is missing" : `is ${show(given["template"])}, not a Template`, "use a value made with template({ ... })")
  if (given["turn"] === undefined) refuse(`${where} turn`, "is missing", "give a function (turn, ctx) => result")
  const definition: Record<string, unknown> = { kind: "agent", id, template: given["template"], turn: callback(`${where} turn`, given["turn"]) }
  if (given["init"] !== undefined) definition["init"] = callback(`${where} init`, given["init"])
  if (given["maxTurnDuration"] !== undefined) {
    milliseconds(`${where} maxTurnDuration`, given["maxTurnDuration"])
    definition["maxTurnDuration"] = given["maxTurnDuration"]
  }
  for (const field of ["closeAfterIdle", "hibernateAfterIdle"] as const) {
    if (given[field] === undefined) continue
    millisecondsOrNever(`${where} ${field}`, given[field])
    definition[field] = given[field]
  }
  if (given["triggers"] !== undefined) definition["triggers"] = checkTriggers(`${where} triggers`, given["triggers"])
  return Object.freeze(mark(definition, "agent")) as unknown as AgentDefinition<Init>
}

export function isAgent(value: unknown): value is AgentDefinition {
  return isMarked(value, "agent")
}

function checkTriggers(field: string, value: unknown): readonly CronTrigger[] {
  const seen = new Set<string>()
  const result = array(field, value).map((trigger, i) => {
    if (!isTrigger(trigger)) refuse(`${field}[${i}]`, `is ${show(trigger)}`, "use a value made with triggers.cron(id, expression, options)")
    if (seen.has(trigger.id)) refuse(`${field}[${i}]`, `has the ID ${show(trigger.id)} of an earlier Trigger`, "give each Trigger of an Agent its own ID")
    seen.add(trigger.id)
    return trigger
  })
  return Object.freeze(result)
}
