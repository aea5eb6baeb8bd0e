// Imports the bundled helmr.config.ts named first and writes what it exports, checked, to the file named second.
import { writeFileSync } from "node:fs"
import { pathToFileURL } from "node:url"

const [, , module, report] = process.argv
const exit = process.exit
const finish = (value) => { writeFileSync(report, JSON.stringify(value)); exit.call(process, 0) }
const fail = (error) => finish({ error: { message: String(error?.message ?? error), stack: String(error?.stack ?? "") } })
process.on("uncaughtException", fail)
process.exit = (code) => fail(new Error(`process.exit(${code ?? ""}) was called`))

const { config, describeConfig } = await import(pathToFileURL(module).href)
// A getter of the default export itself is invisible here; whatever it gave is what was exported.
if (!("default" in config)) fail(new TypeError("there is no default export; write `export default defineConfig({})`"))
finish({ config: describeConfig(config.default) })
