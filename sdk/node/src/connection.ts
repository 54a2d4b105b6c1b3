import { readFileSync } from 'node:fs'
import { isIP } from 'node:net'
import { toBinary, fromBinary, type DescMethodUnary, type DescMessage, type MessageShape } from '@bufbuild/protobuf'
import * as grpc from '@grpc/grpc-js'
import { changed, fromServiceError, JobOnceError } from './errors.js'
import { checkOptions, sleep } from './values.js'

/** PEM texts. What is absent is the system's, or none. */
export interface TLSOptions {
  /** The certificates of the authorities that are trusted, instead of the system's. */
  ca?: string | Uint8Array
  /** The client's certificate, with `key`. */
  cert?: string | Uint8Array
  key?: string | Uint8Array
}

export interface ConnectionOptions {
  /**
   * True or options: TLS. False: plaintext. By default the connection is in plaintext when the target is of this machine
   * (a loopback address, `localhost`, a Unix socket), and TLS otherwise.
   */
  tls?: boolean | TLSOptions
  /** Sent with every call as `authorization: Bearer`. A function is asked at every attempt of every call. */
  token?: string | (() => string | Promise<string>)
  /**
   * A file with the token. It is read again when it is older in memory than a second, so a token that is replaced needs no
   * restart. While the file cannot be read, or is empty, the last token is sent.
   */
  tokenFile?: string
  /** Lets the token travel unencrypted to another machine, where whoever listens can read and use it. */
  tokenOverPlaintext?: boolean
  /** Compresses requests. */
  compression?: 'gzip'
  /** Options of @grpc/grpc-js, which beat this package's own. */
  channelOptions?: grpc.ChannelOptions
}

/** A target as gRPC takes it, and what is known of it. */
export interface Target {
  name: string
  /** It can only be of this machine. In doubt it is not. */
  loopback: boolean
  /** It can only be one service. In doubt it is not. */
  single: boolean
}

/** Reads `host:port`, several IP addresses with ports and commas between them, or a name of gRPC's such as `dns:///…`. */
export function parseTarget (text: string): Target {
  const scheme = /^(dns|unix|ipv4|ipv6):/i.exec(text)?.[1]?.toLowerCase()
  if (scheme === 'unix') return { name: text, loopback: true, single: true }
  if (scheme !== undefined) {
    // dns:host:port, or dns://nameserver/host:port. Lists of addresses are not looked into.
    const [, v6, host = v6] = /^dns:(?:\/\/[^/]*\/)?(?:\[([^\]]+)\]|([^:/[\]]+))(?::\d+)?$/i.exec(text) ?? []
    return { name: text, loopback: host !== undefined && isLoopback(host), single: host !== undefined && isSingle(host) }
  }
  const addresses = text.split(',').map(address => address.trim())
  const hosts = addresses.map(address => {
    const match = /^(?:\[([^\]]+)\]|([^:/\s]+)):(\d{1,5})$/.exec(address)
    const host = match?.[1] ?? match?.[2]
    const port = Number(match?.[3])
    if (host === undefined || port < 1 || port > 65535) throw new TypeError(`the target ${JSON.stringify(address)} is not host:port; an IPv6 address stands in brackets, as in [::1]:50051`)
    return host
  })
  const families = new Set(hosts.map(isIP))
  const [family] = families
  const loopback = hosts.every(isLoopback)
  if (hosts.length === 1) return { name: `dns:${addresses[0]}`, loopback, single: hosts.every(isSingle) }
  if (families.size > 1 || family === 0) {
    throw new TypeError('a target that is a list has IP addresses of one kind; for names, use dns:/// and one name with several addresses')
  }
  return { name: `ipv${family}:${addresses.join(',')}`, loopback, single: false }
}

function isLoopback (host: string): boolean {
  return host.toLowerCase() === 'localhost' || host === '::1' || (isIP(host) === 4 && host.startsWith('127.'))
}

function isSingle (host: string): boolean {
  return host.toLowerCase() === 'localhost' || isIP(host) !== 0
}

/** How long an address may take to accept a connection, and how gRPC looks for one that went away, in milliseconds. */
const channelDefaults: grpc.ChannelOptions = {
  // Calls are spread over all addresses: the service keeps no state of its own.
  'grpc.service_config': JSON.stringify({ loadBalancingConfig: [{ round_robin: {} }] }),
  'grpc.enable_retries': 0, // One layer retries, and it is this package: it knows the reasons.
  'grpc.initial_reconnect_backoff_ms': 50,
  'grpc.max_reconnect_backoff_ms': 2000,
  'grpc.keepalive_time_ms': 30_000,
  'grpc.keepalive_timeout_ms': 10_000,
  'grpc.keepalive_permit_without_calls': 1,
  'grpc.primary_user_agent': 'jobonce-node'
}

/** A connection to the service: one channel of gRPC's. */
export class Connection {
  readonly target: Target
  readonly #client: grpc.Client
  readonly #token: (() => string | Promise<string>) | undefined

