import { fromBinary, type DescMessage, type MessageShape } from '@bufbuild/protobuf'
import { status, type ServiceError } from '@grpc/grpc-js'
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema, StatusSchema } from './gen/jobonce/sdk/details_pb.js'
import { ErrorReason } from './gen/jobonce/v1/types_pb.js'

/** Why a call failed, as the service names it: an ErrorReason without its prefix. */
export type Reason = Exclude<keyof typeof ErrorReason, 'UNSPECIFIED'>

/**
 * Why a call failed. Decide on `code` and `reason`, never on the message. A newer service may give a reason that is not a
 * {@link Reason}; then the code decides what to do.
 */
export class JobOnceError extends Error {
  /** The gRPC status code of the last attempt that failed for a reason of its own. */
  readonly code: status
  /** The reason as the service wrote it. Empty when the error is not the service's, such as a connection that failed. */
  readonly reason: Reason | (string & {})
  /** The request's field at fault, by its name in the API, such as `job_id`. Empty when it is none's. */
  readonly field: string
  /** How long the service asks to wait before a retry, in milliseconds. 0 when it says nothing. */
  readonly retryAfterMs: number
  /**
   * The request id of the delivery or claim that failed. Whoever makes the call again sets it, and gets the answer that
   * was lost if there was one. Empty for other calls.
   */
  readonly requestId: string
  /** True when an attempt of the call may have been written. When false, none was. */
  readonly outcomeUnknown: boolean

  constructor (message: string, fields: Partial<Omit<JobOnceError, keyof Error | 'is'>> & { cause?: unknown } = {}) {
    super(message, 'cause' in fields ? { cause: fields.cause } : undefined)
    this.name = 'JobOnceError'
    this.code = fields.code ?? status.UNKNOWN
    this.reason = fields.reason ?? ''
    this.field = fields.field ?? ''
    this.retryAfterMs = fields.retryAfterMs ?? 0
    this.requestId = fields.requestId ?? ''
    this.outcomeUnknown = fields.outcomeUnknown ?? false
  }

  /**
   * Tells whether this is the reason. OUTCOME_UNKNOWN is also the reason of an error whose last attempt was refused, when an
   * attempt before it may have been written.
   */
  is (reason: Reason): boolean {
    return reason === 'OUTCOME_UNKNOWN' ? this.outcomeUnknown : reason === (this.reason || impliedReasons[this.code])
  }
}

/** For answers of gRPC itself and of proxies. Other codes have several reasons or none. */
const impliedReasons: Partial<Record<status, Reason>> = {
  [status.UNAUTHENTICATED]: 'UNAUTHENTICATED',
  [status.PERMISSION_DENIED]: 'PERMISSION_DENIED',
  [status.UNIMPLEMENTED]: 'UNIMPLEMENTED'
}

/** The longest wait that a service is believed, in milliseconds. */
const longestWait = 3_600_000

/** Reads the error of an attempt. */
export function fromServiceError (error: ServiceError): JobOnceError {
  const read = { code: error.code, reason: '', field: '', retryAfterMs: 0 }
  for (const { typeUrl, value } of details(error)) {
    switch (typeUrl.slice(typeUrl.lastIndexOf('/') + 1)) {
      case 'google.rpc.ErrorInfo': {
        const info = message(ErrorInfoSchema, value)
        if (info?.domain === 'jobonce') read.reason = info.reason
        break
      }
      case 'google.rpc.RetryInfo': {
        const delay = message(RetryInfoSchema, value)?.retryDelay
        const ms = Number(delay?.seconds ?? 0) * 1000 + (delay?.nanos ?? 0) / 1e6
        read.retryAfterMs = Math.min(Math.max(0, ms), longestWait)
        break
      }
      case 'google.rpc.BadRequest':
        read.field = message(BadRequestSchema, value)?.fieldViolations[0]?.field ?? ''
    }
  }
  const known = reasonOf(read.code, read.reason)
  const outcomeUnknown = known === '' || known === 'OUTCOME_UNKNOWN' || known === 'INTERNAL'
  return new JobOnceError(text(read.code, read.reason, error.details), { ...read, outcomeUnknown })
}

function text (code: status, reason: string, message: string): string {
  return `${status[code] ?? code}${reason && ' '}${reason}: ${message}`
}

function details (error: ServiceError): { typeUrl: string, value: Uint8Array }[] {
  const [bytes] = error.metadata?.get('grpc-status-details-bin') ?? []
  return bytes instanceof Uint8Array ? message(StatusSchema, bytes)?.details ?? [] : []
}

/** What the bytes hold. Undefined when it cannot be read: whatever it is then, it is not the service's. */
function message<T extends DescMessage> (schema: T, bytes: Uint8Array): MessageShape<T> | undefined {
  try {
    return fromBinary(schema, bytes)
  } catch {
    return undefined
  }
}

/** The reason, as far as this version knows it, or else what the code stands for. */
function reasonOf (code: status, reason: string): Reason | '' {
  if (reason !== '') return Object.hasOwn(ErrorReason, reason) && reason !== 'UNSPECIFIED' ? reason as Reason : ''
  return impliedReasons[code] ?? ''
}

const retryReasons: ReadonlySet<string> = new Set<Reason>(['OVERLOADED', 'RATE_LIMITED', 'STORE_UNAVAILABLE', 'OUTCOME_UNKNOWN'])

/** Tells whether the same call, with the same request id, may succeed later. */
export function retryable ({ code, reason }: JobOnceError): boolean {
  const known = reasonOf(code, reason)
  if (known !== '') return retryReasons.has(known)
  // The connection's own errors, and reasons that a newer service gives.
  return code === status.UNAVAILABLE || code === status.DEADLINE_EXCEEDED || code === status.CANCELLED
}

/** The service's answer to a field that is not even sent. */
export function invalid (field: string, message: string): JobOnceError {
  return new JobOnceError(text(status.INVALID_ARGUMENT, 'INVALID_FIELD', message), {
    code: status.INVALID_ARGUMENT, reason: 'INVALID_FIELD', field
  })
}

/** The error of a body that no service takes. */
export function tooLarge (message: string): JobOnceError {
  return new JobOnceError(text(status.INVALID_ARGUMENT, 'PAYLOAD_TOO_LARGE', message), {
    code: status.INVALID_ARGUMENT, reason: 'PAYLOAD_TOO_LARGE', field: 'payload'
  })
}

/** A copy of the error with other fields. */
export function changed (error: JobOnceError, fields: Partial<Omit<JobOnceError, keyof Error | 'is'>> & { cause?: unknown }): JobOnceError {
  const { code, reason, field, retryAfterMs, requestId, outcomeUnknown, cause } = error
  const all = { code, reason, field, retryAfterMs, requestId, outcomeUnknown, ...(cause === undefined ? {} : { cause }), ...fields }
  const copy = new JobOnceError(error.message, all)
  copy.name = error.name
  return copy
}
