import { spawn, type ChildProcess } from "node:child_process"
import { createHash, randomBytes } from "node:crypto"
import { once } from "node:events"
import { appendFileSync, closeSync, openSync, readFileSync, readSync, writeFileSync } from "node:fs"
import { createServer, connect, type Socket } from "node:net"
import { setTimeout as pause } from "node:timers/promises"
import { agent, image, template } from "@helmr/sdk"

const bed = template({
  id: "bed",
  image: image("e2e").from("node:24-bookworm-slim").workdir("/work"),
  resources: { cpu: 1, memory: "768MiB", disk: "1GiB" },
})

const digest = (data: Uint8Array) => createHash("sha256").update(data).digest("hex")

/** Asks the child for a number: it counts the lines that it gets. */
async function ask(child: ChildProcess): Promise<string> {
  child.stdin?.write("next\n")
  const [answer] = await once(child.stdout!, "data")
  return String(answer).trim()
}

/** Talks to the server inside on a new connection. */
async function talk(port: number): Promise<string> {
  const socket = connect(port, "127.0.0.1")
  socket.write("hello")
  const [answer] = await once(socket, "data")
  socket.destroy()
  return String(answer)
}

function urandom(): string {
  const file = openSync("/dev/urandom", "r")
  const data = Buffer.alloc(16)
  readSync(file, data, 0, 16, null)
  closeSync(file)
  return data.toString("hex")
}

/** Keeps one of everything that a process can have, and says in each Turn how it is. */
export const sleeper = agent({
  id: "sleeper",
  template: bed,
  hibernateAfterIdle: "1s",
  async init() {
    appendFileSync("/work/inits", "x")
    const buffer = randomBytes(50 * 1024 * 1024)
    writeFileSync("/work/lines", Array.from({ length: 100 }, (_, i) => `${String(i + 1).padStart(3, "0")}\n`).join(""))
    writeFileSync("/run/memory", "kept")
    const file = openSync("/work/lines", "r")
    const child = spawn("/bin/sh", ["-c", "n=0; while read x; do n=$((n+1)); echo $n; done"], { stdio: ["pipe", "pipe", "inherit"] })
    const server = createServer((socket) => socket.on("data", (data) => socket.write(`you said ${data}`)).on("error", () => {}))
    server.listen(0, "127.0.0.1")
    await once(server, "listening")
    const { port } = server.address() as { port: number }
    const state = { token: randomBytes(8).toString("hex"), turns: 0, ticks: 0, fired: 0, buffer, file, child, port, sum: digest(buffer) }
    setInterval(() => (state.ticks += 1), 100)
    return state
  },
  async turn(turn, ctx) {
    const s = ctx.initResult
    s.turns += 1
    const words = turn.input.map((part) => part.text).join(" ").split(" ")
    switch (words[0]) {
      case "alarm": // a timer that is due while the Computer sleeps
        setTimeout(() => (s.fired += 1), Number(words[1]))
        break
      case "write":
        writeFileSync("/work/note", words[1] ?? "")
        break
      case "wait":
        await pause(Number(words[1]))
        break
    }
    const line = Buffer.alloc(4)
    readSync(s.file, line, 0, 4, null)
    const before = s.ticks
    await pause(300)
    return {
      token: s.token,
      turns: s.turns,
      pid: process.pid,
      recovery: ctx.recovery.kind,
      inits: readFileSync("/work/inits", "utf8").length,
      intact: digest(s.buffer) === s.sum,
      line: line.toString().trim(),
      child: await ask(s.child),
      said: await talk(s.port),
      ticking: s.ticks > before,
      fired: s.fired,
      now: Date.now(),
      random: [randomBytes(16).toString("hex"), readFileSync("/proc/sys/kernel/random/uuid", "utf8").trim(), urandom()],
      memory: readFileSync("/run/memory", "utf8"),
    }
  },
})

/** Holds a connection to a web server, and says what became of it and what a new one gives. */
export const caller = agent({
  id: "caller",
  template: bed,
  hibernateAfterIdle: "1s",
  init: () => ({ ends: [] as string[], socket: undefined as Socket | undefined }),
  async turn(turn, ctx) {
    const host = turn.input.map((part) => part.text).join("")
    const s = ctx.initResult
    if (!s.socket) {
      const socket = connect(80, host)
      await once(socket, "connect")
      socket.on("error", (error: NodeJS.ErrnoException) => s.ends.push(error.code ?? error.message))
      socket.on("close", () => s.ends.push("closed"))
      s.socket = socket
    } else if (s.ends.length === 0) {
      const socket = s.socket
      const closed = new Promise<void>((resolve) => socket.once("close", () => resolve())) // not once(), which an error makes fail
      socket.write("x") // whoever waits without a word hears of it no later than now
      await Promise.race([closed, pause(5000)])
    }
    return { ends: s.ends.join(" "), answer: await (await fetch(`http://${host}/`)).text() }
  },
})
