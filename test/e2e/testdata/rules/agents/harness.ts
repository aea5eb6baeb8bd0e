import { spawn } from "node:child_process"
import { createInterface } from "node:readline"
import { agent, type Turn } from "@helmr/sdk"
import { box, keyed } from "./box.js"

/** Bash as a harness: the program as it is, with live state, a configuration and a history of its own. */
const bash = {
  async init() {
    const bash = spawn("bash", ["--norc"], { env: { ...process.env, HISTFILE: "/work/native_history" } })
    const lines = createInterface({ input: bash.stdout })[Symbol.asyncIterator]()
    const prompt = async (line: string) => {
      bash.stdin.write(`history -s '${line}'; history -a\n${line}\necho "--- $?"\n`)
      let text = ""
      for (;;) {
        const { value, done } = (await lines.next()) as IteratorResult<string>
        if (done === true) throw new Error("the harness has ended")
        if (value.startsWith("--- ")) return text
        text += value
      }
    }
    bash.stdin.write("set +o history; history -r\n") // its own way to resume
    return { prompt, pid: bash.pid }
  },
}

type Harness = Awaited<ReturnType<typeof bash.init>>

async function turn(turn: Turn, ctx: { readonly initResult: Harness }) {
  return { said: await ctx.initResult.prompt(turn.input[0]?.text ?? ""), pid: ctx.initResult.pid }
}

export const harness = agent({ id: "harness", template: box, ...bash, turn })

/** The same where the key of its model is bound. */
export const keyedHarness = agent({ id: "keyed-harness", template: keyed, ...bash, turn })
