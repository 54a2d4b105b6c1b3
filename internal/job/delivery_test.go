package job_test

import (
	"crypto/sha256"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

func text(s string) job.Body { return job.Body{Kind: job.BodyText, Data: s} }

func dur(d time.Duration) *time.Duration { return &d }

// TestDeliveryRefuses has an input for every rule of a field, and the field that is named.
func TestDeliveryRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		in    job.Input
		field string
	}{
		"no id":                      {job.Input{}, "job_id"},
		"no id in the body":          {job.Input{Body: text(`{"event":"x"}`)}, "job_id"},
		"id that is no string":       {job.Input{Body: text(`{"job_id":42}`)}, "job_id"},
		"id below the top level":     {job.Input{Body: text(`{"data":{"job_id":"a"}}`)}, "job_id"},
		"id in an array":             {job.Input{Body: text(`[{"job_id":"a"}]`)}, "job_id"},
		"id before the body breaks":  {job.Input{Body: text(`{"job_id":"a"} x`)}, "job_id"},
		"empty id in the body":       {job.Input{Body: text(`{"job_id":""}`)}, "job_id"},
		"long id in the body":        {job.Input{Body: text(`{"job_id":"` + strings.Repeat("x", 256) + `"}`)}, "job_id"},
		"long id":                    {job.Input{JobID: strings.Repeat("x", 256)}, "job_id"},
		"line end":                   {job.Input{JobID: "a\n"}, "job_id"},
		"line end in the body":       {job.Input{Body: text(`{"job_id":"a\n"}`)}, "job_id"},
		"NUL":                        {job.Input{JobID: "a\x00"}, "job_id"},
		"DEL":                        {job.Input{JobID: "a\x7f"}, "job_id"},
		"C1 control":                 {job.Input{JobID: "a\u0085"}, "job_id"},
		"invalid UTF-8 id":           {job.Input{JobID: "a\xff"}, "job_id"},
		"other id in the body":       {job.Input{JobID: "a", Body: text(`{"job_id":"b"}`)}, "job_id"},
		"id with an end in the body": {job.Input{JobID: "a", Body: text(`{"job_id":"a\n"}`)}, "job_id"},
		"other event in the body":    {job.Input{JobID: "a", Event: "x", Body: text(`{"event":"y"}`)}, "event"},
		"other status in the body":   {job.Input{JobID: "a", Status: "x", Body: text(`{"status":"y"}`)}, "status"},
		"event after a mark":         {job.Input{JobID: "a", Event: "x", Body: text("\ufeff" + `{"event":"y"}`)}, "event"},
		"last of two events":         {job.Input{JobID: "a", Event: "x", Body: text(`{"event":"x","event":"y"}`)}, "event"},
		"id after a mark":            {job.Input{JobID: "a", Body: text("\ufeff" + `{"job_id":"b"}`)}, "job_id"},
		"id twice after a mark":      {job.Input{JobID: "a", Body: text("\ufeff" + `{"job_id":"a","job_id":"a"}`)}, "job_id"},
		"id twice":                   {job.Input{JobID: "a", Body: text(`{"job_id":"a","job_id":"a"}`)}, "job_id"},
		"id twice, one a number":     {job.Input{JobID: "a", Body: text(`{"job_id":1,"\u006aob_id":"a"}`)}, "job_id"},
		"opaque without id":          {job.Input{Opaque: true, Body: text(`{"job_id":"a"}`)}, "job_id"},
		"bytes without id":           {job.Input{Body: job.Body{Kind: job.BodyBytes, Data: `{"job_id":"a"}`}}, "job_id"},
		"long event":                 {job.Input{JobID: "a", Event: strings.Repeat("x", 129)}, "event"},
		"long status":                {job.Input{JobID: "a", Status: strings.Repeat("x", 65)}, "status"},
		"long source":                {job.Input{JobID: "a", Source: strings.Repeat("x", 65)}, "source"},
		"long request id":            {job.Input{JobID: "a", RequestID: strings.Repeat("x", 129)}, "request_id"},
		"invalid UTF-8 event":        {job.Input{JobID: "a", Event: "\xff"}, "event"},
		"request id is the job's":    {job.Input{JobID: "a", RequestID: "a"}, "request_id"},
		"request id is the body's":   {job.Input{RequestID: "a", Body: text(`{"job_id":"a"}`)}, "request_id"},
		"invalid UTF-8 text":         {job.Input{JobID: "a", Body: text("\xff")}, "payload"},
		"long text":                  {job.Input{JobID: "a", Body: text(strings.Repeat("x", 1001))}, "payload"},
		"long bytes":                 {job.Input{JobID: "a", Body: job.Body{Kind: job.BodyBytes, Data: strings.Repeat("x", 1001)}}, "payload_bytes"},
		"unknown mode":               {job.Input{JobID: "a", Mode: 99}, "work_mode"},
		"leased without a lease":     {job.Input{JobID: "a", Mode: job.ModeLeased}, "lease_duration"},
		"zero lease":                 {job.Input{JobID: "a", Mode: job.ModeLeased, Lease: dur(0)}, "lease_duration"},
		"short lease":                {job.Input{JobID: "a", Mode: job.ModeLeased, Lease: dur(time.Second - 1)}, "lease_duration"},
		"long lease":                 {job.Input{JobID: "a", Mode: job.ModeLeased, Lease: dur(24*time.Hour + 1)}, "lease_duration"},
		"lease on untracked":         {job.Input{JobID: "a", Lease: dur(time.Minute)}, "lease_duration"},
		"zero lease on untracked":    {job.Input{JobID: "a", Lease: dur(0)}, "lease_duration"},
		"long content type":          {job.Input{JobID: "a", ContentType: strings.Repeat("x", 129)}, "content_type"},
		"content type with a line":   {job.Input{JobID: "a", ContentType: "text/plain\r\nX-Admin: 1"}, "content_type"},
		"content type not UTF-8":     {job.Input{JobID: "a", ContentType: "text/\xff"}, "content_type"},
		"fewer than no bytes left":   {job.Input{JobID: "a", BodyOmitted: -1}, "payload_omitted_bytes"},
		"left out and not":           {job.Input{JobID: "a", BodyOmitted: 1, Body: text("x")}, "payload_omitted_bytes"},
		"left out and empty":         {job.Input{JobID: "a", BodyOmitted: 1, Body: text("")}, "payload_omitted_bytes"},
		"left out with the id":       {job.Input{BodyOmitted: 1}, "job_id"},
		"lease on queued":            {job.Input{JobID: "a", Mode: job.ModeQueued, Lease: dur(time.Minute)}, "lease_duration"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.in.Delivery(1000)
			var invalid *job.InvalidError
			if !errors.As(err, &invalid) || invalid.Field != c.field {
				t.Errorf("got %v, want an InvalidError about %s", err, c.field)
			}
			if big := strings.HasPrefix(name, "long text") || strings.HasPrefix(name, "long bytes"); invalid != nil && invalid.TooLarge != big {
				t.Errorf("TooLarge is %t", invalid.TooLarge)
			}
		})
	}
}

