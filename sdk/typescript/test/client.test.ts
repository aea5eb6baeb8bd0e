import assert from "node:assert/strict"
import { once } from "node:events"
import { createServer, type IncomingMessage, type ServerResponse } from "node:http"
import type { AddressInfo } from "node:net"
import { test, type TestContext } from "node:test"
import { HelmrClient, HelmrError, type SessionEvent } from "../src/index.js"

interface Seen {
  readonly method: string
  readonly url: string
  readonly headers: IncomingMessage["headers"]
  readonly body: unknown
}

type Handler = (seen: Seen, response: ServerResponse, count: number) => void

/** A client and the HTTP server it talks to. */
async function setup(t: TestContext, handle: Handler): Promise<{ readonly client: HelmrClient; readonly seen: Seen[] }> {
  const seen: Seen[] = []
  const server = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    const text = Buffer.concat(chunks).toString()
    const record = { method: request.method ?? "", url: request.url ?? "", headers: request.headers, body: text === "" ? undefined : (JSON.parse(text) as unknown) }
    seen.push(record)
    handle(record, response, seen.length)
  }).listen(0, "127.0.0.1")
  await once(server, "listening")
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  const client = new HelmrClient({ apiKey: "key", baseUrl: `http://127.0.0.1:${(server.address() as AddressInfo).port}/` })
  return { client, seen }
}

function json(response: ServerResponse, value: unknown, status = 200, headers: Record<string, string> = {}): void {
  response.writeHead(status, { "Content-Type": "application/json", ...headers }).end(JSON.stringify(value))
}

const userJson = { snake_case: { deep_key: [{ more_keys: 1 }] }, camelCase: 2 }

test("the client needs a key and an address", (t) => {
  const { HELMR_API_KEY, HELMR_API_URL } = process.env
  delete process.env["HELMR_API_KEY"]
  delete process.env["HELMR_API_URL"]
  t.after(() => Object.assign(process.env, HELMR_API_KEY && { HELMR_API_KEY }, HELMR_API_URL && { HELMR_API_URL }))
  assert.throws(() => new HelmrClient({ baseUrl: "http://x" }), /apiKey is missing; pass it or set HELMR_API_KEY/)
  assert.throws(() => new HelmrClient({ apiKey: "k" }), /baseUrl is missing; pass it or set HELMR_API_URL/)
  assert.throws(() => new HelmrClient({ apiKey: "k", baseUrl: "example.com" }), /not a URL/)
  assert.throws(() => new HelmrClient({ apiKey: "k", baseUrl: "ftp://example.com" }), /http or https/)
})

test("sessions.create sends snake_case and leaves the input alone", async (t) => {
  const { client, seen } = await setup(t, (_, response) => json(response, { session_id: "s", turn_id: "t", sequence: 1, created: true }))
  const receipt = await client.sessions.create({ agent: "a", input: [{ type: "text", text: "hi" }], key: "k", computerId: "c", slack: { channelId: "C1" }, idempotencyKey: "i" })
  assert.deepEqual(receipt, { sessionId: "s", turnId: "t", sequence: 1, created: true })
  assert.equal(seen[0]?.headers.authorization, "Bearer key")
  assert.deepEqual([seen[0]?.method, seen[0]?.url, seen[0]?.body], ["POST", "/v1/sessions",
    { agent: "a", input: [{ type: "text", text: "hi" }], key: "k", computer_id: "c", slack: { channel_id: "C1" }, idempotency_key: "i" }])
})

