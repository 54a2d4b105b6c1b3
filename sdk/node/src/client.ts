import { randomUUID } from 'node:crypto'
import { create, ScalarType, type DescField, type DescMessage, type DescMethodUnary, type MessageShape } from '@bufbuild/protobuf'
import { status } from '@grpc/grpc-js'
import { Connection, type ConnectionOptions } from './connection.js'
import { changed, invalid, JobOnceError, retryable, tooLarge } from './errors.js'
import { AdminService, RequeueWorkRequestSchema } from './gen/jobonce/v1/admin_service_pb.js'
import { GetJobRequestSchema, IdempotencyService, RecordDeliveryRequestSchema } from './gen/jobonce/v1/idempotency_service_pb.js'
import type { RecordDeliveryRequest, RecordDeliveryResponse } from './gen/jobonce/v1/idempotency_service_pb.js'
import { JobView, WorkMode, WorkState, type Job, type Lease } from './gen/jobonce/v1/types_pb.js'
import {
  ClaimWorkRequestSchema, CompleteWorkRequestSchema, ReleaseWorkRequestSchema, RenewLeaseRequestSchema, WorkService
} from './gen/jobonce/v1/work_service_pb.js'
import type { ClaimedJob, ClaimWorkRequest, ReleaseWorkRequest } from './gen/jobonce/v1/work_service_pb.js'
import { bodyCase, checkOptions, duration, firstOf, given, isText, sleep } from './values.js'
import { doWork, type DoOptions, type DoResult, type WorkFunction } from './work.js'

export interface ClientOptions extends ConnectionOptions {
  /** Bounds a call, its retries included, in milliseconds. Default 10,000. */
  timeoutMs?: number
  /**
   * How a call that failed is repeated, with the same request id, when the service is overloaded, cannot reach its store or does not know
   * the outcome, and when the connection failed; never when the service refused it. The call's timeout always bounds it.
   */
  retry?: {
    /** The number of attempts, the first included. Default: as many as the time allows. */
    maxAttempts?: number
    /** The mean delay before the second attempt, in milliseconds; each later one is twice as long. Default 50. */
    baseDelayMs?: number
    /** The longest mean delay, in milliseconds. Default 2000. */
    maxDelayMs?: number
  }
}

const clientOptions = {
  timeoutMs: true, retry: true, tls: true, token: true, tokenFile: true, tokenOverPlaintext: true, compression: true, channelOptions: true
} as const

export interface CallOptions {
  /** Bounds this call, its retries included, in milliseconds. Default: the client's. */
  timeoutMs?: number
  /** Ends the call. Its error then has the signal's reason as its cause, and the name AbortError. */
  signal?: AbortSignal
}

/** One delivery of a webhook. What is absent is left to the service; the fields are those of RecordDeliveryRequest. */
export interface Delivery extends Partial<Pick<RecordDeliveryRequest,
'jobId' | 'event' | 'status' | 'opaquePayload' | 'requestId' | 'source' | 'contentType' | 'traceparent' | 'payloadOmittedBytes'>> {
  /** The body, as received. Bytes that are UTF-8 are sent as text, which the service reads `job_id`, `event` and `status` from. */
  body?: string | Uint8Array
  /**
   * Who does the work: whoever is told to start it (`untracked`, the default), the same under a lease (`leased`), or workers that
   * claim it (`queued`).
   */
  mode?: 'untracked' | 'leased' | 'queued'
  /** How long the lease runs, in milliseconds: 1 second to 24 hours. Required with `leased`, an error with any other mode. */
  leaseMs?: number
  /**
   * How long to wait, in milliseconds and at most a minute, for work that somebody else is at, or that waits for somebody, to be done. It
   * comes on top of the timeout. Default 0: the answer comes at once.
   */
  waitMs?: number
}

/** What the service was asked, and when, on the monotonic clock: a duration in the answer counts from then on at the latest. */
export interface Answered<T> {
  response: T
  sent: number
}

/** Calls one JobOnce service. Make one and share it. */
export class Client {
  /** How long a call may take, in milliseconds. */
  readonly timeoutMs: number
  readonly #connection: Connection
  readonly #closed = new AbortController()
  readonly #retry: { maxAttempts: number, baseDelayMs: number, maxDelayMs: number }

