import { pathToFileURL } from "node:url"
import type { AgentDefinition } from "@helmr/sdk"
import { isAgent } from "@helmr/sdk/internal"

/** Loads the program's entry module and finds an Agent in what it exports as `agents`: a Map or a plain object by ID. */
export async function loadAgent(program: string, id: string): Promise<AgentDefinition> {
  const { agents } = (await import(pathToFileURL(program).href)) as { readonly agents?: unknown }
  let found: unknown
  if (agents instanceof Map) found = agents.get(id)
  else if (typeof agents === "object" && agents !== null && Object.hasOwn(agents, id)) found = (agents as Record<string, unknown>)[id]
  if (!isAgent(found)) throw new Error(`the program ${program} exports no Agent ${JSON.stringify(id)}`)
  return found
}
