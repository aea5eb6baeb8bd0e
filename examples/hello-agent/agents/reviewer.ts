import { agent, image, template } from "@helmr/sdk"

/** The Computer that each new Session gets: a durable Linux machine made from this image. */
export const reviewerComputer = template({
  id: "reviewer",
  image: image("reviewer").from("node:24-bookworm-slim").workdir("/app"),
  resources: { cpu: 1, memory: "1GiB" },
})

export const reviewer = agent({
  id: "reviewer",
  template: reviewerComputer,
  maxTurnDuration: "30m",
  closeAfterIdle: "1d",
  // Runs once for each process of a Session. What it returns stays in memory for all Turns of that process.
  async init(ctx) {
    return { sessionId: ctx.session.id, turns: 0 }
  },
  // Runs once for each input, in order.
  async turn(turn, ctx) {
    ctx.initResult.turns += 1
    await turn.output.write("Review started")
    if (turn.input.some((part) => part.text.endsWith("slowly"))) {
      await reviewSlowly(turn)
    }
    await turn.respond("Review complete")
    return { turns: ctx.initResult.turns }
  },
})

/** Takes its time and says how far it is, for watching what happens to a Turn when something fails meanwhile. */
async function reviewSlowly(turn: { output: { write(text: string): Promise<unknown> }; signal: AbortSignal }) {
  const steps = 12
  for (let step = 1; step <= steps && !turn.signal.aborted; step++) {
    await new Promise((resolve) => setTimeout(resolve, 500))
    await turn.output.write(`\nstep ${step} of ${steps}`)
  }
}
