// A webhook frontend in Node, as a load child of bench: it reads a spec and then orders from its standard input, a line of
// JSON each, and answers each with a reply. It has so many calls under way at a time, in one process.
import { createInterface } from 'node:readline'
import { randomUUID } from 'node:crypto'
import grpc from '@grpc/grpc-js'
import { loadSync } from '@grpc/proto-loader'
import { MongoClient } from 'mongodb'

const protoDir = process.argv[2]
const reply = (line) => process.stdout.write(JSON.stringify(line) + '\n')

// direct does the upsert by itself.
async function direct (spec) {
  const size = { maxPoolSize: spec.Callers, minPoolSize: spec.Callers }
  const client = await MongoClient.connect(spec.Address, size)
  const jobs = client.db(spec.Database).collection(spec.Collection)
  const upsert = (event) => jobs.updateOne(
    { job_id: event.job_id },
    {
      $setOnInsert: { event: event.event, status: event.status, payload: event, first_seen: new Date() },
      $inc: { deliveries: 1 }
    },
    { upsert: true }
  )
  const record = async (body) => (await upsert(JSON.parse(body))).upsertedCount === 1
  return { record, close: () => client.close() }
}

// service calls JobOnce, through the generated calls and nothing else.
function service (spec) {
  const files = ['jobonce/v1/idempotency_service.proto']
  const definition = loadSync(files, { includeDirs: [protoDir], longs: String, enums: String, defaults: true })
  const { IdempotencyService } = grpc.loadPackageDefinition(definition).jobonce.v1
  const client = new IdempotencyService(spec.Address, grpc.credentials.createInsecure())
  const record = (payload) => new Promise((resolve, reject) => {
    const request = { requestId: randomUUID(), payload, workMode: 'WORK_MODE_UNTRACKED' }
    client.recordDelivery(request, { deadline: Date.now() + 10_000 }, (error, response) => {
      error ? reject(error) : resolve(response.firstDelivery)
    })
  })
  return { record, close: () => client.close() }
}

const percentile = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0

// run does an order: its callers each send the next delivery when the one before is answered. Times are nanoseconds.
async function run (record, order) {
  const [start, rest] = order.Example.split(`bench-${order.Run}-000000000`)
  const begin = performance.now()
  const took = []
  let sent = 0
  let firsts = 0
  await Promise.all(Array.from({ length: order.Callers }, async () => {
    while ((performance.now() - begin) * 1e6 < order.Duration) {
      const body = `${start}bench-${order.Run}-${String(sent++).padStart(9, '0')}${rest}`
      const called = performance.now()
      if (await record(body)) firsts++
      took.push(performance.now() - called)
    }
  }))
  const elapsed = performance.now() - begin
  if (firsts !== sent) throw new Error(`${firsts} firsts for ${sent} keys`)
  const sorted = Float64Array.from(took).sort()
  const nanos = (millis) => Math.round(millis * 1e6)
  return {
    Ops: sent,
    Firsts: firsts,
    Keys: sent,
    Elapsed: nanos(elapsed),
    P50: nanos(percentile(sorted, 0.5)),
    P99: nanos(percentile(sorted, 0.99))
  }
}

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
const next = async () => {
  const { value, done } = await lines.next()
  return done ? undefined : JSON.parse(value)
}

const spec = await next()
try {
  const frontend = spec.Kind === 'direct' ? await direct(spec) : service(spec)
  reply({})
  for (let order = await next(); order !== undefined; order = await next()) {
    try {
      reply({ Result: await run(frontend.record, order) })
    } catch (error) {
      reply({ Error: String(error) })
    }
  }
  await frontend.close()
} catch (error) {
  reply({ Error: String(error) })
}