  constructor (target: string, options: ConnectionOptions) {
    this.target = parseTarget(target)
    if (typeof options.tls === 'object') checkOptions(options.tls, { ca: true, cert: true, key: true })
    const plaintext = options.tls === undefined ? this.target.loopback : options.tls === false
    this.#token = tokenSource(options)
    if (this.#token !== undefined && plaintext && !this.target.loopback && options.tokenOverPlaintext !== true) {
      throw new TypeError('a token would travel in plaintext to another machine: use tls, or allow it with tokenOverPlaintext')
    }
    this.#client = new grpc.Client(this.target.name, plaintext ? grpc.credentials.createInsecure() : secure(options.tls), {
      ...channelDefaults,
      ...(options.compression === 'gzip' ? { 'grpc.default_compression_algorithm': grpc.compressionAlgorithms.gzip } : {}),
      ...options.channelOptions
    })
  }

  close (): void {
    this.#client.close()
  }

  /** Makes one attempt of a call, which ends after timeoutMs or with the signal. It rejects with a JobOnceError alone. */
  async attempt<I extends DescMessage, O extends DescMessage> (
    method: DescMethodUnary<I, O>, request: MessageShape<I>, timeoutMs: number, signal: AbortSignal
  ): Promise<MessageShape<O>> {
    const metadata = new grpc.Metadata()
    const end = performance.now() + timeoutMs
    if (this.#token !== undefined) metadata.set('authorization', `Bearer ${await within(timeoutMs, signal, this.#ask(this.#token))}`)
    if (signal.aborted) throw new JobOnceError('CANCELLED: the call was given up before it was sent', { code: grpc.status.CANCELLED })
    return await new Promise((resolve, reject) => {
      const deadline = new Date(Date.now() + Math.max(0, end - performance.now()))
      const cancel = (): void => { call.cancel() }
      const call = this.#client.makeUnaryRequest(
        `/${method.parent.typeName}/${method.name}`,
        (message: MessageShape<I>) => Buffer.from(toBinary(method.input, message)),
        bytes => fromBinary(method.output, bytes),
        request, metadata, { deadline },
        (error, response) => {
          signal.removeEventListener('abort', cancel)
          if (error === null) {
            resolve(response as MessageShape<O>)
            return
          }
          // gRPC names the peer as soon as the call is given to a connection. Without one nothing can have been sent.
          const sent = call.getPeer() !== this.#client.getChannel().getTarget()
          const failure = fromServiceError(error)
          reject(sent ? failure : changed(failure, { outcomeUnknown: false }))
        })
      signal.addEventListener('abort', cancel, { once: true })
    })
  }

  async #ask (source: () => string | Promise<string>): Promise<string> {
    let problem: unknown
    try {
      const token = await source()
      if (/^[\x21-\x7e]+$/.test(token)) return token
      problem = new Error('the token is empty, or holds a space, a line break or another character that a header cannot carry')
    } catch (error) {
      problem = error
    }
    throw new JobOnceError('UNAUTHENTICATED: there is no token to send', { code: grpc.status.UNAUTHENTICATED, cause: problem })
  }
}

/** Waits for a token no longer than the call may take: without that a source that hangs keeps a lease from being renewed, and its work from hearing. */
async function within (timeoutMs: number, signal: AbortSignal, token: Promise<string>): Promise<string> {
  const over = new AbortController()
  const end = (): void => { over.abort() }
  signal.addEventListener('abort', end, { once: true })
  try {
    const late = sleep(timeoutMs, over.signal).then(() => {
      throw new JobOnceError('DEADLINE_EXCEEDED: no token came in time', { code: grpc.status.DEADLINE_EXCEEDED })
    })
    return await Promise.race([token, late])
  } finally {
    signal.removeEventListener('abort', end)
    end()
  }
}

function secure (tls: ConnectionOptions['tls']): grpc.ChannelCredentials {
  const { ca, cert, key } = typeof tls === 'object' ? tls : {}
  const pem = (text: string | Uint8Array | undefined): Buffer | null => text === undefined ? null : Buffer.from(text)
  return grpc.credentials.createSsl(pem(ca), pem(key), pem(cert))
}

/** How long what the file held is used before it is read again, in milliseconds. */
const fileAge = 1000

function tokenSource ({ token, tokenFile }: ConnectionOptions): (() => string | Promise<string>) | undefined {
  if (token !== undefined && tokenFile !== undefined) throw new TypeError('token and tokenFile exclude each other')
  if (tokenFile === undefined) return typeof token === 'string' ? () => token : token
  const load = (): string => {
    const text = readFileSync(tokenFile, 'utf8').trim()
    if (text === '') throw new Error(`${tokenFile} is empty`)
    return text
  }
  let last = load()
  let read = performance.now()
  return () => {
    if (performance.now() - read >= fileAge) {
      read = performance.now()
      try {
        last = load()
      } catch {
        // The last one is as good as it was.
      }
    }
    return last
  }
}
