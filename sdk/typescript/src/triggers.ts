import { isMarked, mark } from "./brand.js"
import { declaredId, deepFreeze, record, refuse, show, text } from "./check.js"
import { ContentError, encodeInput, type InputContent } from "./content.js"

/** A cron Trigger, made by `triggers.cron`. */
export interface CronTrigger {
  readonly kind: "cron"
  readonly id: string
  /** Five fields: minute, hour, day of the month, month, weekday. */
  readonly expression: string
  /** An IANA name such as "Europe/Berlin". */
  readonly timezone: string
  readonly input: InputContent
  readonly slack?: { readonly channelId: string }
}

export interface CronOptions {
  readonly timezone: string
  readonly input: InputContent
  readonly slack?: { readonly channelId: string }
}

/** Makers of Triggers. */
export const triggers = Object.freeze({ cron })

/** Declares that the Agent gets a Session of its own with this input at each time of the schedule. Throws TypeError. */
function cron(id: string, expression: string, options: CronOptions): CronTrigger {
  const name = declaredId("triggers.cron: id", id)
  const where = `trigger ${show(name)}:`
  const given = record(`${where} options`, options, ["timezone", "input", "slack"])
  const trigger: Record<string, unknown> = {
    kind: "cron",
    id: name,
    expression: text(`${where} expression`, expression),
    timezone: text(`${where} timezone`, given["timezone"]),
    input: input(`${where} input`, given["input"]),
  }
  if (given["slack"] !== undefined) {
    const { channelId } = record(`${where} slack`, given["slack"], ["channelId"])
    if (typeof channelId !== "string" || !/^[CG][A-Z0-9]{1,99}$/.test(channelId)) {
      refuse(`${where} slack.channelId`, `is ${show(channelId)}`, 'give a Slack channel ID such as "C0123ABCD"')
    }
    trigger["slack"] = { channelId }
  }
  return deepFreeze(mark(trigger, "trigger")) as unknown as CronTrigger
}

export function isTrigger(value: unknown): value is CronTrigger {
  return isMarked(value, "trigger")
}

function input(field: string, value: unknown): InputContent {
  try {
    return encodeInput(value).parts
  } catch (error) {
    if (error instanceof ContentError) refuse(field, `is not InputContent: ${error.message}`, 'give an array of text parts such as [{ type: "text", text: "Hello" }]')
    throw error
  }
}
