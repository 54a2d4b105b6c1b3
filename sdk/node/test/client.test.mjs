// Tests without a service: what a client is given, and what it makes of it.

import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { status } from '@grpc/grpc-js'
import { bodyOf, Client, defaultBackoff, ErrorReason, JobOnceError, NotStartedError, PermanentError, RetryLaterError, Worker } from 'jobonce'
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
  for (const target of ['', 'localhost', '50051', 'http://localhost:1', '127.0.0.1:1,[::1]:1', 'a:1,b:1', '127.0.0.1:1,', 'a:0', 'a:65536']) {
    assert.throws(() => new Client(target), TypeError, target)
  }
})

test('a token does not travel in plaintext', () => {
  assert.throws(() => new Client('jobonce.internal:1', { token: 't', tls: false }), /plaintext/)
  assert.throws(() => new Client('127.0.0.1:1', { token: 't', tokenFile: 'f' }), /exclude/)
  new Client('jobonce.internal:1', { token: 't', tls: false, tokenOverPlaintext: true }).close()
  new Client('jobonce.internal:1', { token: 't' }).close()
  for (const target of ['dns:///localhost:1', 'dns:127.0.0.1:1', 'dns:///[::1]:1', 'LOCALHOST:1', 'dns://8.8.8.8/127.0.0.1']) {
    new Client(target, { token: 't', tls: false }).close() // of this machine
  }
  for (const target of ['dns:///jobonce.internal:1', 'dns://127.0.0.1/jobonce.internal:1', 'ipv4:10.0.0.1:1', '127.0.0.1.example:1']) {
    assert.throws(() => new Client(target, { token: 't', tls: false }), /plaintext/, target)
  }
})

test('an option that there is not is refused', () => {
  const client = new Client('127.0.0.1:1', { timeoutMs: undefined, tls: false, retry: {} })
  for (const options of [{ timeout: 5 }, { toString: 1 }, { tls: { rootCerts: '' } }, { retry: { attempts: 2 } }]) {
    assert.throws(() => new Client('127.0.0.1:1', options), { name: 'TypeError', message: /^there is no option "(timeout|toString|rootCerts|attempts)"; there are / })
  }
  assert.throws(() => new Worker(client, () => {}, { concurency: 20 }), { name: 'TypeError', message: /"concurency".*concurrency, leaseMs/ })
  client.close()
})

test('work that is no function is refused before anything is recorded', async () => {
  const client = new Client('127.0.0.1:1')
  for (const work of [undefined, null, 'ship', {}]) {
    assert.throws(() => new Worker(client, work), { name: 'TypeError', message: 'the work is not a function' })
    await assert.rejects(client.do({ jobId: 'j' }, work), { name: 'TypeError', message: 'the work is not a function' })
  }
  client.close()
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
  for (const retry of [{ maxAttempts: 0 }, { baseDelayMs: 0 }, { baseDelayMs: NaN }, { baseDelayMs: 3000 }, { maxDelayMs: Infinity }]) {
    assert.throws(() => new Client('127.0.0.1:1', { retry }), RangeError)
  }
  for (const [call, field] of [
    [client.get('\ud800'), 'job_id'], [client.claim({ leaseMs: 1000, events: ['e', '\ud800'] }), 'events'],
    [client.complete('j', 't', '\udc00'), 'result'], [client.release('j', 't', { error: '\udc00' }), 'error'],
    [client.do({ jobId: 'j', mode: 'queued' }, () => {}), 'work_mode']
  ]) {
    await assert.rejects(call, { reason: 'INVALID_FIELD', field })
  }
  // What only a mistake in the program makes is not the delivery's fault: it is no INVALID_FIELD, which is answered with 400.
  for (const delivery of [{ job_id: 'j' }, { jobId: 'j', requestID: 'r' }, { jobId: 'j', payload: 'p' }, { jobId: 7 }, { body: { parsed: true } }, { body: null }]) {
    await assert.rejects(client.record(delivery), TypeError)
  }
  client.close()
})

test('an option that is undefined is not set', async () => {
  const options = { timeoutMs: undefined, tls: undefined, token: undefined, tokenFile: undefined, compression: undefined }
  const client = new Client('127.0.0.1:1', { ...options, retry: { maxAttempts: 2, baseDelayMs: undefined, maxDelayMs: undefined } })
  const started = performance.now()
  await assert.rejects(client.record({ jobId: 'j', event: undefined, requestId: undefined }, { timeoutMs: 5000, signal: undefined }))
  assert.ok(performance.now() - started >= 20, 'there is no pause between attempts')
  client.close()
})

