import { existsSync, writeFileSync } from "node:fs"
import { agent } from "@helmr/sdk"
import { box } from "./box.js"

/** Its first init throws, every later one works. */
export const moody = agent({
  id: "moody",
  template: box,
  init() {
    if (!existsSync("/work/tried")) {
      writeFileSync("/work/tried", "")
      throw new Error("not today")
    }
    return "fine"
  },
  turn: (_turn, ctx) => ctx.initResult,
})

/** Its init never works. */
export const broken = agent({
  id: "broken",
  template: box,
  init() {
    throw new Error("never")
  },
  turn: () => null,
})

/** Has a second for each Turn. */
export const hasty = agent({
  id: "hasty",
  template: box,
  maxTurnDuration: "1s",
  async turn(turn) {
    if (turn.input[0]?.text === "wait") {
      await new Promise((resolve) => turn.onCancel(resolve))
    }
    return "done"
  },
})
