package job

import (
	"fmt"
	"strings"

	"github.com/jobonce/jobonce/internal/payload"
)

// errNoJobID is the error of a delivery whose job_id stands neither in the request nor, readable, in the body. It says what
// the body is and what to send instead, and repeats nothing of it. info is what is known of the body.
func (d *Delivery) errNoJobID(info *payload.Info, opaque bool) error {
	return &InvalidError{Field: "job_id", Problem: "is required" + d.whyNoJobID(info, opaque)}
}

func (d *Delivery) whyNoJobID(info *payload.Info, opaque bool) string {
	body := d.Body.Data
	switch {
	case d.Body.Kind == BodyNone:
		return ": set job_id, or send a payload that has it"
	case body == "":
		return ": the payload is empty"
	case strings.HasPrefix(body, "\x1f\x8b"):
		return ": the body is compressed with gzip; decompress it, and send the JSON as payload"
	case isUTF16(body):
		return ": the body is UTF-16; convert it to UTF-8, and send it as payload"
	case d.Body.Kind == BodyBytes:
		return " with payload_bytes, which are never read; set job_id, or send JSON as payload"
	case opaque:
		return " with opaque_payload: the payload's own is not read"
	case info.Object:
		return ownJobID(info.JobID)
	case !info.JSON && isForm(body):
		return ": the payload is a form and no JSON; set job_id"
	case !info.JSON:
		return fmt.Sprintf(": the payload is %v; send JSON, or set job_id", payload.Check(body))
	}
	switch strings.TrimLeft(body, "\ufeff \t\r\n")[0] {
	case '[':
		return ": the payload is an array; record each of its elements, or set job_id"
	case '"':
		return ": the payload is a JSON string; send what it holds, or set job_id"
	}
	return ": the payload is no JSON object; send one, or set job_id"
}

// ownJobID says why an object's own job_id cannot be taken.
func ownJobID(own payload.Field) string {
	var is string
	switch own.Kind {
	case payload.End:
		return ": the payload has none at its top level; set job_id"
	case payload.String:
		if own.Present {
			return ": the payload's is the empty string"
		}
		return fmt.Sprintf(": the payload's is longer than %d bytes, or holds half of a surrogate pair", MaxJobIDBytes)
	case payload.Number:
		is = "a number"
	case payload.Null:
		is = "null"
	case payload.EndObject:
		is = "an object"
	case payload.EndArray:
		is = "an array"
	default:
		is = "true or false"
	}
	return ": the payload's is " + is + "; send it as a string, or set job_id"
}

// isUTF16 tells whether body begins as JSON does in UTF-16: with a byte-order mark, or with two ASCII characters.
func isUTF16(body string) bool {
	if strings.HasPrefix(body, "\xff\xfe") || strings.HasPrefix(body, "\xfe\xff") {
		return true
	}
	if len(body) < 4 {
		return false
	}
	zero := [4]bool{body[0] == 0, body[1] == 0, body[2] == 0, body[3] == 0}
	return zero == [4]bool{false, true, false, true} || zero == [4]bool{true, false, true, false}
}

// isForm tells whether body begins as application/x-www-form-urlencoded does: with a name and an equals sign.
func isForm(body string) bool {
	name, _, found := strings.Cut(body[:min(len(body), 256)], "=")
	return found && name != "" && strings.Trim(name, formName) == ""
}

const formName = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~*+%[]"
