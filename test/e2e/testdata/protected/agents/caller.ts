import { writeFileSync } from "node:fs"
import { connect } from "node:http2"
import { agent, image, template } from "@helmr/sdk"

const base = {
  image: image("e2e").from("node:24-bookworm-slim").workdir("/work"),
  resources: { cpu: 1, memory: "512MiB", disk: "1GiB" },
} as const

const listed = template({
  id: "listed",
  ...base,
  network: { allowDomains: ["allowed.example", "other.example"] },
  secrets: [{ secret: "MODEL_KEY", env: { name: "MODEL_KEY", mode: "protected", allowedOrigins: ["https://allowed.example"] } }],
})

export const open = template({
  id: "open",
  ...base,
  secrets: [{ secret: "MODEL_KEY", env: { name: "MODEL_KEY", mode: "protected", allowedOrigins: ["https://allowed.example", "https://allowed.example:8443"] } }],
})

/** Calls the model while it is prepared; its Computers have no network. */
export const stocked = template({
  id: "stocked",
  ...base,
  network: { blockAll: true },
  prepareNetwork: { allowDomains: ["allowed.example"] },
  prepareSecrets: [{ secret: "MODEL_KEY", env: { name: "MODEL_KEY", mode: "protected", allowedOrigins: ["https://allowed.example"] } }],
  prepare: async () => {
    const key = process.env["MODEL_KEY"]
    const response = await fetch("https://allowed.example/stock", { headers: { authorization: `Bearer ${key}` } })
    writeFileSync("answer", `${response.status} ${await response.text()} ${await fetch("https://other.example/").then(() => "open", () => "closed")}`)
  },
})

const authorization = `Bearer ${process.env["MODEL_KEY"]}`

const http2 = (url: string) =>
  new Promise<string>((resolve, reject) => {
    const session = connect(url)
    session.on("error", reject)
    const request = session.request({ ":path": "/", authorization })
    let text = ""
    request.on("data", (chunk: Buffer) => (text += chunk))
    request.on("end", () => {
      session.close()
      resolve(text)
    })
    request.on("error", reject)
    request.end()
  })

/** Calls a model, as an ordinary program would, and says what came back. */
export const caller = agent({
  id: "caller",
  template: listed,
  async turn(turn) {
    const part = turn.input[0]
    const url = part !== undefined && part.type === "text" ? part.text : ""
    const response = await fetch(url, { headers: { authorization } })
    return { status: response.status, fetch: await response.text(), http2: response.status === 200 ? await http2(url) : "" }
  },
})
