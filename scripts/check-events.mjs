// Checks the events of one session, one JSON object per line: sequences without a gap, each turn with one end, and for
// each turn the numbered lines of its output without one lost or doubled.
import { readFileSync } from "node:fs"

const events = readFileSync(process.argv[2], "utf8").trim().split("\n").map((line) => JSON.parse(line))
const problems = []
events.forEach((event, i) => {
  if (event.sequence !== i + 1) problems.push(`event ${i + 1} has sequence ${event.sequence}`)
})
const ends = new Map()
const output = new Map()
for (const event of events) {
  if (["turn.completed", "turn.failed", "turn.interrupted", "turn.cancelled"].includes(event.kind)) {
    ends.set(event.turn_id, (ends.get(event.turn_id) ?? 0) + 1)
  }
  if (event.kind === "turn.output") {
    const parts = Array.isArray(event.data) ? event.data : [event.data]
    output.set(event.turn_id, (output.get(event.turn_id) ?? "") + parts.map((part) => part.text ?? "").join(""))
  }
}
for (const event of events.filter((event) => event.kind === "turn.queued")) {
  if (ends.get(event.turn_id) !== 1) problems.push(`turn ${event.turn_id} has ${ends.get(event.turn_id) ?? 0} ends`)
  const steps = [...(output.get(event.turn_id) ?? "").matchAll(/step (\d+) of (\d+)/g)]
  steps.forEach((step, i) => {
    if (Number(step[1]) !== i + 1) problems.push(`turn ${event.turn_id}: step ${step[1]} stands where step ${i + 1} belongs`)
  })
  if (steps.length > 0 && steps.length !== Number(steps[0][2])) {
    problems.push(`turn ${event.turn_id}: ${steps.length} of ${steps[0][2]} steps`)
  }
}
for (const problem of problems) console.error(problem)
process.exit(problems.length > 0 ? 1 : 0)
