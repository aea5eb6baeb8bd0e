import { createHash } from "node:crypto"
import { readFileSync, statSync } from "node:fs"
import { agent, image, template } from "@helmr/sdk"

const safe = template({
  id: "safe",
  image: image("e2e").from("node:24-bookworm-slim").workdir("/").user("node"),
  resources: { cpu: 1, memory: "512MiB", disk: "1GiB" },
  secrets: [
    { secret: "TOKEN", env: { name: "TOKEN", mode: "raw" } },
    { secret: "KEY", file: { path: "/run/secrets/app/key" } },
  ],
})

const digest = (value: string | Buffer | undefined) => createHash("sha256").update(value ?? "").digest("hex")

/** Says what it was given, without saying it. */
export const keeper = agent({
  id: "keeper",
  template: safe,
  turn(turn) {
    const wish = turn.input[0]?.type === "text" ? turn.input[0].text : ""
    if (wish === "throw") throw new Error("as was asked for")
    if (wish === "exit") process.exit(7)
    if (wish === "abort") process.abort()
    const file = statSync("/run/secrets/app/key")
    return { token: digest(process.env["TOKEN"]), key: digest(readFileSync("/run/secrets/app/key")), mode: (file.mode & 0o7777).toString(8), mine: file.uid === process.getuid?.() }
  },
})
