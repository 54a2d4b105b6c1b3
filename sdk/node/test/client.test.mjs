// Tests without a service: what a client is given, and what it makes of it.

import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { status } from '@grpc/grpc-js'
import { bodyOf, Client, defaultBackoff, ErrorReason, JobOnceError, PermanentError, Worker } from 'jobonce'
import { answerTo, verifyWebhook, WebhookVerificationError } from 'jobonce/webhook'
import { Webhook } from 'standardwebhooks'

test('require and import give the same', () => {
  const required = createRequire(import.meta.url)('jobonce')
  assert.equal(required.JobOnceError, JobOnceError)
  assert.equal(required.Client, Client)
  assert.equal(createRequire(import.meta.url)('jobonce/webhook').answerTo, answerTo)
})

test('targets', () => {
  for (const target of ['127.0.0.1:1', '[::1]:1', 'localhost:1', '127.0.0.1:1, 127.0.0.2:2', 'dns:///a.b:1', 'unix:/tmp/s', 'jobonce.internal:443']) {
    new Client(target).close()
  }
  for (const target of ['', 'localhost', '50051', 'http://localhost:1', '127.0.0.1:1,[::1]:1', 'a:1,b:1', '127.0.0.1:1,']) {
    assert.throws(() => new Client(target), TypeError, target)
  }
})

test('a token does not travel in plaintext', () => {
  assert.throws(() => new Client('jobonce.internal:1', { token: 't', tls: false }), /plaintext/)
  assert.throws(() => new Client('127.0.0.1:1', { token: 't', tokenFile: 'f' }), /exclude/)
  new Client('jobonce.internal:1', { token: 't', tls: false, tokenOverPlaintext: true }).close()
  new Client('jobonce.internal:1', { token: 't' }).close()
})

test('a token file must have a token', t => {
  const dir = mkdtempSync(join(tmpdir(), 'jobonce-'))
  t.after(() => { rmSync(dir, { recursive: true }) })
  assert.throws(() => new Client('127.0.0.1:1', { tokenFile: join(dir, 'none') }), { code: 'ENOENT' })
  writeFileSync(join(dir, 'empty'), '\n')
  assert.throws(() => new Client('127.0.0.1:1', { tokenFile: join(dir, 'empty') }), /empty/)
})

test('a token that no header can carry is not sent, and not shown', async () => {
  const client = new Client('127.0.0.1:1', { token: () => 'se cret' })
  await assert.rejects(client.get('j'), error => error.is('UNAUTHENTICATED') && !String(error.stack).includes('se cret'))
  client.close()
})

test('what cannot be sent', async () => {
  const client = new Client('127.0.0.1:1')
  await assert.rejects(client.record({ jobId: 'j', mode: 'some' }), { reason: 'INVALID_FIELD', field: 'work_mode' })
  await assert.rejects(client.record({ jobId: 'j', mode: 'leased', leaseMs: NaN }), { reason: 'INVALID_FIELD', field: 'lease_duration' })
  await assert.rejects(client.record({ jobId: 'j\ud800' }), { reason: 'INVALID_FIELD', field: 'job_id' })
  await assert.rejects(client.record({ jobId: 'j', body: '\udc00' }), { reason: 'INVALID_FIELD', field: 'payload' })
  for (const body of ['x'.repeat(3145729), new Uint8Array(3145729)]) {
    await assert.rejects(client.record({ jobId: 'j', body }), { reason: 'PAYLOAD_TOO_LARGE', field: 'payload', outcomeUnknown: false })
  }
  for (const timeoutMs of [0, -1, NaN, Infinity]) {
    await assert.rejects(client.record({ jobId: 'j' }, { timeoutMs }), RangeError)
    assert.throws(() => new Client('127.0.0.1:1', { timeoutMs }), RangeError)
  }
  for (const waitMs of [-1, 60_001, Infinity]) {
    await assert.rejects(client.record({ jobId: 'j', waitMs }), { reason: 'INVALID_FIELD', field: 'wait' })
    await assert.rejects(client.claim({ leaseMs: 1000, waitMs }), { reason: 'INVALID_FIELD', field: 'wait' })
  }
  assert.throws(() => new Worker(client, () => {}, { concurrency: 0 }), RangeError)
  client.close()
})

test('an aborted call', async () => {
  const client = new Client('127.0.0.1:1')
  const why = new Error('enough')
  await assert.rejects(client.record({ jobId: 'j' }, { signal: AbortSignal.abort(why) }), { name: 'AbortError', cause: why, outcomeUnknown: false })
  client.close()
  await assert.rejects(client.get('j'), { name: 'AbortError', code: status.CANCELLED })
})

test('nobody there', async () => {
  const client = new Client('127.0.0.1:1')
  const error = await client.record({ jobId: 'j' }, { timeoutMs: 300 }).then(() => undefined, error => error)
  assert.ok(error instanceof JobOnceError)
  assert.equal(error.reason, '')
  assert.ok(error.code === status.UNAVAILABLE || error.code === status.DEADLINE_EXCEEDED)
  assert.notEqual(error.requestId, '')
  client.close()
})

test('bodies', () => {
  const text = '\ufeff{"a":"ü"}'
  assert.deepEqual(bodyOf({ body: { case: 'payload', value: text } }), new TextEncoder().encode(text))
  assert.deepEqual(bodyOf({ body: { case: 'payloadBytes', value: new Uint8Array([255, 0]) } }), new Uint8Array([255, 0]))
  assert.equal(bodyOf({ body: { case: undefined } }), undefined)
})

test('backoff', () => {
  assert.deepEqual([0, 1, 2, 11, 12, 1000].map(defaultBackoff), [1000, 2000, 4000, 2048000, 3600000, 3600000])
})

test('every reason has an answer to the provider', () => {
  for (const reason of Object.keys(ErrorReason).filter(name => isNaN(name) && name !== 'UNSPECIFIED')) {
    const { status: code, headers } = answerTo(new JobOnceError('', { reason, retryAfterMs: 1500 }))
    if (reason === 'INVALID_FIELD') assert.equal(code, 400)
    else if (reason === 'PAYLOAD_TOO_LARGE') assert.equal(code, 413)
    else assert.deepEqual([code, headers['retry-after']], [503, '2'], reason)
  }
  assert.equal(answerTo().status, 200)
  assert.equal(answerTo(new Error('other')).status, 503)
})

test('signatures', () => {
  const secret = 'whsec_' + Buffer.from('a secret of some length').toString('base64')
  const old = 'whsec_' + Buffer.from('another one, of before').toString('base64')
  const body = Buffer.from('{"a":  "ü"}')
  const at = new Date()
  const headers = {
    'webhook-id': 'm', 'webhook-timestamp': String(Math.floor(at / 1000)), 'webhook-signature': new Webhook(secret).sign('m', at, body)
  }
  verifyWebhook(body, headers, secret)
  verifyWebhook(new Uint8Array(body), headers, [old, secret])
  for (const [what, changed, given] of [
    [Buffer.from('{"a": "ü"}'), headers, secret], [body, {}, secret], [body, headers, old], [body, headers, []], [Buffer.from([255]), headers, secret],
    [body, { ...headers, 'webhook-timestamp': '1' }, secret], [body, { ...headers, 'webhook-signature': 'v1' }, secret]
  ]) {
    assert.throws(() => verifyWebhook(what, changed, given), WebhookVerificationError)
  }
})

test('a permanent error keeps its cause', () => {
  const cause = new Error('why')
  assert.equal(new PermanentError('no', { cause }).cause, cause)
})
