package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// secret is what a driver may say and a client must not hear.
const secret = "dial mongodb://user:hunter2@db"

// storeErrors are the errors of a store, and what a client is to hear of a write with the request id "req".
var storeErrors = []struct {
	name     string
	err      error
	code     codes.Code
	want     told
	pushback string
}{
	{"not found", job.ErrNotFound, codes.NotFound, told{reason: "JOB_NOT_FOUND"}, ""},
	{"unusable", job.ErrRecordUnusable, codes.FailedPrecondition, told{reason: "RECORD_UNUSABLE"}, ""},
	{"invalid", &job.InvalidError{Field: "event", Problem: "is odd"}, codes.InvalidArgument, told{reason: "INVALID_FIELD", field: "event"}, ""},
	{"too large", &job.InvalidError{Field: "payload", Problem: "is long", TooLarge: true}, codes.InvalidArgument,
		told{reason: "PAYLOAD_TOO_LARGE", field: "payload"}, ""},
	{"overloaded", job.ErrOverloaded, codes.ResourceExhausted, told{reason: "OVERLOADED", retry: 200 * time.Millisecond}, "200"},
	{"unavailable", job.ErrUnavailable, codes.Unavailable, told{reason: "STORE_UNAVAILABLE", retry: 500 * time.Millisecond}, "500"},
	{"not ready", fmt.Errorf("%w: duplicates", job.ErrUnready), codes.Unavailable, told{reason: "STORE_UNAVAILABLE", retry: 500 * time.Millisecond}, "500"},
	{"unavailable in time", errors.Join(job.ErrUnavailable, context.DeadlineExceeded), codes.Unavailable,
		told{reason: "STORE_UNAVAILABLE", retry: 500 * time.Millisecond}, "500"},
	{"unknown", job.ErrOutcomeUnknown, codes.Unavailable,
		told{reason: "OUTCOME_UNKNOWN", requestID: "req", retry: 100 * time.Millisecond}, "100"},
	{"unknown by the store's own deadline", errors.Join(job.ErrOutcomeUnknown, context.DeadlineExceeded), codes.Unavailable,
		told{reason: "OUTCOME_UNKNOWN", requestID: "req", retry: 100 * time.Millisecond}, "100"},
	{"store closed itself", errors.Join(job.ErrUnavailable, context.Canceled), codes.Unavailable,
		told{reason: "STORE_UNAVAILABLE", retry: 500 * time.Millisecond}, "500"},
	{"deadline", context.DeadlineExceeded, codes.DeadlineExceeded, told{reason: "OUTCOME_UNKNOWN", requestID: "req"}, ""},
	{"cancelled", context.Canceled, codes.Canceled, told{reason: "OUTCOME_UNKNOWN", requestID: "req"}, ""},
	{"anything else", errors.New("boom"), codes.Internal, told{reason: "INTERNAL"}, ""},
}

func TestStoreErrors(t *testing.T) {
	for _, tc := range storeErrors {
		t.Run(tc.name, func(t *testing.T) {
			err := fmt.Errorf("%s: %w", secret, tc.err)
			if tc.code == codes.InvalidArgument {
				err = tc.err // its text is for the client
			}
			s := start(t, Config{}, &memoryJobs{
				onRecord: func(context.Context, job.Delivery) error { return err },
				onGet:    func(context.Context) error { return err },
			})
			check := func(what string, got error, trailer metadata.MD, want told) {
				t.Helper()
				if status.Code(got) != tc.code || details(t, got) != want {
					t.Errorf("%s: got %v %+v, want %v %+v", what, got, details(t, got), tc.code, want)
				}
				if strings.Contains(got.Error(), secret) {
					t.Errorf("%s: the client hears %q", what, got)
				}
				if pushback := strings.Join(trailer.Get("grpc-retry-pushback-ms"), " "); pushback != tc.pushback {
					t.Errorf("%s: pushback %q, want %q", what, pushback, tc.pushback)
				}
			}

			var trailer metadata.MD
			req := text("id", "{}")
			req.RequestId = "req"
			_, got := s.RecordDelivery(t.Context(), req, grpc.Trailer(&trailer))
			check("RecordDelivery", got, trailer, tc.want)
			message := status.Convert(got).Message()

			read := tc.want
			read.requestID = ""
			_, got = s.GetJob(t.Context(), &joboncev1.GetJobRequest{JobId: "id"}, grpc.Trailer(&trailer))
			check("GetJob", got, trailer, read)

			batch, err := s.BatchRecordDeliveries(t.Context(), &joboncev1.BatchRecordDeliveriesRequest{
				Deliveries: []*joboncev1.RecordDeliveryRequest{req},
			})
			testenv.Must(t, err)
			e := batch.GetResults()[0].GetError()
			item := told{
				reason: reasonName(e.GetReason()), field: e.GetField(), retry: e.GetRetryDelay().AsDuration(), requestID: e.GetRequestId(),
			}
			if codes.Code(e.GetCode()) != tc.code || item != tc.want || e.GetMessage() != message {
				t.Errorf("BatchRecordDeliveries: got %v, want %v %+v %q", e, tc.code, tc.want, message)
			}

			// What is ours to mend is logged with its cause, for single calls and batches.
			if serverFault(tc.code) || tc.err == job.ErrRecordUnusable {
				for _, msg := range []string{"call failed", "items of a batch failed"} {
					if lines := s.log.lines(t, msg); len(lines) == 0 || !strings.Contains(fmt.Sprint(lines[0]["cause"]), secret) {
						t.Errorf("%q: the log has no cause: %v", msg, lines)
					}
				}
			}
		})
	}
}

