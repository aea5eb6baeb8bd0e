/** Asked for pages: where to begin and how many items each has (1 to 100, default 50). */
export interface PageQuery {
  readonly cursor?: string
  readonly limit?: number
}

/** One page of a list. */
export interface CursorPage<T> {
  readonly items: readonly T[]
  /** Where the next page begins; undefined ends the list. */
  readonly nextCursor?: string
}

/**
 * A list call: await it for one page, or iterate it for all items of this and the following pages, which are fetched
 * as they are needed.
 */
export interface PagePromise<P extends CursorPage<unknown>> extends Promise<P>, AsyncIterable<ItemOf<P>> {}

type ItemOf<P> = P extends CursorPage<infer T> ? T : never

/** Makes a list call of a function that fetches one page. Fetching begins at once. */
export function pages<P extends CursorPage<unknown>>(fetchPage: (cursor: string | undefined) => Promise<P>, first: string | undefined): PagePromise<P> {
  const promise = fetchPage(first)
  async function* all(): AsyncGenerator<ItemOf<P>> {
    let page = await promise
    for (;;) {
      yield* page.items as readonly ItemOf<P>[]
      if (page.nextCursor === undefined) return
      page = await fetchPage(page.nextCursor)
    }
  }
  return Object.assign(promise, { [Symbol.asyncIterator]: all })
}
