"""Does the work of jobs that `jobonce worker` or `jobonce inbox` posts, with nothing but Python's standard library.

Usage: python3 receiver.py SECRET_FILE [PORT]
"""

import base64
import hashlib
import hmac
import http.server
import sqlite3
import sys
import time
import urllib.parse

with open(sys.argv[1]) as file:
    secret = base64.b64decode(file.read().strip().removeprefix("whsec_"))
port = int(sys.argv[2]) if len(sys.argv) > 2 else 3000

db = sqlite3.connect("shipments.db", isolation_level=None)
db.execute("CREATE TABLE IF NOT EXISTS shipments (job_id TEXT PRIMARY KEY, generation INTEGER NOT NULL, body BLOB NOT NULL)")


def is_signed(headers, body):
    """Whether the worker sent this, lately: https://www.standardwebhooks.com says how it is signed."""
    message_id, sent = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not sent.isdigit() or abs(time.time() - int(sent)) > 300:
        return False
    digest = hmac.digest(secret, f"{message_id}.{sent}.".encode() + body, hashlib.sha256)
    want = "v1," + base64.b64encode(digest).decode()
    return any(hmac.compare_digest(want, got) for got in headers.get("webhook-signature", "").split())


def ship(job_id, generation, body):
    """Does the work, unless a later holder of the job has done it. A real shop would do it in this transaction."""
    return db.execute(
        """INSERT INTO shipments (job_id, generation, body) VALUES (?1, ?2, ?3)
           ON CONFLICT (job_id) DO UPDATE SET generation = excluded.generation, body = excluded.body
           WHERE shipments.generation <= excluded.generation
           RETURNING job_id""",
        (job_id, generation, body),
    ).fetchone()


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not is_signed(self.headers, body):
            return self.answer(401)
        job_id = urllib.parse.unquote(self.headers["JobOnce-Job-Id"])
        if not ship(job_id, int(self.headers["JobOnce-Generation"]), body):
            return self.answer(409)  # A later holder was here: nobody waits for this answer any more.
        print("shipped", job_id, flush=True)
        self.answer(204)  # 2xx: the job is done. Anything else, and it comes again.

    def answer(self, status):
        self.send_response(status)
        self.end_headers()

    def log_message(self, *args):
        pass


server = http.server.HTTPServer(("127.0.0.1", port), Receiver)
print(f"receiver on 127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
