import { agent, ContentError, image, MessageRejected, template, type AgentDefinition, type InitContext, type JsonValue, type PrepareContext, type TemplateDefinition, type Turn, type TurnContext } from "@helmr/sdk"

/** The program that the tests run: one Agent for each thing to prove. Bundled with an SDK of its own, as deployed ones are. */

const box = template({ id: "box", image: image("box").from("node:24-bookworm-slim"), resources: { cpu: 1, memory: "512MiB" } })

export const agents = new Map<string, AgentDefinition>()

function define<Init = undefined>(id: string, turn: (turn: Turn, ctx: TurnContext<Init>) => unknown, init?: (ctx: InitContext) => Init | Promise<Init>): void {
  agents.set(id, agent<Init>({ id, template: box, turn, ...(init === undefined ? {} : { init }) }) as AgentDefinition)
}

const text = (turn: Turn): string => turn.input.map((part) => part.text).join("")

/** What a refused call looks like to Agent code. */
async function failure(promise: Promise<unknown>): Promise<JsonValue> {
  try {
    await promise
    return null
  } catch (error) {
    const { name, code } = error as { name: string; code?: string }
    return { name, code: code ?? null, isContentError: error instanceof ContentError }
  }
}

/** Something to wait for, and its release. */
function gate(): { readonly open: () => void; readonly opened: Promise<void> } {
  let open!: () => void
  const opened = new Promise<void>((resolve) => (open = resolve))
  return { open, opened }
}

const never = new Promise<never>(() => undefined)

define<{ sessionId: string; turns: number }>("reviewer", async (turn, ctx) => {
  ctx.initResult.turns += 1
  await turn.output.write("Review started")
  await turn.respond("Review complete")
  return { turns: ctx.initResult.turns }
}, async (ctx) => ({ sessionId: ctx.session.id, turns: 0 }))

define("context", (turn, ctx) => ({
  session: ctx.session, computer: ctx.computer, deployment: ctx.deployment, recovery: ctx.recovery,
  turn: { id: turn.id, sequence: turn.sequence, createdAt: turn.createdAt, input: [...turn.input], source: { ...turn.source } },
  initResult: ctx.initResult === undefined ? "undefined" : "something", aborted: ctx.signal.aborted,
}))

define("delegation", (_, ctx) => failure(ctx.mcp.getConnectionOptions()))

define("bad-init", () => null, () => {
  throw new Error("no database")
})
define<number>("slow-init", () => "served", async () => {
  await new Promise((resolve) => setTimeout(resolve, 50))
  return 1
})

define("thrower", () => {
  throw new Error("it broke")
})
define("results", (turn) => {
  const loop: Record<string, unknown> = {}
  loop["self"] = loop
  const values: Record<string, unknown> = {
    none: undefined, null: null, text: "ok", nested: { a: [1, "x", { b: true }], left: undefined },
    cycle: loop, nan: { a: [Number.NaN] }, bigint: 1n, map: new Map(), surrogate: "\ud800",
    large: "x".repeat(16 * 1024 * 1024 - 2), "too-large": "x".repeat(16 * 1024 * 1024 - 1),
  }
  return values[text(turn)]
})

define("order", async (turn) => {
  const writes = [turn.output.write("1"), turn.output.write("2"), turn.output.write([{ type: "json", value: { n: 3 } }])]
  return (await Promise.all(writes)).map(({ sequence }) => sequence)
})
define("unawaited", (turn) => {
  for (let i = 0; i < 50; i++) void turn.output.write(String(i))
  return "returned"
})
define("contents", async (turn) => {
  const cycle: unknown[] = []
  cycle.push(cycle)
  const big = "x".repeat(256 * 1024)
  const part = { type: "text", text: "" }
  const bad: readonly unknown[] = [
    cycle, "\ud800", undefined, big, { type: "text", text: big }, { type: "text", text: "x" }, null,
    Array.from({ length: 65 }, () => part), [..."x".repeat(65)], ["x"], [{ type: "image", url: "x" }], [null, { type: "image" }],
    [{ type: "image" }, { type: "text" }], [{ type: "text", text: 1 }], [{ type: "text", text: "x", more: 1 }], [{ type: "json" }],
  ]
  const results: JsonValue[] = []
  for (const content of bad) results.push(await failure(turn.output.write(content as never)))
  await turn.output.write("x".repeat(256 * 1024 - '[{"type":"text","text":""}]'.length))
  await turn.output.write(Array.from({ length: 64 }, () => part as { type: "text"; text: string }))
  await turn.output.write([])
  // Nobody looks at this one: still the Turn goes on.
  void turn.output.write(cycle as never)
  return results
})
define("total", async (turn) => {
  const most = "x".repeat(256 * 1024 - '[{"type":"text","text":""}]'.length)
  for (let i = 0; i < 32; i++) await turn.output.write(most)
  return [await failure(turn.output.write("")), await failure(turn.output.pipe(["x"])), await failure(turn.ask({ prompt: [], answer: { type: "text" } }))]
})
define("refused-output", async (turn) => {
  if (text(turn) === "caught") return failure(turn.output.write("x"))
  if (text(turn) === "thrown") await turn.output.write("x")
  else void turn.output.write("x")
  return "returned"
})

