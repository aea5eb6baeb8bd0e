import { milliseconds, type Duration } from "../duration.js"
import { connectionFailed, type Http, type RequestOptions } from "./http.js"
import { Renewal } from "./retry.js"

export type TimedWaitResult<O> = { readonly status: "timeout" } | { readonly status: "settled"; readonly outcome: O }

/** Waits for an outcome by long-polls, over outages up to two minutes. */
export interface Wait<O> {
  (options?: RequestOptions): Promise<O>
  (options: RequestOptions & { readonly timeout: Duration }): Promise<TimedWaitResult<O>>
}

const longestPoll = 30_000

/** Makes the wait of what is at `path`. `outcomeOf` gives the outcome in an answer, undefined while there is none. */
export function waiter<O>(http: Http, path: string, outcomeOf: (answer: unknown) => O | undefined): Wait<O> {
  async function wait(options: RequestOptions & { readonly timeout?: Duration } = {}): Promise<O | TimedWaitResult<O>> {
    const deadline = options.timeout === undefined ? undefined : Date.now() + milliseconds("wait: timeout", options.timeout)
    const renewal = new Renewal()
    for (;;) {
      const left = deadline === undefined ? longestPoll : deadline - Date.now()
      if (left <= 0) return { status: "timeout" }
      const poll = Math.min(left, longestPoll)
      let answer: unknown
      try {
        answer = await observe(http, path, poll, deadline !== undefined, options.signal)
      } catch (error) {
        options.signal?.throwIfAborted()
        if (deadline !== undefined && Date.now() >= deadline) return { status: "timeout" }
        await renewal.failed(error, options.signal)
        continue
      }
      renewal.succeeded()
      const outcome = outcomeOf(answer)
      if (outcome !== undefined) return deadline === undefined ? outcome : { status: "settled", outcome }
    }
  }
  return wait as Wait<O>
}

/** One long-poll. With a deadline the request may not outlast its time by much, whatever the network does. */
async function observe(http: Http, path: string, poll: number, bounded: boolean, signal: AbortSignal | undefined): Promise<unknown> {
  const limit = AbortSignal.timeout(poll + (bounded ? 1_000 : 15_000))
  const either = signal === undefined ? limit : AbortSignal.any([signal, limit])
  try {
    return await http.get(path, { wait: `${Math.ceil(poll)}ms` }, { signal: either })
  } catch (error) {
    if (limit.aborted && signal?.aborted !== true) throw connectionFailed(error, undefined, `GET ${path}`)
    throw error
  }
}
