import { timestampMs, type Timestamp } from '@bufbuild/protobuf/wkt'
import type { CallOptions, Client, Delivery } from './client.js'
import { invalid, JobOnceError } from './errors.js'
import type { RecordDeliveryResponse } from './gen/jobonce/v1/idempotency_service_pb.js'
import { Disposition, type Job, type Lease } from './gen/jobonce/v1/types_pb.js'
import { bodyCase, bodyOf, firstOf, isText, sleep, toMs } from './values.js'

/** How long a lease runs at first and from each renewal on, unless it is set. After a crash nobody starts the work before its end. */
export const defaultLeaseMs = 60_000

/** The work of one job, under a lease that is renewed while the function runs. */
export interface Work {
  /** The job as stored, with the body of its first delivery. Work on this, not on the delivery at hand. */
  readonly job: Job
  /** The body of the first delivery. Undefined when there was none. */
  readonly body: Uint8Array | undefined
  /** The lease as it was granted; renewals move its end, which does not show here. */
  readonly lease: Lease
  /** The fencing number: it grows with every lease of the job. Systems that keep the highest one they saw can refuse a holder who is late. */
  readonly generation: bigint
  /** Aborts when the lease is lost or ran out, and when whoever asked for the work gives up. Stop then: somebody else may start it. */
  readonly signal: AbortSignal
}

/**
 * Does the work of one job. A string that it returns is the result, at most 64 KiB, which later deliveries are told. An error means
 * that the work is to be tried again later; a {@link PermanentError} that it never will be, and the job is dead; a {@link RetryLaterError}
 * and a {@link NotStartedError} say when. Work whose result cannot be
 * kept is done all the same: it is completed without one, and the error says so.
 */
export type WorkFunction = (work: Work) => Promise<string | void> | string | void

/** An error of work that no further try can mend. */
export class PermanentError extends Error {
  override name = 'PermanentError'
}

/** An error of work that is to be left alone for a time at least, 24 hours at most: what an HTTP service means by Retry-After. */
export class RetryLaterError extends Error {
  override name = 'RetryLaterError'
  constructor (message: string, readonly retryAfterMs: number, options?: ErrorOptions) {
    super(message, options)
  }
}

/** An error of work that was not begun: it is given back, due at once, and the attempt does not count. */
export class NotStartedError extends Error {
  override name = 'NotStartedError'
}

/**
 * How long work that failed is left alone, in milliseconds, given how many leases the job has had, this one included: 2 s at
 * first, twice as long each time, an hour at most.
 */
export function defaultBackoff (attempts: number): number {
  return attempts > 11 ? 3_600_000 : 1000 * 2 ** Math.max(0, attempts)
}

export interface DoOptions extends CallOptions {
  /** How long work that failed is left alone, in milliseconds, at most 24 hours. Default {@link defaultBackoff}. */
  backoff?: (attempts: number) => number
}

/** What became of a delivery that was given to {@link Client.do}: what a webhook frontend needs to know to answer its provider. */
export interface DoResult {
  /**
   * True when the job needs no further delivery, because its work is done, was given up, or is not tracked: answer with a 2xx. When
   * false, answer with a 503 and Retry-After: the work has yet to be done, and another delivery may be what starts it.
   */
  settled: boolean
  /** When the next delivery is likely to find the work done or free: whole seconds, at least one. 0 when settled. */
  retryAfterSeconds: number
  /** True when this call ran the function. */
  ran: boolean
  /** The service's answer to the delivery: how the job stood before the function ran. */
  response: RecordDeliveryResponse
  /** Why the work was not done or not started, or it or its result could not be told to the service. Undefined when nothing went wrong. */
  error?: unknown
}

/** Refuses what cannot be called: each job would fail with it, until none of its attempts is left. */
export function checkWork (work: unknown): void {
  if (typeof work !== 'function') throw new TypeError('the work is not a function')
}

/** What {@link Client.do} does. */
export async function doWork (
  client: Client, delivery: Omit<Delivery, 'mode'>, work: WorkFunction, options: DoOptions = {}
): Promise<DoResult> {
  checkWork(work)
  const { mode = 'leased' } = delivery as Delivery
  if (mode !== 'leased') throw invalid('work_mode', 'the mode of work under a lease is leased')
  const leaseMs = delivery.leaseMs ?? defaultLeaseMs
  const { response, sent } = await client.recordAt({ ...delivery, mode: 'leased', leaseMs }, options)
  if (!response.startWork) return { ...notStarted(response), ran: false, response }
  const { lease, job } = response
  if (lease === undefined || job === undefined || lease.token === '' || job.jobId === '') {
    const error = new Error('the service says to start the work and grants no lease: was the job recorded before with this requestId and another mode?')
    return { settled: false, retryAfterSeconds: 1, ran: false, response, error }
  }
  if (response.firstDelivery && job.body.case === undefined && delivery.body !== undefined) job.body = bodyCase(delivery.body)
  const runner = new Runner(client, leaseMs, options.backoff ?? defaultBackoff, work)
  const { settled, ran, delayMs, error } = await runner.run(job, lease, sent + toMs(lease.remaining), options.signal)
  return { settled, ran, response, retryAfterSeconds: settled ? 0 : wholeSeconds(delayMs), ...(error === undefined ? {} : { error }) }
}

