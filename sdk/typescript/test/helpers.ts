import assert from "node:assert/strict"

/** Requires a TypeError whose message fits every pattern: it names the field, the problem and what is allowed. */
export function refuses(make: () => unknown, ...patterns: readonly RegExp[]): void {
  assert.throws(make, (error: unknown) => {
    assert.ok(error instanceof TypeError, `a TypeError, not ${String(error)}`)
    for (const pattern of patterns) assert.match(error.message, pattern)
    return true
  })
}
