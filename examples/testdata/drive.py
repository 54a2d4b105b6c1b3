"""Makes the calls that it reads from standard input, a JSON object a line, with client.py, and prints what came of each.

Arguments: the address, and gzip to compress requests.
"""

import base64
import json
import sys

import grpc
from google.protobuf import json_format
from jobonce.v1 import idempotency_service_pb2 as idempotency
from jobonce.v1 import idempotency_service_pb2_grpc, types_pb2, work_service_pb2, work_service_pb2_grpc

import client

compression = grpc.Compression.Gzip if "gzip" in sys.argv else None
channel = grpc.insecure_channel(sys.argv[1], compression=compression)
jobs = idempotency_service_pb2_grpc.IdempotencyServiceStub(channel)
work = work_service_pb2_grpc.WorkServiceStub(channel)


def record(body, leased=False, patience=8, **delivery):
    if leased:
        delivery.update(workMode="WORK_MODE_LEASED", leaseDuration="60s")
    request = json_format.ParseDict(delivery, idempotency.RecordDeliveryRequest())
    r = client.record(jobs, base64.b64decode(body), request, patience)
    return {
        "disposition": types_pb2.Disposition.Name(r.disposition),
        "startWork": r.start_work,
        "deliveries": r.deliveries,
        "leaseToken": r.lease.token,
    }


def renew(**lease):
    request = json_format.ParseDict({**lease, "leaseDuration": "60s"}, work_service_pb2.RenewLeaseRequest())
    return json_format.MessageToDict(client.call(work.RenewLease, request))


def complete(**lease):
    request = json_format.ParseDict(lease, work_service_pb2.CompleteWorkRequest())
    return json_format.MessageToDict(client.call(work.CompleteWork, request))


def release(**lease):
    request = json_format.ParseDict(lease, work_service_pb2.ReleaseWorkRequest())
    return json_format.MessageToDict(client.call(work.ReleaseWork, request))


OPERATIONS = {"record": record, "renew": renew, "complete": complete, "release": release}

for line in sys.stdin:
    arguments = json.loads(line)
    try:
        answer = OPERATIONS[arguments.pop("op")](**arguments)
    except client.CallFailed as failed:
        f = failed.failure
        answer = {"error": {"code": f.code.name, "reason": f.reason, "field": f.field, "retrySeconds": f.retry_seconds}}
    print(json.dumps(answer), flush=True)
