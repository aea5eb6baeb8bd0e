import { agents, type Agents } from "./agents.js"
import { commands, type Commands } from "./commands.js"
import { computers, type Computers } from "./computers.js"
import { deployments, type Deployments } from "./deployments.js"
import { Http } from "./http.js"
import { secrets, type Secrets } from "./secrets.js"
import { sessions, type Sessions } from "./sessions.js"
import { templates, type Templates } from "./templates.js"

export interface HelmrClientOptions {
  /** API key; `HELMR_API_KEY` by default. It decides the Environment. */
  readonly apiKey?: string
  /** Address of the server; `HELMR_API_URL` by default. */
  readonly baseUrl?: string
}

/** Drives one Environment of a helmr server. Every method that fails throws HelmrError. */
export class HelmrClient {
  readonly sessions: Sessions
  readonly agents: Agents
  readonly templates: Templates
  readonly computers: Computers
  readonly commands: Commands
  readonly secrets: Secrets
  readonly deployments: Deployments

  /** Throws TypeError when the API key or the address is missing or malformed. */
  constructor(options: HelmrClientOptions = {}) {
    const apiKey = options.apiKey ?? fromEnv("HELMR_API_KEY")
    const baseUrl = options.baseUrl ?? fromEnv("HELMR_API_URL")
    if (typeof apiKey !== "string" || apiKey.trim() === "") throw new TypeError("HelmrClient: apiKey is missing; pass it or set HELMR_API_KEY")
    if (typeof baseUrl !== "string" || baseUrl.trim() === "") throw new TypeError("HelmrClient: baseUrl is missing; pass it or set HELMR_API_URL")
    const http = new Http(address(baseUrl), apiKey)
    this.sessions = sessions(http)
    this.agents = agents(http)
    this.templates = templates(http)
    this.computers = computers(http)
    this.commands = commands(http)
    this.secrets = secrets(http)
    this.deployments = deployments(http)
  }
}

function fromEnv(name: string): string | undefined {
  return typeof process === "undefined" ? undefined : process.env[name]
}

function address(baseUrl: string): string {
  let url: URL
  try {
    url = new URL(baseUrl)
  } catch {
    throw new TypeError(`HelmrClient: baseUrl is ${JSON.stringify(baseUrl)}, not a URL; give one such as "https://helmr.example.com"`)
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") throw new TypeError(`HelmrClient: baseUrl is ${JSON.stringify(baseUrl)}; give an http or https URL`)
  if (url.search !== "" || url.hash !== "") throw new TypeError(`HelmrClient: baseUrl is ${JSON.stringify(baseUrl)}; give it without query and fragment`)
  return url.href.replace(/\/+$/, "")
}
