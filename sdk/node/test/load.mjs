// Makes 64 calls at a time until its input ends: each job is recorded twice, and must be started once. Arguments: the target, and what the
// ids of the jobs begin with. It prints how many calls were answered, and in the end what was wrong.

import { Client } from 'jobonce'

const [,, target, prefix] = process.argv
const client = new Client(target)
const problems = []
let answered = 0
let stopping = false
process.stdin.on('end', () => { stopping = true }).resume()

async function call (jobId, start) {
  try {
    const { startWork } = await client.record({ jobId, body: '{"event":"job.completed"}' })
    if (startWork !== start) problems.push(`${jobId}: startWork is ${startWork}`)
  } catch (error) {
    problems.push(`${jobId}: ${error}`)
  }
  if (++answered % 100 === 0) console.log(JSON.stringify({ answered }))
}

await Promise.all(Array.from({ length: 64 }, async (_, caller) => {
  for (let n = 0; !stopping; n++) {
    await call(`${prefix}-${caller}-${n}`, true)
    await call(`${prefix}-${caller}-${n}`, false)
  }
}))
client.close()
console.log(JSON.stringify({ answered, problems: problems.slice(0, 10), ended: true }))