define("late", async (turn) => {
  const { write } = turn.output
  turn.onMessage(async () => {
    messageStarted.open()
    await lateDone.opened
    await turn.output.write("from the callback")
  })
  await messageStarted.opened
  setImmediate(async () => {
    const late = [await failure(write("late")), await failure(turn.output.pipe(["late"])), await failure(turn.respond("late"))]
    console.error(`LATE ${JSON.stringify(late)}`)
    lateDone.open()
  })
})
const lateDone = gate()
const messageStarted = gate()

define("responses", async (turn) => {
  if (text(turn) === "none") return
  if (text(turn) === "empty") return turn.respond("")
  if (text(turn) === "list") return turn.respond([])
  const bad = await failure(turn.respond(null as never))
  void turn.output.write("before")
  await turn.respond("first")
  return [bad, await failure(turn.respond("second"))]
})

define("pipes", async (turn) => {
  const log: JsonValue[] = []
  async function* closing(...items: unknown[]): AsyncGenerator<never> {
    try {
      for (const item of items) yield item as never
    } finally {
      log.push("closed")
    }
  }
  switch (text(turn)) {
    case "join":
      await turn.output.pipe(closing("a", "b", [{ type: "json", value: 1 }, { type: "text", text: "c" }], "d", []))
      break
    case "rejects":
      log.push(await failure(turn.output.pipe(closing("kept", { type: "text" }, "never"))))
      break
    case "throws":
      log.push(await failure(turn.output.pipe((async function* () {
        yield "kept"
        throw new RangeError("producer")
      })())))
      break
    case "second": {
      const hold = gate()
      const first = turn.output.pipe((async function* () {
        yield "first"
        await hold.opened
      })())
      log.push(await failure(turn.output.pipe(["x"])))
      hold.open()
      await first
      await turn.output.pipe(["after"])
      break
    }
    case "signal": {
      const stop = new AbortController()
      const pipe = turn.output.pipe((async function* () {
        try {
          yield "kept"
          stop.abort(new Error("enough"))
          await never
        } finally {
          log.push("unreachable")
        }
      })(), { signal: stop.signal })
      log.push(await failure(pipe))
      break
    }
    case "order": {
      const hold = gate()
      const pipe = turn.output.pipe((async function* () {
        yield "piped"
        await hold.opened
        yield "tail"
      })())
      await new Promise((resolve) => setImmediate(resolve))
      await turn.output.write("written")
      hold.open()
      await pipe
      break
    }
    case "sync":
      await turn.output.pipe(["x", "y"])
      log.push(await failure(turn.output.pipe("text" as never)), await failure(turn.output.pipe(undefined as never)))
      break
    case "large":
      await turn.output.pipe(Array.from({ length: 40 }, () => "é".repeat(1024)))
      break
    case "parts":
      await turn.output.pipe(Array.from({ length: 100 }, (_, n) => [{ type: "json", value: n } as const]))
      break
    case "pressure": {
      let pulled = 0
      await turn.output.pipe((async function* () {
        for (; pulled < 4; pulled++) {
          console.error(`PULL ${pulled}`)
          yield "x".repeat(16 * 1024)
        }
      })())
      break
    }
    case "slow": {
      const hold = gate()
      slow.release = hold.open
      await turn.output.pipe((async function* () {
        yield "early"
        await hold.opened
        yield "end"
      })())
      break
    }
    case "drained":
      void turn.output.pipe(closing("x", "y"))
  }
  return log
})
const slow: { release?: () => void } = {}
process.on("SIGUSR2", () => slow.release?.())

define("messages", async (turn) => {
  const done = gate()
  const seen: string[] = []
  let running = 0
  if (text(turn) === "unregistered") return seen
  turn.onMessage(async (data) => {
    const word = data.map((part) => part.text).join("")
    if (++running > 1) throw new Error("two at a time")
    await new Promise((resolve) => setTimeout(resolve, 5))
    seen.push(word)
    running--
    if (word === "end") done.open()
    if (word === "no") throw new MessageRejected("not now")
    if (word === "broken") throw new Error("callback broke")
  })
  let second = "accepted"
  try {
    turn.onMessage(() => undefined)
  } catch {
    second = "refused"
  }
  await done.opened
  return { seen, second }
})

