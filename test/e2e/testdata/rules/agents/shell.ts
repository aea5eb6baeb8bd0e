import { spawn, spawnSync } from "node:child_process"
import { appendFileSync } from "node:fs"
import { agent, HelmrClient } from "@helmr/sdk"
import { box } from "./box.js"

type Request = { readonly do: "run" | "leave" | "noise" | "client" | "abort"; readonly script?: string; readonly works?: boolean }

const run = (script: string) => spawnSync("bash", ["-c", script], { encoding: "utf8" }).stdout

/** Starts plain child processes, and does with them what its input says. */
export const shell = agent({
  id: "shell",
  template: box,
  init: () => ({ turns: 0 }),
  async turn(turn, ctx) {
    const turns = (ctx.initResult.turns += 1)
    const request = JSON.parse(turn.input[0]?.text ?? "{}") as Request
    const script = request.script ?? ""
    switch (request.do) {
      case "run":
        return { turns, stdout: run(script) }
      case "leave": // goes on when the Turn has ended
        spawn("bash", ["-c", script], { detached: true, stdio: "ignore" }).unref()
        return { turns }
      case "noise":
        console.log("to stdout")
        console.error("to stderr")
        spawnSync("bash", ["-c", "echo of a child; echo of a child >&2"], { stdio: "inherit" })
        return { turns }
      case "client": {
        let refused = ""
        try {
          new HelmrClient()
        } catch (error) {
          refused = String(error)
        }
        const own = new HelmrClient({ apiKey: "hlmr_sk_of_its_own", baseUrl: "https://helmr.example" })
        return { turns, refused, own: typeof own.sessions.create, env: Object.keys(process.env).filter((name) => name.startsWith("HELMR")), child: run("env | grep ^HELMR") }
      }
      case "abort": { // a harness with an abort of its own, and what it started and forgot
        spawn("bash", ["-c", `trap '' TERM HUP; ${script}`], { detached: true, stdio: "ignore" }).unref()
        await new Promise<void>((resolve, reject) => {
          turn.onCancel(async () => {
            appendFileSync("/work/aborts", "native abort\n")
            resolve()
            if (request.works === false) throw new Error("the native abort failed")
          })
          turn.output.write("started").catch(reject)
        })
        return { turns }
      }
    }
  },
})
