/**
 * Runs the prepare callback of one Template, as a program of its own: `node host.mjs prepare PROGRAM TEMPLATE`. Standard
 * output and error are the preparation's log. It exits with 0 only when the callback has resolved.
 */
import { pathToFileURL } from "node:url"
import { isTemplate } from "@helmr/sdk/internal"
import type { TemplateDefinition } from "@helmr/sdk"
import { report } from "./errors.js"
import { Commands } from "./exec.js"

/** How long commands that were not awaited may still run when the callback has resolved. */
const joinFor = 30_000

export async function prepare(program: string, templateId: string): Promise<void> {
  let done = false
  const fail = (what: string, error: unknown): never => {
    report(what, error)
    process.exit(1)
  }
  process.on("uncaughtException", (error) => fail("uncaught exception in prepare", error))
  process.on("unhandledRejection", (error) => fail("unhandled rejection in prepare", error))
  process.on("exit", () => {
    if (done) return
    if (process.exitCode === undefined || process.exitCode === 0) console.error("helmr: prepare did not come to its end")
    process.exitCode = 1
  })
  const commands = new Commands(process.cwd())
  const stop = new AbortController()
  for (const signal of ["SIGTERM", "SIGINT"] as const) {
    process.on(signal, () => {
      if (stop.signal.aborted) return
      console.error("helmr: prepare has to stop: its time is over, or its machine is needed")
      stop.abort(new Error("prepare has to stop"))
      commands.end()
      commands.kill("SIGTERM")
    })
  }
  // Something that stays: a callback that waits for nothing else would let the process end otherwise.
  const alive = setInterval(() => undefined, 60_000)
  try {
    const template = await loadTemplate(program, templateId)
    await template.prepare?.(Object.freeze({ signal: stop.signal, exec: commands.exec }))
    stop.signal.throwIfAborted()
  } catch (error) {
    commands.kill("SIGKILL")
    fail("prepare failed", error)
  }
  commands.end()
  await commands.join(joinFor)
  await new Promise((resolve) => setImmediate(resolve)) // a command that failed unseen is a failure
  clearInterval(alive)
  done = true
  process.exit(0)
}

async function loadTemplate(program: string, id: string): Promise<TemplateDefinition> {
  const { templates } = (await import(pathToFileURL(program).href)) as { readonly templates?: unknown }
  const found: unknown = templates instanceof Map ? templates.get(id) : undefined
  if (!isTemplate(found)) throw new Error(`the program ${program} exports no Template ${JSON.stringify(id)}`)
  return found
}