test("user JSON keeps its keys in Turns and events", async (t) => {
  const { client } = await setup(t, ({ url }, response) => {
    if (url.endsWith("/events?after=3")) {
      json(response, { records: [
        { session_id: "s", turn_id: "t", sequence: 4, kind: "turn.output", data: [{ type: "json", value: userJson }], created_at: "now" },
        { session_id: "s", turn_id: "t", sequence: 5, kind: "turn.completed", data: { result: userJson, save_id: "v" }, created_at: "now" },
        { session_id: "s", turn_id: "t", sequence: 6, kind: "question.created", data: { question_id: "q", question: { prompt: [{ type: "json", value: userJson }], answer: { type: "choice", allow_text: true, options: [{ id: "a", label: "A", value: userJson }] } } }, created_at: "now" },
        { session_id: "s", turn_id: "t", sequence: 7, kind: "question.responded", data: { question_id: "q", answer: userJson, responded_by_user_id: "u" }, created_at: "now" },
        { session_id: "s", turn_id: null, sequence: 8, kind: "session.held", data: null, created_at: "now" },
      ], next_after: 8, has_more: false, retained_after: 0 })
    } else json(response, { id: "t", session_id: "s", result: userJson, source: { kind: "session", requester_session_id: "r" }, completion_save_id: "v" })
  })
  const session = client.sessions.ref("s")
  assert.deepEqual(await session.turns.get("t"), { id: "t", sessionId: "s", result: userJson, source: { kind: "session", requesterSessionId: "r" }, completionSaveId: "v" })
  const page = await session.events.list({ after: 3 })
  assert.deepEqual(page.records.map(({ data }) => data), [
    [{ type: "json", value: userJson }],
    { result: userJson, saveId: "v" },
    { questionId: "q", question: { prompt: [{ type: "json", value: userJson }], answer: { type: "choice", allowText: true, options: [{ id: "a", label: "A", value: userJson }] } } },
    { questionId: "q", answer: userJson, respondedByUserId: "u" },
    null,
  ])
  assert.deepEqual({ ...page, records: 0 }, { records: 0, nextAfter: 8, hasMore: false, retainedAfter: 0 })
})

test("Spec_16_05 a problem becomes a HelmrError", async (t) => {
  const { client } = await setup(t, ({ url }, response) => {
    if (url.endsWith("/html")) response.writeHead(502, { "X-Request-Id": "r2" }).end("<html>")
    else json(response, { type: "about:blank", title: "Conflict", status: 409, detail: "No current Deployment.", code: "no_current_deployment", request_id: "r1", details: { retained_after: 3 } }, 409)
  })
  await assert.rejects(client.sessions.get("x"), (error: unknown) => {
    assert.ok(error instanceof HelmrError)
    assert.deepEqual([error.status, error.code, error.requestId, error.details, error.message], [409, "no_current_deployment", "r1", { retainedAfter: 3 }, "No current Deployment."])
    return true
  })
  await assert.rejects(client.sessions.get("html"), { status: 502, code: "http_502", requestId: "r2" })
  await assert.rejects(new HelmrClient({ apiKey: "k", baseUrl: "http://127.0.0.1:1" }).sessions.get("x"), { name: "HelmrError", status: 0, code: "connection_failed" })
})

test("Spec_16_09 a list is one page, or an iteration of all", async (t) => {
  const { client, seen } = await setup(t, ({ url }, response) => {
    const first = !url.includes("cursor=")
    json(response, { sessions: [{ id: first ? "a" : "b", agent_id: "x" }], ...(first ? { next_cursor: "n+1" } : {}) })
  })
  const page = await client.sessions.list({ status: ["open", "closing"], agentId: "x", limit: 1 })
  assert.deepEqual([page.sessions, page.items, page.nextCursor], [[{ id: "a", agentId: "x" }], [{ id: "a", agentId: "x" }], "n+1"])
  assert.equal(seen[0]?.url, "/v1/sessions?status=open&status=closing&agent_id=x&limit=1")
  const all: string[] = []
  for await (const session of client.sessions.list()) all.push(session.id)
  assert.deepEqual(all, ["a", "b"])
  assert.equal(seen.at(-1)?.url, "/v1/sessions?cursor=n%2B1")
})

