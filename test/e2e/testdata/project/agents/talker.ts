import { agent, MessageRejected } from "@helmr/sdk"
import { box } from "./box.js"

const text = (parts: readonly { readonly text: string }[]): string => parts.map((part) => part.text).join("")

/** Listens and asks; the input says which. */
export const talker = agent({
  id: "talker",
  template: box,
  init: () => ({ turns: 0 }),
  async turn(turn, ctx) {
    ctx.initResult.turns++
    const [what = "", count = "0"] = text(turn.input).split(" ")
    switch (what) {
      case "collect": {
        const heard: string[] = []
        await new Promise<void>((enough) => {
          turn.signal.addEventListener("abort", () => enough())
          turn.onMessage(async (data) => {
            if (text(data) === "no") throw new MessageRejected("not that")
            heard.push(text(data))
            await turn.output.write(text(data))
            if (heard.length === Number(count)) enough()
          })
        })
        return { heard, turns: ctx.initResult.turns }
      }
      case "ask": {
        const options = [{ id: "main", label: "Main", value: { ref: 1 } }, { id: "next", label: "Next", value: "n" }]
        const [which, why] = await Promise.all([
          turn.ask({ prompt: [{ type: "text", text: "Which branch?" }], answer: { type: "choice", options } }),
          turn.ask({ prompt: [{ type: "text", text: "Why?" }], answer: { type: "text" } }),
        ])
        return { which: which.answer.selected, why: why.answer, by: why.respondedBy, turns: ctx.initResult.turns }
      }
      case "withdraw": {
        const stop = new AbortController()
        const asked = turn.ask({ prompt: [], answer: { type: "text" } }, { signal: stop.signal }).catch((error: { code: string }) => error.code)
        stop.abort()
        return { asked: await asked, turns: ctx.initResult.turns }
      }
      case "pipe": {
        let n = 0
        async function* fragments(): AsyncGenerator<string> {
          for (; !turn.signal.aborted; n++) {
            yield `${n} `
            if (n % 100 === 0) await new Promise((resolve) => setTimeout(resolve, 1))
          }
        }
        await turn.output.pipe(fragments())
        return { turns: ctx.initResult.turns }
      }
    }
    return { turns: ctx.initResult.turns }
  },
})