func TestDeliveryTakes(t *testing.T) {
	for name, c := range map[string]struct {
		in                   job.Input
		jobID, event, status string
		object               bool
	}{
		"all from the body": {job.Input{Body: text(`{"job_id":"a","event":"e","status":"s"}`)}, "a", "e", "s", true},
		"the same twice":    {job.Input{JobID: "a", Event: "e", Body: text(`{"job_id":"a","event":"e"}`)}, "a", "e", "", true},
		"explicit alone":    {job.Input{JobID: "a", Event: "e", Status: "s"}, "a", "e", "s", false},
		"null is absent":    {job.Input{JobID: "a", Body: text(`{"event":null,"status":7}`)}, "a", "", "", true},
		"too long is absent": {job.Input{JobID: "a", Event: "e", Body: text(`{"event":"` + strings.Repeat("x", 129) + `"}`)},
			"a", "e", "", true},
		"of two the last":  {job.Input{JobID: "a", Event: "y", Body: text(`{"event":"x","event":"y","status":1,"status":"s"}`)}, "a", "y", "s", true},
		"byte-order mark":  {job.Input{Body: text("\ufeff" + `{"job_id":"a","event":"e","status":"s"}`)}, "a", "e", "s", false},
		"mark, then array": {job.Input{JobID: "a", Body: text("\ufeff" + `[{"event":"e"}]`)}, "a", "", "", false},
		"opaque is unread": {job.Input{JobID: "a", Opaque: true, Body: text(`{"job_id":"b","job_id":"c","status":"s"}`)},
			"a", "", "", true},
		"bytes are unread": {job.Input{JobID: "a", Body: job.Body{Kind: job.BodyBytes, Data: `{"status":"s"}`}}, "a", "", "", false},
		"not JSON":         {job.Input{JobID: "a", Body: text("job_id=b")}, "a", "", "", false},
		"blank id":         {job.Input{JobID: "   "}, "   ", "", "", false},
		"limits": {job.Input{JobID: strings.Repeat("x", 255), Event: strings.Repeat("x", 128), Status: strings.Repeat("x", 64),
			Source: strings.Repeat("x", 64), RequestID: strings.Repeat("x", 128), Body: text(strings.Repeat("x", 1000))},
			strings.Repeat("x", 255), strings.Repeat("x", 128), strings.Repeat("x", 64), false},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := c.in.Delivery(1000)
			testenv.Must(t, err)
			if d.JobID != c.jobID || d.Event != c.event || d.Status != c.status || d.Object != c.object {
				t.Errorf("got %q, %q, %q, object %t", d.JobID, d.Event, d.Status, d.Object)
			}
			if d.Body != c.in.Body || d.Mode != job.ModeUntracked {
				t.Errorf("body or mode changed: %+v", d)
			}
			want := ""
			if c.in.Body.Data != "" {
				sum := sha256.Sum256([]byte(c.in.Body.Data))
				want = string(sum[:])
			}
			if d.Fingerprint != want {
				t.Errorf("fingerprint %x", d.Fingerprint)
			}
		})
	}
}

