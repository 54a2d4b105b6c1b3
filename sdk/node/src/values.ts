import { isUtf8 } from 'node:buffer'
import { setMaxListeners } from 'node:events'
import { durationFromMs, durationMs, type Duration } from '@bufbuild/protobuf/wkt'
import { invalid } from './errors.js'
import type { Job } from './gen/jobonce/v1/types_pb.js'

/** Resolves after the time, and sooner with the signal. */
export async function sleep (ms: number, signal?: AbortSignal): Promise<void> {
  if (signal?.aborted === true) return
  await new Promise<void>(resolve => {
    const done = (): void => {
      clearTimeout(timer)
      signal?.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, ms)
    signal?.addEventListener('abort', done, { once: true })
  })
}

/**
 * A signal that aborts with the first of several. release must be called once it is needed no more: what AbortSignal.any makes stays
 * with signals that live for long, in versions of Node that are still in use.
 */
export function firstOf (...signals: AbortSignal[]): { signal: AbortSignal, release: () => void } {
  const controller = new AbortController()
  setMaxListeners(0, ...signals) // One signal may be of many calls at a time, which Node warns of as a leak; each takes its listener away.
  const listeners = signals.map(signal => {
    const abort = (): void => { controller.abort(signal.reason) }
    if (signal.aborted) abort()
    else signal.addEventListener('abort', abort, { once: true })
    return () => { signal.removeEventListener('abort', abort) }
  })
  return { signal: controller.signal, release: () => { for (const remove of listeners) remove() } }
}

/** Options without those that are undefined, as when a variable of the environment is not set: they would beat the defaults. */
export function given<T extends object> (options: T | undefined): Partial<T> {
  return Object.fromEntries(Object.entries(options ?? {}).filter(([, value]) => value !== undefined)) as Partial<T>
}

/** Refuses options that there are none of: one that is misspelt would leave a default in force. */
export function checkOptions<T extends object> (options: T | undefined, known: { [name in keyof Required<T>]: true }): void {
  for (const name of Object.keys(options ?? {})) {
    if (!Object.hasOwn(known, name)) throw new TypeError(`there is no option ${JSON.stringify(name)}; there are ${Object.keys(known).join(', ')}`)
  }
}

/** A duration as the messages hold it. */
export function duration (field: string, ms: number): Duration {
  if (!Number.isFinite(ms)) throw invalid(field, `${field} is not a number of milliseconds`)
  return durationFromMs(Math.round(ms))
}

/** A duration of the service's in milliseconds. */
export function toMs (d: Duration | undefined): number {
  return d === undefined ? 0 : durationMs(d)
}

/** Tells whether a string is Unicode: the rest is sent as something else. */
export function isText (value: string): boolean {
  return !/[\uD800-\uDFFF]/u.test(value) // with u: those that stand alone
}

/** A body as the messages hold it. */
export function bodyCase (body: string | Uint8Array): { case: 'payload', value: string } | { case: 'payloadBytes', value: Uint8Array } {
  if (typeof body === 'string') return { case: 'payload', value: body }
  if (!isUtf8(body)) return { case: 'payloadBytes', value: body }
  return { case: 'payload', value: new TextDecoder('utf-8', { ignoreBOM: true }).decode(body) }
}

/** The body of a job as bytes, the same that were recorded. Undefined when there is none, or it was not asked for. */
export function bodyOf (job: Job): Uint8Array | undefined {
  switch (job.body.case) {
    case 'payload': return new TextEncoder().encode(job.body.value)
    case 'payloadBytes': return job.body.value
  }
  return undefined
}
