import assert from "node:assert/strict"
import { spawn } from "node:child_process"
import { once } from "node:events"
import { mkdtempSync, readFileSync, rmSync } from "node:fs"
import os from "node:os"
import path from "node:path"
import { describe, test, type TestContext } from "node:test"

const home = path.resolve(import.meta.dirname, "../../../../..")

/** Runs the prepare callback of a Template of the test program in a folder of its own. */
function run(t: TestContext, template: string, onOutput: (text: string, stop: () => void) => void = () => undefined) {
  const dir = mkdtempSync(path.join(os.tmpdir(), "prepare-"))
  t.after(() => rmSync(dir, { recursive: true, force: true }))
  const child = spawn(process.execPath, [path.join(home, "dist/host.mjs"), "prepare", path.join(home, "build/program.mjs"), template], { cwd: dir, stdio: ["pipe", "pipe", "pipe"] })
  let log = ""
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding("utf8").on("data", (text: string) => {
      log += text
      onOutput(text, () => child.kill("SIGTERM"))
    })
  }
  const read = (name: string): string => readFileSync(path.join(dir, name), "utf8")
  return once(child, "close").then(([code]) => ({ code: code as number | null, log, read, dir }))
}

describe("prepare", { concurrency: 4 }, () => {
  test("Spec_09_04 exec takes a shell command or argv, cwd and env, with empty input, and resolves to nothing", async (t) => {
    const { code, log, read, dir } = await run(t, "files")
    assert.equal(code, 0, log)
    assert.equal(read("a"), "onetwo words\n")
    assert.equal(read("sub/deep/where"), `${dir}/sub/deep\n`)
    assert.match(log, /all written/)
  })

  for (const [template, text] of [
    ["fails", /gone wrong[^]*ended with exit code 3/], ["signalled", /was ended by SIGKILL/], ["missing", /could not be run/], ["throws", /no luck/],
    ["exits", /did not come to its end/], ["unawaited-fails", /ended with exit code 4/], ["no-such", /exports no Template/],
  ] as const) {
    test(`Spec_09_04 it fails: ${template}`, async (t) => {
      const { code, log } = await run(t, template)
      assert.equal(code, 1, log)
      assert.match(log, text)
    })
  }

  test("Spec_09_04 a rejection that is caught is no failure", async (t) => {
    const { code, log } = await run(t, "handled")
    assert.equal(code, 0, log)
    assert.match(log, /caught: "exit 5" ended with exit code 5/)
  })

  test("Spec_09_04 unawaited commands are joined", async (t) => {
    const { code, log, read } = await run(t, "unawaited")
    assert.equal(code, 0, log)
    assert.equal(read("late"), "late\n")
  })

  test("Spec_09_04 exec rejects after preparation ended", async (t) => {
    const { code, log } = await run(t, "after")
    assert.equal(code, 0, log)
    assert.match(log, /refused: prepare has ended/)
  })

  test("Spec_09_04 the signal is aborted when it has to stop, and commands are ended", async (t) => {
    const { code, log } = await run(t, "stops", (text, stop) => text.includes("ready") && stop())
    assert.equal(code, 1, log)
    assert.match(log, /aborted/)
    assert.match(log, /prepare failed/)
  })
})
