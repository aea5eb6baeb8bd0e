import { isAgent, type AgentDefinition } from "./agent.js"
import { builderSteps } from "./builder.js"
import { checkConfig } from "./config.js"
import { milliseconds, millisecondsOrNever } from "./duration.js"
import { imageSteps, type ImageBuilder, type ImageStep } from "./image.js"
import type { JsonValue } from "./json.js"
import { patternOf, type NetworkPolicy } from "./network.js"
import type { SecretBinding } from "./secrets.js"
import { isTemplate, mebibytes, type TemplateDefinition } from "./template.js"

const sevenDays = 7 * 86_400_000

/** What a value is to the index of a build: "agent", "template", or undefined for anything else. */
export function kindOf(value: unknown): "agent" | "template" | undefined {
  if (isAgent(value)) return "agent"
  return isTemplate(value) ? "template" : undefined
}

/** Plain JSON of an Agent or Template, as the deployment manifest carries it. Throws TypeError for anything else. */
export function describe(definition: unknown): { readonly [key: string]: JsonValue } {
  if (isAgent(definition)) return describeAgent(definition)
  if (isTemplate(definition)) return describeTemplate(definition)
  throw new TypeError("describe takes an Agent or a Template")
}

function describeAgent(agent: AgentDefinition): { readonly [key: string]: JsonValue } {
  return {
    id: agent.id,
    template: agent.template.id,
    has_init: agent.init !== undefined,
    ...(agent.maxTurnDuration === undefined ? {} : { max_turn_duration_ms: milliseconds("maxTurnDuration", agent.maxTurnDuration) }),
    close_after_idle_ms: agent.closeAfterIdle === undefined ? sevenDays : millisecondsOrNever("closeAfterIdle", agent.closeAfterIdle),
    hibernate_after_idle_ms: millisecondsOrNever("hibernateAfterIdle", agent.hibernateAfterIdle ?? "never"),
    triggers: (agent.triggers ?? []).map((trigger) => ({
      id: trigger.id,
      cron: trigger.expression,
      timezone: trigger.timezone,
      input: trigger.input.map(({ type, text }) => ({ type, text })),
      ...(trigger.slack === undefined ? {} : { slack: { channel_id: trigger.slack.channelId } }),
    })),
  }
}

function describeTemplate(template: TemplateDefinition): { readonly [key: string]: JsonValue } {
  const { cpu, memory, disk } = template.resources
  return {
    id: template.id,
    image: describeImage(template.image),
    resources: {
      milli_cpu: Math.ceil(cpu) * 1000,
      memory_mib: mebibytes("memory", memory),
      ...(disk === undefined ? {} : { disk_mib: mebibytes("disk", disk) }),
    },
    network: describeNetwork(template.network ?? { blockAll: false }),
    has_prepare: template.prepare !== undefined,
    ...(template.prepareNetwork === undefined ? {} : { prepare_network: describeNetwork(template.prepareNetwork) }),
    ...(template.prepareSecrets === undefined ? {} : { prepare_secrets: template.prepareSecrets.map(describeBinding) }),
    ...(template.refresh === undefined ? {} : { refresh_every_ms: milliseconds("refresh.every", template.refresh.every) }),
    ...(template.secrets === undefined ? {} : { secrets: template.secrets.map(describeBinding) }),
    delete_after_unused_ms: millisecondsOrNever("deleteAfterUnused", template.deleteAfterUnused ?? "never"),
  }
}

function describeImage(image: ImageBuilder): { readonly [key: string]: JsonValue } {
  return { key: image.key, steps: imageSteps(image).map(describeStep) }
}

function describeStep(step: ImageStep): { readonly [key: string]: JsonValue } {
  switch (step.op) {
    case "run": return { op: step.op, argv: [...step.argv] }
    case "copy": return { op: step.op, source: { kind: step.source.kind, path: step.source.path }, destination: step.destination }
    case "copyFrom": return { op: step.op, destination: step.destination, image: describeImage(step.image), sourcePath: step.sourcePath }
    default: return { ...step }
  }
}

function describeNetwork(policy: NetworkPolicy): JsonValue {
  if (policy.allowDomains === undefined) return { blockAll: policy.blockAll }
  return {
    allowDomains: policy.allowDomains.map((entry) => (typeof entry === "string" ? entry : { domain: patternOf(entry), ipRanges: [...entry.ipRanges] })),
  }
}

function describeBinding(binding: SecretBinding): JsonValue {
  if ("file" in binding) return { secret: binding.secret, file: { path: binding.file.path } }
  const { env } = binding
  return {
    secret: binding.secret,
    env: env.mode === "raw" ? { name: env.name, mode: env.mode } : { name: env.name, mode: env.mode, allowedOrigins: [...env.allowedOrigins] },
  }
}

/** Plain JSON of the default export of `helmr.config.ts`, checked and with defaults. Throws TypeError. */
export function describeConfig(value: unknown): { readonly [key: string]: JsonValue } {
  const config = checkConfig(value)
  const build = config.build ?? {}
  return {
    dirs: [...(config.dirs ?? ["agents"])],
    ignore_patterns: [...(config.ignorePatterns ?? [])],
    build: {
      ...(build.builder === undefined ? {} : {
        builder: { steps: builderSteps(build.builder).map((step) => (step.op === "run" ? { op: step.op, argv: [...step.argv] } : { ...step })) },
      }),
      ...(build.installCommand === undefined ? {} : { install_command: build.installCommand }),
      external: [...(build.external ?? [])],
      assets: [...(build.assets ?? [])],
      secrets: [...(build.secrets ?? [])],
    },
  }
}
