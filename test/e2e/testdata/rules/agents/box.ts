import { image, template } from "@helmr/sdk"

const base = {
  image: image("e2e").from("node:24-bookworm-slim").workdir("/work"),
  resources: { cpu: 1, memory: "512MiB", disk: "1GiB" },
} as const

export const box = template({ id: "box", ...base })
export const keyed = template({
  id: "keyed",
  ...base,
  secrets: [
    { secret: "MODEL_KEY", env: { name: "MODEL_API_KEY", mode: "raw" } },
    { secret: "MODEL_KEY", file: { path: "/run/model/key" } },
  ],
})
