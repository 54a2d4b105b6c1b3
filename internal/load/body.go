package load

import (
	"fmt"
	"strings"
)

// MinBodyBytes is the least length of a body: room for the longest key and the fields beside it.
const MinBodyBytes = 160

// Body makes the bodies of one run, such as a provider of long-running jobs sends them: JSON with the job's id, event and
// status, addresses, some nesting, numbers, and text with escapes and beyond ASCII, as JavaScript or Ruby write it.
type Body struct{ rest string }

const (
	bodyStart = `{"job_id":"`
	bodyField = `","event":"job.completed","status":"OK"`
	bodyMeta  = `,"created_at":"2026-02-11T09:41:07.512Z","attempt":1,"livemode":true,"parent":null,` +
		`"account":{"id":"acct_1032D82eZvKYlo2C","name":"Müller & Söhne","city":"Köln"},` +
		`"urls":{"self":"https://api.example.com/v1/jobs/latest","log":"https://api.example.com/log"},` +
		`"note":"first line\nsecond line, said \"done\"","tags":["video","eu-west-1","priority"]`
	fillStart, fillEnd = `,"trace":"`, `"}`
)

// NewBody prepares the bodies of a run. With the keys of that run they are exactly size bytes long, MinBodyBytes at least.
func NewBody(run string, size int) Body {
	left := size - len(bodyStart) - len(Key(run, 0)) - len(bodyField) - len(fillStart) - len(fillEnd)
	var b strings.Builder
	b.WriteString(bodyField)
	if len(bodyMeta) <= left {
		b.WriteString(bodyMeta)
		left -= len(bodyMeta)
	}
	results := segments(left)
	b.WriteString(results)
	b.WriteString(fillStart)
	const filler = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"
	for left -= len(results); left > 0; left -= len(filler) {
		b.WriteString(filler[:min(left, len(filler))])
	}
	b.WriteString(fillEnd)
	return Body{rest: b.String()}
}

// segments is a member with as many results as fit into size bytes, or nothing.
func segments(size int) string {
	var b strings.Builder
	for i := 0; ; i++ {
		item := fmt.Sprintf(`{"index":%d,"name":"segment-%04d.mp4","bytes":%d,"seconds":%d.%03d5,"ratio":0.%05d1,"ok":true,`+
			`"sha256":"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}`,
			i, i, 1048576+i*7919, 12+i, i%1000, 33333+i)
		before := `,"results":[`
		if i > 0 {
			before = ","
		}
		if b.Len()+len(before)+len(item)+1 > size {
			break
		}
		b.WriteString(before + item)
	}
	if b.Len() > 0 {
		b.WriteByte(']')
	}
	return b.String()
}

// Of is the body for a key. It is the same for the same key, so that a repeated delivery has an equal body.
func (b Body) Of(key string) string { return bodyStart + key + b.rest }
