// A webhook frontend with Express: it checks the signature, records the delivery, and answers. The work is done by worker.mjs.
//
//   WEBHOOK_SECRET=whsec_… JOBONCE_TARGET=127.0.0.1:50051 PORT=8080 node frontend.mjs
//
// WEBHOOK_SECRET may be several secrets with commas between them, while one replaces another.

import express from 'express'
import { Client } from 'jobonce'
import { answerTo, verifyWebhook, WebhookVerificationError } from 'jobonce/webhook'

const { WEBHOOK_SECRET, JOBONCE_TARGET = '127.0.0.1:50051', JOBONCE_TOKEN_FILE, PORT = '8080', HOST = '127.0.0.1' } = process.env
if (!WEBHOOK_SECRET) throw new Error('WEBHOOK_SECRET is not set')
const secrets = WEBHOOK_SECRET.split(',')

// The answer must come well before the provider's own timeout.
const client = new Client(JOBONCE_TARGET, { timeoutMs: 5_000, ...(JOBONCE_TOKEN_FILE && { tokenFile: JOBONCE_TOKEN_FILE }) })

const app = express()

// The signature is that of the raw body: nothing may parse it before, nor inflate it.
app.post('/webhooks/acme', express.raw({ type: () => true, limit: '1mb', inflate: false }), async (request, response) => {
  const body = request.body ?? Buffer.alloc(0) // There is none where the request has none.
  try {
    verifyWebhook(body, request.headers, secrets)
  } catch (error) {
    if (!(error instanceof WebhookVerificationError)) throw error
    response.sendStatus(401)
    return
  }
  const answer = await record(request.headers, body)
  response.status(answer.status).set(answer.headers).end()
})

async function record (headers, body) {
  try {
    await client.record({
      // The sender gives one id to all deliveries of an event. The prefix keeps it apart from other senders' ids.
      jobId: `acme:${headers['webhook-id']}`,
      event: eventOf(body),
      body,
      opaquePayload: true, // The service need not look for an id in the body.
      contentType: contentTypeOf(headers),
      source: 'acme',
      mode: 'queued'
    })
    return answerTo() // 200: the job is recorded, now or before, and is not lost.
  } catch (error) {
    console.error('the delivery is not recorded:', error)
    return answerTo(error) // 503, so that the provider delivers again, unless it can never be right
  }
}

// eventOf is what happened, for workers that claim by event. A body that does not say so, or says what the service does not take, is
// recorded all the same.
function eventOf (body) {
  try {
    const { type } = JSON.parse(body)
    return typeof type === 'string' && type.isWellFormed() && Buffer.byteLength(type) <= 128 ? type : ''
  } catch {
    return ''
  }
}

// contentTypeOf is what the worker is told of the body. One that the service does not take is left out: the delivery matters more.
function contentTypeOf ({ 'content-type': type = '' }) {
  return /^[\x20-\x7e]{0,128}$/.test(type) ? type : ''
}

// What went wrong before: a body that is too large is 413, one that was cut short 400. All else is tried again.
app.use((error, request, response, next) => {
  const status = error.status >= 400 && error.status < 500 ? error.status : 503
  if (status === 503) console.error(error)
  if (response.headersSent) next(error)
  else response.status(status).set(status === 503 ? { 'retry-after': '1' } : {}).end()
})

const server = app.listen(Number(PORT), HOST, () => { console.log(`listening on ${HOST}:${server.address().port}`) })
process.once('SIGTERM', () => {
  server.close(() => { client.close() }) // What is under way is answered.
  // A connection over which nothing was ever asked, such as a load balancer's, would keep the server open.
  setTimeout(() => { server.closeAllConnections() }, 10_000).unref()
})
