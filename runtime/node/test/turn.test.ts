import assert from "node:assert/strict"
import { describe, test } from "node:test"
import { ended, ready, runTurn, turnMessage } from "./guest.js"

describe("Turn", { concurrency: 4 }, () => {
  test("Spec_03_07 an exception fails the Turn, and the process serves the next one", async (t) => {
    const guest = await ready(t, "thrower")
    const failed = await runTurn(guest)
    assert.equal(failed.type, "turn_failed")
    assert.deepEqual(failed["error"], { code: "handler_failed", message: "it broke" })
    assert.equal((await runTurn(guest)).type, "turn_failed")
    await guest.said(/Error: it broke\n\s+at /)
  })

  test("Spec_05_06 the result is checked as JSON before anything is drained", async (t) => {
    const guest = await ready(t, "results")
    for (const bad of ["cycle", "nan", "bigint", "map", "surrogate"]) {
      const { type, error } = (await runTurn(guest, bad)) as { type: string; error?: { code: string } }
      assert.deepEqual([type, error?.code], ["turn_failed", "result_invalid"], bad)
    }
    assert.deepEqual(guest.types().filter((type) => type === "processing_closed"), [])
    assert.deepEqual((await runTurn(guest, "nested"))["result"], { a: [1, "x", { b: true }] })
    assert.equal((await runTurn(guest, "null"))["result"], null)
    assert.equal((await runTurn(guest, "none"))["result"], null)
  })

  test("Spec_23_01 a result of 16 MiB is accepted, one byte more is result_too_large", async (t) => {
    const guest = await ready(t, "results")
    assert.equal((await runTurn(guest, "large")).type, "turn_result")
    assert.equal(((await runTurn(guest, "too-large"))["error"] as { code: string }).code, "result_too_large")
  })

  test("Spec_03_09 output keeps the order of the calls and resolves with its sequence", async (t) => {
    const guest = await ready(t, "order")
    assert.deepEqual((await runTurn(guest))["result"], [101, 102, 103])
    assert.deepEqual(guest.ops.filter(({ type }) => type === "output").map(({ content }) => content), [
      [{ type: "text", text: "1" }], [{ type: "text", text: "2" }], [{ type: "json", value: { n: 3 } }],
    ])
  })

  test("Spec_03_08 output that nobody awaited is durable before the result", async (t) => {
    const guest = await ready(t, "unawaited")
    const held: number[] = []
    guest.reply = (op) => (op.type === "output" ? (held.push(op.seq), null) : {})
    const turn = turnMessage()
    guest.send(turn)
    await guest.op("processing_closed")
    assert.equal(held.length, 50)
    assert.equal(guest.types().includes("turn_result"), false)
    for (const seq of held) guest.send({ type: "ack", seq, result: { sequence: seq } })
    assert.equal((await ended(guest, turn.turn.id))["result"], "returned")
  })

  test("Spec_02_09 checks of content run in their order, and a content error does not fail the Turn", async (t) => {
    const guest = await ready(t, "contents")
    const results = (await runTurn(guest))["result"] as { code: string; isContentError: boolean }[]
    assert.ok(results.every(({ isContentError }) => isContentError), "instanceof works with the program's own SDK")
    assert.deepEqual(results.map(({ code }) => code), [
      "invalid_arguments", "invalid_arguments", "invalid_arguments", "content_limit_exceeded", "content_limit_exceeded", "invalid_arguments", "invalid_arguments",
      "content_limit_exceeded", "content_limit_exceeded", "invalid_arguments", "content_kind_unsupported", "invalid_arguments",
      "content_kind_unsupported", "invalid_arguments", "invalid_arguments", "invalid_arguments",
    ])
    assert.equal(guest.types().filter((type) => type === "output").length, 3)
  })

  test("Spec_03_11 output and Questions of a Turn total at most 8 MiB", async (t) => {
    const codes = (await runTurn(await ready(t, "total")))["result"] as { code: string }[]
    assert.deepEqual(codes.map(({ code }) => code), Array(3).fill("content_limit_exceeded"))
  })

  test("Spec_03_11 refused output: caught goes on, thrown fails the handler, unseen fails the drain", async (t) => {
    const guest = await ready(t, "refused-output")
    guest.reply = (op) => (op.type === "output" ? { error: { code: "unavailable", message: "disk full" } } : {})
    assert.deepEqual((await runTurn(guest, "caught"))["result"], { name: "TurnCallError", code: "unavailable", isContentError: false })
    assert.deepEqual((await runTurn(guest, "thrown"))["error"], { code: "handler_failed", message: "disk full" })
    assert.deepEqual((await runTurn(guest, "unseen"))["error"], { code: "drain_failed", message: "output failed and nobody handled it: disk full" })
    guest.reply = (op) => (op.type === "output" ? { error: { code: "content_limit_exceeded" } } : {})
    assert.equal((await runTurn(guest, "unseen"))["result"], "returned")
    assert.equal(((await runTurn(guest, "caught"))["result"] as { isContentError: boolean }).isContentError, true)
  })

  test("Spec_03_12 after the return only callbacks may write", async (t) => {
    const guest = await ready(t, "late")
    const turn = turnMessage()
    guest.sendAll(turn, { type: "message", turnId: turn.turn.id, messageId: "m", data: [] })
    await ended(guest, turn.turn.id)
    const codes = JSON.parse((await guest.said(/LATE (.*)\n/))[1] ?? "[]") as { code: string }[]
    assert.deepEqual(codes.map(({ code }) => code), ["output_closed", "output_closed", "response_closed"])
    assert.deepEqual(guest.types(), ["init_done", "message_started", "processing_closed", "output", "message_delivered", "turn_result"])
  })

  test("Spec_03_13 one response; none and an empty one differ", async (t) => {
    const guest = await ready(t, "responses")
    assert.equal("response" in (await runTurn(guest, "none")), false)
    assert.deepEqual((await runTurn(guest, "empty"))["response"], [{ type: "text", text: "" }])
    assert.deepEqual((await runTurn(guest, "list"))["response"], [])
    const twice = await runTurn(guest)
    assert.deepEqual(twice["response"], [{ type: "text", text: "first" }])
    assert.deepEqual((twice["result"] as { code: string }[]).map(({ code }) => code), ["invalid_arguments", "response_already_staged"])
  })

  test("a refused result waits for the abort that explains it", async (t) => {
    const guest = await ready(t, "reviewer")
    guest.reply = (op) => (op.type === "turn_result" ? { error: { code: "turn_not_running" } } : {})
    const turn = turnMessage()
    guest.send(turn)
    await guest.op("turn_result")
    guest.reply = () => ({})
    guest.send({ type: "abort", turnId: turn.turn.id, reason: "interrupted" })
    assert.equal((await guest.op("turn_aborted"))["settled"], true)
    assert.deepEqual((await runTurn(guest))["result"], { turns: 2 })
  })

  test("Spec_04_15 an abort that meets a recorded result changes nothing", async (t) => {
    const guest = await ready(t, "reviewer")
    guest.reply = (op) => (op.type === "turn_result" ? null : {})
    const turn = turnMessage()
    guest.send(turn)
    const result = await guest.op("turn_result")
    guest.reply = () => ({})
    guest.sendAll({ type: "abort", turnId: turn.turn.id, reason: "interrupted" }, { type: "ack", seq: result.seq })
    assert.deepEqual((await runTurn(guest))["result"], { turns: 2 })
    assert.equal(guest.types().includes("turn_aborted"), false)
  })
})