// Every reason has a code and survives the way to the client, with all that goes with it.
func TestEveryReason(t *testing.T) {
	for n, name := range joboncev1.ErrorReason_name {
		reason := joboncev1.ErrorReason(n)
		if reason == joboncev1.ErrorReason_ERROR_REASON_UNSPECIFIED {
			continue
		}
		t.Run(name, func(t *testing.T) {
			p := newProblem(reason, "a message")
			p.field, p.requestID, p.cause = "job_id", "req", errors.New(secret)
			s := start(t, Config{}, &memoryJobs{onGet: func(context.Context) error { return p }})
			_, err := s.GetJob(t.Context(), &joboncev1.GetJobRequest{JobId: "id"})
			want := told{reason: name[len("ERROR_REASON_"):], field: "job_id", requestID: "req", retry: p.retry}
			if details(t, err) != want || status.Convert(err).Message() != "a message" {
				t.Errorf("got %v %+v, want %+v", err, details(t, err), want)
			}
			if code := status.Code(err); code != p.code || code == codes.OK || code == codes.Unknown {
				t.Errorf("got the code %v", code)
			}
			retryable := p.code == codes.Unavailable || p.code == codes.ResourceExhausted
			if retryable != (p.retry > 0) {
				t.Errorf("%v with a retry after %v", p.code, p.retry)
			}
		})
	}
}

// When the call itself ends, that comes first for a write whose fate is unknown.
func TestEndedCall(t *testing.T) {
	for _, tc := range []struct {
		end  error
		code codes.Code
	}{
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{context.Canceled, codes.Canceled},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		p := explain(ctx, errors.Join(job.ErrOutcomeUnknown, tc.end), "req")
		if p.code != tc.code || p.reason != joboncev1.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN || p.requestID != "req" || p.retry != 0 {
			t.Errorf("%v: got %+v", tc.end, p)
		}
	}
}

// TestWords: a read is not told of writing, a write always is, and each in the words of its own call. Only who may repeat the call as it is
// is told when.
func TestWords(t *testing.T) {
	const same = "written or not: repeat the call as it is"
	const others = "written or not: the same call would requeue others, dry_run says what is left"
	const nothing, again, token = "; nothing was written", "written or not: retry with the same request_id", "written or not: repeat the call with the same lease_token"
	for _, e := range []struct {
		err                    error
		delivery, claim, lease string
	}{
		{job.ErrOverloaded, nothing, nothing, nothing},
		{job.ErrUnavailable, "the store is not available at the moment" + nothing, nothing, nothing},
		{job.ErrUnready, "the store is not ready; the server's log says what it waits for" + nothing, nothing, nothing},
		{job.ErrOutcomeUnknown, again, again, token},
		{context.DeadlineExceeded, again, again, token},
		{context.Canceled, again, again, token},
		{job.ErrRecordUnusable, "", "", ""},
	} {
		s := start(t, Config{}, &foreign{err: e.err})
		for _, c := range everyCall(s) {
			resp, err := c.call(t.Context())
			message := status.Convert(err).Message()
			if batch, ok := resp.(*joboncev1.BatchRecordDeliveriesResponse); ok {
				message = batch.GetResults()[0].GetError().GetMessage()
			}
			want := e.lease
			if retry := details(t, err).retry; errors.Is(e.err, job.ErrOutcomeUnknown) && err != nil && (retry > 0) != (c.name != "RequeueJobs") {
				t.Errorf("%s with %v is to be repeated after %v", c.name, e.err, retry)
			}
			switch name, _, _ := strings.Cut(c.name, ","); name {
			case "GetJob", "ListJobs", "ListExpectations", "ListClaimPauses":
				want = ""
			case "ClaimOverdueJobs":
				if want == token {
					want = same
				}
			case "RequeueJobs":
				if want == token {
					want = others
				}
			case "RecordDelivery", "BatchRecordDeliveries":
				want = e.delivery
			case "ClaimWork":
				want = e.claim
			}
			if !strings.HasSuffix(message, want) || message == "" || want == "" && strings.Contains(message, "writ") {
				t.Errorf("%s with %v: %q, want …%q", c.name, e.err, message, want)
			}
		}
	}
}

// What is refused at the door is told in the words of the call, too.
func TestWordsAtTheDoor(t *testing.T) {
	s := start(t, Config{MaxCalls: 1}, new(memoryJobs))
	defer s.server.door.room.enter().leave()
	_, read := s.GetJob(t.Context(), &joboncev1.GetJobRequest{JobId: "j"})
	_, write := s.RecordDelivery(t.Context(), text("j", "{}"))
	if r, w := status.Convert(read).Message(), status.Convert(write).Message(); strings.Contains(r, "writ") || w != r+"; nothing was written" {
		t.Errorf("a read hears %q, a write %q", r, w)
	}
}

// TestPublishedCodes: docs/retry-policy.json has clients repeat what the service asks them to repeat, and not RequeueJobs.
func TestPublishedCodes(t *testing.T) {
	text, err := os.ReadFile("../docs/retry-policy.json")
	testenv.Must(t, err)
	var config struct {
		MethodConfig []struct {
			Name        []struct{ Service string }
			RetryPolicy struct{ RetryableStatusCodes []codes.Code }
		}
	}
	testenv.Must(t, json.Unmarshal(text, &config))
	for _, c := range config.MethodConfig {
		for _, n := range c.Name {
			if n.Service == "" || n.Service == joboncev1.AdminService_ServiceDesc.ServiceName {
				t.Errorf("the policy is for RequeueJobs too: %q", n.Service)
			}
		}
	}
	got, want := make(map[codes.Code]bool), make(map[codes.Code]bool)
	for _, c := range config.MethodConfig[0].RetryPolicy.RetryableStatusCodes {
		got[c] = true
	}
	for _, r := range reasons {
		if r.retry > 0 {
			want[r.code] = true
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("published %v, sent %v", got, want)
	}
}