test("every route of the client", async (t) => {
  const { client, seen } = await setup(t, (_, response) => json(response, { turns: [], agents: [], templates: [], computers: [], deployments: [], records: [] }))
  const session = client.sessions.ref("s")
  await session.get()
  await session.enqueue({ input: [] })
  await session.interrupt()
  await session.resume({ holdId: "h", idempotencyKey: "k" })
  await session.close({ idempotencyKey: "k" })
  await session.cancel()
  await session.events.list()
  await session.turns.list({ limit: 5 })
  await session.turns.ref("t").get()
  await client.agents.list({ scope: "all" })
  await client.agents.get("my.agent", { deploymentId: "d" })
  await client.templates.list({ deploymentId: "d" })
  await client.templates.get("t")
  await client.computers.list({ key: "k" })
  await client.computers.ref("c").get()
  await client.deployments.list()
  await client.deployments.current()
  await client.deployments.get("d/1")
  await client.deployments.promote("d", { reason: "why" })
  assert.deepEqual(seen.map(({ method, url, body }) => `${method} ${url}${body === undefined ? "" : ` ${JSON.stringify(body)}`}`), [
    "GET /v1/sessions/s", 'POST /v1/sessions/s/enqueue {"input":[]}', "POST /v1/sessions/s/interrupt {}", 'POST /v1/sessions/s/resume {"hold_id":"h","idempotency_key":"k"}',
    'POST /v1/sessions/s/close {"idempotency_key":"k"}', "POST /v1/sessions/s/cancel {}", "GET /v1/sessions/s/events", "GET /v1/sessions/s/turns?limit=5", "GET /v1/sessions/s/turns/t",
    "GET /v1/agents?scope=all", "GET /v1/agents/my.agent?deployment_id=d", "GET /v1/templates?deployment_id=d", "GET /v1/templates/t", "GET /v1/computers?key=k", "GET /v1/computers/c",
    "GET /v1/deployments", "GET /v1/deployments/current", "GET /v1/deployments/d%2F1", 'POST /v1/deployments/d/promote {"reason":"why"}',
  ])
  assert.throws(() => client.sessions.ref(""), TypeError)
})

test("Spec_10_02 Secrets", async (t) => {
  const secret = { id: "A", name: "A", status: "active", created_at: "now", rotated_at: "later" }
  const { client, seen } = await setup(t, ({ url, method }, response) =>
    json(response, method === "GET" && url.startsWith("/v1/secrets?") ? { secrets: [secret] } : secret))
  const shown = { id: "A", name: "A", status: "active", createdAt: "now", rotatedAt: "later" }
  assert.deepEqual(await client.secrets.create({ name: "A", value: "v" }), shown)
  assert.deepEqual(await client.secrets.get("A"), shown)
  assert.deepEqual((await client.secrets.list({ name: "A" })).secrets, [shown])
  await client.secrets.rotate("A", { value: "w", idempotencyKey: "k" })
  await client.secrets.revoke("A", { idempotencyKey: "k" })
  assert.deepEqual(seen.map(({ method, url, body }) => `${method} ${url}${body === undefined ? "" : ` ${JSON.stringify(body)}`}`), [
    'POST /v1/secrets {"name":"A","value":"v"}', "GET /v1/secrets/A", "GET /v1/secrets?name=A",
    'POST /v1/secrets/A/rotate {"value":"w","idempotency_key":"k"}', 'POST /v1/secrets/A/revoke {"idempotency_key":"k"}',
  ])
})

