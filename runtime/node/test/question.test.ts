import assert from "node:assert/strict"
import { describe, test } from "node:test"
import { ended, ready, runTurn, turnMessage, type Op } from "./guest.js"

const respondedBy = { kind: "user", id: "u-1" }

describe("Questions", { concurrency: 4 }, () => {
  test("Spec_06 ask resolves with the pushed answer", async (t) => {
    const guest = await ready(t, "questions")
    const turn = turnMessage()
    guest.send(turn)
    const asked = await guest.op("question")
    assert.match(asked["questionId"] as string, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
    assert.deepEqual(asked["question"], {
      prompt: [{ type: "text", text: "Which?" }],
      answer: { type: "choice", allowText: true, options: [{ id: "main", label: "main", value: { ref: "main" } }] },
    })
    const answer = { selected: [{ id: "main", value: { ref: "main" } }] }
    guest.send({ type: "answer", turnId: turn.turn.id, questionId: asked["questionId"], answer, respondedBy })
    assert.deepEqual((await ended(guest, turn.turn.id))["result"], { answer, respondedBy })
  })

  test("Spec_06_07 several pending Questions settle alone", async (t) => {
    const guest = await ready(t, "several")
    const turn = turnMessage()
    guest.send(turn)
    const prompt = (word: string) => (op: Op): boolean => JSON.stringify(op["question"]).includes(`"${word}"`)
    for (const word of ["b", "a"]) {
      const { questionId } = await guest.op("question", prompt(word))
      guest.send({ type: "answer", turnId: turn.turn.id, questionId, answer: `to ${word}`, respondedBy })
    }
    assert.deepEqual((await ended(guest, turn.turn.id))["result"], ["to a", "to b"])
  })

  test("Spec_05_06 a pending Question that nobody awaits fails the drain", async (t) => {
    const guest = await ready(t, "questions")
    assert.deepEqual((await runTurn(guest, "open"))["error"], { code: "drain_failed", message: "a Question is still open and nobody awaits it" })
  })

  test("an aborted ask is withdrawn and rejects with question_cancelled", async (t) => {
    const guest = await ready(t, "questions")
    const codes = (await runTurn(guest, "signal"))["result"] as { code: string }[]
    assert.deepEqual(codes.map(({ code }) => code), ["question_cancelled", "question_cancelled"])
    assert.deepEqual(guest.types().slice(1, 3), ["question", "question_withdrawn"])
  })

  test("Spec_06_07 an answer that the server had before the withdrawal is delivered", async (t) => {
    const guest = await ready(t, "questions")
    guest.reply = (op) => (op.type === "question_withdrawn" ? { error: { code: "question_already_responded", message: "answered" } } : {})
    const turn = turnMessage("raced")
    guest.send(turn)
    const { questionId } = await guest.op("question_withdrawn")
    guest.send({ type: "answer", turnId: turn.turn.id, questionId, answer: "late", respondedBy: { kind: "user", id: "u" } })
    assert.equal((await ended(guest, turn.turn.id))["result"], "late")
  })

  test("a cancelled and a refused Question reject", async (t) => {
    const guest = await ready(t, "questions")
    const turn = turnMessage()
    guest.send(turn)
    const { questionId } = await guest.op("question")
    guest.send({ type: "question_cancelled", turnId: turn.turn.id, questionId })
    assert.equal(((await ended(guest, turn.turn.id))["error"] as { code: string }).code, "handler_failed")
    guest.reply = (op) => (op.type === "question" ? { error: { code: "content_limit_exceeded", message: "too long" } } : {})
    assert.deepEqual((await runTurn(guest))["error"], { code: "handler_failed", message: "too long" })
  })

  test("Spec_06_06 a child Session cannot ask", async (t) => {
    const guest = await ready(t, "questions", { session: { id: "s", parent: { id: "p" } } })
    assert.match(((await runTurn(guest))["error"] as { message: string }).message, /only a root Session/)
    assert.equal(guest.types().includes("question"), false)
  })

  test("Spec_06_02 Spec_06_04 controls that break a limit are refused at ask time", async (t) => {
    const codes = (await runTurn(await ready(t, "questions"), "bad"))["result"] as { code: string }[]
    assert.deepEqual(codes.map(({ code }) => code), [
      "invalid_arguments", "invalid_arguments", "invalid_arguments", "invalid_arguments", "invalid_arguments",
      "content_limit_exceeded", "content_limit_exceeded", "content_limit_exceeded", "content_limit_exceeded", "content_limit_exceeded", "content_limit_exceeded",
    ])
  })
})