// TestDeliveryUnread: what a body may say and could not be read is told from what it does not say.
func TestDeliveryUnread(t *testing.T) {
	in := func(s string) job.Input { return job.Input{JobID: "a", Body: text(s)} }
	raw := func(s string) job.Input { return job.Input{JobID: "a", Body: job.Body{Kind: job.BodyBytes, Data: s}} }
	opaque := func(s string) job.Input { i := in(s); i.Opaque = true; return i }
	said := func(i job.Input) job.Input { i.Event, i.Status = "e", "s"; return i }
	const nothing, body, value = job.UnreadNothing, job.UnreadBody, job.UnreadValue
	for name, c := range map[string]struct {
		in            job.Input
		event, status job.Unread
	}{
		"no body":            {job.Input{JobID: "a"}, nothing, nothing},
		"empty text":         {in(""), nothing, nothing},
		"empty bytes":        {raw(""), nothing, nothing},
		"empty opaque":       {opaque(""), nothing, nothing},
		"read":               {in(`{"event":"e","status":"s"}`), nothing, nothing},
		"said neither":       {in(`{"type":"e"}`), nothing, nothing},
		"null and empty":     {in(`{"event":null,"status":""}`), nothing, nothing},
		"behind a mark":      {in("\ufeff" + `{"event":"e","status":"s"}`), nothing, nothing},
		"value and mark":     {in("\ufeff" + `{"event":1}`), value, nothing},
		"event a number":     {in(`{"event":1,"status":"s"}`), value, nothing},
		"status an object":   {in(`{"event":"e","status":{"status":"s"}}`), nothing, value},
		"too long":           {in(`{"event":"` + strings.Repeat("x", 129) + `","status":"` + strings.Repeat("x", 65) + `"}`), value, value},
		"last of two":        {in(`{"event":"e","event":1,"status":1,"status":"s"}`), value, nothing},
		"array":              {in(`[]`), body, body},
		"JSON null":          {in(`null`), body, body},
		"form":               {in(`event=e`), body, body},
		"cut off":            {in(`{"event":"e"`), body, body},
		"white space":        {in(" "), body, body},
		"bytes":              {raw(`{"event":"e"}`), body, body},
		"opaque":             {opaque(`{"event":"e","status":1}`), body, body},
		"opaque event alone": {job.Input{JobID: "a", Event: "e", Opaque: true, Body: text(`{}`)}, nothing, body},
		"left out":           {job.Input{JobID: "a", BodyOmitted: 1}, body, body},
		"said, left out":     {said(job.Input{JobID: "a", BodyOmitted: 1}), nothing, nothing},
		"said, a number":     {said(in(`{"event":1,"status":2}`)), nothing, nothing},
		"said, form":         {said(in(`event=f`)), nothing, nothing},
		"said, bytes":        {said(raw(`{}`)), nothing, nothing},
		"said, opaque":       {said(opaque(`{"event":"f"}`)), nothing, nothing},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := c.in.Delivery(1000)
			if err != nil || d.EventUnread != c.event || d.StatusUnread != c.status {
				t.Errorf("event %d, status %d, %v; want %d, %d", d.EventUnread, d.StatusUnread, err, c.event, c.status)
			}
		})
	}
}

