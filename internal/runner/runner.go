// Package runner does the work of jobs with programs that know nothing of JobOnce: an HTTP service to which each job is sent, or
// a command that is run for it. What it makes is the function of a [client.Worker], which does everything else.
package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/time/rate"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// The service's limits of what it stores with a job.
const (
	maxResultBytes = 64 << 10
	maxErrorBytes  = 4 << 10
)

// moreBytes is how much more of a text is read than is kept, so that the character at the cut is not taken for a malformed one.
const moreBytes = utf8.UTFMax - 1

// failure is why the work of a job was not done. The log has what happened; what the program said about it may hold anything,
// and is stored with the job alone.
type failure struct{ happened, said string }

func (f *failure) Error() string {
	if f.said == "" {
		return f.happened
	}
	return f.happened + ": " + f.said
}

// LogValue is what a log is told.
func (f *failure) LogValue() slog.Value { return slog.StringValue(f.happened) }

// Limit lets fn begin with no more jobs than the limiter allows. A job that waits for its turn when stopping ends is given back,
// and not counted.
func Limit(fn client.WorkFunc, limiter *rate.Limiter, stopping context.Context) client.WorkFunc {
	return func(ctx context.Context, w *client.Work) error {
		waiting, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(stopping, cancel)()
		if err := limiter.Wait(waiting); err != nil {
			return client.NotStarted(fmt.Errorf("the worker stopped before the job's turn came: %w", err))
		}
		return fn(ctx, w)
	}
}

// body is the job's body, and its content type: that which was recorded, or else one that fits.
func body(job *joboncev1.Job) (body []byte, contentType string) {
	defer func() {
		// In a record that somebody else wrote it may be anything.
		if recorded := job.GetContentType(); recorded != "" && httpguts.ValidHeaderFieldValue(recorded) {
			contentType = recorded
		}
	}()
	switch b := job.GetBody().(type) {
	case *joboncev1.Job_Payload:
		if body = []byte(b.Payload); json.Valid(body) {
			contentType = "application/json"
		} else {
			contentType = "text/plain; charset=utf-8"
		}
	case *joboncev1.Job_PayloadBytes:
		body, contentType = b.PayloadBytes, "application/octet-stream"
	}
	return body, contentType
}

// messageID names the job to those that know nothing of job ids, whatever bytes are in its id: the same one on every attempt, and
// another one once somebody has queued the job anew, so that it is not taken for what was done before.
func messageID(job *joboncev1.Job) string {
	sum := sha256.Sum256([]byte(job.GetJobId()))
	id := "msg_" + hex.EncodeToString(sum[:16])
	if n := job.GetWork().GetRequeues(); n > 0 {
		id += fmt.Sprintf("-r%d", n)
	}
	return id
}

// whole gives up jobs whose body was too large to be kept: no program could do their work.
func whole(fn client.WorkFunc) client.WorkFunc {
	return func(ctx context.Context, w *client.Work) error {
		if n := w.Job.GetPayloadOmittedBytes(); n > 0 {
			return client.Permanent(&failure{happened: fmt.Sprintf("the body, of %d bytes, was too large to be kept, so there is nothing to work on", n)})
		}
		return fn(ctx, w)
	}
}

// clean is text as the service takes it, cut at a character to limit bytes at most. A longer text has moreBytes beyond them.
func clean(text []byte, limit int) string {
	s := strings.ToValidUTF8(string(text), "\uFFFD")
	if len(s) <= limit {
		return s
	}
	for !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
