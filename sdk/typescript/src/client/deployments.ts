import type { AgentDefinitionInfo } from "./agents.js"
import { segment, type Http, type RequestOptions } from "./http.js"
import { pages, type CursorPage, type PagePromise, type PageQuery } from "./page.js"
import type { TemplateListItem } from "./templates.js"
import { fromWire, given } from "./wire.js"

export interface DeploymentListItem {
  readonly id: string
  /** Number within the Environment. */
  readonly version: number
  readonly bundleDigest: string
  readonly createdAt: string
  readonly current: boolean
  readonly promotedAt?: string
}

export interface Deployment extends DeploymentListItem {
  readonly agents: readonly (Omit<AgentDefinitionInfo, "deploymentId"> & { readonly id: string })[]
  readonly templates: readonly (Pick<TemplateListItem, "resources"> & { readonly id: string })[]
}

export interface Promotion {
  readonly deploymentId: string
  readonly promotedAt: string
  readonly restoredAgents: readonly { readonly id: string }[]
}

export interface DeploymentPage extends CursorPage<DeploymentListItem> {
  readonly deployments: readonly DeploymentListItem[]
}

export interface Deployments {
  list(query?: PageQuery, options?: RequestOptions): PagePromise<DeploymentPage>
  get(id: string, options?: RequestOptions): Promise<Deployment>
  /** The Deployment whose definitions new work uses. */
  current(options?: RequestOptions): Promise<Deployment>
  /** Makes a Deployment the current one. */
  promote(id: string, request?: { readonly reason?: string; readonly idempotencyKey?: string }, options?: RequestOptions): Promise<Promotion>
}

const opaque = new Set(["input"])

export function deployments(http: Http): Deployments {
  const get = async (name: string, options?: RequestOptions): Promise<Deployment> =>
    fromWire(await http.get(`/v1/deployments/${name}`, {}, options), opaque) as Deployment
  return {
    list: ({ cursor, limit } = {}, options) => pages(async (at) => {
      const page = fromWire(await http.get("/v1/deployments", { cursor: at, limit }, options), opaque) as DeploymentPage
      return { ...page, items: page.deployments }
    }, cursor),
    get: (id, options) => get(segment(id), options),
    current: (options) => get("current", options),
    promote: async (id, { reason, idempotencyKey } = {}, options) =>
      fromWire(await http.post(`/v1/deployments/${segment(id)}/promote`, given({ reason, idempotency_key: idempotencyKey }), options), opaque) as Promotion,
  }
}
