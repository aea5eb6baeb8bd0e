import { appendFileSync, existsSync, readFileSync, writeFileSync } from "node:fs"
import { setTimeout as pause } from "node:timers/promises"
import { agent } from "@helmr/sdk"
import { box } from "./box.js"

/** Counts its Turns in memory and on disk, and does what the input says. */
export const counter = agent({
  id: "counter",
  template: box,
  async init(ctx) {
    appendFileSync("/work/inits", "x")
    return { turns: 0, recovery: ctx.recovery }
  },
  async turn(turn, ctx) {
    const words = turn.input.map((part) => part.text).join(" ").split(" ")
    ctx.initResult.turns += 1
    await turn.output.write(`run ${turn.id}`)
    switch (words[0]) {
      case "throw":
        throw new Error("thrown on purpose")
      case "exit":
        process.exit(3)
        break
      case "slow":
        for (let i = 0; i < Number(words[1]); i += 1) {
          await turn.output.write(`step ${i}`)
          await pause(50)
        }
        break
      case "patient": {
        let stopped = false
        turn.onCancel(() => {
          stopped = true
        })
        for (let i = 0; i < Number(words[1]) && !stopped; i += 1) {
          await turn.output.write(`step ${i}`)
          await pause(50)
        }
        break
      }
      case "write":
        writeFileSync("/work/note", words[1] ?? "")
        break
      case "eat": {
        const eaten: Buffer[] = []
        for (;;) eaten.push(Buffer.alloc(16 * 1024 * 1024, 1))
      }
      case "busy":
        for (;;) {
          // never gives the event loop back
        }
      case "bad":
        return 10n as never
      case "big":
        return "x".repeat(17 * 1024 * 1024)
    }
    await turn.respond(`did ${words[0]}`)
    return {
      turns: ctx.initResult.turns,
      recovery: ctx.initResult.recovery,
      inits: readFileSync("/work/inits", "utf8").length,
      note: existsSync("/work/note") ? readFileSync("/work/note", "utf8") : null,
      node: Number(process.versions.node.split(".")[0]),
    }
  },
})
