// What the scripted model says. Like a model, it sees the whole conversation as the harness sends it, and nothing else.
export default function reply({ messages, tools }) {
  if (tools.length === 0) return { text: "The bakery's website" } // OpenCode wants a title
  const asked = messages.filter((message) => message.role === "user").flatMap((message) => message.text.split("\n"))
  const request = asked.at(-1)
  const done = messages.slice(messages.findLastIndex((message) => message.role === "user")).filter((message) => message.role === "tool")

  if (request.includes("opening hours")) {
    return [
      { text: "I look at the page first.", calls: [{ name: "read", arguments: { filePath: "/site/index.html" } }] },
      { calls: [{ name: "edit", arguments: { filePath: "/site/index.html", oldString: "  </body>", newString: "    <p>Open Tuesday to Saturday, 7 to 17.</p>\n  </body>" } }] },
      { text: "The opening hours are on the page now.", wordMs: 20 },
    ][done.length]
  }
  if (request.includes("Publish")) {
    const publish = { command: "mkdir -p published && cp *.html published/", description: "Publish the site" }
    if (done.length === 0) return { calls: [{ name: "bash", arguments: publish }] }
    return { text: /reject|denied/i.test(done[0].text) ? "I left the published site as it was." : "The site is published." }
  }
  if (request.includes("history of bread")) return { text: "Then somebody baked another loaf. ".repeat(200), wordMs: 50 }
  if (request.includes("overload")) return { error: "the scripted model fails as it was told to", status: 400 }
  if (request.includes("crash")) return { calls: [{ name: "bash", arguments: { command: "kill -KILL $PPID", description: "Kill OpenCode" } }] }
  return { text: `So far you asked:\n${asked.map((text, i) => `${i + 1}. ${text}`).join("\n")}` }
}
