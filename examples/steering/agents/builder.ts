import { execFile } from "node:child_process"
import { mkdtemp, readdir, rm, writeFile } from "node:fs/promises"
import { promisify } from "node:util"
import { agent, image, MessageRejected, template } from "@helmr/sdk"

export const builderComputer = template({
  id: "builder",
  image: image("builder").from("node:24-bookworm-slim").workdir("/builds"),
  resources: { cpu: 1, memory: "512MiB" },
})

const steps = ["fetch", "lint", "tests", "package"]

/** Goes through its steps one after the other, and listens meanwhile: "skip the tests". */
export const builder = agent({
  id: "builder",
  template: builderComputer,
  async turn(turn) {
    // Messages come one at a time while the Turn runs. Its events tell whether one was delivered or rejected.
    const remaining = new Set(steps)
    turn.onMessage((message) => {
      const text = message.map((part) => part.text).join(" ")
      const step = /^skip the (\w+)$/.exec(text)?.[1] ?? ""
      if (!remaining.delete(step)) throw new MessageRejected(`"${text}" names no step that is still to come`)
    })

    // When the Turn is cancelled there are ten seconds for cleaning up; the process then serves the next Turn.
    const folder = await mkdtemp("build-")
    turn.onCancel(async ({ reason }) => {
      await turn.output.write(`\n${reason}: the half-made ${folder} is removed`)
      await rm(folder, { recursive: true })
    })

    for (const step of steps) {
      if (!remaining.delete(step)) {
        await turn.output.write(`\n${step}: skipped`)
        continue
      }
      await turn.output.write(`\n${step}: `)
      await promisify(execFile)("sleep", ["2"], { signal: turn.signal }) // the signal ends the program, too
      await writeFile(`${folder}/${step}`, "")
      await turn.output.write("done")
    }
    await turn.respond(`Built ${folder}.`)
    return { done: (await readdir(folder)).sort(), builds: (await readdir(".")).length }
  },
})
