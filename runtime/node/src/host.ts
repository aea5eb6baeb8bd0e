/**
 * The program that hosts one Agent of one Session inside a Computer. helmr-guest starts it with the channel on file
 * descriptor 3; standard output and error belong to the Agent and go to a log. As `host.mjs prepare PROGRAM TEMPLATE` it
 * runs the prepare callback of a Template instead, without a channel.
 */
import { Channel } from "./channel.js"
import { prepare } from "./prepare.js"
import { SessionProcess } from "./process.js"

const channelDescriptor = 3

function host(): void {
  let leaving = false
  const exit = (code: number): void => {
    if (leaving) return
    leaving = true
    process.exit(code)
  }
  const channel = new Channel(
    channelDescriptor,
    (message) => session.receive(message),
    (why) => {
      if (leaving) return
      console.error(`helmr: ${why.message}; leaving`)
      exit(1)
    },
  )
  const session = new SessionProcess(channel, exit)

  // An error that nobody caught means that nobody knows in which state the Agent is: the process failed.
  for (const event of ["uncaughtException", "unhandledRejection"] as const) {
    process.on(event, (error: unknown) => {
      console.error(`helmr: ${event === "uncaughtException" ? "uncaught exception" : "unhandled rejection"}:`, error)
      exit(1)
    })
  }
  process.on("exit", () => channel.flush())
}

const [mode, program, template] = process.argv.slice(2)
if (mode === "prepare") void prepare(program ?? "", template ?? "")
else host()
