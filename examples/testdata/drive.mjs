// Makes the calls that it reads from standard input, a JSON object a line, with client.mjs, and prints what came of each.
// Arguments: the address, the directory of the protos, and gzip to compress requests.

import { createInterface } from 'node:readline'
import grpc from '@grpc/grpc-js'
import { call, connect, record } from './client.mjs'

const [,, address, protos, compression] = process.argv
let { jobs, work } = connect(address, protos)
if (compression === 'gzip') {
  const Jobs = jobs.constructor
  jobs.close()
  jobs = new Jobs(address, grpc.credentials.createInsecure(), { 'grpc.default_compression_algorithm': grpc.compressionAlgorithms.gzip })
}
const leaseDuration = { seconds: 60 }

const operations = {
  async record ({ body, leased, patience, ...delivery }) {
    if (leased) Object.assign(delivery, { workMode: 'WORK_MODE_LEASED', leaseDuration })
    const r = await record(jobs, Buffer.from(body, 'base64'), delivery, { patience: patience * 1000 })
    return { disposition: r.disposition, startWork: r.startWork, deliveries: Number(r.deliveries), leaseToken: r.lease?.token }
  },
  renew: lease => call(work, 'renewLease', { ...lease, leaseDuration }),
  complete: lease => call(work, 'completeWork', lease),
  release: lease => call(work, 'releaseWork', lease)
}

for await (const line of createInterface({ input: process.stdin })) {
  const { op, ...args } = JSON.parse(line)
  try {
    console.log(JSON.stringify(await operations[op](args)))
  } catch (error) {
    if (!error.jobonce) throw error
    const { code, reason, field, retryMillis } = error.jobonce
    console.log(JSON.stringify({ error: { code: grpc.status[code], reason, field, retrySeconds: retryMillis / 1000 } }))
  }
}
jobs.close()
work.close()
