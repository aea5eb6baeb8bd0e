import { image, template } from "@helmr/sdk"

export const box = template({
  id: "box",
  image: image("e2e").from("node:24-bookworm-slim").workdir("/work"),
  resources: { cpu: 1, memory: "512MiB", disk: "1GiB" },
})

/** Its Computers go when nobody has used them for a second. */
export const brief = template({
  id: "brief",
  image: image("e2e").from("node:24-bookworm-slim").workdir("/work"),
  resources: { cpu: 1, memory: "256MiB", disk: "256MiB" },
  deleteAfterUnused: "1s",
})
