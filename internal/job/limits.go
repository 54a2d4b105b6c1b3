package job

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// The limits of a delivery's fields, in bytes. That of job_id keeps it well under MongoDB's index key and within what
// other systems take for a key.
const (
	MaxJobIDBytes       = 255
	MaxEventBytes       = 128
	MaxStatusBytes      = 64
	MaxSourceBytes      = 64
	MaxRequestIDBytes   = 128
	MaxContentTypeBytes = 128
	// MaxTraceparentBytes is the length of every well-formed one.
	MaxTraceparentBytes = 55

	// DefaultMaxBodyBytes is the limit of a body unless the operator sets another, MaxBodyBytes the highest one
	// that may be set: a job must fit into a response that a client with gRPC's default limit of 4 MiB can receive.
	DefaultMaxBodyBytes = 1 << 20
	MaxBodyBytes        = 3 << 20
)

// The limits of what workers say, in bytes and in jobs.
const (
	MaxResultBytes   = 64 << 10
	MaxErrorBytes    = 4 << 10
	MaxWorkerIDBytes = 128
	MaxTokenBytes    = 128
	MaxClaimJobs     = 100
	MaxClaimEvents   = 100
)

// The bounds of a lease and of the delay before work is tried again, and of how often it is.
const (
	MinLease      = time.Second
	MaxLease      = 24 * time.Hour
	MaxRetryDelay = 24 * time.Hour

	// DefaultMaxAttempts is how many leases a job is granted before it counts as dead: with the client's pauses, which grow
	// to an hour, it is tried for 29 hours.
	DefaultMaxAttempts = 40
)

// CheckJobID checks an id: 1 to 255 bytes of UTF-8 without control characters. Nothing else about it matters, it is
// compared byte for byte.
func CheckJobID(id string) error {
	switch {
	case id == "":
		return &InvalidError{Field: "job_id", Problem: "is required"}
	case len(id) > MaxJobIDBytes:
		return &InvalidError{Field: "job_id", Problem: fmt.Sprintf("is %d bytes; the limit is %d", len(id), MaxJobIDBytes)}
	case !utf8.ValidString(id):
		return &InvalidError{Field: "job_id", Problem: "is not valid UTF-8"}
	}
	return checkControls("job_id", id)
}

func checkControls(field, value string) error {
	for _, r := range value {
		if unicode.IsControl(r) {
			return &InvalidError{Field: field, Problem: fmt.Sprintf("holds the control character %U", r)}
		}
	}
	return nil
}

// CheckContentType checks the media type of a body: it must be fit for a header of HTTP. Empty is fine.
func CheckContentType(value string) error {
	if err := CheckText("content_type", value, MaxContentTypeBytes); err != nil {
		return err
	}
	return checkControls("content_type", value)
}

// traceparents are the well-formed ones of the W3C's Trace Context, level 2, section 3.2: version, trace, parent and flags, in
// lower-case hex. The version ff, and traces and parents of zeros alone, are forbidden there.
var traceparents = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

func wellFormedTraceparent(s string) bool {
	return len(s) == MaxTraceparentBytes && traceparents.MatchString(s) && s[:2] != "ff" &&
		strings.Trim(s[3:35], "0") != "" && strings.Trim(s[36:52], "0") != ""
}

// CheckPrefix checks what the ids of jobs are to begin with: the beginning of an id, up to one of its colons.
func CheckPrefix(field, prefix string) error {
	if !strings.HasSuffix(prefix, ":") {
		return &InvalidError{Field: field, Problem: `must end in ":"`}
	}
	err := CheckJobID(prefix)
	if invalid := (*InvalidError)(nil); errors.As(err, &invalid) {
		return &InvalidError{Field: field, Problem: invalid.Problem}
	}
	return err
}

// CheckLease checks the duration of a lease; nil when it is missing.
func CheckLease(d *time.Duration) error {
	if d == nil {
		return &InvalidError{Field: "lease_duration", Problem: "is required"}
	}
	if *d < MinLease || *d > MaxLease {
		return &InvalidError{Field: "lease_duration", Problem: fmt.Sprintf("must be %v to %v", MinLease, MaxLease)}
	}
	return nil
}

// CheckText checks a text of a request: at most limit bytes of UTF-8.
func CheckText(field, value string, limit int) error {
	if len(value) > limit {
		return &InvalidError{Field: field, Problem: fmt.Sprintf("is %d bytes; the limit is %d", len(value), limit)}
	}
	if !utf8.ValidString(value) {
		return &InvalidError{Field: field, Problem: "is not valid UTF-8"}
	}
	return nil
}

// CheckToken checks the token of a request. That it is well formed says nothing about whether it holds.
func CheckToken(token string) error {
	if token == "" {
		return &InvalidError{Field: "lease_token", Problem: "is required"}
	}
	return CheckText("lease_token", token, MaxTokenBytes)
}
