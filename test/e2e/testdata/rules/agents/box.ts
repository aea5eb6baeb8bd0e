import { image, template } from "@helmr/sdk"

export const box = template({
  id: "box",
  image: image("e2e").from("node:24-bookworm-slim").workdir("/work"),
  resources: { cpu: 1, memory: "512MiB", disk: "1GiB" },
})
