// What the scripted model says. Like a model, it sees the whole conversation as the harness sends it, and nothing else.
export default function reply({ messages }) {
  const asked = messages.filter((message) => message.role === "user").map((message) => message.text)
  const request = asked.at(-1)
  const done = messages.slice(messages.findLastIndex((message) => message.role === "user")).filter((message) => message.role === "tool")

  if (request.includes("by region")) {
    return [
      { text: "I look at the data first.", calls: [{ name: "bash", arguments: { command: "head -3 data/orders.csv" } }] },
      { calls: [{ name: "write", arguments: { path: "analysis.mjs", content: script } }] },
      { calls: [{ name: "bash", arguments: { command: "node analysis.mjs && cat report.md" } }] },
      { text: `The report is in report.md, made by analysis.mjs:\n\n${done.at(-1)?.text}`, wordMs: 10 },
    ][done.length]
  }
  if (request.includes("best day")) {
    const edits = [{ oldText: "// more", newText: bestDay }]
    return [
      { text: "I add it to the script.", calls: [{ name: "edit", arguments: { path: "analysis.mjs", edits } }] },
      { calls: [{ name: "bash", arguments: { command: "node analysis.mjs && tail -1 report.md" } }] },
      { text: `Done: ${done.at(-1)?.text}` },
    ][done.length]
  }
  if (request.includes("every row")) return { text: "And this row is about bread, too. ".repeat(60), wordMs: 20 }
  if (request.includes("short")) return { text: "In short: rolls, bread and cake, in three regions." }
  if (request.includes("overload")) return { error: "the scripted model fails as it was told to", status: 400 }
  return { text: `So far you asked:\n${asked.map((text, i) => `${i + 1}. ${text}`).join("\n")}` }
}

const script = `import { readFileSync, writeFileSync } from "node:fs"

const [, ...rows] = readFileSync("data/orders.csv", "utf8").trim().split("\\n").map((line) => line.split(","))
const sums = (column) => {
  const sums = {}
  for (const row of rows) sums[row[column]] = (sums[row[column]] ?? 0) + row[3] * row[4]
  return Object.entries(sums).sort(([, a], [, b]) => b - a)
}
const lines = ["# Revenue by region", ""]
for (const [region, sum] of sums(1)) lines.push("- " + region + ": " + sum.toFixed(2))
// more
writeFileSync("report.md", lines.join("\\n") + "\\n")
`

const bestDay = `const [[day, revenue]] = sums(0)
lines.push("", "The best day was " + day + " with " + revenue.toFixed(2) + ".")`
