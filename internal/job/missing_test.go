package job_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/jobonce/jobonce/internal/job"
)

// TestMissingJobIDSaysWhy: whoever forgot the id learns what came instead, and what to send. "secret" stands in every body
// and in no error.
func TestMissingJobIDSaysWhy(t *testing.T) {
	const object = `{"job_id":"secret"}`
	raw := func(s string) job.Body { return job.Body{Kind: job.BodyBytes, Data: s} }
	wide := func(mark string, high, low int) string {
		b := []byte(mark)
		for _, u := range utf16.Encode([]rune(object)) {
			unit := [2]byte{}
			unit[high], unit[low] = byte(u>>8), byte(u)
			b = append(b, unit[:]...)
		}
		return string(b)
	}
	for name, c := range map[string]struct {
		body   job.Body
		opaque bool
		want   string // words of the error, separated by |
	}{
		"nothing":               {job.Body{}, false, "set job_id|send a payload"},
		"empty text":            {text(""), false, "is empty"},
		"empty bytes":           {raw(""), false, "is empty"},
		"gzip":                  {raw("\x1f\x8b\x08secret"), false, "gzip|decompress"},
		"UTF-16, little":        {raw(wide("\xff\xfe", 1, 0)), false, "UTF-16|convert it to UTF-8"},
		"UTF-16, big":           {raw(wide("\xfe\xff", 0, 1)), false, "UTF-16|convert it to UTF-8"},
		"UTF-16 without mark":   {raw(wide("", 0, 1)), false, "UTF-16|convert it to UTF-8"},
		"UTF-16 taken for text": {text(wide("", 1, 0)), false, "UTF-16|convert it to UTF-8"},
		"JSON as bytes":         {raw(object), false, "never read|send JSON as payload"},
		"opaque":                {text(object), true, "opaque_payload"},
		"opaque bytes":          {raw(object), true, "payload_bytes"},
		"form":                  {text("job_id=secret&event=e"), false, "a form|set job_id"},
		"form around JSON":      {text("payload=%7B%22job_id%22%3A%22secret%22%7D"), false, "a form|set job_id"},
		"XML":                   {text(`<job id="secret"/>`), false, "not JSON|at byte 0"},
		"cut off":               {text(object[:17]), false, "not JSON|unexpected end at byte 17"},
		"cut off after a mark":  {text("\ufeff" + object[:17]), false, "not JSON|unexpected end at byte 20"},
		"more behind":           {text(object + "secret"), false, "not JSON|after the value at byte 19"},
		"not JSON, with =":      {text(`{"a": "secret=b"`), false, "not JSON|unexpected end"},
		"array":                 {text("\n [" + object + "]"), false, "an array|each of its elements"},
		"array after a mark":    {text("\ufeff[" + object + "]"), false, "an array|each of its elements"},
		"JSON in JSON":          {text(`"{\"job_id\":\"secret\"}"`), false, "JSON string|what it holds"},
		"JSON number":           {text("7"), false, "no JSON object"},
		"nested":                {text(`{"data":{"job_id":"secret"}}`), false, "none at its top level|set job_id"},
		"number":                {text(`{"job_id":12345,"x":"secret"}`), false, "a number|as a string"},
		"null":                  {text(`{"job_id":null,"x":"secret"}`), false, "null|as a string"},
		"bool":                  {text(`{"job_id":false,"x":"secret"}`), false, "true or false|as a string"},
		"object":                {text(`{"job_id":{"id":"secret"}}`), false, "an object|as a string"},
		"list":                  {text(`{"job_id":["secret"]}`), false, "an array|as a string"},
		"empty":                 {text(`{"job_id":"","x":"secret"}`), false, "empty string"},
		"long":                  {text(`{"job_id":"secret` + strings.Repeat("x", 256) + `"}`), false, "longer than 255 bytes"},
		"half a pair":           {text(`{"job_id":"secret\ud800"}`), false, "surrogate"},
		"twice":                 {text(`{"job_id":"secret","job_id":"secret"}`), false, "twice|send it once"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := job.Input{Body: c.body, Opaque: c.opaque}.Delivery(1000)
			var invalid *job.InvalidError
			if !errors.As(err, &invalid) || invalid.Field != "job_id" {
				t.Fatalf("%v, want an error about job_id", err)
			}
			for _, words := range strings.Split(c.want, "|") {
				if !strings.Contains(invalid.Problem, words) {
					t.Errorf("%q does not say %q", err, words)
				}
			}
			if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "12345") || strings.Contains(err.Error(), "\x00") {
				t.Errorf("%q repeats the payload", err)
			}
		})
	}
}
