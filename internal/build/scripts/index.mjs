// Imports the program named first and writes its definitions to the file named second.
import { writeFileSync } from "node:fs"
import { pathToFileURL } from "node:url"

const [, , module, report] = process.argv
const exit = process.exit
const finish = (value) => { writeFileSync(report, JSON.stringify(value)); exit.call(process, 0) }
const fail = (error) => finish({ error: {
  name: String(error?.name ?? typeof error), message: String(error?.message ?? error), stack: String(error?.stack ?? ""),
} })
process.on("uncaughtException", fail)
process.exit = (code) => fail(new Error(`process.exit(${code ?? ""}) was called`))

const { definitions } = await import(pathToFileURL(module).href)
finish({ definitions: definitions() })
