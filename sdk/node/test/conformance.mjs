// Speaks the protocol of the conformance kit (sdk/conformance/README.md) with this client.

import { createInterface } from 'node:readline'
import { status } from '@grpc/grpc-js'
import { bodyOf, Client, Disposition, JobOnceError, PermanentError, Worker } from 'jobonce'

const clients = new Map()
const running = new Map()
const { COMPRESSION, ATTEMPTS } = process.env
const settings = { ...(COMPRESSION && { compression: COMPRESSION }), ...(ATTEMPTS && { retry: { maxAttempts: Number(ATTEMPTS) } }) }
const report = line => process.stdout.write(JSON.stringify(line, (_, value) => typeof value === 'bigint' ? Number(value) : value) + '\n')

function describe (error) {
  if (!(error instanceof JobOnceError)) return { message: String(error), reason: '' }
  return {
    code: status[error.code], reason: error.reason, field: error.field, outcome_unknown: error.outcomeUnknown,
    request_id: error.requestId !== '', retry_after_seconds: error.retryAfterMs / 1000, message: error.message
  }
}

// worker makes the function that does the work of a task's jobs as the harness says.
function workOf (task) {
  return async ({ job, signal }) => {
    report({ id: task.id, event: 'working', job_id: job.jobId })
    signal.addEventListener('abort', () => { report({ id: task.id, event: 'stopped', job_id: job.jobId }) })
    const { result, error, permanent } = await task.finished(job.jobId)
    if (permanent) throw new PermanentError(error)
    if (error) throw new Error(error)
    return result
  }
}

const operations = {
  async record (client, task, delivery, options) {
    const r = await client.record(delivery, options)
    return {
      disposition: Disposition[r.disposition] ?? String(r.disposition), start_work: r.startWork, deliveries: r.deliveries,
      lease: r.lease !== undefined, result: r.result
    }
  },
  async get (client, task, { jobId }, options) {
    const job = await client.get(jobId, { ...options, body: true })
    return { deliveries: job.deliveries, body: new TextDecoder().decode(bodyOf(job)) }
  },
  async do (client, task, { mode, ...delivery }, options) {
    const r = await client.do(delivery, workOf(task), options)
    return {
      settled: r.settled, ran: r.ran, retry_after_seconds: r.retryAfterSeconds,
      ...(r.error === undefined ? {} : { error: describe(r.error) })
    }
  },
  async work (client, task, { leaseMs }, options, { concurrency }) {
    await new Worker(client, workOf(task), { concurrency, leaseMs, onError () {} }).run(task.stop.signal)
    return {}
  },
  async requeue (client, task, { jobId }, options) {
    return { changed: await client.requeue(await client.get(jobId, options), options) }
  },
  async close (client) {
    client.close()
    return {}
  }
}

async function perform (task, { target, op, args = {} }) {
  if (!clients.has(target)) clients.set(target, new Client(target, settings))
  const { job_id: jobId, body: text, body_base64: base64, event, mode, lease_seconds: lease, timeout_seconds: timeout, wait_seconds: wait, ...others } = args
  const body = base64 ? Buffer.from(base64, 'base64') : text
  const delivery = {
    ...(jobId && { jobId }), ...(body && { body }), ...(event && { event }), ...(mode && { mode }), ...(lease && { leaseMs: lease * 1000 }), ...(wait && { waitMs: wait * 1000 })
  }
  const options = { signal: task.cancel.signal, ...(timeout && { timeoutMs: timeout * 1000 }) }
  try {
    report({ id: task.id, result: await operations[op](clients.get(target), task, delivery, options, others) })
  } catch (error) {
    report({ id: task.id, error: describe(error) })
  }
  running.delete(task.id)
}

function newTask (id) {
  const jobs = new Map()
  const entry = jobId => {
    if (!jobs.has(jobId)) jobs.set(jobId, Promise.withResolvers?.() ?? withResolvers())
    return jobs.get(jobId)
  }
  return {
    id, cancel: new AbortController(), stop: new AbortController(),
    finished: jobId => entry(jobId).promise, finish: args => entry(args.job_id).resolve(args)
  }
}

function withResolvers () {
  let resolve
  return { promise: new Promise(done => { resolve = done }), resolve }
}

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line)
  const task = running.get(command.id)
  switch (command.op) {
    case 'finish': task?.finish(command.args); break
    case 'stop': task?.stop.abort(); break
    case 'cancel': task?.cancel.abort(); break
    default: {
      const task = newTask(command.id)
      running.set(command.id, task)
      void perform(task, command)
    }
  }
}
process.exit(0)
