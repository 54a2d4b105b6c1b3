// A worker: it claims what frontends record as queued, and does it.
//
//   JOBONCE_TARGET=127.0.0.1:50051 node worker.mjs

import { Client, PermanentError, Worker } from 'jobonce'

const { JOBONCE_TARGET = '127.0.0.1:50051', JOBONCE_TOKEN_FILE } = process.env
const client = new Client(JOBONCE_TARGET, JOBONCE_TOKEN_FILE ? { tokenFile: JOBONCE_TOKEN_FILE } : {})

const stop = new AbortController()
for (const signal of ['SIGTERM', 'SIGINT']) process.once(signal, () => { stop.abort() })

// The same job may be worked on twice, when this process stalls or cannot reach the service: what it changes must bear that, or
// refuse a generation that is lower than one it has seen.
async function work ({ job, body, generation, signal }) {
  const event = parse(body)
  signal.throwIfAborted() // The lease is lost: somebody else may have started.
  console.log(`${job.jobId}: ${JSON.stringify(event)} (generation ${generation})`)
  return 'done' // Later deliveries are told.
}

function parse (body) {
  try {
    return JSON.parse(Buffer.from(body))
  } catch (error) {
    throw new PermanentError('the body is not JSON', { cause: error }) // No other try mends it: the job is dead.
  }
}

await new Worker(client, work, { concurrency: 10, jobIdPrefix: 'acme:' }).run(stop.signal)
client.close()
