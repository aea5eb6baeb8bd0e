import assert from "node:assert/strict"
import { describe, test } from "node:test"
import { ready, runTurn, turnMessage, type Guest, type Op } from "./guest.js"

async function aborted(guest: Guest, mode: string, reason: string): Promise<Op> {
  const turn = turnMessage(mode)
  guest.send(turn)
  await guest.op("question", (op) => op.turnId === turn.turn.id)
  guest.send({ type: "abort", turnId: turn.turn.id, reason })
  return guest.op("turn_aborted", (op) => op.turnId === turn.turn.id)
}

describe("Cancellation", { concurrency: 8 }, () => {
  for (const mode of ["returns", "fails"]) {
    test(`Spec_03_16 Spec_03_17 Spec_03_18 callbacks and signal fire, asks reject, output goes on; a handler that ${mode} changes nothing`, async (t) => {
      const guest = await ready(t, "cancel")
      const end = await aborted(guest, mode, "interrupted")
      assert.equal(end["settled"], true)
      assert.equal("cause" in end, false)
      const written = guest.ops.filter(({ type }) => type === "output").map(({ content }) => (content as { text: string }[])[0]?.text)
      assert.deepEqual(written.sort(), ["cleaning", "last words", "started"])
      assert.equal(guest.types().includes("processing_closed"), false)
      // Spec_03_19: everything settled, so the same process with the same initResult serves the next Turn.
      const cancelled = { name: "TurnCallError", code: "question_cancelled", isContentError: false }
      assert.deepEqual((await runTurn(guest, "events"))["result"], ["callback interrupted", "signal AbortError", cancelled, "late interrupted", cancelled])
    })
  }

  test("Spec_03_19 a callback that throws makes the process unfit", async (t) => {
    const guest = await ready(t, "cancel")
    const end = await aborted(guest, "throws", "cancelled")
    assert.deepEqual([end["settled"], end["cause"]], [false, "callback"])
    await guest.said(/cleanup broke/)
    const next = turnMessage("events")
    guest.sendAll(next, { type: "stop", reason: "shutdown" })
    assert.equal((await guest.exit()).code, 0)
    assert.equal(guest.ops.some(({ turnId }) => turnId === next.turn.id), false, "it serves no further Turn")
  })

  test("Spec_03_17 a callback that hangs is given up after the cleanup period", async (t) => {
    const end = await aborted(await ready(t, "cancel"), "hangs", "interrupted")
    assert.deepEqual([end["settled"], end["cause"]], [false, "callback"])
  })

  test("Spec_03_20 a handler that hangs is told apart from a callback", async (t) => {
    const end = await aborted(await ready(t, "cancel"), "stubborn", "deadline")
    assert.deepEqual([end["settled"], end["cause"]], [false, "work"])
  })

  test("a Turn that has not begun is aborted at once", async (t) => {
    const guest = await ready(t, "cancel")
    const first = turnMessage()
    const second = turnMessage()
    guest.sendAll(first, second, { type: "abort", turnId: second.turn.id, reason: "cancelled" })
    assert.equal((await guest.op("turn_aborted"))["settled"], true)
    guest.send({ type: "abort", turnId: first.turn.id, reason: "cancelled" })
    await guest.op("turn_aborted", (op) => op.turnId === first.turn.id)
  })
})
