package cli

import (
	"fmt"
	"io"
	"strings"

	"google.golang.org/protobuf/proto"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// unwrittenError is that a call has changed something, and its answer could not be written. It names what nobody else
// knows: the call's request id, with which the answer can be had again, and the leases that it got.
type unwrittenError struct {
	cause     error
	requestID string // Empty for a call that has none, and that may be repeated as it is.
	leases    []grant
}

// grant is a lease and the job that it is on.
type grant struct {
	jobID string
	lease *joboncev1.Lease
}

func (e *unwrittenError) Unwrap() error { return e.cause }

func (e *unwrittenError) Error() string {
	var b strings.Builder
	b.WriteString(e.message())
	for _, g := range e.leases {
		b.WriteByte(';')
		pair(&b, "job_id", g.jobID)
		leasePairs(&b, g.lease)
	}
	fmt.Fprintf(&b, "; %s", e.hint())
	return b.String()
}

func (e *unwrittenError) message() string {
	return fmt.Sprintf("the service has done it, but the answer could not be written: %v", e.cause)
}

// hint is what can be done about it.
func (e *unwrittenError) hint() string {
	if e.requestID != "" {
		return "to get the answer again, repeat the call with --request-id " + e.requestID
	}
	return "the call may be repeated as it is"
}

// writeAnswer writes the answer of a call that has changed something; kept is what must not be lost with it.
func writeAnswer(out io.Writer, answer string, kept unwrittenError) error {
	if _, err := io.WriteString(out, answer); err != nil {
		kept.cause = err
		return &kept
	}
	return nil
}

// answerOf is the answer in the output format: text, or the messages as JSON.
func answerOf[M proto.Message](format, text string, messages ...M) (string, error) {
	if format != outputJSON {
		return text, nil
	}
	var b strings.Builder
	for _, m := range messages {
		if err := printJSON(&b, m); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}
