import type { SecretBinding } from "../secrets.js"
import { exec, type CommandRef, type ComputerCommandRequest } from "./commands.js"
import { segment, type Http, type RequestOptions } from "./http.js"
import { pages, type CursorPage, type PagePromise, type PageQuery } from "./page.js"
import { fromWire, given, noneOpaque } from "./wire.js"

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

export interface ComputerCreateRequest {
  /** Declared ID of a Template in the current Deployment. */
  readonly template: string
  /** Finds the Computer again; a taken key is refused with `computer_key_conflict`. */
  readonly key?: string
  /** Bindings beyond those of the Template, for the life of the Computer. */
  readonly secrets?: readonly SecretBinding[]
  readonly idempotencyKey?: string
}

/** Something that a Computer tried on its network, once or often in a row. */
export interface NetworkAttempt {
  readonly kind: "dns" | "tls" | "http" | "https" | "tcp" | "udp" | "icmp" | "ip"
  /** The name that was asked for. */
  readonly name?: string
  readonly address?: string
  readonly port?: number
  readonly outcome: "allowed" | "refused"
  /** Why it was refused, such as `name_not_allowed`. */
  readonly reason?: string
  readonly count: number
  readonly firstAt: string
  readonly lastAt: string
}

/** A Session or Command that occupies a Computer now: neither its history nor its status. */
export interface ComputerUsage {
  readonly id: string
  readonly usageState: "admitted" | "running" | "waiting" | "parked" | "draining" | "unreconciled"
  readonly createdAt: string
}

export interface ComputerSessionPage extends CursorPage<ComputerUsage> {
  readonly sessions: readonly ComputerUsage[]
}

export interface ComputerCommandPage extends CursorPage<ComputerUsage> {
  readonly commands: readonly ComputerUsage[]
}

/** A Computer by its ID; making one asks nothing of the server. */
export interface ComputerRef {
  readonly id: string
  /** Sessions that occupy the Computer now. */
  readonly sessions: { list(query?: PageQuery, options?: RequestOptions): PagePromise<ComputerSessionPage> }
  /** Commands that occupy the Computer now. */
  readonly commands: { list(query?: PageQuery, options?: RequestOptions): PagePromise<ComputerCommandPage> }
  get(options?: RequestOptions): Promise<Computer>
  /** What the Computer tried on its network lately, allowed and refused, latest first: a bounded list. */
  network(options?: RequestOptions): Promise<{ readonly attempts: readonly NetworkAttempt[] }>
  /** Runs a program on the Computer, starting it if it must. Gives the Command once it is admitted, which is before it runs. */
  exec(request: ComputerCommandRequest, options?: RequestOptions): Promise<CommandRef>
  /** Deletes the Computer with its disk; refused with `computer_busy` while it is in use. */
  delete(request?: { readonly idempotencyKey?: string }, options?: RequestOptions): Promise<{ readonly computerId: string }>
}

export interface Computers {
  /** Makes a Computer from a Template of the current Deployment. */
  create(request: ComputerCreateRequest, options?: RequestOptions): Promise<ComputerRef>
  get(id: string, options?: RequestOptions): Promise<Computer>
  list(query?: ComputerListQuery, options?: RequestOptions): PagePromise<ComputerPage>
  ref(id: string): ComputerRef
}

export function computers(http: Http): Computers {
  const get = async (id: string, options?: RequestOptions): Promise<Computer> =>
    fromWire(await http.get(`/v1/computers/${segment(id)}`, {}, options), noneOpaque) as Computer
  const ref = (id: string): ComputerRef => {
    const path = `/v1/computers/${segment(id)}`
    const usage = <P extends CursorPage<ComputerUsage>>(name: "sessions" | "commands") => ({
      list: ({ cursor, limit }: PageQuery = {}, options?: RequestOptions) => pages(async (at) => {
        const page = fromWire(await http.get(`${path}/${name}`, { cursor: at, limit }, options), noneOpaque) as Record<typeof name, ComputerUsage[]>
        return { ...page, items: page[name] } as unknown as P
      }, cursor),
    })
    return {
      id,
      sessions: usage<ComputerSessionPage>("sessions"),
      commands: usage<ComputerCommandPage>("commands"),
      get: (options) => get(id, options),
      network: async (options) => fromWire(await http.get(`${path}/network`, {}, options), noneOpaque) as { attempts: NetworkAttempt[] },
      exec: (request, options) => exec(http, path, request, options),
      delete: async ({ idempotencyKey } = {}, options) =>
        fromWire(await http.delete(path, given({ idempotency_key: idempotencyKey }), options), noneOpaque) as { computerId: string },
    }
  }
  return {
    async create({ template, key, secrets, idempotencyKey }, options) {
      const { computer_id } = (await http.post("/v1/computers", given({ template, key, secrets, idempotency_key: idempotencyKey }), options)) as { computer_id: string }
      return ref(computer_id)
    },
    get,
    list: ({ key, secret, cursor, limit } = {}, options) => pages(async (at) => {
      const page = fromWire(await http.get("/v1/computers", { key, secret, cursor: at, limit }, options), noneOpaque) as ComputerPage
      return { ...page, items: page.computers }
    }, cursor),
    ref,
  }
}