test("Spec_05_10 Spec_06_09 data to Sessions and Turns, Questions and answers", async (t) => {
  const asked = { id: "q", session_id: "s", turn_id: "t", status: "pending", prompt: [{ type: "json", value: { my_key: 1 } }], created_at: "now",
    answer_control: { type: "choice", allowText: true, options: [{ id: "a", label: "A", value: { my_key: 2 } }] } }
  const { client, seen } = await setup(t, ({ url, method }, response) => {
    if (url.endsWith("/send")) return json(response, { id: "r", kind: "messaged", turn_id: "t", message_id: "m" })
    if (url.endsWith("/messages")) return json(response, { id: "r", turn_id: "t", message_id: "m", status: "accepted" })
    if (method === "POST") return json(response, { id: "q", status: "responded", answer: { selected: [{ id: "a", value: { my_key: 2 } }] }, responded_by_api_key_id: "k" })
    return json(response, url.includes("/questions/") ? asked : { questions: [asked] })
  })
  const session = client.sessions.ref("s")
  const turn = session.turns.ref("t")
  assert.deepEqual(await session.send({ data: [{ type: "text", text: "x" }], idempotencyKey: "k" }), { id: "r", kind: "messaged", turnId: "t", messageId: "m" })
  assert.deepEqual(await turn.send({ data: [] }), { id: "r", turnId: "t", messageId: "m", status: "accepted" })
  const shown = { id: "q", sessionId: "s", turnId: "t", status: "pending", createdAt: "now", prompt: asked.prompt, answerControl: asked.answer_control }
  assert.deepEqual((await turn.questions.list({ limit: 2 })).questions, [shown])
  assert.deepEqual(await turn.questions.get("q"), shown)
  const answer = { selected: [{ id: "a", value: { my_key: 2 } }] }
  assert.deepEqual(await turn.questions.respond("q", { answer, responseId: "mine" }), { id: "q", status: "responded", answer, respondedByApiKeyId: "k" })
  await turn.questions.respond("q", { answer: "text" })
  assert.deepEqual(seen.slice(0, 5).map(({ method, url, body }) => `${method} ${url}${body === undefined ? "" : ` ${JSON.stringify(body)}`}`), [
    'POST /v1/sessions/s/send {"data":[{"type":"text","text":"x"}],"idempotency_key":"k"}', 'POST /v1/sessions/s/turns/t/messages {"data":[]}',
    "GET /v1/sessions/s/turns/t/questions?limit=2", "GET /v1/sessions/s/turns/t/questions/q",
    'POST /v1/sessions/s/turns/t/questions/q/respond {"answer":{"selected":[{"id":"a","value":{"my_key":2}}]},"response_id":"mine"}',
  ])
  assert.match(JSON.stringify(seen[5]?.body), /^\{"answer":"text","response_id":"[0-9a-f-]{36}"\}$/)
})

test("names with units", async (t) => {
  const { client } = await setup(t, (_, response) => json(response, { template: "t", resources: { milli_cpu: 1000, memory_mib: 512, disk_mib: 9 }, prepare_network: { blockAll: true } }))
  assert.deepEqual(await client.templates.get("t"), { template: "t", resources: { milliCpu: 1000, memoryMiB: 512, diskMiB: 9 }, prepareNetwork: { blockAll: true } })
})

function sse(response: ServerResponse): { send(...sequences: number[]): void } {
  response.writeHead(200, { "Content-Type": "text/event-stream" })
  response.write(": heartbeat\n\n")
  return {
    send(...sequences) {
      for (const sequence of sequences) {
        const record = { session_id: "s", turn_id: "t", sequence, kind: "turn.output", data: [{ type: "text", text: "zeile ü" }], created_at: "now" }
        const text = Buffer.from(`id: ${sequence}\nevent: turn.output\ndata: ${JSON.stringify(record)}\n\n`)
        // Cut in the middle of a line and of a character.
        const cut = text.indexOf(0xc3) + 1
        response.write(text.subarray(0, cut))
        response.write(text.subarray(cut))
      }
    },
  }
}

test("Spec_18_05 a stream reconnects from the last sequence, without loss or doubles, and ends", async (t) => {
  const { client, seen } = await setup(t, (_, response, count) => {
    if (count === 1) {
      sse(response).send(3, 4)
      setTimeout(() => response.destroy(), 20)
    } else if (count === 2) {
      json(response, { code: "unavailable" }, 503, { "Retry-After": "0" })
    } else {
      sse(response).send(4, 5)
      response.end("event: end\ndata: {}\n\n")
    }
  })
  const events: SessionEvent[] = []
  for await (const event of client.sessions.ref("s").events.stream({ after: 2 })) events.push(event)
  assert.deepEqual(events.map(({ sequence }) => sequence), [3, 4, 5])
  assert.deepEqual(events[0]?.data, [{ type: "text", text: "zeile ü" }])
  assert.deepEqual(seen.map(({ url, headers }) => [url, headers["last-event-id"]]), [
    ["/v1/sessions/s/events/stream?after=2", undefined], ["/v1/sessions/s/events/stream?after=4", "4"], ["/v1/sessions/s/events/stream?after=4", "4"],
  ])
})

