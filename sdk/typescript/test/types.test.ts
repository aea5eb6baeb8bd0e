import { test } from "node:test"
import { agent, defineConfig, image, template, type Content, type NetworkPolicy, type SecretBinding, type SessionEvent, type Turn } from "../src/index.js"

/** Proven by the compiler: the lines marked with @ts-expect-error must not compile, the others must. */

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false
function is<T extends true>(_?: T): void {}

const box = template({ id: "box", image: image("box").from("debian:12"), resources: { cpu: 1, memory: "1GiB" } })

test("Spec_02_06 the type of ctx.initResult is what init resolves to", () => {
  agent({
    id: "a", template: box,
    async init(ctx) {
      return { sessionId: ctx.session.id, turns: 0 }
    },
    async turn(turn, ctx) {
      is<Equal<typeof ctx.initResult, { sessionId: string; turns: number }>>()
      is<Equal<typeof turn, Turn>>()
      // @ts-expect-error no such member
      void ctx.initResult.other
      return { turns: ctx.initResult.turns }
    },
  })
  agent({
    id: "b", template: box,
    init: (ctx) => new Map([[ctx.computer.id, 1]]),
    turn: (_, ctx) => is<Equal<typeof ctx.initResult, Map<string, number>>>(),
  })
  agent({ id: "c", template: box, turn: (_, ctx) => is<Equal<typeof ctx.initResult, undefined>>() })
  agent({
    id: "d", template: box,
    init(ctx) {
      // @ts-expect-error init has no result of its own
      void ctx.initResult
    },
    turn: () => undefined,
  })
})

test("fields are checked by the compiler too", () => {
  const parts: Content = [{ type: "text", text: "x" }, { type: "json", value: { a: [1, null] } }]
  void parts
  // @ts-expect-error a part of an unknown kind
  const image_: Content = [{ type: "image", url: "x" }]
  // @ts-expect-error both forms at once
  const both: NetworkPolicy = { blockAll: true, allowDomains: [] }
  // @ts-expect-error protected needs origins
  const open: SecretBinding = { secret: "K", env: { name: "K", mode: "protected" } }
  void [image_, both, open]
  // @ts-expect-error an unknown key
  const misspelt = (): unknown => defineConfig({ dir: ["agents"] })
  // @ts-expect-error not a duration
  const duration = (): unknown => agent({ id: "a", template: box, turn: () => 1, maxTurnDuration: "soon" })
  // @ts-expect-error turn is missing
  const incomplete = (): unknown => agent({ id: "a", template: box })
  void [misspelt, duration, incomplete]
})

test("answers and events are typed by their kind", () => {
  async function ask(turn: Turn): Promise<void> {
    const text = await turn.ask({ prompt: [], answer: { type: "text" } })
    is<Equal<typeof text.answer, string>>()
    const choice = await turn.ask({ prompt: [], answer: { type: "choice", options: [{ id: "a", label: "A", value: 1 }] } })
    void choice.answer.selected[0]?.id
    // @ts-expect-error a choice is no string
    choice.answer.toUpperCase()
  }
  function read(event: SessionEvent): unknown {
    if (event.kind === "turn.output") is<Equal<typeof event.data, Content>>()
    if (event.kind === "question.created") return event.data.questionId
    // @ts-expect-error not every event has it
    return event.data.saveId
  }
  void [ask, read]
})
