// The part of a program's entry module that is the same for every project; the build puts imports of the project's
// modules in front of it, as `modules`: a list of [path, namespace] sorted by path.
import { describe, kindOf } from "@helmr/sdk/internal"

/** Every exported Agent by its ID: what the host in a Computer looks up. */
export const agents = new Map()

function* exported() {
  for (const [module, namespace] of modules) {
    for (const name of Object.keys(namespace).sort()) {
      const kind = kindOf(namespace[name])
      if (kind !== undefined) yield { module, name, kind, definition: namespace[name] }
    }
  }
}

/** Every Template by its ID, those that only an Agent names included: what prepares its disk is looked up here. */
export const templates = new Map()

for (const { kind, definition } of exported()) {
  const known = kind === "agent" ? agents : templates
  if (!known.has(definition.id)) known.set(definition.id, definition)
}
for (const { template } of agents.values()) {
  if (!templates.has(template.id)) templates.set(template.id, template)
}

/** Names a callback by the first Template that has it: Templates that share one callback share what it prepares. */
function callbackOf(prepare) {
  return prepare && [...templates.values()].filter((template) => template.prepare === prepare).map(({ id }) => id).sort()[0]
}

function describeTemplate(definition) {
  const { has_prepare: _, ...rest } = describe(definition)
  return { ...rest, prepare: callbackOf(definition.prepare) }
}

/** Every definition once, described as plain JSON: what the build writes into the index. */
export function definitions() {
  const found = new Map()
  for (const { module, name, kind, definition } of exported()) {
    if (!found.has(definition)) found.set(definition, { module, name, kind })
  }
  for (const [definition, { module, name, kind }] of [...found]) {
    const template = definition.template
    if (kind === "agent" && !found.has(template)) found.set(template, { module, name: `${name}.template`, kind: "template" })
  }
  return [...found].map(([definition, { module, name, kind }]) => ({
    kind, module, export: name, [kind]: kind === "template" ? describeTemplate(definition) : describe(definition),
  }))
}
