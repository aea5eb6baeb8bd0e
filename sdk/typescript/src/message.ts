import { hasInstance, mark } from "./brand.js"

/**
 * Throw this in an `onMessage` handler to reject one Message with reason `message_rejected`. The Turn goes on; any
 * other error rejects the Message with `callback_failed` and fails the Turn. `instanceof` works across copies of the SDK.
 */
export class MessageRejected extends Error {
  constructor(message = "message rejected", options?: ErrorOptions) {
    super(message, options)
    this.name = "MessageRejected"
  }

  static override [Symbol.hasInstance](value: unknown): boolean {
    return hasInstance(this, MessageRejected, value, "MessageRejected")
  }
}
mark(MessageRejected.prototype, "MessageRejected")
