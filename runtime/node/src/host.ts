/**
 * The program that hosts one Agent of one Session inside a Computer. helmr-guest starts it with the channel on file
 * descriptor 3; standard output and error belong to the Agent and go to a log.
 */
import { Channel } from "./channel.js"
import { SessionProcess } from "./process.js"

const channelDescriptor = 3

let leaving = false

function exit(code: number): void {
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
