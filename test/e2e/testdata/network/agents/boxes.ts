import { agent, image, template } from "@helmr/sdk"

const base = {
  image: image("e2e").from("node:24-bookworm-slim").workdir("/work"),
  resources: { cpu: 1, memory: "512MiB", disk: "1GiB" },
} as const

export const listed = template({ id: "listed", ...base, network: { allowDomains: ["allowed.example", { domain: "*.corp.example", ipRanges: ["10.20.0.0/16"] }] } })
export const open = template({ id: "open", ...base })
export const blocked = template({ id: "blocked", ...base, network: { blockAll: true } })

const text = (parts: readonly { readonly text: string }[]): string => parts.map((part) => part.text).join("")

/** Listens and asks where no network is. */
export const recluse = agent({
  id: "recluse",
  template: blocked,
  async turn(turn) {
    const heard = new Promise<string>((resolve) => {
      turn.onMessage((data) => resolve(text(data)))
    })
    const out = await fetch("http://93.184.216.34/").then(() => "out", () => "in")
    const { answer } = await turn.ask({ prompt: [{ type: "text", text: "Why?" }], answer: { type: "text" } })
    return { heard: [await heard], why: answer, asked: out }
  },
})
