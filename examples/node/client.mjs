// A client of JobOnce with nothing but gRPC for Node. docs/clients.md explains it.

import { isUtf8 } from 'node:buffer'
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import grpc from '@grpc/grpc-js'
import { fromJSON, loadSync } from '@grpc/proto-loader'

const { status } = grpc

// connect returns clients of the two services. protoDir is this repository's directory proto.
export function connect (address, protoDir, credentials = grpc.credentials.createInsecure()) {
  const files = ['jobonce/v1/idempotency_service.proto', 'jobonce/v1/work_service.proto']
  const definition = loadSync(files, { includeDirs: [protoDir], longs: String, enums: String, defaults: true })
  const { IdempotencyService, WorkService } = grpc.loadPackageDefinition(definition).jobonce.v1
  return { jobs: new IdempotencyService(address, credentials), work: new WorkService(address, credentials) }
}

// Of google/rpc/status.proto and google/rpc/error_details.proto, what JobOnce sends.
const rpc = fromJSON({
  nested: {
    Status: { fields: { details: { rule: 'repeated', type: 'Detail', id: 3 } } },
    Detail: { fields: { typeUrl: { type: 'string', id: 1 }, value: { type: 'bytes', id: 2 } } },
    ErrorInfo: { fields: { reason: { type: 'string', id: 1 }, domain: { type: 'string', id: 2 } } },
    RetryInfo: { fields: { delay: { type: 'Duration', id: 1 } } },
    Duration: { fields: { seconds: { type: 'int64', id: 1 }, nanos: { type: 'int32', id: 2 } } },
    BadRequest: { fields: { violations: { rule: 'repeated', type: 'Violation', id: 1 } } },
    Violation: { fields: { field: { type: 'string', id: 1 } } }
  }
}, { longs: Number, defaults: true })

// readError says why a call failed. reason is empty when the error is not JobOnce's own.
export function readError (error) {
  const read = { code: error.code, reason: '', field: '', retryMillis: 0, message: error.details }
  const [bytes] = error.metadata?.get('grpc-status-details-bin') ?? []
  if (!bytes) return read
  for (const { typeUrl, value } of rpc.Status.deserialize(bytes).details) {
    switch (typeUrl) {
      case 'type.googleapis.com/google.rpc.ErrorInfo': {
        const info = rpc.ErrorInfo.deserialize(value)
        if (info.domain === 'jobonce') read.reason = info.reason
        break
      }
      case 'type.googleapis.com/google.rpc.RetryInfo': {
        const { delay } = rpc.RetryInfo.deserialize(value)
        read.retryMillis = delay.seconds * 1000 + delay.nanos / 1e6
        break
      }
      case 'type.googleapis.com/google.rpc.BadRequest':
        read.field = rpc.BadRequest.deserialize(value).violations[0].field
    }
  }
  return read
}

const retryReasons = ['OVERLOADED', 'RATE_LIMITED', 'STORE_UNAVAILABLE', 'OUTCOME_UNKNOWN']
const retryCodes = [status.UNAVAILABLE, status.DEADLINE_EXCEEDED, status.CANCELLED]

// retryable tells whether the same call, with the same requestId, may succeed later.
export function retryable ({ code, reason }) {
  return reason ? retryReasons.includes(reason) : retryCodes.includes(code)
}

// call makes a call again, always the same one, as long as that may help and the time allows. What it throws has what
// readError read, as its property jobonce.
export async function call (service, method, request, { patience = 8000, attempt = 3000 } = {}) {
  const end = Date.now() + patience
  for (let pause = 50; ; pause = Math.min(2 * pause, 2000)) {
    const deadline = Math.min(end, Date.now() + attempt)
    try {
      return await new Promise((resolve, reject) => {
        service[method](request, { deadline }, (error, response) => error ? reject(error) : resolve(response))
      })
    } catch (error) {
      error.jobonce = readError(error)
      const wait = error.jobonce.retryMillis + pause * (0.5 + Math.random())
      if (!retryable(error.jobonce) || Date.now() + wait >= end) throw error
      await sleep(wait)
    }
  }
}

// record records one delivery. body is the Buffer of the webhook; delivery may have the other fields of the request. One
// requestId stays with the call through all its retries.
export function record (jobs, body, delivery, options) {
  const text = isUtf8(body) ? { payload: body.toString() } : { payloadBytes: body }
  return call(jobs, 'recordDelivery', { requestId: randomUUID(), ...text, ...delivery }, options)
}
