import { agent, image, template } from "@helmr/sdk"

/** The Computer that each new Session gets: a durable Linux machine made from this image. */
const box = template({
  id: "reviewer-box",
  image: image("reviewer").from("node:24-bookworm-slim").workdir("/workspace"),
  resources: { cpu: 1, memory: "512MiB" },
})

export const reviewer = agent({
  id: "reviewer",
  template: box,
  // Runs once when the Session's process starts. What it returns is kept in memory for all its Turns.
  init: () => ({ turns: 0 }),
  // Runs once for each input, in order.
  turn: async (turn, ctx) => {
    ctx.initResult.turns += 1
    const request = turn.input.map((part) => part.text).join(" ")
    await turn.output.write("Review started")
    // Put your agent here: call a model, run tools, write files; the disk of the Computer is kept.
    await turn.respond(`Reviewed: ${request}`)
    return { turns: ctx.initResult.turns }
  },
})
