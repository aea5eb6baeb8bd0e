import { segment, type Http, type RequestOptions } from "./http.js"
import { pages, type CursorPage, type PagePromise, type PageQuery } from "./page.js"
import { fromWire, given, noneOpaque } from "./wire.js"

/** A named value of the Environment. The value itself is never answered. */
export interface Secret {
  readonly id: string
  readonly name: string
  readonly status: "active" | "revoked"
  readonly createdAt: string
  readonly rotatedAt?: string
  readonly revokedAt?: string
}

/** Either an exact lookup by `name`, or a page. */
export type SecretListQuery =
  | { readonly name: string; readonly cursor?: never; readonly limit?: never }
  | (PageQuery & { readonly name?: never })

export interface SecretPage extends CursorPage<Secret> {
  readonly secrets: readonly Secret[]
}

export interface SecretCreateRequest {
  readonly name: string
  readonly value: string
  readonly idempotencyKey?: string
}

export interface SecretRotateRequest {
  readonly value: string
  readonly idempotencyKey: string
}

export interface Secrets {
  /** Makes a Secret; a used name is refused with `secret_exists`. */
  create(request: SecretCreateRequest, options?: RequestOptions): Promise<Secret>
  get(name: string, options?: RequestOptions): Promise<Secret>
  list(query?: SecretListQuery, options?: RequestOptions): PagePromise<SecretPage>
  /** Gives a Secret another value, for processes that start from now on. */
  rotate(name: string, request: SecretRotateRequest, options?: RequestOptions): Promise<Secret>
  /** Ends a Secret for good: Computers bound to it take no new work. */
  revoke(name: string, request: { readonly idempotencyKey: string }, options?: RequestOptions): Promise<Secret>
}

export function secrets(http: Http): Secrets {
  const post = async (path: string, body: Record<string, unknown>, options?: RequestOptions): Promise<Secret> =>
    fromWire(await http.post(path, given(body), options), noneOpaque) as Secret
  return {
    create: ({ name, value, idempotencyKey }, options) => post("/v1/secrets", { name, value, idempotency_key: idempotencyKey }, options),
    get: async (name, options) => fromWire(await http.get(`/v1/secrets/${segment(name)}`, {}, options), noneOpaque) as Secret,
    list: ({ name, cursor, limit } = {}, options) => pages(async (at) => {
      const page = fromWire(await http.get("/v1/secrets", { name, cursor: at, limit }, options), noneOpaque) as SecretPage
      return { ...page, items: page.secrets }
    }, cursor),
    rotate: (name, { value, idempotencyKey }, options) => post(`/v1/secrets/${segment(name)}/rotate`, { value, idempotency_key: idempotencyKey }, options),
    revoke: (name, { idempotencyKey }, options) => post(`/v1/secrets/${segment(name)}/revoke`, { idempotency_key: idempotencyKey }, options),
  }
}
