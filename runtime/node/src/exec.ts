import { spawn, type ChildProcess } from "node:child_process"
import { resolve } from "node:path"
import type { PrepareContext } from "@helmr/sdk"

type Exec = PrepareContext["exec"]
type Run = { readonly child: ChildProcess; readonly end: Promise<void> }

/** Runs the commands of a preparation: empty standard input, output to the preparation's log. */
export class Commands {
  private readonly running = new Set<Run>()
  private ended = false

  /** `workdir` is where commands run unless they say otherwise. */
  constructor(private readonly workdir: string) {}

  readonly exec: Exec = async (command, options = {}) => {
    const [file, args] = programOf(command)
    if (this.ended) throw new Error(`prepare has ended: ${show(command)} is not run`)
    const { cwd, env } = checkOptions(options)
    await this.start(show(command), file, args, resolve(this.workdir, cwd ?? "."), env)
  }

  /** Refuses further commands. */
  end(): void {
    this.ended = true
  }

  /** Waits for commands that nobody awaits, for at most `ms`, and kills what is left. */
  async join(ms: number): Promise<void> {
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<void>((resolve) => { timer = setTimeout(resolve, ms) })
    await Promise.race([Promise.allSettled([...this.running].map(({ end }) => end)), late])
    clearTimeout(timer)
    this.kill("SIGKILL")
  }

  /** Signals every command that runs, with what it has started in its process group. */
  kill(signal: NodeJS.Signals): void {
    for (const { child, end } of this.running) {
      end.catch(() => undefined) // its end is ours, and nobody's mistake
      try {
        if (child.pid !== undefined) process.kill(-child.pid, signal)
      } catch {
        // It has ended just now.
      }
    }
  }

  private start(name: string, file: string, args: readonly string[], cwd: string, env: Readonly<Record<string, string>>): Promise<void> {
    const child = spawn(file, args, { cwd, env: { ...process.env, ...env }, stdio: ["ignore", "inherit", "inherit"], detached: true })
    const end = new Promise<void>((resolve, reject) => {
      child.on("error", (error) => reject(new Error(`${name} could not be run in ${cwd}: ${error.message}`)))
      child.on("exit", (code, signal) => {
        if (code === 0) resolve()
        else reject(new Error(signal === null ? `${name} ended with exit code ${code}` : `${name} was ended by ${signal}`))
      })
    })
    const run = { child, end }
    this.running.add(run)
    const gone = (): void => { this.running.delete(run) }
    end.then(gone, gone)
    return end
  }
}

function programOf(command: unknown): [string, readonly string[]] {
  if (typeof command === "string") {
    if (command.trim() === "") throw new TypeError("exec: the command is empty")
    return ["/bin/sh", ["-c", plain("the command", command)]]
  }
  if (!Array.isArray(command) || command.length === 0) throw new TypeError("exec takes a shell command, or a list with a program and its arguments")
  const [file, ...args] = command.map((part: unknown, i) => {
    if (typeof part !== "string") throw new TypeError(`exec: command[${i}] is no string`)
    return plain(`command[${i}]`, part)
  })
  if (file === undefined || file === "") throw new TypeError("exec: command[0] must name a program")
  return [file, args]
}

function checkOptions(options: { readonly cwd?: unknown; readonly env?: unknown }): { cwd: string | undefined; env: Record<string, string> } {
  const unknown = Object.keys(options).find((key) => key !== "cwd" && key !== "env")
  if (unknown !== undefined) throw new TypeError(`exec: unknown option ${JSON.stringify(unknown)}; allowed are cwd and env`)
  const { cwd, env = {} } = options
  if (cwd !== undefined && (typeof cwd !== "string" || cwd === "")) throw new TypeError("exec: cwd must be a path")
  if (typeof env !== "object" || env === null) throw new TypeError("exec: env must be an object of strings")
  for (const [name, value] of Object.entries(env)) {
    if (typeof value !== "string") throw new TypeError(`exec: env.${name} must be a string`)
    plain(`env.${name}`, value)
  }
  return { cwd: cwd === undefined ? undefined : plain("cwd", cwd), env: env as Record<string, string> }
}

function plain(what: string, text: string): string {
  if (text.includes("\0")) throw new TypeError(`exec: ${what} contains a NUL character`)
  return text
}

function show(command: string | readonly string[]): string {
  const text = JSON.stringify(command)
  return text.length > 200 ? `${text.slice(0, 197)}...` : text
}
