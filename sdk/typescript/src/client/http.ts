import { HelmrError } from "./error.js"
import { fromWire, noneOpaque } from "./wire.js"

/** Last argument of every method. */
export interface RequestOptions {
  /** Ends the call, or the observation, by rejection with its reason. Work on the server goes on. */
  readonly signal?: AbortSignal | undefined
}

type Query = Readonly<Record<string, string | number | readonly string[] | undefined>>

/** Speaks HTTP with one server and turns every failure into a HelmrError. Knows no noun. */
export class Http {
  constructor(private readonly baseUrl: string, private readonly apiKey: string) {}

  async get(path: string, query: Query = {}, options?: RequestOptions): Promise<unknown> {
    return readJson(await this.send("GET", path, query, undefined, options))
  }

  async post(path: string, body: Record<string, unknown>, options?: RequestOptions): Promise<unknown> {
    return readJson(await this.send("POST", path, {}, body, options))
  }

  async delete(path: string, body: Record<string, unknown>, options?: RequestOptions): Promise<unknown> {
    return readJson(await this.send("DELETE", path, {}, body, options))
  }

  /** Opens a stream; the caller reads or cancels the body of the answer. */
  stream(path: string, query: Query, headers: Record<string, string>, options?: RequestOptions): Promise<Response> {
    return this.send("GET", path, query, undefined, options, { Accept: "text/event-stream", ...headers })
  }

  private async send(method: string, path: string, query: Query, body: Record<string, unknown> | undefined, options?: RequestOptions, headers: Record<string, string> = {}): Promise<Response> {
    options?.signal?.throwIfAborted()
    const init: RequestInit = {
      method,
      headers: { Accept: "application/json", Authorization: `Bearer ${this.apiKey}`, ...(body ? { "Content-Type": "application/json" } : {}), ...headers },
      ...(body ? { body: JSON.stringify(body) } : {}),
      ...(options?.signal ? { signal: options.signal } : {}),
    }
    let response: Response
    try {
      response = await fetch(this.baseUrl + path + encodeQuery(query), init)
    } catch (error) {
      throw connectionFailed(error, options, `${method} ${this.baseUrl}${path}`)
    }
    if (!response.ok) throw await problem(response)
    return response
  }
}

/** The error for a connection that broke; an aborted signal gives its own reason instead. */
export function connectionFailed(error: unknown, options: RequestOptions | undefined, what: string): unknown {
  if (options?.signal?.aborted) return options.signal.reason
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error
  return new HelmrError(`${what}: no answer from the server: ${cause instanceof Error ? cause.message || cause.name : String(cause)}`,
    { status: 0, code: "connection_failed" }, { cause: error })
}

async function readJson(response: Response): Promise<unknown> {
  try {
    return await response.json()
  } catch (error) {
    throw new HelmrError(`the answer with status ${response.status} could not be read as JSON`, { status: response.status, code: "invalid_answer", requestId: requestId(response) }, { cause: error })
  }
}

async function problem(response: Response): Promise<HelmrError> {
  const text = await response.text().catch(() => "")
  let body: Record<string, unknown> = {}
  try {
    const parsed: unknown = JSON.parse(text)
    if (typeof parsed === "object" && parsed !== null) body = parsed as Record<string, unknown>
  } catch {
    // Not from helmr, for example a proxy's page: status and text are all there is.
  }
  const string = (key: string): string | undefined => (typeof body[key] === "string" ? body[key] : undefined)
  const details = body["details"]
  const retryAfter = Number(response.headers.get("Retry-After"))
  return new HelmrError(string("detail") ?? string("title") ?? `the server answered with status ${response.status}`, {
    status: response.status,
    code: string("code") ?? `http_${response.status}`,
    requestId: string("request_id") ?? requestId(response),
    details: typeof details === "object" && details !== null ? (fromWire(details, noneOpaque) as Record<string, unknown>)
      : retryAfter > 0 ? { retryAfter } : undefined,
  })
}

function requestId(response: Response): string | undefined {
  return response.headers.get("X-Request-Id") ?? undefined
}

function encodeQuery(query: Query): string {
  const params = new URLSearchParams()
  for (const [key, value] of Object.entries(query)) {
    if (Array.isArray(value)) for (const item of value as readonly string[]) params.append(key, item)
    else if (value !== undefined) params.append(key, String(value))
  }
  const text = params.toString()
  return text === "" ? "" : `?${text}`
}

/** A path segment. */
export function segment(id: string): string {
  if (typeof id !== "string" || id === "") throw new TypeError(`an ID is ${id === "" ? "empty" : `a ${typeof id}`}; give the ID as a string`)
  return encodeURIComponent(id)
}
