// What the figures are compared with, inside a plain sandbox that nothing of helmr runs in. It is told by the first
// argument what to do; the socket of the host program is the second.
import { spawn } from "node:child_process"
import { once } from "node:events"
import { connect } from "node:net"

const now = () => performance.timeOrigin + performance.now()
const [task, path] = process.argv.slice(2)

switch (task) {
  case "serve":
    await serve()
    break
  case "cold": {
    // The very Agent that helmr runs, handed a Turn that prints.
    const { agents } = await import(path)
    await agents.get("cold").turn({ output: { write: async (text) => void process.stdout.write(`${text}\n`) } }, {})
    break
  }
}

/** Does what the host asks for, one line each, and answers with one line of JSON. */
async function serve() {
  const socket = connect(path)
  socket.setEncoding("utf8")
  let rest = ""
  const lines = []
  let wake = () => undefined
  socket.on("data", (chunk) => {
    const parts = (rest + chunk).split("\n")
    rest = parts.pop()
    lines.push(...parts)
    wake()
  })
  socket.on("end", () => process.exit(0))
  const next = async () => {
    while (lines.length === 0) await new Promise((resolve) => (wake = resolve))
    return lines.shift()
  }
  const answer = (value) => socket.write(`${JSON.stringify(value)}\n`)
  await once(socket, "connect")
  answer({ ready: true })
  const children = []
  for (;;) {
    const [what, number] = (await next()).split(" ")
    switch (what) {
      case "echo": {
        const trips = []
        for (let i = 0; i < Number(number); i += 1) {
          const sent = now()
          answer({ at: sent })
          await next()
          trips.push(now() - sent)
        }
        answer({ trips })
        break
      }
      case "fragments": {
        // One write for each fragment, as a program does that streams tokens to a socket.
        for (let i = 0; i < Number(number); i += 1) {
          if (!socket.write(`${now().toFixed(3)} \n`)) await once(socket, "drain")
        }
        answer({ done: true })
        break
      }
      case "spawn": {
        for (let i = 0; i < Number(number); i += 1) {
          children.push(spawn(process.execPath, ["-e", "process.stdout.write('up'); setInterval(() => undefined, 1e9)"], { stdio: ["ignore", "pipe", "inherit"] }))
        }
        await Promise.all(children.map((child) => once(child.stdout, "data")))
        answer({ children: children.length })
        break
      }
    }
  }
}
