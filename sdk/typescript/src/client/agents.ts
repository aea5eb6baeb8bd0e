import type { InputContent } from "../content.js"
import { segment, type Http, type RequestOptions } from "./http.js"
import { pages, type CursorPage, type PagePromise, type PageQuery } from "./page.js"
import { fromWire } from "./wire.js"

/** What a Deployment says about an Agent. Periods are milliseconds; null means never. */
export interface AgentDefinitionInfo {
  readonly deploymentId: string
  readonly template: string
  readonly maxTurnDuration?: number
  readonly closeAfterIdle: number | null
  readonly hibernateAfterIdle: number | null
  readonly triggers: readonly AgentTriggerInfo[]
}

export interface AgentTriggerInfo {
  readonly id: string
  readonly cron: string
  readonly timezone: string
  readonly input: InputContent
  readonly slack?: { readonly channelId: string }
}

/** An Agent of the Environment; its definition depends on the Deployment. */
export interface AgentListItem {
  readonly id: string
  readonly inCurrentDeployment: boolean
  readonly createdAt: string
  readonly deletedAt?: string
}

export interface AgentInfo extends AgentListItem {
  /** Null when the Deployment lacks the Agent. */
  readonly definition: AgentDefinitionInfo | null
}

export interface AgentListQuery extends PageQuery {
  readonly scope?: "current" | "all"
  readonly deploymentId?: string
}

export interface AgentPage extends CursorPage<AgentListItem> {
  readonly agents: readonly AgentListItem[]
}

export interface Agents {
  list(query?: AgentListQuery, options?: RequestOptions): PagePromise<AgentPage>
  /** With the definition of the current Deployment, or of the one named. */
  get(id: string, query?: { readonly deploymentId?: string }, options?: RequestOptions): Promise<AgentInfo>
}

const opaque = new Set(["input"])

export function agents(http: Http): Agents {
  return {
    list: ({ scope, deploymentId, cursor, limit } = {}, options) => pages(async (at) => {
      const page = fromWire(await http.get("/v1/agents", { scope, deployment_id: deploymentId, cursor: at, limit }, options), opaque) as AgentPage
      return { ...page, items: page.agents }
    }, cursor),
    get: async (id, { deploymentId } = {}, options) =>
      fromWire(await http.get(`/v1/agents/${segment(id)}`, { deployment_id: deploymentId }, options), opaque) as AgentInfo,
  }
}
