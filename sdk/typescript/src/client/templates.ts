import type { NetworkPolicy } from "../network.js"
import type { SecretBinding } from "../secrets.js"
import { segment, type Http, type RequestOptions } from "./http.js"
import { pages, type CursorPage, type PagePromise, type PageQuery } from "./page.js"
import { fromWire, noneOpaque } from "./wire.js"

/** A Template as a Deployment pins it. */
export interface TemplateListItem {
  /** Declared ID. */
  readonly template: string
  readonly resources: { readonly milliCpu: number; readonly memoryMiB: number; readonly diskMiB?: number }
  readonly network: NetworkPolicy
  /** `{ blockAll: true }` when there is no preparation callback. */
  readonly prepareNetwork: NetworkPolicy
  readonly prepareSecrets: readonly SecretBinding[]
}

export interface TemplateInfo extends TemplateListItem {
  readonly deploymentId: string
}

export interface TemplatePage extends CursorPage<TemplateListItem> {
  readonly deploymentId: string
  readonly templates: readonly TemplateListItem[]
}

export interface TemplateQuery {
  /** The current Deployment when left out. */
  readonly deploymentId?: string
}

export interface Templates {
  get(id: string, query?: TemplateQuery, options?: RequestOptions): Promise<TemplateInfo>
  list(query?: TemplateQuery & PageQuery, options?: RequestOptions): PagePromise<TemplatePage>
}

export function templates(http: Http): Templates {
  return {
    get: async (id, { deploymentId } = {}, options) =>
      fromWire(await http.get(`/v1/templates/${segment(id)}`, { deployment_id: deploymentId }, options), noneOpaque) as TemplateInfo,
    list: ({ deploymentId, cursor, limit } = {}, options) => pages(async (at) => {
      const page = fromWire(await http.get("/v1/templates", { deployment_id: deploymentId, cursor: at, limit }, options), noneOpaque) as TemplatePage
      return { ...page, items: page.templates }
    }, cursor),
  }
}
