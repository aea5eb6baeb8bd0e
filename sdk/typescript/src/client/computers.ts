import type { SecretBinding } from "../secrets.js"
import { segment, type Http, type RequestOptions } from "./http.js"
import { pages, type CursorPage, type PagePromise, type PageQuery } from "./page.js"
import { fromWire, noneOpaque } from "./wire.js"

export interface ComputerListItem {
  readonly id: string
  readonly key?: string
  /** Declared ID of its Template in `deploymentId`. */
  readonly template: string
  readonly deploymentId: string
  readonly status: "available" | "deleting" | "deleted"
  readonly residency: "cold" | "starting" | "running" | "hibernating" | "hibernated" | "resuming" | "unavailable"
  /** What accepted, runnable work was last seen waiting for. */
  readonly executionWait: "scheduling" | "environment_limit" | "saving" | null
  readonly error?: { readonly code: string; readonly message?: string }
  /** With the `secret` filter: how the Computer came to hold the value. */
  readonly secretExposure?: "received" | "image"
  readonly lastActivityAt: string
  readonly createdAt: string
  readonly updatedAt: string
}

export interface Computer extends ComputerListItem {
  readonly secrets: readonly SecretBinding[]
}

/** Either an exact lookup by `key`, or a page. */
export type ComputerListQuery =
  | { readonly key: string; readonly secret?: never; readonly cursor?: never; readonly limit?: never }
  | (PageQuery & { readonly key?: never; readonly secret?: string })

export interface ComputerPage extends CursorPage<ComputerListItem> {
  readonly computers: readonly ComputerListItem[]
}

/** A Computer by its ID; making one asks nothing of the server. */
export interface ComputerRef {
  readonly id: string
  get(options?: RequestOptions): Promise<Computer>
}

export interface Computers {
  get(id: string, options?: RequestOptions): Promise<Computer>
  list(query?: ComputerListQuery, options?: RequestOptions): PagePromise<ComputerPage>
  ref(id: string): ComputerRef
}

export function computers(http: Http): Computers {
  const get = async (id: string, options?: RequestOptions): Promise<Computer> =>
    fromWire(await http.get(`/v1/computers/${segment(id)}`, {}, options), noneOpaque) as Computer
  return {
    get,
    list: ({ key, secret, cursor, limit } = {}, options) => pages(async (at) => {
      const page = fromWire(await http.get("/v1/computers", { key, secret, cursor: at, limit }, options), noneOpaque) as ComputerPage
      return { ...page, items: page.computers }
    }, cursor),
    ref(id) {
      segment(id)
      return { id, get: (options) => get(id, options) }
    },
  }
}
