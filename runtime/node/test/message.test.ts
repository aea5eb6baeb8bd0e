import assert from "node:assert/strict"
import { describe, test } from "node:test"
import { ended, ready, turnMessage } from "./guest.js"

const data = (text: string): object[] => [{ type: "text", text }]

describe("Messages", { concurrency: 4 }, () => {
  test("Spec_03_14 one handler, one call at a time, in order of acceptance", async (t) => {
    const guest = await ready(t, "messages")
    const turn = turnMessage()
    const message = (text: string): object => ({ type: "message", turnId: turn.turn.id, messageId: `m-${text}`, data: data(text) })
    guest.sendAll(turn, message("a"), message("b"), message("end"))
    assert.deepEqual((await ended(guest, turn.turn.id))["result"], { seen: ["a", "b", "end"], second: "refused" })
    assert.deepEqual(guest.ops.filter(({ type }) => type.startsWith("message")).map(({ type, messageId }) => [type, messageId]), [
      ["message_started", "m-a"], ["message_delivered", "m-a"], ["message_started", "m-b"], ["message_delivered", "m-b"], ["message_started", "m-end"], ["message_delivered", "m-end"],
    ])
  })

  test("Spec_03_15 MessageRejected rejects one Message, another error fails the drain", async (t) => {
    const guest = await ready(t, "messages")
    for (const [word, reason] of [["no", "message_rejected"], ["broken", "callback_failed"]] as const) {
      const turn = turnMessage()
      const message = (text: string): object => ({ type: "message", turnId: turn.turn.id, messageId: `m-${text}`, data: data(text) })
      guest.sendAll(turn, message(word), message("end"))
      const end = await ended(guest, turn.turn.id)
      assert.equal((await guest.op("message_rejected", (op) => op.turnId === turn.turn.id))["reason"], reason)
      if (word === "no") assert.deepEqual(end["result"], { seen: ["no", "end"], second: "refused" })
      else assert.deepEqual(end["error"], { code: "drain_failed", message: "a message handler failed: callback broke" })
    }
  })

  test("Spec_05_06 a Message that nobody started is left to the server", async (t) => {
    const guest = await ready(t, "messages")
    const turn = turnMessage("unregistered")
    guest.sendAll(turn, { type: "message", turnId: turn.turn.id, messageId: "m", data: [] })
    assert.deepEqual((await ended(guest, turn.turn.id))["result"], [])
    assert.deepEqual(guest.types(), ["init_done", "processing_closed", "turn_result"])
  })

  test("a Message whose start is refused never reaches the handler", async (t) => {
    const guest = await ready(t, "messages")
    guest.reply = (op) => (op.type === "message_started" && op["messageId"] === "m-a" ? { error: { code: "message_closed" } } : {})
    const turn = turnMessage()
    const message = (text: string): object => ({ type: "message", turnId: turn.turn.id, messageId: `m-${text}`, data: data(text) })
    guest.sendAll(turn, message("a"), message("end"))
    assert.deepEqual((await ended(guest, turn.turn.id))["result"], { seen: ["end"], second: "refused" })
  })
})