test("Spec_18_04 an expired cursor ends the stream with its error", async (t) => {
  const { client } = await setup(t, (_, response) => json(response, { code: "cursor_expired", details: { retained_after: 9 } }, 410))
  await assert.rejects(async () => {
    for await (const _ of client.sessions.ref("s").events.stream()) void _
  }, { code: "cursor_expired", details: { retainedAfter: 9 } })
})

test("Spec_00_06 a signal or a break ends the observation only", async (t) => {
  const closed: Promise<unknown>[] = []
  const { client } = await setup(t, (_, response) => {
    sse(response).send(1)
    closed.push(once(response, "close"))
  })
  const stop = new AbortController()
  await assert.rejects(async () => {
    for await (const _ of client.sessions.ref("s").events.stream({}, { signal: stop.signal })) stop.abort(new Error("enough"))
  }, /enough/)
  for await (const _ of client.sessions.ref("s").events.stream()) break
  await Promise.all(closed)
  assert.equal(closed.length, 2)
})

test("Spec_05_12 wait repeats long-polls until the Turn is terminal", async (t) => {
  const { client, seen } = await setup(t, (_, response, count) => {
    if (count === 2) response.destroy()
    else json(response, { id: "t", status: count < 4 ? "running" : "completed", result: userJson, response: [] })
  })
  assert.deepEqual(await client.sessions.ref("s").turns.ref("t").wait(), { status: "completed", result: userJson, response: [] })
  assert.deepEqual(seen.map(({ url }) => url), Array(4).fill("/v1/sessions/s/turns/t?wait=30000ms"))
})

test("Spec_05_13 wait with a timeout, and with a signal", async (t) => {
  const { client } = await setup(t, ({ url }, response) => {
    if (url.includes("/slow")) return void setTimeout(() => json(response, { status: "running" }), Number(/wait=(\d+)ms/.exec(url)?.[1]))
    if (url.includes("/hang")) return
    json(response, { status: "failed", error: { code: "handler_failed" } })
  })
  const { turns } = client.sessions.ref("s")
  assert.deepEqual(await turns.ref("slow").wait({ timeout: "50ms" }), { status: "timeout" })
  assert.deepEqual(await turns.ref("t").wait({ timeout: "50ms" }), { status: "settled", outcome: { status: "failed", error: { code: "handler_failed" } } })
  const stop = new AbortController()
  const waiting = turns.ref("hang").wait({ signal: stop.signal })
  stop.abort(new Error("enough"))
  await assert.rejects(waiting, /enough/)
  await assert.rejects(turns.ref("t").wait({ timeout: "soon" as never }), TypeError)
})