  /**
   * @param target `host:port`, several IP addresses with ports and commas between them, or another name that gRPC can
   * resolve, such as `dns:///jobonce.internal:443`. Calls are spread over all addresses.
   */
  constructor (target: string, options: ClientOptions = {}) {
    checkOptions(options, clientOptions)
    checkOptions(options.retry, { maxAttempts: true, baseDelayMs: true, maxDelayMs: true })
    this.timeoutMs = options.timeoutMs ?? 10_000
    this.#retry = { maxAttempts: Infinity, baseDelayMs: 50, maxDelayMs: 2000, ...given(options.retry) }
    const { maxAttempts, baseDelayMs, maxDelayMs } = this.#retry
    if (!(maxAttempts >= 1 && baseDelayMs > 0 && maxDelayMs >= baseDelayMs && maxDelayMs <= maxTimeoutMs)) {
      throw new RangeError(`retry: maxAttempts must be at least 1, baseDelayMs above 0, and maxDelayMs at least that and at most ${maxTimeoutMs}`)
    }
    checkTimeout(this.timeoutMs)
    this.#connection = new Connection(target, options)
  }

  /** Ends the calls that still run, and closes the connection. */
  close (): void {
    this.#closed.abort(new Error('the client is closed'))
    this.#connection.close()
  }

  /**
   * Records one delivery and says whether the caller is to start the work: branch on `startWork`. Without a `requestId` the
   * client makes one and keeps it over all attempts, so that an answer that gets lost is recovered.
   */
  async record (delivery: Delivery, options: CallOptions = {}): Promise<RecordDeliveryResponse> {
    return (await this.recordAt(delivery, options)).response
  }

  /** @internal */
  async recordAt (delivery: Delivery, options: CallOptions): Promise<Answered<RecordDeliveryResponse>> {
    const { body, mode, leaseMs, waitMs = 0, ...fields } = delivery
    const modes = { untracked: WorkMode.UNTRACKED, leased: WorkMode.LEASED, queued: WorkMode.QUEUED }
    if (mode !== undefined && modes[mode] === undefined) throw invalid('work_mode', `the mode ${String(mode)} is none of ${Object.keys(modes).join(', ')}`)
    checkNames(fields)
    if (body !== undefined) checkBody(body)
    checkWait(waitMs)
    const request = create(RecordDeliveryRequestSchema, {
      ...fields,
      requestId: fields.requestId || randomUUID(),
      ...(body === undefined ? {} : { body: bodyCase(body) }),
      ...(mode === undefined ? {} : { workMode: modes[mode] }),
      ...(leaseMs === undefined ? {} : { leaseDuration: duration('lease_duration', leaseMs) }),
      ...(waitMs > 0 ? { wait: duration('wait', waitMs) } : {})
    })
    return await this.#call(IdempotencyService.method.recordDelivery, request, options, waitMs)
  }

  /**
   * Records a delivery and, if this caller is to start the work, runs the function under a lease: the lease is renewed meanwhile, and
   * afterwards the work is completed, or given back when the function failed.
   *
   * It rejects only when the delivery could not be recorded. What goes wrong with the work stands in the result.
   */
  async do (delivery: Omit<Delivery, 'mode'>, work: WorkFunction, options: DoOptions = {}): Promise<DoResult> {
    return await doWork(this, delivery, work, options)
  }