// TestTraceparent: what is not a trace context of today's form is left out, and costs nobody a delivery.
func TestTraceparent(t *testing.T) {
	const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for name, c := range map[string]struct{ in, want string }{
		"absent":             {"", ""},
		"well-formed":        {good, good},
		"a version to come":  {"cc" + good[2:], "cc" + good[2:]},
		"a longer one":       {"cc" + good[2:] + "-what-comes", ""},
		"forbidden version":  {"ff" + good[2:], ""},
		"upper case":         {strings.ToUpper(good), ""},
		"trace of zeros":     {"00-00000000000000000000000000000000-00f067aa0ba902b7-01", ""},
		"parent of zeros":    {"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", ""},
		"short":              {good[:54], ""},
		"other separators":   {strings.ReplaceAll(good, "-", "_"), ""},
		"line end":           {good[:54] + "\n", ""},
		"line end after all": {good + "\n", ""},
		"not UTF-8":          {good[:54] + "\xff", ""},
		"very long":          {strings.Repeat("0", 1<<20), ""},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := job.Input{JobID: "a", Traceparent: c.in}.Delivery(1000)
			if err != nil || d.Traceparent != c.want || d.TraceparentUnread != (c.in != c.want) {
				t.Errorf("got %q, left out %t, %v; want %q", d.Traceparent, d.TraceparentUnread, err, c.want)
			}
		})
	}
}

func TestDeliveryMakesARequestID(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		d, err := job.Input{JobID: "a"}.Delivery(0)
		if err != nil || d.RequestID == "" || seen[d.RequestID] {
			t.Fatalf("request id %q, %v", d.RequestID, err)
		}
		seen[d.RequestID] = true
	}
}

func TestDeliveryTakesALease(t *testing.T) {
	for _, lease := range []time.Duration{job.MinLease, time.Minute, job.MaxLease} {
		d, err := job.Input{JobID: "a", Mode: job.ModeLeased, Lease: &lease}.Delivery(0)
		if err != nil || d.Lease != lease {
			t.Errorf("%v: %v, %v", lease, d.Lease, err)
		}
	}
	if d, err := (job.Input{JobID: "a", Mode: job.ModeQueued}).Delivery(0); err != nil || d.Mode != job.ModeQueued {
		t.Errorf("queued: %+v, %v", d, err)
	}
}

func TestGrantHasANewTokenEveryTime(t *testing.T) {
	lease := time.Minute
	d, err := job.Input{JobID: "a", Mode: job.ModeLeased, Lease: &lease}.Delivery(0)
	testenv.Must(t, err)
	if a, b := d.Grant(0).Token, d.Grant(0).Token; a == "" || a == b {
		t.Errorf("tokens %q and %q: one that was released would come back to life", a, b)
	}
}

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
