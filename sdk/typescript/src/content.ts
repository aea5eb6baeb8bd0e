import { hasInstance, mark } from "./brand.js"
import { isRecord, show } from "./check.js"
import { encodeJson, JsonProblem, utf8Length, type JsonValue } from "./json.js"

/** A part that people read. */
export interface TextPart {
  readonly type: "text"
  readonly text: string
}

/** A part that carries any JSON value. */
export interface JsonPart {
  readonly type: "json"
  readonly value: JsonValue
}

/** Input of a Turn and data of a Message: text parts only. `[]` is empty input. */
export type InputContent = readonly TextPart[]

/** Output, response and Question prompt: text and JSON parts. */
export type Content = readonly (TextPart | JsonPart)[]

/** Content, or a string that stands for one text part. */
export type HumanContent = Content | string

/** Why a content value was refused. */
export type ContentErrorCode = "invalid_arguments" | "content_limit_exceeded" | "content_kind_unsupported" | "answer_invalid"

/** Most bytes of one content value, measured as JSON in UTF-8. */
export const maxContentBytes = 256 * 1024

/** Most parts of one content value. */
export const maxContentParts = 64

/**
 * A content value was refused; `code` says why. The call had no effect and the Turn goes on. `instanceof` works across
 * copies of the SDK.
 */
export class ContentError extends Error {
  readonly code: ContentErrorCode

  constructor(code: ContentErrorCode, message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = "ContentError"
    this.code = code
  }

  static override [Symbol.hasInstance](value: unknown): boolean {
    return hasInstance(this, ContentError, value, "ContentError")
  }
}
mark(ContentError.prototype, "ContentError")

/** A checked content value: its parts, its JSON text and the size of that text in bytes. */
export interface EncodedContent<T extends Content = Content> {
  readonly parts: T
  readonly json: string
  readonly bytes: number
}

/** Checks InputContent; throws {@link ContentError}. */
export function encodeInput(value: unknown): EncodedContent<InputContent> {
  return encode(value, "input", ["text"]) as EncodedContent<InputContent>
}

/** Checks Content; throws {@link ContentError}. */
export function encodeContent(value: unknown): EncodedContent {
  return encode(value, "content", ["text", "json"])
}

/** Checks HumanContent; throws {@link ContentError}. */
export function encodeHuman(value: unknown): EncodedContent {
  if (typeof value !== "string") return encodeContent(value)
  if (!value.isWellFormed()) throw new ContentError("invalid_arguments", "content is not valid Unicode: it contains a lone surrogate")
  const json = `[{"type":"text","text":${JSON.stringify(value)}}]`
  const bytes = measure(json, "content")
  return { parts: [{ type: "text", text: value }], json, bytes }
}

/** The checks, in the order the contract gives: the first one that fails decides the code. */
function encode(value: unknown, what: string, kinds: readonly string[]): EncodedContent {
  let json: string
  try {
    json = encodeJson(value)
  } catch (error) {
    throw new ContentError("invalid_arguments", `${what} cannot be written as JSON: ${error instanceof JsonProblem ? error.message : String(error)}`, { cause: error })
  }
  const bytes = measure(json, what)
  const parts: unknown = JSON.parse(json)
  if (!Array.isArray(parts)) {
    throw new ContentError("invalid_arguments", `${what} is ${show(parts)}; give an array of parts such as [{ type: "text", text: "Hello" }]`)
  }
  checkParts(parts, what, kinds)
  return { parts: parts as Content, json, bytes }
}

function measure(json: string, what: string): number {
  const bytes = utf8Length(json)
  if (bytes > maxContentBytes) {
    throw new ContentError("content_limit_exceeded", `${what} has ${bytes} bytes as JSON; at most ${maxContentBytes} are allowed`)
  }
  return bytes
}

function checkParts(parts: readonly unknown[], what: string, kinds: readonly string[]): void {
  if (parts.length > maxContentParts) {
    throw new ContentError("content_limit_exceeded", `${what} has ${parts.length} parts; at most ${maxContentParts} are allowed`)
  }
  parts.forEach((part, i) => {
    if (!isRecord(part)) throw new ContentError("invalid_arguments", `${what}[${i}] is ${show(part)}; each part is an object`)
  })
  const objects = parts as readonly Record<string, unknown>[]
  objects.forEach((part, i) => {
    if (typeof part["type"] !== "string" || !kinds.includes(part["type"])) {
      throw new ContentError("content_kind_unsupported", `${what}[${i}].type is ${show(part["type"])}; allowed here: ${kinds.map((kind) => `"${kind}"`).join(", ")}`)
    }
  })
  objects.forEach((part, i) => {
    const field = part["type"] === "text" ? "text" : "value"
    const keys = Object.keys(part)
    if (keys.length !== 2 || !keys.includes(field) || (field === "text" && typeof part["text"] !== "string")) {
      throw new ContentError("invalid_arguments", `${what}[${i}] has the wrong fields; a ${part["type"]} part is exactly ${
        field === "text" ? '{ type: "text", text: string }' : '{ type: "json", value: any JSON value }'}`)
    }
  })
}
