// node --test examples/support
import assert from "node:assert/strict"
import { after, before, test } from "node:test"
import { serve } from "./scripted-model.mjs"

let server, seen
before(async () => {
  server = await serve((conversation) => {
    seen = conversation
    const last = conversation.messages.at(-1)
    if (last.text === "fail") return { error: "no such luck", status: 529 }
    if (last.role === "tool") return { text: `It says ${last.text}.` }
    return { text: "Let me look.", calls: [{ name: "read", arguments: { path: "a.txt" } }] }
  })
})
after(() => server.close())

const post = (path, body) => fetch(server.url + path, { method: "POST", body: JSON.stringify({ model: "m", ...body }) })
const events = async (path, body) => {
  const text = await (await post(path, { ...body, stream: true })).text()
  return [...text.matchAll(/^data: (.*)$/gm)].map((m) => m[1]).filter((d) => d !== "[DONE]").map((d) => JSON.parse(d))
}
const user = [{ role: "user", content: "What is in a.txt?" }]

test("chat completions", async () => {
  const tools = [{ type: "function", function: { name: "read" } }]
  const { choices: [whole] } = await (await post("/v1/chat/completions", { tools, messages: [{ role: "system", content: "Be brief." }, ...user] })).json()
  assert.deepEqual(seen, { system: "Be brief.", messages: [{ role: "user", text: "What is in a.txt?" }], tools: ["read"] })
  assert.equal(whole.finish_reason, "tool_calls")
  assert.equal(whole.message.tool_calls[0].function.arguments, '{"path":"a.txt"}')
  const second = [...user, whole.message, { role: "tool", tool_call_id: "x", content: "hello" }]
  const chunks = await events("/v1/chat/completions", { messages: second, stream_options: { include_usage: true } })
  assert.equal(chunks.map((c) => c.choices[0]?.delta.content ?? "").join(""), "It says hello.")
  assert.equal(chunks.at(-1).usage.total_tokens, 2)
})

test("responses", async () => {
  const first = await events("/v1/responses", { instructions: "Be brief.", input: [{ role: "user", content: [{ type: "input_text", text: "What is in a.txt?" }] }], tools: [{ type: "function", name: "read" }] })
  assert.deepEqual(seen, { system: "Be brief.", messages: [{ role: "user", text: "What is in a.txt?" }], tools: ["read"] })
  const { output } = first.at(-1).response
  assert.deepEqual(output.map((item) => item.type), ["message", "function_call"])
  const whole = await (await post("/v1/responses", { input: [...user, ...output, { type: "function_call_output", call_id: output[1].call_id, output: "hello" }] })).json()
  assert.deepEqual(seen.messages.map((m) => m.role), ["user", "assistant", "assistant", "tool"])
  assert.equal(whole.output[0].content[0].text, "It says hello.")
})

test("messages", async () => {
  const whole = await (await post("/v1/messages", { system: "Be brief.", messages: user, tools: [{ name: "read" }] })).json()
  assert.deepEqual(seen, { system: "Be brief.", messages: [{ role: "user", text: "What is in a.txt?" }], tools: ["read"] })
  assert.equal(whole.stop_reason, "tool_use")
  const result = { role: "user", content: [{ type: "tool_result", tool_use_id: whole.content[1].id, content: [{ type: "text", text: "hello" }] }] }
  const streamed = await events("/v1/messages", { messages: [...user, { role: "assistant", content: whole.content }, result] })
  assert.deepEqual(seen.messages.map((m) => m.role), ["user", "assistant", "tool"])
  assert.equal(streamed.map((e) => e.delta?.text ?? "").join(""), "It says hello.")
  assert.equal(streamed.at(-1).type, "message_stop")
})

test("errors and unknown paths", async () => {
  const failed = await post("/v1/messages", { messages: [{ role: "user", content: "fail" }] })
  assert.equal(failed.status, 529)
  assert.equal((await failed.json()).error.message, "no such luck")
  assert.equal((await post("/v1/embeddings", {})).status, 404)
})