test("Spec_07_20 Spec_08_17 Computers and Commands", async (t) => {
  const outcome = { command_id: "m", terminal_at: "now", kind: "exited", exit_code: 3 }
  const { client, seen } = await setup(t, ({ url, method }, response, count) => {
    if (method === "POST" && url === "/v1/computers") return json(response, { computer_id: "c" }, 201)
    if (method === "POST" && url.endsWith("/commands")) return json(response, { command_id: "m" }, 202)
    if (url.endsWith("/cancel")) return json(response, { id: "r", target_id: "m", status: "accepted" })
    if (method === "DELETE") return json(response, { computer_id: "c" }, 202)
    if (url === "/v1/computers/d/network") return json(response, { attempts: [{ kind: "tls", name: "a.example", outcome: "refused", reason: "name_not_allowed", count: 2, first_at: "then", last_at: "now" }] })
    if (url.startsWith("/v1/computers/c/")) return json(response, { [url.split(/[/?]/)[4]!]: [{ id: "u", usage_state: "waiting", created_at: "now" }] })
    if (url.includes("/logs")) return json(response, { output_state: "open", next_cursor: "2", logs: [
      { cursor: "1", kind: "output", stream: "stdout", content_base64: "AP8=", observed_at: "now" }, { cursor: "2", kind: "gap", stream: "stderr", from_sequence: "3", through_sequence: "5" }] })
    return json(response, { id: "m", computer_id: "c", status: count < 10 ? "running" : "exited", process_reconciled: false, created_at: "now", ...(url.includes("wait=") && count % 2 ? { outcome } : {}) })
  })
  const computer = await client.computers.create({ template: "t", key: "k", idempotencyKey: "i" })
  const command = await computer.exec({ command: ["a", "b"], cwd: "/x", env: { A: "1" }, stdin: new Uint8Array([0, 255]), timeout: 1500.5, idempotencyKey: "j" })
  assert.deepEqual([computer.id, command.id], ["c", "m"])
  assert.deepEqual((await computer.sessions.list()).sessions, [{ id: "u", usageState: "waiting", createdAt: "now" }])
  assert.deepEqual((await computer.commands.list({ limit: 1 })).items, [{ id: "u", usageState: "waiting", createdAt: "now" }])
  assert.deepEqual(await command.cancel(), { id: "r", targetId: "m", status: "accepted" })
  assert.deepEqual(await computer.delete({ idempotencyKey: "d" }), { computerId: "c" })
  assert.deepEqual(await command.logs.list({ cursor: "0", limit: 2 }), { outputState: "open", nextCursor: "2", logs: [
    { cursor: "1", kind: "output", stream: "stdout", content: new Uint8Array([0, 255]), observedAt: "now" }, { cursor: "2", kind: "gap", stream: "stderr", fromSequence: "3", throughSequence: "5" }] })
  assert.equal((await client.commands.ref("m").get()).processReconciled, false)
  assert.deepEqual(await client.computers.ref("d").network(), { attempts: [{ kind: "tls", name: "a.example", outcome: "refused", reason: "name_not_allowed", count: 2, firstAt: "then", lastAt: "now" }] })
  const settled = { commandId: "m", terminalAt: "now", kind: "exited", exitCode: 3 }
  assert.deepEqual(await command.wait(), settled)
  assert.deepEqual(await command.wait({ timeout: "1m" }), { status: "settled", outcome: settled })
  assert.deepEqual(seen.slice(0, 7).map(({ method, url, body }) => `${method} ${url}${body === undefined ? "" : ` ${JSON.stringify(body)}`}`), [
    'POST /v1/computers {"template":"t","key":"k","idempotency_key":"i"}',
    'POST /v1/computers/c/commands {"command":["a","b"],"cwd":"/x","env":{"A":"1"},"idempotency_key":"j","stdin_base64":"AP8=","timeout":"1501ms"}',
    "GET /v1/computers/c/sessions", "GET /v1/computers/c/commands?limit=1", "POST /v1/commands/m/cancel {}", 'DELETE /v1/computers/c {"idempotency_key":"d"}',
    "GET /v1/commands/m/logs?cursor=0&limit=2",
  ])
})

test("Spec_08_20 a log stream goes on where it broke, and ends with the output or its loss", async (t) => {
  const { client, seen } = await setup(t, ({ url }, response, count) => {
    response.writeHead(200, { "Content-Type": "text/event-stream" })
    const send = (cursor: number, text: string): void => void response.write(`id: ${cursor}\nevent: output\ndata: ${JSON.stringify({ cursor: String(cursor), kind: "output", stream: "stdout", content_base64: btoa(text), observed_at: "now" })}\n\n`)
    if (url.includes("/lost/")) {
      send(1, "half")
      response.end(`event: error\ndata: ${JSON.stringify({ code: "command_output_unavailable", message: "gone", status: 409, request_id: "q" })}\n\n`)
    } else if (count === 1) {
      send(1, "a")
      response.write(": heartbeat\n\n", () => response.destroy())
    } else {
      send(2, "b".repeat(300_000))
      response.end("event: end\ndata: {}\n\n")
    }
  })
  let text = ""
  for await (const entry of client.commands.ref("m").logs.stream()) if (entry.kind === "output") text += Buffer.from(entry.content).toString()
  assert.equal(text, "a" + "b".repeat(300_000))
  assert.deepEqual(seen.map(({ url }) => url), ["/v1/commands/m/logs/stream", "/v1/commands/m/logs/stream?after=1"])
  await assert.rejects(async () => {
    for await (const entry of client.commands.ref("lost").logs.stream()) assert.equal(entry.cursor, "1")
  }, { name: "HelmrError", status: 409, code: "command_output_unavailable", requestId: "q" })
})
