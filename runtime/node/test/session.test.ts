import assert from "node:assert/strict"
import { describe, test } from "node:test"
import { ended, Guest, ready, runTurn, startMessage, turnMessage } from "./guest.js"

describe("Session process", { concurrency: 4 }, () => {
  test("Spec_03_02 init runs once, Spec_03_03 every Turn gets the same object", async (t) => {
    const guest = await ready(t, "reviewer")
    const first = await runTurn(guest, "Review APP-42")
    assert.deepEqual(first["result"], { turns: 1 })
    assert.deepEqual(first["response"], [{ type: "text", text: "Review complete" }])
    assert.deepEqual((await runTurn(guest))["result"], { turns: 2 })
    assert.deepEqual(guest.types(), ["init_done", "output", "processing_closed", "turn_result", "output", "processing_closed", "turn_result"])
    assert.deepEqual(guest.ops.map(({ seq }) => seq), [1, 2, 3, 4, 5, 6, 7])
    assert.deepEqual(guest.ops[1]?.["content"], [{ type: "text", text: "Review started" }])
  })

  test("Spec_03_06 Turns are served one at a time in the order of arrival", async (t) => {
    const guest = new Guest(t)
    const turns = Array.from({ length: 20 }, () => turnMessage())
    guest.sendAll(startMessage("reviewer"), ...turns)
    for (const [i, { turn }] of turns.entries()) assert.deepEqual((await ended(guest, turn.id))["result"], { turns: i + 1 })
    const order = guest.ops.filter(({ turnId }) => turnId !== undefined).map(({ turnId }) => turnId)
    assert.deepEqual([...new Set(order)], turns.map(({ turn }) => turn.id))
    assert.deepEqual(order, [...order].sort((a, b) => Number(a?.slice(5)) - Number(b?.slice(5))), "no operation of one Turn among those of another")
  })

  test("a Turn that arrives during init waits for it", async (t) => {
    const guest = new Guest(t)
    const turn = turnMessage()
    guest.sendAll(startMessage("slow-init"), turn)
    assert.equal((await ended(guest, turn.turn.id))["result"], "served")
    assert.equal(guest.types()[0], "init_done")
  })

  test("Spec_03_01 ctx and the Turn carry what the guest says", async (t) => {
    const guest = await ready(t, "context", { session: { id: "s", key: "k", parent: { id: "p" } }, recovery: { kind: "reconstructed", reason: "deadline" } })
    const turn = turnMessage("hi", { id: "t-9", sequence: 9, source: { kind: "session", requesterSessionId: "r", originTurnId: "o" } })
    guest.send(turn)
    assert.deepEqual((await ended(guest, "t-9"))["result"], {
      session: { id: "s", key: "k", parent: { id: "p" } }, computer: { id: "computer-1" }, deployment: { id: "deployment-1" },
      recovery: { kind: "reconstructed", reason: "deadline" },
      turn: { id: "t-9", sequence: 9, createdAt: "2026-01-02T03:04:05.678Z", input: [{ type: "text", text: "hi" }], source: { kind: "session", requesterSessionId: "r", originTurnId: "o" } },
      initResult: "undefined", aborted: false,
    })
  })

  test("ctx.mcp rejects with a clear error while delegation does not exist", async (t) => {
    const result = (await runTurn(await ready(t, "delegation")))["result"] as { name: string }
    assert.equal(result.name, "Error")
  })

  test("Spec_03_05 a failing init is reported and ends the process", async (t) => {
    const guest = new Guest(t)
    const turn = turnMessage()
    guest.sendAll(startMessage("bad-init"), turn)
    assert.deepEqual((await guest.op("init_failed"))["error"], { message: "no database" })
    assert.equal((await guest.exit()).code, 1)
    assert.deepEqual(guest.types(), ["init_failed"])
    assert.match(guest.stderr, /init failed: Error: no database\n\s+at /)
  })

  for (const [what, message] of [
    ["an unknown Agent", startMessage("nobody")],
    ["a program that does not exist", startMessage("reviewer", { program: "/nowhere/index.mjs" })],
  ] as const) {
    test(`${what} fails init`, async (t) => {
      const guest = new Guest(t)
      guest.send(message)
      assert.match(((await guest.op("init_failed"))["error"] as { message: string }).message, /nobody|nowhere/)
      assert.equal((await guest.exit()).code, 1)
    })
  }

  for (const [kind, text] of [["rejection", "nobody cared"], ["exception", "nobody caught"]] as const) {
    test(`an unhandled ${kind} is a process failure with its stack in the log`, async (t) => {
      const guest = await ready(t, "crash")
      guest.send(turnMessage(kind))
      assert.equal((await guest.exit()).code, 1)
      assert.match(guest.stderr, new RegExp(`unhandled rejection|uncaught exception: Error: ${text}\n\\s+at `))
    })
  }

  test("what was written before process.exit reaches the guest", async (t) => {
    const guest = await ready(t, "crash")
    guest.send(turnMessage("exit"))
    assert.equal((await guest.exit()).code, 7)
    assert.deepEqual(guest.types(), ["init_done", "output"])
  })

  test("unknown messages are ignored", async (t) => {
    const guest = await ready(t, "reviewer")
    guest.sendAll({ type: "weather", sunny: true }, { type: "abort", turnId: "unknown", reason: "cancelled" }, { type: "message", turnId: "unknown", messageId: "m", data: [] })
    assert.deepEqual((await runTurn(guest))["result"], { turns: 1 })
  })

  test("a stop of an idle process aborts ctx.signal, awaits its handlers and exits with 0", async (t) => {
    const guest = await ready(t, "shutdown")
    await runTurn(guest)
    guest.send({ type: "stop", reason: "closed" })
    assert.equal((await guest.exit()).code, 0)
    assert.match(guest.stderr, /CLEAN closed/)
  })

  test("a stop aborts the running Turn and waits for its end", async (t) => {
    const guest = await ready(t, "shutdown")
    const turn = turnMessage("wait")
    guest.sendAll(turn, { type: "stop", reason: "shutdown" })
    assert.equal((await guest.op("turn_aborted"))["settled"], true)
    assert.equal((await guest.exit()).code, 0)
    assert.match(guest.stderr, /CLEAN shutdown/)
  })

  test("a stop before anything started exits with 0", async (t) => {
    const guest = new Guest(t)
    guest.send({ type: "stop", reason: "closed" })
    assert.equal((await guest.exit()).code, 0)
  })
})
