// A model server that answers from a script instead of a model, so that an agent's harness runs unmodified, offline and
// the same every time. It speaks three wire formats, whole and streamed, with tool calls:
//
//   POST /v1/chat/completions   OpenAI, chat completions
//   POST /v1/responses          OpenAI, responses
//   POST /v1/messages           Anthropic, messages
//
// Usage: node scripted-model.mjs SCRIPT.mjs
// It listens on a free port of 127.0.0.1 and prints its address as the first line: http://127.0.0.1:PORT
//
// The default export of SCRIPT.mjs is a function from a conversation to the next reply; it keeps no state, so the same
// conversation always gets the same reply.
//
//   conversation: { system, messages: [{ role: "user" | "assistant" | "tool", text, calls? }], tools: [name] }
//   reply:        { text?, calls?: [{ name, arguments }], wordMs? }      wordMs: pause after each streamed word
//              or { error: message, status? }                           an error of the service
import { createServer } from "node:http"
import { resolve } from "node:path"
import { setTimeout as pause } from "node:timers/promises"
import { fileURLToPath, pathToFileURL } from "node:url"

/** Starts the server; gives its address and a function that stops it. */
export async function serve(script, { port = 0 } = {}) {
  const server = createServer((request, response) => {
    answer(script, request, response).catch((error) => {
      if (response.headersSent) response.destroy(error)
      else refuse(response, 500, `the script failed: ${error.message}`)
    })
  })
  await new Promise((listening, failed) => server.once("error", failed).listen(port, "127.0.0.1", listening))
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    close: () => new Promise((closed) => (server.closeAllConnections(), server.close(closed))),
  }
}

async function answer(script, request, response) {
  const format = request.method === "POST" && formats[new URL(request.url, "http://localhost").pathname]
  if (!format) return refuse(response, 404, `the scripted model has no ${request.method} ${request.url}`)
  const body = JSON.parse(await text(request))
  const reply = await script(format.read(body))
  if (reply.error) return refuse(response, reply.status ?? 500, reply.error)
  reply.calls = (reply.calls ?? []).map((call) => ({ id: nextId("call"), name: call.name, arguments: JSON.stringify(call.arguments) }))
  if (!body.stream) return json(response, 200, format.whole(reply, body.model))
  response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" })
  for await (const [event, data] of format.stream(reply, body)) {
    if (response.destroyed) return // the harness has aborted
    if (event) response.write(`event: ${event}\n`)
    response.write(`data: ${typeof data === "string" ? data : JSON.stringify(data)}\n\n`)
  }
  response.end()
}

async function text(request) {
  const chunks = []
  for await (const chunk of request) chunks.push(chunk)
  return Buffer.concat(chunks).toString("utf8")
}

function json(response, status, value) {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value))
}

// Both services put the message of an error here.
function refuse(response, status, message) {
  json(response, status, { type: "error", error: { type: status === 404 ? "not_found_error" : "api_error", message } })
}

let ids = 0
const nextId = (kind) => `${kind}_${String(++ids).padStart(6, "0")}`

/** The text of a string or of a list of parts. */
const plain = (content) => (typeof content === "string" ? content : (content ?? []).map((part) => part.text ?? "").join(""))

/** Cuts text into words, each with the white space after it, and pauses after each. */
async function* words(reply) {
  for (const word of (reply.text ?? "").match(/\S+\s*/g) ?? []) {
    yield word
    if (reply.wordMs) await pause(reply.wordMs)
  }
}

const chatCompletions = {
  read(body) {
    const system = []
    const messages = []
    for (const { role, content, tool_calls: calls } of body.messages) {
      if (role === "system" || role === "developer") system.push(plain(content))
      else messages.push({ role, text: plain(content), ...(calls && { calls: calls.map((c) => ({ name: c.function.name, arguments: c.function.arguments })) }) })
    }
    return { system: system.join("\n"), messages, tools: (body.tools ?? []).map((tool) => tool.function.name) }
  },
  calls: (reply) => reply.calls.map((call, index) => ({ index, id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } })),
  end: (reply) => (reply.calls.length ? "tool_calls" : "stop"),
  usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
  whole(reply, model) {
    const message = { role: "assistant", content: reply.text ?? null, ...(reply.calls.length && { tool_calls: this.calls(reply) }) }
    const choices = [{ index: 0, message, finish_reason: this.end(reply) }]
    return { id: nextId("chatcmpl"), object: "chat.completion", created: 0, model, choices, usage: this.usage }
  },
  async *stream(reply, { model, stream_options: options }) {
    const head = { id: nextId("chatcmpl"), object: "chat.completion.chunk", created: 0, model }
    const chunk = (delta, finish_reason = null) => ["", { ...head, choices: [{ index: 0, delta, finish_reason }] }]
    yield chunk({ role: "assistant", content: "" })
    for await (const word of words(reply)) yield chunk({ content: word })
    for (const call of this.calls(reply)) yield chunk({ tool_calls: [call] })
    yield chunk({}, this.end(reply))
    if (options?.include_usage) yield ["", { ...head, choices: [], usage: this.usage }]
    yield ["", "[DONE]"]
  },
}

