import { isMarked, mark } from "./brand.js"
import { argv, plain, refuse, show, text } from "./check.js"

/** A file or directory of the project, named by its path from the project root. Made by {@link source}. */
export interface SourceFile {
  readonly kind: "file"
  readonly path: string
}
export interface SourceDirectory {
  readonly kind: "directory"
  readonly path: string
}

/** Names parts of the project that an image copies. */
export const source = Object.freeze({
  file: (path: string): SourceFile => Object.freeze(mark({ kind: "file", path: projectPath("source.file: path", path) } as const, "source")),
  directory: (path: string): SourceDirectory => Object.freeze(mark({ kind: "directory", path: projectPath("source.directory: path", path) } as const, "source")),
})

/** A literal path from the project root: relative, POSIX, without `..`. A leading `./` is dropped; `.` is the root. */
export function projectPath(field: string, value: unknown): string {
  const path = text(field, value)
  const remedy = 'give a path relative to the project root such as "scripts/setup.sh"'
  if (path.startsWith("/")) refuse(field, `is ${show(path)}, an absolute path`, remedy)
  if (path.includes("\\")) refuse(field, `is ${show(path)}, which contains a backslash`, "separate directories with /")
  const parts = path.split("/").filter((part) => part !== "." && part !== "")
  if (parts.includes("..")) refuse(field, `is ${show(path)}, which contains ".."`, remedy)
  return parts.length === 0 ? "." : parts.join("/")
}

/** One step of an image, as the build reads it. */
export type ImageStep =
  | { readonly op: "from"; readonly ref: string }
  | { readonly op: "run"; readonly argv: readonly string[] }
  | { readonly op: "copy"; readonly source: SourceFile | SourceDirectory; readonly destination: string }
  | { readonly op: "copyFrom"; readonly destination: string; readonly image: ImageBuilder; readonly sourcePath: string }
  | { readonly op: "workdir"; readonly path: string }
  | { readonly op: "env"; readonly key: string; readonly value: string }
  | { readonly op: "user"; readonly name: string }

/** The recipe of an image. Immutable: each method returns another builder that has one step more. */
export interface ImageBuilder {
  readonly key: string
  /** Begins with a base image such as "node:24-bookworm". */
  from(ref: string): ImageBuilder
  /** Runs argv without a shell. */
  run(argv: readonly string[]): ImageBuilder
  /** Copies a file or directory of the project. */
  copy(source: SourceFile | SourceDirectory, destination: string): ImageBuilder
  /** Copies out of another built image. */
  copyFrom(destination: string, source: ImageBuilder, sourcePath: string): ImageBuilder
  /** Sets the working directory. */
  workdir(path: string): ImageBuilder
  /** Sets an environment variable. */
  env(key: string, value: string): ImageBuilder
  /** Sets the user that later steps and the Computer's programs run as. */
  user(name: string): ImageBuilder
}

const steps = Symbol.for("@helmr/sdk.steps")

/** Starts the recipe of an image. The key names it in build output. Throws TypeError when the key is blank. */
export function image(key: string): ImageBuilder {
  return build(text("image: key", key), [])
}

/** The steps of a builder made by any copy of the SDK. */
export function imageSteps(builder: ImageBuilder): readonly ImageStep[] {
  return (builder as unknown as Record<symbol, readonly ImageStep[]>)[steps] ?? []
}

export function isImage(value: unknown): value is ImageBuilder {
  return isMarked(value, "image")
}

function build(key: string, done: readonly ImageStep[]): ImageBuilder {
  const where = `image ${show(key)}`
  const add = (step: ImageStep): ImageBuilder => build(key, Object.freeze([...done, Object.freeze(step)]))
  const builder: ImageBuilder = {
    key,
    from: (ref) => add({ op: "from", ref: word(`${where}: from`, ref) }),
    run: (words) => add({ op: "run", argv: argv(`${where}: run`, words) }),
    copy(from, destination) {
      if (!isMarked(from, "source")) refuse(`${where}: copy source`, `is ${show(from)}`, "use source.file(path) or source.directory(path)")
      return add({ op: "copy", source: from, destination: text(`${where}: copy destination`, destination) })
    },
    copyFrom(destination, from, sourcePath) {
      if (!isImage(from)) refuse(`${where}: copyFrom image`, `is ${show(from)}`, "use a value made with image(key)")
      return add({ op: "copyFrom", destination: text(`${where}: copyFrom destination`, destination), image: from, sourcePath: text(`${where}: copyFrom sourcePath`, sourcePath) })
    },
    workdir: (path) => add({ op: "workdir", path: text(`${where}: workdir`, path) }),
    env: (name, value) => add({ op: "env", key: envKey(`${where}: env key`, name), value: plain(`${where}: env ${show(name)}`, value) }),
    user: (name) => add({ op: "user", name: word(`${where}: user`, name) }),
  }
  Object.defineProperty(builder, steps, { value: done })
  return Object.freeze(mark(builder, "image"))
}

function word(field: string, value: unknown): string {
  const result = text(field, value)
  if (/\s/.test(result)) refuse(field, `is ${show(result)}, which contains white space`, "remove it")
  return result
}

function envKey(field: string, value: unknown): string {
  const key = text(field, value)
  if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(key)) refuse(field, `is ${show(key)}`, "use letters, digits and underscores, not beginning with a digit")
  return key
}
