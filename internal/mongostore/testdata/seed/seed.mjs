// A webhook frontend without JobOnce: it writes each delivery to the collection by itself, with one upsert. It takes
// commands as lines of JSON and answers each with a line that bears the command's n.
//
//   node seed.mjs URI DATABASE COLLECTION
//   {"n": 1, "record": EVENT}    {"n": 1, "first": true}
//   {"n": 2, "read": JOB_ID}     {"n": 2, "document": {...}}
//   {"n": 3, "rewrite": JOB_ID}  {"n": 3}
//   anything that failed         {"n": 4, "code": 11000, "error": "..."}
import { createInterface } from "node:readline";
import { MongoClient } from "mongodb";

const [uri, database, collection] = process.argv.slice(2);
const answer = (line) => process.stdout.write(JSON.stringify(line) + "\n");

const client = await MongoClient.connect(uri);
const jobs = client.db(database).collection(collection);
answer({ n: 0, index: await jobs.createIndex({ job_id: 1 }, { unique: true }) });

async function record(event) {
  const now = new Date();
  const upsert = () =>
    jobs.updateOne(
      { job_id: event.job_id },
      {
        $setOnInsert: { event: event.event, status: event.status, payload: event, first_seen: now },
        $inc: { deliveries: 1 },
      },
      { upsert: true },
    );
  try {
    const { upsertedCount } = await upsert();
    return upsertedCount === 1;
  } catch (error) {
    if (error.code !== 11000) throw error;
  }
  await upsert(); // somebody else's insert won, so this one finds it
  return false;
}

// What code that reads the collection relies on: the values, and that a date is a date and a counter a number.
async function read(job_id) {
  const found = await jobs.findOne({ job_id });
  if (found === null) return { document: null };
  const { event, status, payload, first_seen, deliveries } = found;
  const types = { first_seen: first_seen instanceof Date ? "date" : typeof first_seen, deliveries: typeof deliveries };
  return { document: { event, status, payload, first_seen, deliveries }, types };
}

// What migrations do: the document is read and written back, with the numbers as JavaScript has them.
async function rewrite(job_id) {
  const { _id, ...found } = await jobs.findOne({ job_id });
  await jobs.replaceOne({ _id }, found);
  return {};
}

const pending = [];
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  const work =
    command.record !== undefined
      ? record(command.record).then((first) => ({ first }))
      : command.rewrite !== undefined
        ? rewrite(command.rewrite)
        : read(command.read);
  pending.push(
    work.then(
      (result) => answer({ n: command.n, ...result }),
      (error) => answer({ n: command.n, code: error.code ?? 0, error: String(error) }),
    ),
  );
}
await Promise.all(pending);
await client.close();
