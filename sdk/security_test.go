package sdk_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/testenv"
)

// secured are programs that call a service with TLS and callers, whose files are in the directory of the environment's DIR, and fail
// unless each is told what it must be told: that there is no such job, or that it is nobody.
var secured = map[string]func(t *testing.T) *exec.Cmd{
	"node": func(t *testing.T) *exec.Cmd {
		return nodeFile(t, project(t), "secured.mjs", `
import assert from 'node:assert/strict'
import { readFileSync, renameSync, writeFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { status } from '@grpc/grpc-js'
import { Client } from 'jobonce'

const { DIR, TARGET } = process.env
const pem = name => readFileSync(DIR + '/' + name)
const ca = pem('ca.pem')
async function told (client, expected) {
  await assert.rejects(client.get('none'), expected)
}
function replace (token) {
  writeFileSync(DIR + '/new', token + '\n')
  renameSync(DIR + '/new', DIR + '/token')
}
const known = { reason: 'JOB_NOT_FOUND' }
const nobody = { code: status.UNAUTHENTICATED, reason: 'UNAUTHENTICATED' }

const clients = [
  [new Client(TARGET, { tls: { ca } }), nobody],
  [new Client(TARGET, { tls: { ca }, token: String(pem('token')).trim() }), known],
  [new Client(TARGET, { tls: { ca }, token: async () => String(pem('token')).trim() }), known],
  [new Client(TARGET, { tls: { ca, cert: pem('client.pem'), key: pem('client.key') } }), known],
  [new Client(TARGET, { tls: { ca: pem('other.pem') }, timeoutMs: 300 }), { reason: '' }]
]
for (const [client, expected] of clients) {
  await told(client, expected)
  client.close()
}
const client = new Client(TARGET, { tls: { ca }, tokenFile: DIR + '/token' })
await told(client, known)
replace('nobodys')
await sleep(1100)
await told(client, nobody)
replace('')
await sleep(1100)
await told(client, nobody) // the last one is sent
replace(String(pem('second')))
await sleep(1100)
await told(client, known)
client.close()
`)
	},
	"python": func(t *testing.T) *exec.Cmd {
		python, _ := testenv.PythonSDK(t)
		return exec.Command(python, "-c", `
import asyncio, os, time
from pathlib import Path
import jobonce, jobonce.aio

DIR, TARGET = Path(os.environ["DIR"]), os.environ["TARGET"]
pem = lambda name: (DIR / name).read_bytes()
tls = jobonce.TLS(ca=pem("ca.pem"))
first = pem("token").decode().strip()

def told(client, expected):
    try:
        client.get("none")
    except expected as error:
        assert type(error) is expected, error
    else:
        assert False, expected

def replace(token):
    (DIR / "new").write_text(token + "\n")
    (DIR / "new").rename(DIR / "token")

cases = [
    (dict(tls=tls), jobonce.Unauthenticated),
    (dict(tls=tls, token=first), jobonce.JobNotFound),
    (dict(tls=tls, token=lambda: first), jobonce.JobNotFound),
    (dict(tls=jobonce.TLS(tls.ca, pem("client.pem"), pem("client.key"))), jobonce.JobNotFound),
    (dict(tls=jobonce.TLS(pem("other.pem")), timeout=0.3), jobonce.JobOnceError),
]
for options, expected in cases:
    with jobonce.Client(TARGET, **options) as client:
        told(client, expected)

async def asynchronous():
    async with jobonce.aio.Client(TARGET, tls=tls, token_file=DIR / "token") as client:
        try:
            await client.get("none")
        except jobonce.JobNotFound:
            return
    assert False

asyncio.run(asynchronous())

async def with_source():
    async def token():
        await asyncio.sleep(0)
        return first
    async with jobonce.aio.Client(TARGET, tls=tls, token=token) as client:
        try:
            await client.get("none")
        except jobonce.JobNotFound:
            return
    assert False

asyncio.run(with_source())
with jobonce.Client(TARGET, tls=tls, token_file=DIR / "token") as client:
    told(client, jobonce.JobNotFound)
    for token, expected in ("nobodys", jobonce.Unauthenticated), ("", jobonce.Unauthenticated), (pem("second").decode(), jobonce.JobNotFound):
        replace(token)
        time.sleep(1.1)
        told(client, expected)
`)
	},
}

// TestSecured has the clients show tokens, also from a file that is replaced, and certificates.
func TestSecured(t *testing.T) {
	testenv.NodeSDK(t)
	testenv.PythonSDK(t)
	for name, command := range secured {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, ca := t.TempDir(), testenv.NewCA(t, "servers")
			server, owner := ca.Issue(), ca.Issue("owner")
			callers := "callers:\n- {name: owner, certificate: owner, allow: [read]}\n"
			for _, name := range []string{"token", "second"} {
				token, item, err := auth.NewEntry(auth.Entry{Name: name, Allow: []string{"read"}})
				testenv.Must(t, err)
				testenv.WriteFile(t, dir, name, []byte(token))
				callers += item
			}
			for file, content := range map[string][]byte{
				"ca.pem": ca.PEM, "other.pem": testenv.NewCA(t, "others").PEM, "server.pem": server.Cert, "server.key": server.Key,
				"client.pem": owner.Cert, "client.key": owner.Key, "auth.yaml": []byte(callers + "...\n"),
			} {
				testenv.WriteFile(t, dir, file, content)
			}
			in := func(name string) string { return filepath.Join(dir, name) }
			s := serve(t, "--data-dir", t.TempDir(), "--tls-cert", in("server.pem"), "--tls-key", in("server.key"),
				"--tls-client-ca", in("ca.pem"), "--auth-file", in("auth.yaml"))
			cmd := command(t)
			cmd.Env = append(os.Environ(), "DIR="+dir, "TARGET="+s.Addr())
			run(t, cmd)
		})
	}
}