/** What to answer where the work is not this caller's to start. A disposition that is not known counts as work that has yet to be done. */
function notStarted (response: RecordDeliveryResponse): { settled: boolean, retryAfterSeconds: number } {
  const { disposition, job } = response
  if (disposition === Disposition.COMPLETED || disposition === Disposition.DEAD || disposition === Disposition.DUPLICATE) {
    return { settled: true, retryAfterSeconds: 0 }
  }
  // All are the store's times, and this very delivery was the latest.
  const [first, due, now] = [at(job?.firstSeenTime), at(job?.work?.dueTime), at(job?.lastSeenTime)]
  if (due === undefined || now === undefined) return { settled: false, retryAfterSeconds: 1 }
  const known = disposition === Disposition.IN_PROGRESS && first !== undefined ? now - first : Infinity
  // Waits that double ask seldom for long work and soon for short work.
  return { settled: false, retryAfterSeconds: wholeSeconds(Math.min(due - now, known)) }
}

function at (time: Timestamp | undefined): number | undefined {
  return time === undefined ? undefined : timestampMs(time)
}

function wholeSeconds (ms: number): number {
  return Math.max(1, Math.ceil(ms / 1000))
}

/** The service's limits. */
const maxRetryMs = 86_400_000
const maxResultBytes = 64 << 10
const maxErrorBytes = 4 << 10
/** The shortest pause between two renewals, but for the last one before the end, in milliseconds. */
const minRenewMs = 100

export interface Outcome {
  ran: boolean
  /** The work is completed or given up, and the service knows it. */
  settled: boolean
  /** How long the work is left alone now that it was given back, in milliseconds. */
  delayMs: number
  error?: unknown
}

/** Does work under leases. */
export class Runner {
  readonly #client: Client
  readonly #leaseMs: number
  readonly #backoff: (attempts: number) => number
  readonly #work: WorkFunction

  constructor (client: Client, leaseMs: number, backoff: (attempts: number) => number, work: WorkFunction) {
    this.#client = client
    this.#leaseMs = leaseMs
    this.#backoff = backoff
    this.#work = work
  }

  /** Does the work under a lease that runs until the given time at least, and tells the service what became of it. */
  async run (job: Job, lease: Lease, until: number, signal?: AbortSignal): Promise<Outcome> {
    const held = new Holding(this.#client, job.jobId, lease.token, this.#leaseMs, until)
    try {
      signal?.throwIfAborted()
      // The answer took long to come: renew the lease rather than start what may have to be cut short.
      if (held.until - performance.now() < this.#leaseMs / 4) await held.renew(this.#client.timeoutMs)
    } catch (error) {
      if (held.lost === undefined) await held.end({ notStarted: true }).catch(() => {}) // If it fails, the lease lapses.
      return { ran: false, settled: false, delayMs: 0, error: new Error('the work was not started', { cause: error }) }
    }
    let returned: unknown
    let failure: { error: unknown } | undefined
    const kept = new AbortController()
    const stopped = new AbortController()
    const keeping = held.keep(kept.signal, stopped)
    const told = signal === undefined ? firstOf(stopped.signal) : firstOf(signal, stopped.signal)
    try {
      const work: Work = { job, lease, body: bodyOf(job), generation: lease.generation, signal: told.signal }
      returned = await this.#work(work)
    } catch (error) {
      failure = { error }
    } finally {
      kept.abort()
      told.release()
      await keeping
    }
    return failure === undefined ? await completed(held, returned) : await this.#failed(held, job, failure.error, signal)
  }

  async #failed (held: Holding, job: Job, error: unknown, signal: AbortSignal | undefined): Promise<Outcome> {
    if (held.lost !== undefined) return { ran: true, settled: false, delayMs: 0, error: new AggregateError([error, held.lost], 'the work failed, and its lease was lost') }
    const dead = error instanceof PermanentError
    let delayMs = 0
    try {
      if (error instanceof NotStartedError) {
        await held.end({ notStarted: true })
      } else if (dead) {
        await held.end({ error: storable(error), dead })
      } else {
        // That somebody wanted to stop is not the job's fault.
        const backoff = signal?.aborted === true ? 0 : this.#backoff(job.work?.attempts ?? 1)
        delayMs = Math.min(Math.max(0, backoff, error instanceof RetryLaterError ? error.retryAfterMs : 0), maxRetryMs)
        await held.end({ error: storable(error), retryAfterMs: delayMs })
      }
    } catch (untold) {
      return { ran: true, settled: false, delayMs, error: new AggregateError([error, untold], 'the work failed, and could not be given back') }
    }
    return { ran: true, settled: dead, delayMs, error }
  }
}

async function completed (held: Holding, returned: unknown): Promise<Outcome> {
  const outcome = { ran: true, settled: false, delayMs: 0 }
  if (held.lost !== undefined) return { ...outcome, error: held.lost }
  // What has been done must not be done again because of what it returned.
  const problem = resultProblem(returned)
  try {
    await held.complete(typeof returned === 'string' && problem === undefined ? returned : '')
    return { ...outcome, settled: true, ...(problem === undefined ? {} : { error: problem }) }
  } catch (error) {
    return { ...outcome, error }
  }
}

/** Why what a function returned cannot be kept as a result. */
function resultProblem (returned: unknown): Error | undefined {
  if (returned === undefined || returned === null) return undefined
  if (typeof returned !== 'string') return new TypeError('the work is done, and its result is not kept: it is not a string')
  const size = Buffer.byteLength(returned)
  if (size > maxResultBytes) return invalid('result', `the work is done, and its result is not kept: it is ${size} bytes; the limit is ${maxResultBytes}`)
  return isText(returned) ? undefined : invalid('result', 'the work is done, and its result is not kept: it is not valid Unicode')
}

/** A lease that is held while its work is done. */
class Holding {
  /** When the lease ends at the earliest, on the monotonic clock. */
  until: number
  /** The service's word that the lease is gone. */
  lost: JobOnceError | undefined
  readonly #client: Client
  readonly #jobId: string
  readonly #token: string
  readonly #leaseMs: number

