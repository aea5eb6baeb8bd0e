/**
 * For helmr's own programs (the build's index step and the host inside the Computer), not for Agents or clients: it
 * may change with any version.
 */
export { describe, describeConfig, kindOf } from "./describe.js"
export { isAgent } from "./agent.js"
export { ContentError, encodeContent, encodeHuman, encodeInput, maxContentBytes, maxContentParts, type EncodedContent } from "./content.js"
export { encodeJson, JsonProblem, utf8Length } from "./json.js"
export { encodeQuestion } from "./question.js"
export { MessageRejected } from "./message.js"
export { isTemplate } from "./template.js"
