// Imports the program named first and writes its definitions to the file named second.
import { writeFileSync } from "node:fs"
import { pathToFileURL } from "node:url"

const [, , module, report] = process.argv
const finish = (value) => { writeFileSync(report, JSON.stringify(value)); process.exit(0) }
const fail = (error) => finish({ error: {
  name: String(error?.name ?? typeof error), message: String(error?.message ?? error), stack: String(error?.stack ?? ""),
} })
process.on("uncaughtException", fail)

const { definitions } = await import(pathToFileURL(module).href)
finish({ definitions: definitions() })