define("questions", async (turn) => {
  switch (text(turn)) {
    case "open":
      void turn.ask({ prompt: [], answer: { type: "text" } })
      return "returned"
    case "signal": {
      const stop = new AbortController()
      const asked = failure(turn.ask({ prompt: [], answer: { type: "text" } }, { signal: stop.signal }))
      stop.abort()
      return [await asked, await failure(turn.ask({ prompt: [], answer: { type: "text" } }, { signal: stop.signal }))]
    }
    case "raced": {
      const stop = new AbortController()
      const asked = turn.ask({ prompt: [], answer: { type: "text" } }, { signal: stop.signal })
      stop.abort()
      return (await asked).answer
    }
    case "bad": {
      const option = (id: string, more: object = {}): object => ({ id, label: id, value: id, ...more })
      const controls: unknown[] = [
        { type: "text", more: 1 }, { type: "slider" }, { type: "choice", options: [] }, { type: "choice", options: [option("a"), option("a")] },
        { type: "choice", options: [option("")] }, { type: "choice", options: [option("x".repeat(129))] },
        { type: "choice", options: [option("a", { label: "x".repeat(257) })] }, { type: "choice", options: [option("a", { description: "x".repeat(2049) })] },
        { type: "choice", options: Array.from({ length: 101 }, (_, n) => option(String(n))) },
        { type: "choice", options: [option("a", { value: "x".repeat(64 * 1024) })] },
        { type: "choice", multiple: true, options: [option("a", { value: "x".repeat(40_000) }), option("b", { value: "x".repeat(40_000) })] },
      ]
      const codes: JsonValue[] = []
      for (const answer of controls) codes.push(await failure(turn.ask({ prompt: [], answer } as never)))
      return codes
    }
    default: {
      const { answer, respondedBy } = await turn.ask({
        prompt: [{ type: "text", text: "Which?" }],
        answer: { type: "choice", allowText: true, options: [{ id: "main", label: "main", value: { ref: "main" } }] },
      })
      return { answer: answer as unknown as JsonValue, respondedBy: { ...respondedBy } }
    }
  }
})

define("several", async (turn) => {
  const [first, second] = await Promise.all(["a", "b"].map((word) => turn.ask({ prompt: [{ type: "text", text: word }], answer: { type: "text" } })))
  return [first?.answer ?? null, second?.answer ?? null]
})

define<{ events: JsonValue[] }>("cancel", async (turn, ctx) => {
  const { events } = ctx.initResult
  const mode = text(turn)
  if (mode === "events") return events
  turn.onCancel(async ({ reason }) => {
    events.push(`callback ${reason}`)
    await turn.output.write("cleaning")
    if (mode === "throws") throw new Error("cleanup broke")
    if (mode === "hangs") await never
  })
  turn.signal.addEventListener("abort", () => events.push(`signal ${(turn.signal.reason as Error).name}`))
  const question = failure(turn.ask({ prompt: [], answer: { type: "text" } })).then((result) => events.push(result))
  if (mode === "stubborn") await never
  await turn.output.write("started")
  if (!turn.signal.aborted) await new Promise<void>((resolve) => turn.signal.addEventListener("abort", () => resolve()))
  await question
  turn.onCancel(({ reason }) => events.push(`late ${reason}`))
  events.push(await failure(turn.ask({ prompt: [], answer: { type: "text" } })))
  await turn.output.write("last words")
  if (mode === "fails") throw new Error("ignored")
  return "ignored"
}, () => ({ events: [] }))

define("crash", (turn) => {
  if (text(turn) === "rejection") void Promise.reject(new Error("nobody cared"))
  else if (text(turn) === "exception") setImmediate(() => {
    throw new Error("nobody caught")
  })
  else {
    void turn.output.write("last")
    process.exit(7)
  }
  return never
})

define("shutdown", async (turn, ctx) => {
  ctx.signal.addEventListener("abort", async () => {
    await new Promise((resolve) => setTimeout(resolve, 20))
    console.error(`CLEAN ${(ctx.signal.reason as { code: string }).code}`)
  })
  if (text(turn) === "wait") await new Promise<void>((resolve) => turn.signal.addEventListener("abort", () => resolve()))
  return "ok"
})

export const templates = new Map<string, TemplateDefinition>()

function prepared(id: string, prepare: (context: PrepareContext) => unknown): void {
  templates.set(id, template({ id, image: box.image, resources: box.resources, prepare: prepare as () => Promise<void> }))
}

prepared("files", async ({ exec }) => {
  await exec("printf one > a; cat; echo $NAME >> a", { env: { NAME: "two words" } })
  await exec(["mkdir", "-p", "sub/deep"])
  await exec(["/bin/sh", "-c", "pwd > where"], { cwd: "sub/deep" })
  assert(await exec(["true"]) === undefined)
  console.log("all written")
})
prepared("fails", async ({ exec }) => exec("echo gone wrong >&2; exit 3"))
prepared("signalled", async ({ exec }) => exec("kill -9 $$"))
prepared("missing", async ({ exec }) => exec(["/no/such/program"]))
prepared("throws", () => { throw new Error("no luck") })
prepared("exits", () => process.exit(0))
prepared("unawaited", ({ exec }) => { void exec("sleep 0.2; echo late > late") })
prepared("unawaited-fails", ({ exec }) => { void exec("sleep 0.2; exit 4") })
prepared("after", ({ exec }) => { setTimeout(() => exec("true").catch((error: Error) => console.log("refused:", error.message)), 50); void exec("sleep 0.3") })
prepared("handled", async ({ exec }) => { await exec("exit 5").catch((error: Error) => console.log("caught:", error.message)) })
prepared("stops", async ({ signal, exec }) => {
  signal.addEventListener("abort", () => console.log("aborted"))
  console.log("ready")
  await exec("sleep 100")
})

function assert(ok: boolean): void {
  if (!ok) throw new Error("assertion failed")
}
