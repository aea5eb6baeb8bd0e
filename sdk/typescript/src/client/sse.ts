/** One server-sent event. */
export interface ServerEvent {
  readonly id: string
  readonly event: string
  readonly data: string
}

/** Heartbeats come every 15 s; a stream silent for three of them is dead. */
const silence = 45_000

/** Reads a server-sent event stream. Comments are skipped. Throws when the connection breaks or falls silent. */
export async function* serverEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const reader = body.getReader()
  const decoder = new TextDecoder()
  let rest = ""
  let fields: { id: string; event: string; data: string[] } = { id: "", event: "", data: [] }
  try {
    for (;;) {
      const { done, value } = await readWithin(reader, silence)
      if (done) return
      const text = decoder.decode(value, { stream: true })
      rest += text
      if (!/[\r\n]/.test(text)) continue // in the middle of a long line
      const lines = rest.split(/\r\n|\n|\r(?=[^\n])/)
      rest = lines.pop() ?? ""
      for (const line of lines) {
        if (line === "") {
          if (fields.data.length > 0) yield { id: fields.id, event: fields.event, data: fields.data.join("\n") }
          fields = { id: fields.id, event: "", data: [] }
          continue
        }
        const [, name = "", text = ""] = /^([^:]*):? ?(.*)$/s.exec(line) ?? []
        if (name === "data") fields.data.push(text)
        else if (name === "id" || name === "event") fields[name] = text
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined)
  }
}

async function readWithin(reader: ReadableStreamDefaultReader<Uint8Array>, ms: number): Promise<{ done: boolean; value?: Uint8Array | undefined }> {
  let timer: ReturnType<typeof setTimeout> | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`nothing came for ${ms / 1000} s`)), ms)
  })
  try {
    return await Promise.race([reader.read(), late])
  } finally {
    clearTimeout(timer)
  }
}
