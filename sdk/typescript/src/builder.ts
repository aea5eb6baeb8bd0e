import { isMarked, mark } from "./brand.js"
import { argv, refuse, show, text } from "./check.js"
import { projectPath, type SourceDirectory, type SourceFile } from "./image.js"

/** One step that prepares the build environment. */
export type BuilderStep =
  | { readonly op: "copy"; readonly source: string; readonly destination: string }
  | { readonly op: "run"; readonly argv: readonly string[] }

/** Prepares the build environment, once per build, before dependencies are installed. Immutable. */
export interface Builder {
  /** Copies a literal project path to an absolute path of the build environment. */
  copy(source: string | SourceFile | SourceDirectory, destination: string): Builder
  /** Runs argv without a shell, as root in `/`. */
  run(argv: readonly string[]): Builder
}

const steps = Symbol.for("@helmr/sdk.steps")
const reserved = ["/opt/helmr", "/nix", "/workspace"]

/** Starts the recipe of a build environment. */
export function builder(): Builder {
  return build([])
}

export function isBuilder(value: unknown): value is Builder {
  return isMarked(value, "builder")
}

/** The steps of a builder made by any copy of the SDK. */
export function builderSteps(value: Builder): readonly BuilderStep[] {
  return (value as unknown as Record<symbol, readonly BuilderStep[]>)[steps] ?? []
}

function build(done: readonly BuilderStep[]): Builder {
  const add = (step: BuilderStep): Builder => build(Object.freeze([...done, Object.freeze(step)]))
  const result: Builder = {
    copy: (from, to) => add({
      op: "copy",
      source: projectPath("builder: copy source", isMarked(from, "source") ? (from as SourceFile).path : from),
      destination: destination("builder: copy destination", to),
    }),
    run: (words) => add({ op: "run", argv: argv("builder: run", words) }),
  }
  Object.defineProperty(result, steps, { value: done })
  return Object.freeze(mark(result, "builder"))
}

function destination(field: string, value: unknown): string {
  const path = text(field, value)
  if (!path.startsWith("/")) refuse(field, `is ${show(path)}`, "give an absolute path")
  const segments = path.split("/").filter((segment) => segment !== "" && segment !== ".")
  if (segments.includes("..")) refuse(field, `is ${show(path)}, which contains ".."`, "give a path without it")
  const clean = `/${segments.join("/")}`
  const taken = reserved.find((root) => clean === root || clean.startsWith(`${root}/`))
  if (taken !== undefined) refuse(field, `is ${show(path)}, under ${taken}`, `not allowed are ${reserved.join(", ")}`)
  return path
}
