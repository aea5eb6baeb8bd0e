import { isRecord, show } from "./check.js"
import { ContentError, encodeContent, maxContentBytes, type Content } from "./content.js"
import { encodeJson, JsonProblem, utf8Length, type JsonValue } from "./json.js"

/** One of the options a person can choose. */
export interface QuestionOption {
  /** 1 to 128 bytes, distinct within the Question. */
  readonly id: string
  /** What the person sees; at most 256 bytes. */
  readonly label: string
  /** What the handler gets. */
  readonly value: JsonValue
  /** At most 2048 bytes. */
  readonly description?: string
}

/** Answered with a text. */
export interface TextControl {
  readonly type: "text"
}

/** Answered by choosing; with `multiple` any number of options, with `allowText` also or instead by a text. */
export interface ChoiceControl {
  readonly type: "choice"
  readonly options: readonly QuestionOption[]
  readonly multiple?: boolean
  readonly allowText?: boolean
}

export type AnswerControl = TextControl | ChoiceControl

/** What `turn.ask` puts to a person. */
export interface Question {
  readonly prompt: Content
  readonly answer: AnswerControl
}

/** Answer to a choice. */
export interface ChoiceAnswer {
  readonly selected: readonly { readonly id: string; readonly value: JsonValue }[]
  readonly text?: string
}

/** The answer that a control yields. */
export type AnswerOf<C extends AnswerControl> = C extends TextControl ? string : C extends ChoiceControl ? ChoiceAnswer : never

/** What `turn.ask` resolves to. */
export interface Answered<C extends AnswerControl = AnswerControl> {
  readonly answer: AnswerOf<C>
  readonly respondedBy: { readonly kind: "user" | "api_key"; readonly id: string }
}

const maxAnswerBytes = 64 * 1024
const maxTextBytes = 8 * 1024
const maxOptions = 100

/** Checks a Question and encodes it as JSON; throws ContentError. */
export function encodeQuestion(value: unknown): { readonly json: string; readonly bytes: number } {
  let json: string
  try {
    json = encodeJson(value)
  } catch (error) {
    throw new ContentError("invalid_arguments", `question cannot be written as JSON: ${error instanceof JsonProblem ? error.message : String(error)}`, { cause: error })
  }
  const bytes = utf8Length(json)
  if (bytes > maxContentBytes) tooMuch(`question has ${bytes} bytes as JSON; at most ${maxContentBytes} are allowed`)
  const question: unknown = JSON.parse(json)
  if (!isRecord(question)) wrong(`question is ${show(question)}; give { prompt, answer }`)
  onlyKeys("question", question, ["prompt", "answer"], ["prompt", "answer"])
  encodeContent(question["prompt"])
  checkControl(question["answer"])
  return { json, bytes }
}

function checkControl(control: unknown): void {
  if (!isRecord(control)) wrong(`question.answer is ${show(control)}; give { type: "text" } or { type: "choice", options }`)
  if (control["type"] === "text") return onlyKeys("question.answer", control, ["type"], ["type"])
  if (control["type"] !== "choice") wrong(`question.answer.type is ${show(control["type"])}; allowed are "text" and "choice"`)
  onlyKeys("question.answer", control, ["type", "options", "multiple", "allowText"], ["type", "options"])
  for (const flag of ["multiple", "allowText"]) {
    if (control[flag] !== undefined && typeof control[flag] !== "boolean") wrong(`question.answer.${flag} is ${show(control[flag])}; give true or false`)
  }
  const options = control["options"]
  if (!Array.isArray(options) || options.length === 0) wrong("question.answer.options is not a non-empty array of options")
  if (options.length > maxOptions) tooMuch(`question.answer.options has ${options.length} options; at most ${maxOptions} are allowed`)
  const seen = new Set<string>()
  options.forEach((option: unknown, i) => checkOption(`question.answer.options[${i}]`, option, seen))
  checkLargestAnswer(options as readonly QuestionOption[], control["multiple"] === true, control["allowText"] === true)
}

function checkOption(field: string, option: unknown, seen: Set<string>): void {
  if (!isRecord(option)) wrong(`${field} is ${show(option)}; give { id, label, value }`)
  onlyKeys(field, option, ["id", "label", "value", "description"], ["id", "label", "value"])
  const id = shortText(`${field}.id`, option["id"], 128)
  if (id === "") wrong(`${field}.id is empty`)
  if (seen.has(id)) wrong(`${field}.id ${show(id)} is used by an earlier option; IDs are distinct`)
  seen.add(id)
  shortText(`${field}.label`, option["label"], 256)
  if (option["description"] !== undefined) shortText(`${field}.description`, option["description"], 2048)
}

function shortText(field: string, value: unknown, most: number): string {
  if (typeof value !== "string") wrong(`${field} is ${show(value)}; give a string`)
  const bytes = utf8Length(value)
  if (bytes > most) tooMuch(`${field} has ${bytes} bytes; at most ${most} are allowed`)
  return value
}

/** A choice that could be answered with more than an answer may hold is refused before anybody is asked. */
function checkLargestAnswer(options: readonly QuestionOption[], multiple: boolean, allowText: boolean): void {
  const sizes = options.map(({ id, value }) => utf8Length(JSON.stringify({ id, value })))
  const chosen = multiple ? sizes.reduce((sum, size) => sum + size, sizes.length - 1) : Math.max(...sizes)
  const largest = '{"selected":[]}'.length + chosen + (allowText ? ',"text":'.length + maxTextBytes : 0)
  if (largest > maxAnswerBytes) tooMuch(`question.answer allows an answer of ${largest} bytes; at most ${maxAnswerBytes} are allowed: shorten the values of its options`)
}

function onlyKeys(field: string, value: Record<string, unknown>, allowed: readonly string[], required: readonly string[]): void {
  for (const key of Object.keys(value)) if (!allowed.includes(key)) wrong(`${field} has the unknown field ${show(key)}; allowed are ${allowed.join(", ")}`)
  for (const key of required) if (!Object.hasOwn(value, key)) wrong(`${field}.${key} is missing`)
}

function wrong(message: string): never {
  throw new ContentError("invalid_arguments", message)
}

function tooMuch(message: string): never {
  throw new ContentError("content_limit_exceeded", message)
}
