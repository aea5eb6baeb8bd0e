import { randomBytes } from "node:crypto"
import { closeSync, fstatSync, openSync, readdirSync, writeSync } from "node:fs"
import { setTimeout as pause } from "node:timers/promises"
import { agent, image, template } from "@helmr/sdk"

const node = image("bench").from("node:24-bookworm-slim").workdir("/work")

/** For one Session. Two CPUs, so that the start and what it is compared with have the same all the way. */
const small = template({ id: "small", image: node, resources: { cpu: 2, memory: "512MiB", disk: "1GiB" } })

/** As small, with 32 MiB in 512 files that a callback has put on its disk. */
const furnished = template({
  ...{ image: node, resources: small.resources },
  id: "furnished",
  prepare: (p) => p.exec(["node", "-e", `
    const { mkdirSync, writeFileSync } = require("node:fs"), { randomBytes } = require("node:crypto")
    mkdirSync("/opt/goods")
    for (let i = 0; i < 512; i++) writeFileSync("/opt/goods/" + i, randomBytes(65536))
  `]),
})

/** For many Sessions on one Computer. */
const large = template({ id: "large", image: node, resources: { cpu: 2, memory: "3GiB", disk: "1GiB" } })

/** For one Session that sleeps. Without a network, so that a plain runsc can resume what it saved of it. */
const bed = template({ id: "bed", image: node, resources: small.resources, network: { blockAll: true } })

/** With room for a gigabyte. */
const chest = template({ id: "chest", image: node, resources: { cpu: 2, memory: "1GiB", disk: "4GiB" } })

/** Under an open policy, and under an allowlist. */
export const open = template({ id: "open", image: node, resources: small.resources })
export const listed = template({ id: "listed", image: node, resources: small.resources, network: { allowDomains: ["allowed.example"] } })

/** The time in milliseconds with their fractions. Date.now() has whole ones only. */
const now = () => performance.timeOrigin + performance.now()

/** Its first output is the end of a cold start. */
export const cold = agent({
  id: "cold",
  template: small,
  async turn(turn) {
    await turn.output.write("ready")
  },
})

/** As cold, on a Computer that starts from a prepared image. */
export const prepared = agent({
  id: "prepared",
  template: furnished,
  async turn(turn) {
    if (readdirSync("/opt/goods").length !== 512) throw new Error("its disk is not the prepared one")
    await turn.output.write("ready")
  },
})

/** Holds 50 MiB that cannot be compressed. Input: for how many ms it is awake. */
export const sleeper = agent({
  id: "sleeper",
  template: bed,
  hibernateAfterIdle: "500ms",
  init: () => randomBytes(50 * 1024 * 1024),
  async turn(turn, ctx) {
    await turn.output.write(String(ctx.initResult.length))
    const [awake = 0] = numbers(turn.input)
    await pause(awake)
  },
})

/** Input: how many MB it keeps on its disk, and how many of them it writes anew. None can be compressed. */
export const keeper = agent({
  id: "keeper",
  template: chest,
  async turn(turn) {
    const [size = 0, changed = 0] = numbers(turn.input)
    const file = openSync("kept", "a+")
    for (let have = fstatSync(file).size; have < size * 1e6; have += 1e6) writeSync(file, randomBytes(1e6))
    closeSync(file)
    const again = openSync("kept", "r+")
    for (let i = 0; i < changed; i += 1) writeSync(again, randomBytes(1e6), 0, 1e6, Math.floor((Math.random() * size) / changed + (i * size) / changed) * 1e6)
    closeSync(again)
  },
})

/** Does nothing, and says when. */
export const noop = agent({ id: "noop", template: large, turn: () => ({ at: now() }) })

/** As noop, on a Computer for one. */
export const alone = agent({ id: "alone", template: small, turn: () => ({ at: now() }) })

/** Input: how many outputs, and the pause before each in ms. Says when it wrote each and when that was durable. */
export const stream = agent({
  id: "stream",
  template: small,
  async turn(turn) {
    const [count = 0, gap = 0] = numbers(turn.input)
    const durable: number[] = []
    for (let i = 0; i < count; i += 1) {
      if (gap > 0) await pause(gap)
      const at = now()
      await turn.output.write(String(at))
      durable.push(now() - at)
    }
    return { durable }
  },
})

/** Input: how many fragments, and how many of them a second (0: as fast as they are taken). Each says when it came. */
export const pipe = agent({
  id: "pipe",
  template: small,
  async turn(turn) {
    const [count = 0, rate = 0] = numbers(turn.input)
    const began = now()
    await turn.output.pipe(fragments(count, rate))
    return { began }
  },
})

async function* fragments(count: number, rate: number) {
  const began = now()
  for (let i = 0; i < count; i += 1) {
    const early = rate > 0 ? began + (i * 1000) / rate - now() : 0
    if (early >= 1) await pause(early)
    yield `${now().toFixed(3)} `
  }
}

function numbers(input: readonly { readonly text: string }[]): number[] {
  return input.flatMap((part) => part.text.split(" ").map(Number))
}
