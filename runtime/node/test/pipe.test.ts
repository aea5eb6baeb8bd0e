import assert from "node:assert/strict"
import { describe, test } from "node:test"
import { ended, ready, runTurn, turnMessage, type Guest } from "./guest.js"

const outputs = (guest: Guest): unknown[] => guest.ops.filter(({ type }) => type === "output").map(({ content }) => content)
const text = (value: string): object => ({ type: "text", text: value })

describe("Spec_03_10 pipe", { concurrency: 4 }, () => {
  test("joins neighbouring texts without adding characters and keeps JSON parts whole", async (t) => {
    const guest = await ready(t, "pipes")
    assert.deepEqual((await runTurn(guest, "join"))["result"], ["closed"])
    assert.deepEqual(outputs(guest), [[text("ab"), { type: "json", value: 1 }, text("cd")]])
  })

  test("keeps accepted items when a later one is refused, and closes the iterator", async (t) => {
    const guest = await ready(t, "pipes")
    assert.deepEqual((await runTurn(guest, "rejects"))["result"], ["closed", { name: "ContentError", code: "invalid_arguments", isContentError: true }])
    assert.deepEqual(outputs(guest), [[text("kept")]])
  })

  test("keeps accepted items when the producer throws", async (t) => {
    const guest = await ready(t, "pipes")
    assert.deepEqual((await runTurn(guest, "throws"))["result"], [{ name: "RangeError", code: null, isContentError: false }])
    assert.deepEqual(outputs(guest), [[text("kept")]])
  })

  test("keeps accepted items when its signal aborts, without waiting for the producer", async (t) => {
    const guest = await ready(t, "pipes")
    assert.deepEqual((await runTurn(guest, "signal"))["result"], [{ name: "Error", code: null, isContentError: false }])
    assert.deepEqual(outputs(guest), [[text("kept")]])
  })

  test("refuses a second one at a time", async (t) => {
    const guest = await ready(t, "pipes")
    assert.deepEqual((await runTurn(guest, "second"))["result"], [{ name: "ContentError", code: "invalid_arguments", isContentError: true }])
    assert.deepEqual(outputs(guest), [[text("first")], [text("after")]])
  })

  test("Spec_03_09 what it accepted goes before a later write", async (t) => {
    const guest = await ready(t, "pipes")
    await runTurn(guest, "order")
    assert.deepEqual(outputs(guest), [[text("piped")], [text("written")], [text("tail")]])
  })

  test("takes plain iterables and nothing else", async (t) => {
    const guest = await ready(t, "pipes")
    const codes = (await runTurn(guest, "sync"))["result"] as { code: string }[]
    assert.deepEqual(codes.map(({ code }) => code), ["invalid_arguments", "invalid_arguments"])
    assert.deepEqual(outputs(guest), [[text("xy")]])
  })

  test("flushes at 16 KiB", async (t) => {
    const guest = await ready(t, "pipes")
    await runTurn(guest, "large")
    const sizes = (outputs(guest) as { text: string }[][]).map(([part]) => part?.text.length ?? 0)
    assert.deepEqual(sizes, [8192, 8192, 8192, 8192, 8192])
  })

  test("never sends more than 64 parts at once", async (t) => {
    const guest = await ready(t, "pipes")
    await runTurn(guest, "parts")
    const batches = outputs(guest) as { value: number }[][]
    assert.ok(batches.every((batch) => batch.length <= 64))
    assert.deepEqual(batches.flat().map(({ value }) => value), Array.from({ length: 100 }, (_, n) => n))
  })

  test("asks for no item before earlier ones are durable", async (t) => {
    const guest = await ready(t, "pipes")
    guest.reply = (op) => (op.type === "output" ? null : {})
    const turn = turnMessage("pressure")
    guest.send(turn)
    for (let n = 0; n < 4; n++) {
      const op = await guest.op("output", () => outputs(guest).length === n + 1)
      // A round trip through the host: had it pulled, it would have said so by now.
      guest.send({ type: "weather" })
      await new Promise((resolve) => setImmediate(resolve))
      await guest.said(new RegExp(`(PULL[^]*){${n + 1}}`))
      assert.equal(guest.stderr.match(/PULL/g)?.length, n + 1)
      guest.acknowledge(guest.ops.filter(({ type }) => type === "output")[n] ?? op)
    }
    await ended(guest, turn.turn.id)
  })

  test("sends what it has after 100 ms", async (t) => {
    const guest = await ready(t, "pipes")
    const turn = turnMessage("slow")
    guest.send(turn)
    assert.deepEqual((await guest.op("output"))["content"], [text("early")])
    guest.kill("SIGUSR2")
    await ended(guest, turn.turn.id)
    assert.deepEqual(outputs(guest), [[text("early")], [text("end")]])
  })

  test("Spec_05_06 an open one ends before the result", async (t) => {
    const guest = await ready(t, "pipes")
    await runTurn(guest, "drained")
    assert.deepEqual(guest.types().slice(1), ["processing_closed", "output", "turn_result"])
    assert.deepEqual(outputs(guest), [[text("xy")]])
  })
})
