// Verifies each line of its input, {"secret", "headers", "body"} in JSON, with the Node library of Standard Webhooks, and prints
// "ok" or why not.
import { createInterface } from "node:readline";
import { Webhook } from "standardwebhooks";

for await (const line of createInterface({ input: process.stdin })) {
  const { secret, headers, body } = JSON.parse(line);
  try {
    new Webhook(secret).verify(Buffer.from(body, "base64").toString(), headers);
    console.log("ok");
  } catch (error) {
    console.log(String(error));
  }
}
