import { agent, image, source, template, type Turn } from "@helmr/sdk"
import type { PermissionRequest } from "@opencode-ai/sdk/v2"
import { abort, prompt, start, type OpenCode } from "../harness/opencode.js"

/** A Computer with OpenCode and the website in it. */
export const assistantComputer = template({
  id: "opencode-assistant",
  image: image("opencode-assistant")
    .from("node:24-bookworm-slim")
    .run(["npm", "install", "--global", "opencode-ai@1.18.33"])
    .copy(source.directory("model"), "/opt/model")
    .copy(source.directory("site"), "/site")
    .workdir("/site"),
  resources: { cpu: 2, memory: "2GiB" },
})

/** Works on the website in /site, in one OpenCode conversation for the whole Session. */
export const assistant = agent({
  id: "opencode-assistant",
  template: assistantComputer,
  maxTurnDuration: "30m",
  init: (ctx) => start(`helmr session ${ctx.session.id}`, ctx.signal),
  async turn(turn, ctx) {
    const opencode = ctx.initResult
    const request = turn.input.map((part) => part.text).join("\n")
    const answer = prompt(opencode, request, (asked) => askPermission(turn, opencode, asked))
    // A cancelled Turn ends when OpenCode has stopped, not when it was told to.
    turn.onCancel(() => abort(opencode, answer))

    await turn.output.pipe(answer.text)
    const { text, error } = await answer.end
    if (error) throw new Error(`OpenCode failed with ${error}`)
    await turn.respond(text)
    return { conversation: opencode.conversation }
  },
})

/** Puts OpenCode's request for a permission to a person. */
async function askPermission(turn: Turn, { client }: OpenCode, asked: PermissionRequest) {
  let reply: "once" | "always" | "reject" = "reject"
  try {
    const { answer } = await turn.ask({
      prompt: [{ type: "text", text: `OpenCode asks for the permission "${asked.permission}": ${asked.patterns.join(", ")}` }],
      answer: {
        type: "choice",
        options: [
          { id: "once", label: "Allow once", value: "once" },
          { id: "always", label: "Always allow", value: "always" },
          { id: "reject", label: "Reject", value: "reject" },
        ],
      },
    })
    reply = answer.selected[0]?.value as typeof reply
  } catch (error) {
    console.error("nobody was asked:", error) // the Turn is cancelled, or the Session has a parent and no people
  }
  await client.permission.reply({ requestID: asked.id, reply })
}