  constructor (client: Client, jobId: string, token: string, leaseMs: number, until: number) {
    this.#client = client
    this.#jobId = jobId
    this.#token = token
    this.#leaseMs = leaseMs
    this.until = until
  }

  /** Renews the lease until the signal aborts. It ends the work when the lease is lost, or may be: it has run out without a renewal. */
  async keep (signal: AbortSignal, stopped: AbortController): Promise<void> {
    let failure: unknown = new Error('no answer came in time')
    for (;;) {
      const left = this.until - performance.now()
      if (left <= 0) {
        stopped.abort(new JobOnceError('the lease ran out before it was renewed', { reason: 'LEASE_LOST', cause: failure }))
        return
      }
      // A third, spread by a quarter either way: leases that were granted at once are not renewed at once.
      await sleep(Math.min(Math.max(left / 4 + Math.random() * left / 6, minRenewMs), left), signal)
      if (signal.aborted) return
      try {
        // Not all that is left: a call that hangs leaves time for another one.
        await this.renew(Math.max(1, (this.until - performance.now()) / 2), signal)
      } catch (error) {
        failure = error
      }
      if (signal.aborted) return
      if (this.lost !== undefined) {
        stopped.abort(this.lost)
        return
      }
    }
  }

  async renew (timeoutMs: number, signal?: AbortSignal): Promise<void> {
    const options = signal === undefined ? { timeoutMs } : { timeoutMs, signal }
    const { response, sent } = await this.#noting(this.#client.renewAt(this.#jobId, this.#token, this.#leaseMs, options))
    this.until = sent + toMs(response.remaining)
  }

  // The calls that end the work depend on nobody's signal: whoever asked for the work may be gone by then.

  async complete (result: string): Promise<void> {
    await this.#noting(this.#client.complete(this.#jobId, this.#token, result))
  }

  async end (how: Parameters<Client['release']>[2]): Promise<void> {
    await this.#noting(this.#client.release(this.#jobId, this.#token, how))
  }

  /** Remembers an error that says that the lease is gone: for good, a token never holds again. */
  async #noting<T> (call: Promise<T>): Promise<T> {
    try {
      return await call
    } catch (error) {
      // A job that was deleted took the lease along.
      if (error instanceof JobOnceError && (error.is('LEASE_LOST') || error.is('JOB_NOT_FOUND'))) this.lost = error
      throw error
    }
  }
}

/** An error as the service takes it for a text: at most 4 KiB of UTF-8, cut at a character. */
function storable (error: unknown): string {
  const bytes = new Uint8Array(maxErrorBytes)
  const { written } = new TextEncoder().encodeInto(error instanceof Error ? error.message : String(error), bytes)
  return new TextDecoder().decode(bytes.subarray(0, written))
}
