import { image, template } from "@helmr/sdk"

const base = {
  image: image("e2e").from("node:24-bookworm-slim").workdir("/work"),
  resources: { cpu: 1, memory: "512MiB", disk: "1GiB" },
} as const

export const listed = template({ id: "listed", ...base, network: { allowDomains: ["allowed.example", { domain: "*.corp.example", ipRanges: ["10.20.0.0/16"] }] } })
export const open = template({ id: "open", ...base })
export const blocked = template({ id: "blocked", ...base, network: { blockAll: true } })
