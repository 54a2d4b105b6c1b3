import { randomUUID } from 'node:crypto'
import type { Client } from './client.js'
import { JobOnceError } from './errors.js'
import type { Job } from './gen/jobonce/v1/types_pb.js'
import type { ClaimedJob } from './gen/jobonce/v1/work_service_pb.js'
import { checkOptions, given, sleep, toMs } from './values.js'
import { checkWork, defaultBackoff, defaultLeaseMs, Runner, type WorkFunction } from './work.js'

export interface WorkerOptions {
  /** How many jobs are worked on at once. Default 10. */
  concurrency?: number
  /** How long a lease runs, at first and from each renewal on, in milliseconds: 1 second to 24 hours. Default 60,000. */
  leaseMs?: number
  /** Only jobs with one of these events are claimed; at most 100. Default: any. */
  events?: string[]
  /** Only jobs whose id begins with this, which ends in `:`. Default: any. */
  jobIdPrefix?: string
  /** Names the worker in the service's log. */
  workerId?: string
  /** How long one call waits for work at the service, in milliseconds, at most a minute. Default 30,000. */
  waitMs?: number
  /** How long the jobs under way may go on once the worker is to stop, in milliseconds. Default 30,000. */
  shutdownTimeoutMs?: number
  /** How long a job that failed is left alone, in milliseconds. Default {@link defaultBackoff}. */
  backoff?: (attempts: number) => number
  /** Hears of failed jobs, and of failed calls, which have no job. Default: a line on standard error, which is also told what this throws. */
  onError?: (error: unknown, job?: Job) => void
}

const workerOptions = {
  concurrency: true, leaseMs: true, events: true, jobIdPrefix: true, workerId: true, waitMs: true, shutdownTimeoutMs: true, backoff: true, onError: true
} as const

type ClaimRequest = Parameters<Client['claim']>[0]

/** What one claim may ask for. */
const maxClaimJobs = 100

/** Claims jobs whose work is due and does it: that of jobs recorded as queued, and what others left undone. */
export class Worker {
  readonly #client: Client
  readonly #options: Required<WorkerOptions>
  readonly #runner: Runner
  readonly #running = new Set<Promise<void>>()
  /** The claim of which nobody knows what it was granted. */
  #open: ClaimRequest | undefined
  /** Wakes what waits for a place. */
  #wake: (() => void) | undefined

  constructor (client: Client, work: WorkFunction, options: WorkerOptions = {}) {
    checkWork(work)
    checkOptions(options, workerOptions)
    this.#client = client
    this.#options = {
      concurrency: 10, leaseMs: defaultLeaseMs, events: [], jobIdPrefix: '', workerId: '', waitMs: 30_000, shutdownTimeoutMs: 30_000,
      backoff: defaultBackoff, onError: report, ...given(options)
    }
    const { concurrency, leaseMs, backoff } = this.#options
    if (!Number.isInteger(concurrency) || concurrency < 1) throw new RangeError('concurrency must be a whole number from 1 on')
    this.#runner = new Runner(client, leaseMs, backoff, work)
  }

  /**
   * Claims and works until the signal aborts. Then it claims nothing more and lets the jobs under way finish; those that still run
   * after `shutdownTimeoutMs` are told to stop, and what they then fail with gives the work back for others to start at once. It
   * resolves once every function has returned.
   *
   * Calls that fail are repeated, with growing pauses, for as long as it takes. It rejects with an error that no repetition mends: the
   * service refuses the options, or the client was closed.
   */
  async run (signal: AbortSignal): Promise<void> {
    const cut = new AbortController()
    const wake = (): void => { this.#wake?.() }
    signal.addEventListener('abort', wake)
    try {
      await this.#claim(signal, cut.signal)
      await this.#giveBack()
    } finally {
      signal.removeEventListener('abort', wake)
      const timer = setTimeout(() => { cut.abort(new Error('the worker is to stop')) }, this.#options.shutdownTimeoutMs)
      while (this.#running.size > 0) await Promise.all(this.#running)
      clearTimeout(timer)
    }
  }

  /** Claims jobs whenever there is room for some. A claim stays open as long as nobody knows what it was granted. */
  async #claim (signal: AbortSignal, cut: AbortSignal): Promise<void> {
    const { concurrency, leaseMs, events, jobIdPrefix, workerId, waitMs } = this.#options
    let pause = 1000
    let unknown = false
    while (!signal.aborted) {
      if (this.#running.size >= concurrency) {
        await new Promise<void>(resolve => { this.#wake = resolve })
        continue
      }
      const maxJobs = Math.min(concurrency - this.#running.size, maxClaimJobs)
      this.#open ??= { requestId: randomUUID(), maxJobs, leaseMs, events, jobIdPrefix, workerId }
      const asked = performance.now()
      try {
        const { response: jobs, sent } = await this.#client.claimAt({ ...this.#open, waitMs }, { signal })
        this.#open = undefined
        unknown = false
        pause = 1000
        for (const job of jobs) this.#start(job, sent, cut)
        // A service that is about to stop answers before the time.
        if (jobs.length === 0) await sleep(1000 - (performance.now() - asked), signal)
      } catch (error) {
        if (!(error instanceof JobOnceError)) throw error
        if (signal.aborted) return
        unknown ||= error.outcomeUnknown
        if (!unknown) this.#open = undefined // A refusal tells of its own call alone.
        if (error.is('INVALID_FIELD') || error.name === 'AbortError') throw error
        this.#tell(error)
        await sleep(error.retryAfterMs + pause * (0.5 + Math.random()), signal)
        pause = Math.min(2 * pause, 30_000)
      }
    }
  }

  /** Finds out what the open claim was granted after all, and gives it back. Otherwise the leases lapse. */
  async #giveBack (): Promise<void> {
    if (this.#open === undefined) return
    const options = { timeoutMs: 2000 }
    const jobs = await this.#client.claim(this.#open, options).catch(() => [])
    this.#open = undefined
    await Promise.allSettled(jobs.map(async ({ job, lease }) => {
      await this.#client.release(job?.jobId ?? '', lease?.token ?? '', { notStarted: true }, options)
    }))
  }

  #start ({ job, lease }: ClaimedJob, sent: number, cut: AbortSignal): void {
    if (job === undefined || lease === undefined) return
    const work = (async () => {
      const { error } = await this.#runner.run(job, lease, sent + toMs(lease.remaining), cut)
      if (error !== undefined) this.#tell(error, job)
    })()
    const ended = work.catch(error => { this.#tell(error, job) }).finally(() => {
      this.#running.delete(ended)
      this.#wake?.()
    })
    this.#running.add(ended)
  }

  /** Tells of an error. What goes wrong with that takes no jobs down. */
  #tell (error: unknown, job?: Job): void {
    void (async () => { await this.#options.onError(error, job) })().catch((broken: unknown) => { report(broken, job) })
  }
}

/** Bodies and lease tokens are never written. */
function report (error: unknown, job?: Job): void {
  console.error(job === undefined ? 'jobonce: work cannot be claimed:' : `jobonce: the work of ${JSON.stringify(job.jobId)} failed:`, error)
}
