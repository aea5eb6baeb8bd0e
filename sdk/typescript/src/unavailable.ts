/** Parts of the SDK whose platform side does not exist yet: using one says so instead of failing later. */

/** Declares an Actor. Not available yet: throws TypeError. */
export function actor(_config: object): never {
  return unavailable("actor()", "declare an Agent with agent()")
}

/** Declares a Task. Not available yet: throws TypeError. */
export function task(_config: object): never {
  return unavailable("task()", "declare an Agent with agent()")
}

/** Tokens that somebody outside completes. Not available yet: every call throws TypeError. */
export const tokens = Object.freeze({
  create: (_options?: object): never => unavailable("tokens.create()", "ask a person with turn.ask()"),
  wait: (_id: string, _options?: object): never => unavailable("tokens.wait()", "ask a person with turn.ask()"),
  complete: (_id: string, _result?: object): never => unavailable("tokens.complete()", "answer Questions instead"),
})

function unavailable(what: string, instead: string): never {
  throw new TypeError(`${what} is not available in this version of helmr; ${instead}`)
}
