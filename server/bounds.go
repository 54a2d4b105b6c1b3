package server

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
)

// Others write to the same collection and know no limits, so everything that comes from a record is bounded on its way out:
// texts are cut to the limit of their field, by [clip], and a body that no response can hold is an error, by [tooLong].
const (
	// maxResponseBytes holds the largest payload and the rest of its job, and stays under the 4 MiB that gRPC clients
	// take by default.
	maxResponseBytes = job.MaxBodyBytes + 128<<10
	// jobOverhead is more than a job takes in a response beside its body and its result: texts, error, conflicts and lease.
	jobOverhead = 8 << 10
	// maxMessageBytes bounds the message of an error.
	maxMessageBytes = 1 << 10
)

// clip cuts a text to a limit in bytes, at a character.
func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// tooLong is the error of a record whose body no response can hold; nil when one can.
func tooLong(r *job.Record) error {
	if len(r.Body.Data) <= job.MaxBodyBytes {
		return nil
	}
	p := newProblem(joboncev1.ErrorReason_ERROR_REASON_PAYLOAD_TOO_LARGE,
		fmt.Sprintf("the stored payload is %d bytes, a response holds %d; GetJob with JOB_VIEW_BASIC reads the rest of the job", len(r.Body.Data), job.MaxBodyBytes))
	p.code = codes.FailedPrecondition
	p.cause = fmt.Errorf("job %q: %s", clip(r.JobID, job.MaxJobIDBytes), p.message)
	return p
}

// fit leaves out what does not fit into the response to a batch beside what comes before it: bodies of jobs to work on, and
// results of completed work. Their callers read them with GetJob.
func fit(resp *joboncev1.BatchRecordDeliveriesResponse) {
	room := maxResponseBytes - proto.Size(resp)
	for _, r := range resp.GetResults() {
		room += long(r.GetResponse())
	}
	for _, r := range resp.GetResults() {
		answer := r.GetResponse()
		n := long(answer)
		switch {
		case n <= max(room, 0):
			room -= n
		case answer.GetResult() != "":
			answer.Result, answer.ResultOmitted = "", true
		default:
			answer.Job.Body = nil
		}
	}
}

// long is how many bytes of an answer may be left out: it has a body or a result.
func long(answer *joboncev1.RecordDeliveryResponse) int {
	j := answer.GetJob()
	return len(j.GetPayload()) + len(j.GetPayloadBytes()) + len(answer.GetResult())
}