  /** Gets the record of a job, with its body only if `body` is true. The reason is JOB_NOT_FOUND when nothing was recorded. */
  async get (jobId: string, options: CallOptions & { body?: boolean } = {}): Promise<Job> {
    const request = create(GetJobRequestSchema, { jobId, view: options.body === true ? JobView.FULL : JobView.BASIC })
    try {
      const { job } = (await this.#call(IdempotencyService.method.getJob, request, options)).response
      if (job !== undefined) return job
    } catch (error) {
      throw error instanceof JobOnceError ? changed(error, { outcomeUnknown: false }) : error // A read writes nothing.
    }
    throw new JobOnceError('an answer without a job', { code: status.INTERNAL })
  }

  /** Leases jobs whose work is due; none is no error. `waitMs` comes on top of the timeout. A worker does all that a claim entails. */
  async claim (
    request: { leaseMs: number, waitMs?: number } & Partial<Pick<ClaimWorkRequest, 'maxJobs' | 'events' | 'workerId' | 'requestId' | 'jobIdPrefix'>>,
    options: CallOptions = {}
  ): Promise<ClaimedJob[]> {
    return (await this.claimAt(request, options)).response
  }

  /** @internal */
  async claimAt (request: Parameters<Client['claim']>[0], options: CallOptions): Promise<Answered<ClaimedJob[]>> {
    const { leaseMs, waitMs = 0, ...fields } = request
    checkWait(waitMs)
    const message = create(ClaimWorkRequestSchema, {
      ...fields,
      requestId: fields.requestId || randomUUID(),
      leaseDuration: duration('lease_duration', leaseMs),
      ...(waitMs > 0 ? { wait: duration('wait', waitMs) } : {})
    })
    const { response, sent } = await this.#call(WorkService.method.claimWork, message, options, waitMs)
    return { response: response.jobs, sent }
  }

  /** Lets a lease run anew from now; it is never made shorter. The reason is LEASE_LOST when the token holds it no more. */
  async renew (jobId: string, leaseToken: string, leaseMs: number, options: CallOptions = {}): Promise<Lease> {
    return (await this.renewAt(jobId, leaseToken, leaseMs, options)).response
  }

  /** @internal */
  async renewAt (jobId: string, leaseToken: string, leaseMs: number, options: CallOptions): Promise<Answered<Lease>> {
    const request = create(RenewLeaseRequestSchema, { jobId, leaseToken, leaseDuration: duration('lease_duration', leaseMs) })
    const { response: { lease }, sent } = await this.#call(WorkService.method.renewLease, request, options)
    if (lease === undefined) throw new JobOnceError('an answer without a lease', { code: status.INTERNAL, outcomeUnknown: true })
    return { response: lease, sent }
  }

  /** Says that the work is done, with a result of at most 64 KiB. Repeated with the same token it succeeds, and the first result stays. */
  async complete (jobId: string, leaseToken: string, result = '', options: CallOptions = {}): Promise<void> {
    await this.#call(WorkService.method.completeWork, create(CompleteWorkRequestSchema, { jobId, leaseToken, result }), options)
  }

  /** Gives the work back undone, or with `dead` gives it up. Repeated with the same token it succeeds and changes nothing. */
  async release (
    jobId: string, leaseToken: string,
    how: { retryAfterMs?: number } & Partial<Pick<ReleaseWorkRequest, 'error' | 'dead' | 'notStarted'>> = {}, options: CallOptions = {}
  ): Promise<void> {
    const { retryAfterMs, ...fields } = how
    const request = create(ReleaseWorkRequestSchema, {
      jobId, leaseToken, ...fields, ...(retryAfterMs === undefined ? {} : { retryDelay: duration('retry_delay', retryAfterMs) })
    })
    await this.#call(WorkService.method.releaseWork, request, options)
  }

  /**
   * Starts the work of a job anew, as it was read with `get`: whatever state it is in, it is queued, due now and without attempts. True when
   * this call did it, false when it was so already. It needs the right `admin`. The reason is WRONG_STATE when the job has changed since, or
   * when `force` is needed: a lease runs, whose holder loses it, or the body was dropped.
   */
  async requeue (job: Job, options: CallOptions & { force?: boolean } = {}): Promise<boolean> {
    const request = create(RequeueWorkRequestSchema, {
      jobId: job.jobId,
      expectedGeneration: job.work?.generation ?? 0n,
      ...(job.firstSeenTime === undefined ? {} : { expectedFirstSeenTime: job.firstSeenTime }),
      expectedState: job.work?.state ?? WorkState.UNSPECIFIED,
      force: options.force ?? false
    })
    return (await this.#call(AdminService.method.requeueWork, request, options)).response.changed
  }

  /**
   * Makes attempts until one succeeds, one fails for good, or there is no time or no try left. waitMs is how long the service was
   * asked to wait before it answers.
   */
  async #call<I extends DescMessage, O extends DescMessage> (
    method: DescMethodUnary<I, O>, request: MessageShape<I>, options: CallOptions, waitMs = 0
  ): Promise<Answered<MessageShape<O>>> {
    const timeoutMs = options.timeoutMs ?? this.timeoutMs
    checkTimeout(timeoutMs)
    checkTexts(method.input, request)
    const deadline = performance.now() + timeoutMs + waitMs
    const given = options.signal === undefined ? [] : [options.signal]
    const { signal, release } = firstOf(...given, this.#closed.signal)
    try {
      return await this.#attempts(method, request, deadline, waitMs, signal)
    } finally {
      release()
    }
  }

  async #attempts<I extends DescMessage, O extends DescMessage> (
    method: DescMethodUnary<I, O>, request: MessageShape<I>, deadline: number, waitMs: number, signal: AbortSignal
  ): Promise<Answered<MessageShape<O>>> {
    const requestId = 'requestId' in request ? String(request.requestId) : ''
    let last: JobOnceError | undefined
    let mean = this.#retry.baseDelayMs
    for (let n = 1; ; n++) {
      const error = last ?? new JobOnceError('CANCELLED: the call was given up before it began', { code: status.CANCELLED, requestId })
      if (signal.aborted) throw aborted(error, signal)
      const sent = performance.now()
      const final = this.#connection.target.single || n >= this.#retry.maxAttempts
      try {
        return { response: await this.#connection.attempt(method, request, attemptMs(deadline - sent, waitMs, final), signal), sent }
      } catch (failure) {
        if (!(failure instanceof JobOnceError)) throw failure
        last = after(changed(failure, { requestId }), last)
        if (signal.aborted) throw aborted(last, signal)
        const delay = failure.retryAfterMs + mean * (0.5 + Math.random()) // Added: who was turned away together must not come back together.
        if (!retryable(failure) || n >= this.#retry.maxAttempts || performance.now() + delay >= deadline) throw last
        await sleep(delay, signal)
        mean = Math.min(2 * mean, this.#retry.maxDelayMs)
      }
    }
  }
}

/** What no service takes, whatever its operator allows: what is far over it gRPC refuses without a reason. */
const maxBodyBytes = 3 << 20

// These find what would be sent as something else, or not at all. Everything else is the service's to judge. What only a mistake in the
// program makes is a TypeError: a frontend must not answer a provider that its delivery is wrong.

/** Refuses a delivery's fields that there are none of, which protobuf passes over. */
function checkNames (fields: object): void {
  for (const name of Object.keys(fields)) {
    const known = RecordDeliveryRequestSchema.fields.some(field => field.localName === name && field.oneof === undefined)
    if (!known) throw new TypeError(`a delivery has no field ${JSON.stringify(name)}`)
  }
}

function checkBody (body: unknown): void {
  if (typeof body !== 'string' && !(body instanceof Uint8Array)) {
    throw new TypeError('the body is neither a string nor a Uint8Array: it must be the raw body, as received, which nothing has parsed')
  }
  const size = Buffer.byteLength(body)
  if (size > maxBodyBytes) throw tooLarge(`the body is ${size} bytes; a service takes bodies of at most ${maxBodyBytes}`)
}

/** Refuses texts of a request that are none. */
function checkTexts (schema: DescMessage, request: object): void {
  for (const field of schema.fields) {
    for (const value of [valueOf(field, request)].flat()) {
      if (field.scalar !== ScalarType.STRING || value === undefined) continue
      if (typeof value !== 'string') throw new TypeError(`${field.localName} is not a string`)
      if (!isText(value)) throw invalid(field.name, `${field.name} is not valid Unicode`)
    }
  }
}

function valueOf ({ localName, oneof }: DescField, request: object): unknown {
  const values = request as Record<string, unknown>
  if (oneof === undefined) return values[localName]
  const chosen = values[oneof.localName] as { case?: string, value?: unknown }
  return chosen.case === localName ? chosen.value : undefined
}

/** The longest time that a timer of Node's takes. gRPC ends the process over a deadline that is infinite. */
const maxTimeoutMs = 2 ** 31 - 1

function checkWait (waitMs: number): void {
  if (!(waitMs >= 0 && waitMs <= 60_000)) throw invalid('wait', 'wait must be 0 to 60 seconds')
}

function checkTimeout (timeoutMs: number): void {
  if (!(timeoutMs > 0 && timeoutMs <= maxTimeoutMs)) throw new RangeError(`timeoutMs must be above 0, and at most ${maxTimeoutMs}`)
}

/** How long an attempt may take. One that may be followed by another gets half of the time that is left, but 1 to 30 s. */
function attemptMs (leftMs: number, waitMs: number, final: boolean): number {
  return final ? leftMs : Math.min(leftMs, waitMs + Math.min(Math.max(1000, (leftMs - waitMs) / 2), 30_000))
}

/** What to report when one error came after another in one call. */
function after (error: JobOnceError, previous: JobOnceError | undefined): JobOnceError {
  if (previous === undefined) return error
  const outcomeUnknown = error.outcomeUnknown || previous.outcomeUnknown
  // That the time is over says less than what it was spent on.
  const timeIsOver = error.reason === '' && (error.code === status.DEADLINE_EXCEEDED || error.code === status.CANCELLED)
  return changed(timeIsOver ? previous : error, { outcomeUnknown })
}

function aborted (error: JobOnceError, signal: AbortSignal): JobOnceError {
  const given = changed(error, { cause: signal.reason })
  given.name = 'AbortError'
  return given
}
