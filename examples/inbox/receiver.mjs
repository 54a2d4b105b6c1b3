// Does the work of jobs that `jobonce worker` or `jobonce inbox` posts, with nothing but Node.
//
// Usage: node receiver.mjs SECRET_FILE [PORT]
import { createHmac, timingSafeEqual } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'

const [secretFile, port = 3000] = process.argv.slice(2)
const secret = Buffer.from(readFileSync(secretFile, 'utf8').trim().replace(/^whsec_/, ''), 'base64')

// isSigned tells whether the worker sent this, lately: https://www.standardwebhooks.com says how it is signed.
function isSigned (headers, body) {
  const { 'webhook-id': id, 'webhook-timestamp': sent, 'webhook-signature': signatures = '' } = headers
  if (!(Math.abs(Date.now() / 1000 - Number(sent)) <= 300)) return false
  const want = Buffer.from('v1,' + createHmac('sha256', secret).update(`${id}.${sent}.`).update(body).digest('base64'))
  return signatures.split(' ').some(s => {
    const got = Buffer.from(s)
    return got.length === want.length && timingSafeEqual(got, want)
  })
}

// The highest generation that was seen of each job. A real shop keeps it in its database, and checks it in the same write that
// does the work: docs/fencing.md.
const seen = new Map()

function ship (jobId, generation, body) {
  if (generation < (seen.get(jobId) ?? 0)) return false
  seen.set(jobId, generation)
  return true
}

const server = createServer(async (request, response) => {
  const chunks = []
  for await (const chunk of request) chunks.push(chunk)
  const body = Buffer.concat(chunks)
  const answer = status => response.writeHead(status).end()
  if (!isSigned(request.headers, body)) return answer(401)
  const jobId = decodeURIComponent(request.headers['jobonce-job-id'])
  if (!ship(jobId, Number(request.headers['jobonce-generation']), body)) return answer(409) // A later holder was here.
  console.log('shipped', jobId)
  answer(204) // 2xx: the job is done. Anything else, and it comes again.
})
server.listen(Number(port), '127.0.0.1', () => console.log(`receiver on 127.0.0.1:${server.address().port}`))
