import { execFile } from "node:child_process"
import { existsSync } from "node:fs"
import { cp, mkdtemp, readFile, rm } from "node:fs/promises"
import { promisify } from "node:util"
import { agent, image, MessageRejected, source, template, type InputContent } from "@helmr/sdk"
import { Pi } from "../harness/pi.js"

/** A Computer with Pi and the data in it. */
export const analystComputer = template({
  id: "pi-assistant",
  image: image("pi-assistant")
    .from("node:24-bookworm-slim")
    .run(["npm", "install", "--global", "@earendil-works/pi-coding-agent@1.6.0"])
    .copy(source.directory("model"), "/opt/model")
    .copy(source.directory("data"), "/desk/data")
    .workdir("/desk"),
  resources: { cpu: 1, memory: "1GiB" },
})

/** Analyses the orders in /desk/data, in one native Pi session for the whole Session. */
export const analyst = agent({
  id: "pi-assistant",
  template: analystComputer,
  maxTurnDuration: "30m",
  init: (ctx) => Pi.start(ctx.session.id, ctx.signal),
  async turn(turn, ctx) {
    const pi = ctx.initResult
    const answer = pi.prompt(text(turn.input))
    // A cancelled Turn ends when Pi has stopped, not when it was told to.
    turn.onCancel(() => pi.abort(answer))
    let working = true
    turn.onMessage(async (message) => {
      if (!working) throw new MessageRejected("Pi is done with the answer")
      await pi.steer(text(message))
    })

    await turn.output.pipe(answer.text)
    working = false
    const { text: response, error } = await answer.end
    if (error) throw new Error(`Pi failed with ${error}`)
    await turn.respond(response)
    return reproduce()
  },
})

const text = (input: InputContent) => input.map((part) => part.text).join("\n")

/** Runs the script once more, in an empty folder, and compares the reports. */
async function reproduce() {
  if (!existsSync("report.md")) return { report: null }
  const report = await readFile("report.md", "utf8")
  const folder = await mkdtemp("/tmp/again-")
  await cp("data", `${folder}/data`, { recursive: true })
  await cp("analysis.mjs", `${folder}/analysis.mjs`)
  await promisify(execFile)("node", ["analysis.mjs"], { cwd: folder })
  const again = await readFile(`${folder}/report.md`, "utf8")
  await rm(folder, { recursive: true })
  return { report, reproducible: report === again }
}