const responses = {
  read(body) {
    const items = typeof body.input === "string" ? [{ role: "user", content: body.input }] : body.input
    const system = body.instructions ? [body.instructions] : []
    const messages = []
    for (const item of items) {
      if (item.type === "function_call_output") messages.push({ role: "tool", text: plain(item.output) })
      else if (item.type === "function_call") messages.push({ role: "assistant", text: "", calls: [{ name: item.name, arguments: item.arguments }] })
      else if (item.role === "system" || item.role === "developer") system.push(plain(item.content))
      else if (item.role) messages.push({ role: item.role, text: plain(item.content) })
    }
    return { system: system.join("\n"), messages, tools: (body.tools ?? []).map((tool) => tool.name) }
  },
  items(reply) {
    const content = [{ type: "output_text", text: reply.text, annotations: [] }]
    return [
      ...(reply.text ? [{ type: "message", id: nextId("msg"), role: "assistant", status: "completed", content }] : []),
      ...reply.calls.map((call) => ({ type: "function_call", id: nextId("fc"), call_id: call.id, status: "completed", name: call.name, arguments: call.arguments })),
    ]
  },
  response(id, model, status, output) {
    const usage = { input_tokens: 1, input_tokens_details: { cached_tokens: 0 }, output_tokens: 1, output_tokens_details: { reasoning_tokens: 0 }, total_tokens: 2 }
    return { id, object: "response", created_at: 0, model, status, output, ...(status === "completed" && { usage }) }
  },
  whole(reply, model) {
    return this.response(nextId("resp"), model, "completed", this.items(reply))
  },
  async *stream(reply, { model }) {
    const id = nextId("resp")
    let sequence_number = 0
    const event = (type, data) => [type, { type, sequence_number: sequence_number++, ...data }]
    const output = this.items(reply)
    yield event("response.created", { response: this.response(id, model, "in_progress", []) })
    for (const [output_index, item] of output.entries()) {
      const at = { item_id: item.id, output_index }
      if (item.type === "message") {
        const part = { ...at, content_index: 0 }
        yield event("response.output_item.added", { output_index, item: { ...item, status: "in_progress", content: [] } })
        yield event("response.content_part.added", { ...part, part: { type: "output_text", text: "", annotations: [] } })
        for await (const delta of words(reply)) yield event("response.output_text.delta", { ...part, delta })
        yield event("response.output_text.done", { ...part, text: reply.text })
        yield event("response.content_part.done", { ...part, part: item.content[0] })
      } else {
        yield event("response.output_item.added", { output_index, item: { ...item, status: "in_progress", arguments: "" } })
        yield event("response.function_call_arguments.delta", { ...at, delta: item.arguments })
        yield event("response.function_call_arguments.done", { ...at, arguments: item.arguments })
      }
      yield event("response.output_item.done", { output_index, item })
    }
    yield event("response.completed", { response: this.response(id, model, "completed", output) })
  },
}

const anthropicMessages = {
  read(body) {
    const messages = []
    for (const { role, content } of body.messages) {
      const blocks = typeof content === "string" ? [{ type: "text", text: content }] : content
      for (const block of blocks) if (block.type === "tool_result") messages.push({ role: "tool", text: plain(block.content) })
      const calls = blocks.filter((block) => block.type === "tool_use").map((block) => ({ name: block.name, arguments: JSON.stringify(block.input) }))
      // A request that got no answer is in one message with the next one.
      const said = blocks.flatMap((block) => (block.type === "text" ? [block.text] : [])).join("\n")
      if (said || calls.length) messages.push({ role, text: said, ...(calls.length && { calls }) })
    }
    return { system: plain(body.system), messages, tools: (body.tools ?? []).map((tool) => tool.name) }
  },
  blocks: (reply) => [
    ...(reply.text ? [{ type: "text", text: reply.text }] : []),
    ...reply.calls.map((call) => ({ type: "tool_use", id: call.id, name: call.name, input: JSON.parse(call.arguments) })),
  ],
  end: (reply) => (reply.calls.length ? "tool_use" : "end_turn"),
  whole(reply, model) {
    const usage = { input_tokens: 1, output_tokens: 1 }
    return { id: nextId("msg"), type: "message", role: "assistant", model, content: this.blocks(reply), stop_reason: this.end(reply), stop_sequence: null, usage }
  },
  async *stream(reply, { model }) {
    const event = (type, data) => [type, { type, ...data }]
    yield event("message_start", { message: { ...this.whole({ calls: [] }, model), stop_reason: null } })
    for (const [index, block] of this.blocks(reply).entries()) {
      if (block.type === "text") {
        yield event("content_block_start", { index, content_block: { type: "text", text: "" } })
        for await (const text of words(reply)) yield event("content_block_delta", { index, delta: { type: "text_delta", text } })
      } else {
        yield event("content_block_start", { index, content_block: { ...block, input: {} } })
        yield event("content_block_delta", { index, delta: { type: "input_json_delta", partial_json: JSON.stringify(block.input) } })
      }
      yield event("content_block_stop", { index })
    }
    yield event("message_delta", { delta: { stop_reason: this.end(reply), stop_sequence: null }, usage: { output_tokens: 1 } })
    yield event("message_stop", {})
  },
}

const formats = { "/v1/chat/completions": chatCompletions, "/v1/responses": responses, "/v1/messages": anthropicMessages }

if (process.argv[1] && resolve(process.argv[1]) === fileURLToPath(import.meta.url)) {
  const script = await import(pathToFileURL(resolve(process.argv[2])).href)
  console.log((await serve(script.default)).url)
}
