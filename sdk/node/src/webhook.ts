import { isUtf8 } from 'node:buffer'
import { Webhook, WebhookVerificationError } from 'standardwebhooks'
import { JobOnceError } from './errors.js'

export { WebhookVerificationError }

/**
 * Checks the signature of a webhook that follows Standard Webhooks: the headers `webhook-id`, `webhook-timestamp` and
 * `webhook-signature`. It throws a WebhookVerificationError when none of the secrets made it, or the timestamp is more than five
 * minutes away. It needs the package standardwebhooks.
 *
 * @param body The raw body, as received: parsed and printed anew, it has another signature. Anything but bytes is a TypeError, for it is a
 * mistake in the program, which the provider must not hear as a 401.
 * @param headers Those of a request of node:http, or a Headers.
 * @param secrets One secret, or several while one replaces another. They begin with `whsec_`, or are base64.
 */
export function verifyWebhook (
  body: Uint8Array, headers: Headers | Record<string, string | string[] | undefined>, secrets: string | readonly string[]
): void {
  if (!(body instanceof Uint8Array)) {
    throw new TypeError('the body is not the raw body, as bytes: what parses it (such as express.json) must not come before, or must leave this path out')
  }
  // The library reads the body as text, and takes all that is not UTF-8 for the same.
  if (!isUtf8(body)) throw new WebhookVerificationError('the body is not UTF-8')
  const text = Buffer.from(body.buffer, body.byteOffset, body.byteLength)
  const signed: Record<string, string> = {}
  for (const [name, value] of headers instanceof Headers ? headers : Object.entries(headers)) {
    if (typeof value === 'string') signed[name] = value
  }
  let failure: unknown = new WebhookVerificationError('there is no secret')
  for (const secret of typeof secrets === 'string' ? [secrets] : secrets) {
    try {
      new Webhook(secret).verify(text, signed, { jsonParse: false })
      return
    } catch (error) {
      if (!(error instanceof WebhookVerificationError)) throw error
      failure = error
    }
  }
  throw failure
}

/** What to answer a provider: the HTTP status, and the headers that belong to it. */
export interface WebhookAnswer {
  status: 200 | 400 | 413 | 503
  headers: Record<string, string>
}

/**
 * What to answer a provider once a delivery was recorded, or with the error of that call. 200 says that the job is not lost, whatever its
 * disposition. A delivery that can never be right is 400 or 413. All other errors are 503 with Retry-After, so that the provider
 * delivers again.
 */
export function answerTo (error?: unknown): WebhookAnswer {
  if (error === undefined) return { status: 200, headers: {} }
  if (error instanceof JobOnceError) {
    if (error.is('INVALID_FIELD')) return { status: 400, headers: {} }
    if (error.is('PAYLOAD_TOO_LARGE')) return { status: 413, headers: {} }
  }
  const retryAfterMs = error instanceof JobOnceError ? error.retryAfterMs : 0
  return { status: 503, headers: { 'retry-after': String(Math.max(1, Math.ceil(retryAfterMs / 1000))) } }
}
