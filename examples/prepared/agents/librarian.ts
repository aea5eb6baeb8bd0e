import { readdir, readFile, writeFile, mkdir } from "node:fs/promises"
import { agent, image, source, template } from "@helmr/sdk"

type Index = Record<string, readonly string[]>

const words = (text: string): string[] => text.toLowerCase().match(/[a-z]{4,}/g) ?? []

export const library = template({
  id: "library",
  image: image("library").from("node:24-bookworm-slim").copy(source.directory("shelf"), "/library/shelf").workdir("/library"),
  resources: { cpu: 1, memory: "512MiB", disk: "2GiB" },

  // Runs once, on a machine of its own, when the first computer is needed. Its disk is what every computer starts with.
  async prepare({ exec }) {
    await exec("echo 'what is on the shelf:' && ls shelf")
    const index: Record<string, string[]> = {}
    for (const file of await readdir("shelf")) {
      for (const line of (await readFile(`shelf/${file}`, "utf8")).split("\n")) {
        for (const word of words(line)) (index[word] ??= []).push(`${file}: ${line}`)
      }
    }
    await mkdir("catalogue", { recursive: true })
    await writeFile("catalogue/index.json", JSON.stringify(index))
    await exec(["date", "-u", "+prepared at %FT%TZ"])
    console.log(`${Object.keys(index).length} words are in the catalogue`)
  },
  prepareNetwork: { blockAll: true }, // preparing needs no network, and gets none
  refresh: { every: "12h" },
})

/** Finds lines by a word, in a catalogue that it has not made. */
export const librarian = agent({
  id: "librarian",
  template: library,
  init: async () => JSON.parse(await readFile("/library/catalogue/index.json", "utf8")) as Index,
  async turn(turn, { initResult: index }) {
    const asked = words(turn.input.map((part) => part.text).join(" "))
    const found = [...new Set(asked.flatMap((word) => index[word] ?? []))]
    await turn.respond(found.length === 0 ? "Nothing on the shelf." : found.join("\n"))
    return { found: found.length }
  },
})
