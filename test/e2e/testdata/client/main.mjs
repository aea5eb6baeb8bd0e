// Drives a helmr through the built SDK, given as SDK_URL. HELMR_API_URL and HELMR_API_KEY are set.
import assert from "node:assert/strict"

const { HelmrClient, HelmrError } = await import(process.env.SDK_URL)
const client = new HelmrClient()
const terminal = new Set(["turn.completed", "turn.failed", "turn.interrupted", "turn.cancelled"])

/** The events of a Session up to the end of one Turn. */
async function follow(session, turnId, seen = () => {}) {
  const events = []
  for await (const event of session.events.stream()) {
    events.push(event)
    seen(event)
    if (event.turnId === turnId && terminal.has(event.kind)) return events
  }
  assert.fail("the stream ended before the Turn")
}

async function everything() {
  const receipt = await client.sessions.create({ agent: "counter", input: [{ type: "text", text: "hello" }], key: "sdk" })
  assert.equal(receipt.created, true)
  const session = client.sessions.ref(receipt.sessionId)
  const events = await follow(session, receipt.turnId)
  assert.deepEqual(events.map((event) => event.kind), ["turn.queued", "turn.running", "turn.output", "turn.finalizing", "turn.completed"])
  assert.deepEqual(events.map((event) => event.sequence), [1, 2, 3, 4, 5])
  assert.deepEqual(events[2].data, [{ type: "text", text: `run ${receipt.turnId}` }])
  assert.equal(events[4].data.result.turns, 1)
  assert.equal(typeof events[4].data.saveId, "string")

  const outcome = await session.turns.ref(receipt.turnId).wait()
  assert.equal(outcome.status, "completed")
  assert.equal(outcome.result.turns, 1)
  assert.deepEqual(outcome.response, [{ type: "text", text: "did hello" }])
  const again = await client.sessions.create({ agent: "counter", input: [{ type: "text", text: "hello" }], key: "sdk" })
  assert.deepEqual([again.created, again.sessionId, again.sequence], [false, receipt.sessionId, 2])
  assert.equal((await session.turns.ref(again.turnId).wait()).result.turns, 2)

  const slow = await session.enqueue({ input: [{ type: "text", text: "slow 20" }], idempotencyKey: "once" })
  assert.deepEqual(await session.enqueue({ input: [{ type: "text", text: "slow 20" }], idempotencyKey: "once" }), slow)
  assert.deepEqual(await session.turns.ref(slow.turnId).wait({ timeout: "1ms" }), { status: "timeout" })
  const settled = await session.turns.ref(slow.turnId).wait({ timeout: "2m" })
  assert.deepEqual([settled.status, settled.outcome.status], ["settled", "completed"])
  const failed = await session.enqueue({ input: [{ type: "text", text: "throw" }] })
  const failure = await session.turns.ref(failed.turnId).wait()
  assert.deepEqual([failure.status, failure.error.code], ["failed", "handler_failed"])

  const turns = []
  for await (const turn of session.turns.list({ limit: 2 })) turns.push(turn)
  assert.deepEqual(turns.map((turn) => [turn.sequence, turn.status]), [[1, "completed"], [2, "completed"], [3, "completed"], [4, "failed"]])
  assert.equal((await session.turns.get(slow.turnId)).input[0].text, "slow 20")
  const page = await session.events.list({ after: 2, limit: 2 })
  assert.deepEqual([page.records.map((event) => event.sequence), page.nextAfter, page.hasMore], [[3, 4], 4, true])

  assert.deepEqual((await client.sessions.list({ agentId: "counter", key: "sdk" })).sessions.map((found) => found.id), [receipt.sessionId])
  const info = await session.get()
  assert.deepEqual([info.status, info.agentId, info.key, info.holds.length], ["open", "counter", "sdk", 0])
  const agents = []
  for await (const agent of client.agents.list({ limit: 1 })) agents.push(agent.id)
  assert.ok(agents.includes("counter") && agents.length > 2)
  assert.equal((await client.agents.get("counter")).definition.template, "box")
  assert.equal((await client.templates.get("box")).resources.memoryMiB, 512)
  assert.equal((await client.deployments.current()).id, info.deploymentId)
  assert.equal((await client.deployments.list()).deployments.at(-1).version, 1)
  assert.equal((await client.computers.get(info.computerId)).status, "available")
  assert.ok((await client.computers.list()).computers.some((computer) => computer.id === info.computerId))

  const held = await session.interrupt()
  assert.equal((await session.get()).holds[0].id, held.holdId)
  await session.resume({ holdId: held.holdId })
  await assert.rejects(client.agents.get("nobody"), (error) => error instanceof HelmrError && error.status === 404 && error.requestId.length === 36)
  await assert.rejects(client.sessions.create({ agent: "nobody", input: [{ type: "text", text: "x" }] }), { status: 409, code: "agent_not_in_current_deployment" })
  await assert.rejects(new HelmrClient({ apiKey: "hlmr_sk_wrong" }).agents.list(), { status: 401, code: "authentication_required" })
  await session.cancel()
  const kinds = []
  for await (const event of session.events.stream({ after: 5 })) kinds.push(event.kind) // ends with the Session
  assert.equal(kinds.at(-1), "session.cancelled")
}

/** Follows a Turn while the test kills helmr and starts it again. */
async function outage() {
  const receipt = await client.sessions.create({ agent: "counter", input: [{ type: "text", text: "slow 60" }] })
  const session = client.sessions.ref(receipt.sessionId)
  const [events, outcome] = await Promise.all([
    follow(session, receipt.turnId, (event) => event.kind === "turn.running" && console.log("running")),
    session.turns.ref(receipt.turnId).wait(),
  ])
  assert.equal(outcome.status, "completed")
  assert.deepEqual(events.filter((event) => event.kind === "turn.output").slice(1).map((event) => event.data[0].text), Array.from({ length: 60 }, (_, i) => `step ${i}`))
  assert.deepEqual(events.map((event) => event.sequence), events.map((_, i) => i + 1))
  await session.cancel()
}

await { everything, outage }[process.argv[2]]()
console.log("done")
