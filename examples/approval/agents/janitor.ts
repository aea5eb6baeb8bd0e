import { readdir, rm } from "node:fs/promises"
import { agent, image, template } from "@helmr/sdk"

/** A Computer with some backups on it. */
export const janitorComputer = template({
  id: "janitor",
  image: image("janitor")
    .from("node:24-bookworm-slim")
    .run(["sh", "-c", "mkdir /backups && cd /backups && touch 2026-01.tar 2026-02.tar 2026-03.tar"])
    .workdir("/backups"),
  resources: { cpu: 1, memory: "512MiB" },
})

/** Deletes backups, but only those that a person has chosen. */
export const janitor = agent({
  id: "janitor",
  template: janitorComputer,
  // Nobody is waited for longer than this: then the Turn ends as interrupted, and nothing has been deleted.
  maxTurnDuration: "1d",
  async turn(turn) {
    const backups = (await readdir(".")).sort()
    if (backups.length === 0) return { deleted: [] }

    // The Turn stays here until somebody has answered: in a browser, on the command line, through the API.
    const { answer, respondedBy } = await turn.ask({
      prompt: [{ type: "text", text: "Which of these backups may I delete?" }],
      answer: {
        type: "choice",
        multiple: true,
        allowText: true, // "none of them, because ..."
        options: backups.map((file) => ({ id: file, label: file, value: file })),
      },
    })

    const deleted = answer.selected.map((option) => option.id)
    for (const file of deleted) await rm(file)
    await turn.respond(deleted.length > 0 ? `Deleted ${deleted.join(", ")}.` : `Deleted nothing: ${answer.text}`)
    return { deleted, approvedBy: respondedBy.kind }
  },
})