// A client that hands out one job, and remembers what it is told of it.
function fake () {
  const told = []
  const job = { jobId: 'j', body: { case: undefined }, work: { attempts: 1 } }
  let due = [{ job, lease: { token: 't', generation: 1n, remaining: { seconds: 60n, nanos: 0 } } }]
  const stop = new AbortController()
  const end = how => { told.push(how); stop.abort() }
  const client = {
    timeoutMs: 1000, claims: 0,
    async claimAt () {
      client.claims++
      const response = due
      due = []
      return { response, sent: performance.now() }
    },
    async complete (id, token, result) { end({ result }) },
    async release (id, token, how) { end(how) }
  }
  return { client, told, stop }
}

test('what work returns does not have it done again', async () => {
  for (const returned of [7, {}, 'x'.repeat(65537), '\ud800', null]) {
    const { client, told, stop } = fake()
    const errors = []
    await new Worker(client, () => returned, { onError: error => errors.push(error) }).run(stop.signal)
    assert.deepEqual(told, [{ result: '' }])
    assert.equal(errors.length, returned === null ? 0 : 1)
  }
})

test('errors say when work is tried again', async () => {
  for (const [error, how] of [
    [new RetryLaterError('busy', 5000), { error: 'busy', retryAfterMs: 5000 }],
    [new RetryLaterError('busy', 1), { error: 'busy', retryAfterMs: 2000 }], // the backoff is longer
    [new RetryLaterError('busy', Infinity), { error: 'busy', retryAfterMs: 86_400_000 }],
    [new NotStartedError('no place'), { notStarted: true }],
    [new PermanentError('never'), { error: 'never', dead: true }]
  ]) {
    const { client, told, stop } = fake()
    await new Worker(client, () => { throw error }, { onError () {} }).run(stop.signal)
    assert.deepEqual(told, [how])
  }
})

test('a worker outlives an onError that fails', async t => {
  t.mock.method(console, 'error', () => {})
  for (const onError of [() => { throw new Error('sync') }, async () => { throw new Error('async') }]) {
    const { client, told, stop } = fake()
    await new Worker(client, () => { throw new Error('no') }, { onError }).run(stop.signal)
    assert.equal(told[0].error, 'no')
  }
})

test("a worker's option that is undefined is not set", async t => {
  t.mock.method(console, 'error', () => {})
  const { client, told, stop } = fake()
  const options = Object.fromEntries(['concurrency', 'leaseMs', 'events', 'waitMs', 'shutdownTimeoutMs', 'backoff', 'onError'].map(name => [name, undefined]))
  await new Worker(client, () => { throw new Error('no') }, options).run(stop.signal)
  assert.deepEqual(told, [{ error: 'no', retryAfterMs: 2000 }])
})

test('a backoff that fails does not hide why the work did', async t => {
  for (const backoff of [() => { throw new Error('broken') }, () => NaN]) {
    const { client, told, stop } = fake()
    client.release = async (id, token, { retryAfterMs }) => {
      if (Number.isNaN(retryAfterMs)) throw new JobOnceError('no such time')
    }
    await new Worker(client, () => { throw new Error('no') }, { backoff, onError: error => { told.push(error); stop.abort() } }).run(stop.signal)
    assert.equal(told[0].errors[0].message, 'no')
  }
})

test('a worker that is not to wait does not claim without a pause', async () => {
  const { client, stop } = fake()
  const running = new Worker(client, () => new Promise(() => {}), { waitMs: 0, concurrency: 2, shutdownTimeoutMs: 1 }).run(stop.signal)
  await new Promise(resolve => setTimeout(resolve, 200))
  assert.ok(client.claims <= 2, `${client.claims} claims`)
  stop.abort()
  void running
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
  assert.equal(error.outcomeUnknown, false) // nothing was sent
  client.close()
})

test('a source of tokens that hangs takes no longer than the call', async () => {
  const client = new Client('127.0.0.1:1', { token: () => new Promise(() => {}) })
  await assert.rejects(client.get('j', { timeoutMs: 50 }), { code: status.DEADLINE_EXCEEDED, outcomeUnknown: false })
  const stop = new AbortController()
  const call = client.get('j', { signal: stop.signal })
  stop.abort()
  await assert.rejects(call, { name: 'AbortError' })
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
  verifyWebhook(body, new Headers(headers), secret)
  for (const [what, changed, given] of [
    [Buffer.from('{"a": "ü"}'), headers, secret], [body, {}, secret], [body, headers, old], [body, headers, []], [Buffer.from([255]), headers, secret],
    [body, { ...headers, 'webhook-timestamp': '1' }, secret], [body, { ...headers, 'webhook-signature': 'v1' }, secret]
  ]) {
    assert.throws(() => verifyWebhook(what, changed, given), WebhookVerificationError)
  }
  for (const parsed of [{ a: 'ü' }, String(body), undefined]) { // as express.json() and the like leave it
    assert.throws(() => verifyWebhook(parsed, headers, secret), { name: 'TypeError', message: /raw body/ })
  }
})

test('a permanent error keeps its cause', () => {
  const cause = new Error('why')
  assert.equal(new PermanentError('no', { cause }).cause, cause)
})
