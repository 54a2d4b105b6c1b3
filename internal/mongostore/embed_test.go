package mongostore

import (
	"crypto/sha256"
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/payload"
	"github.com/jobonce/jobonce/internal/testenv"
)

// keptOnce is the record of a body as it is inserted, with the text left out where that can be.
func keptOnce(t *testing.T, body string) bson.Raw {
	t.Helper()
	r := recordOf(body)
	sum := sha256.Sum256([]byte(body))
	r.Fingerprint, r.RequestID = string(sum[:]), "r"
	return inserted(t, newUpdate(r, 1, true, insteadOfText))
}

// wantBody reads a document, and wants that body, as it was received.
func wantBody(t *testing.T, doc bson.Raw, body string) {
	t.Helper()
	r, err := decode(doc, true)
	if want := (job.Body{Kind: job.BodyText, Data: body}); err != nil || r.Body != want || r.BodyEdited {
		t.Errorf("read: %v, edited %t, %.200q\nwritten: %.200q", err, r.BodyEdited, r.Body.Data, body)
	}
}

// TestBodyOnce: the text is left out, and read as it was written, or it is kept.
func TestBodyOnce(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		once bool
	}{
		"compact":        {`{"job_id":"j","n":1,"list":[1.5,true,null,{}]}`, true},
		"indented":       {"{\n  \"a\": {\n    \"b\": \"\\u00fc\"\n  }\n}\n", true},
		"whole double":   {`{"a":1.0}`, true},
		"another number": {`{"a":1.50}`, false},
		"duplicate key":  {`{"a":1,"a":1}`, false},
		"array":          {`[1]`, false},
		"empty":          {``, false},
		"largest":        {`{"a":"` + strings.Repeat("x", job.MaxBodyBytes-8) + `"}`, true},
		"many escapes":   {`{"a":"` + strings.Repeat(`abc \u00fc`, 1000) + `"}`, true},
		"escapes alone":  {`{"a":"` + strings.Repeat(`\u00fc`, 1000) + `"}`, false},
		"numbers alone":  {`{"a":[` + strings.Repeat("0,", 1000) + `0]}`, false},
		"few numbers":    {`{"a":[0,1,2,3,4,5,6,7,8]}`, true},
		"spaces alone":   {deep(60), false},
	} {
		t.Run(name, func(t *testing.T) {
			doc := keptOnce(t, c.body)
			_, form := doc.Lookup(fieldPayloadForm).Int32OK()
			_, text := doc.Lookup(fieldPayloadText).StringValueOK()
			if form != c.once || text == c.once {
				t.Errorf("a form is stored: %t, the text: %t", form, text)
			}
			wantBody(t, doc, c.body)
		})
	}
}

// deep nests objects, each on lines of its own, so that nearly all of it is white space.
func deep(depth int) string {
	var b strings.Builder
	for i := range depth {
		b.WriteString("{\n" + strings.Repeat("    ", i+1) + `"": `)
	}
	b.WriteString("{}")
	for i := range depth {
		b.WriteString("\n" + strings.Repeat("    ", depth-1-i) + "}")
	}
	return b.String()
}

// FuzzBody: for every text, what is read is what was written, byte for byte.
func FuzzBody(f *testing.F) {
	for _, body := range []string{
		`{}`, `{"a":1}`, "{\n  \"a\": 1\n}\n", "{\n    \"a\": [\n        -0.5\n    ]\n}", `{"a": "b", "c": [1, 2.0]}`, `{"a":-0,"b":-0.0}`,
		`{"\u00e4\u2028":"\/\u003c\u0026\u0027\u003d\u0022\u002B"}`, `{"a":1e400,"b":1E5,"c":12345678901234567890}`, `{"":{"":[[],{}]}}`,
		`{"a":1,"a":2}`, `{"a\u0000":1}`, `{"a":"\ud800"}`, "\ufeff{}", ` {}`, `[]`, `"x"`, `{"a":"é€😀"}`, `{"a":"\ud83d\ude00\u00FC"}`,
		`{"a":[1.10,0.00001,9007199254740993,1.7976931348623157e308]}`, deep(9), "{\"a\":\"\x7f\"}", "{\"a\" :1}",
	} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		if strings.ToValidUTF8(body, "") == body { // all that a body of this kind can be
			wantBody(t, keptOnce(t, body), body)
		}
	})
}

// TestEdited: what somebody has changed is told from what a driver has only rewritten.
func TestEdited(t *testing.T) {
	const body = `{"small":5,"large":5000000000,"whole":[7],"half":0.5,"text":"a\/b"}`
	doc := keptOnce(t, body)
	rewritten := bson.D{{Key: "small", Value: int32(5)}, {Key: "large", Value: 5e9}, {Key: "whole", Value: bson.A{7.0}},
		{Key: "half", Value: 0.5}, {Key: "text", Value: "a/b"}}
	with := func(changes ...bson.E) bson.Raw {
		var d bson.D
		testenv.Must(t, bson.Unmarshal(doc, &d))
		for _, c := range changes {
			d = replaced(d, c)
		}
		raw, err := bson.Marshal(d)
		testenv.Must(t, err)
		return raw
	}
	wantBody(t, with(), body)
	wantBody(t, with(bson.E{Key: fieldPayload, Value: rewritten}), body)
	wantBody(t, with(bson.E{Key: fieldPayload, Value: bson.D{}}, bson.E{Key: fieldPayloadText, Value: body}), body)

	for name, c := range map[string]struct {
		doc    bson.Raw
		want   string
		edited bool
	}{
		"a value":         {with(bson.E{Key: fieldPayload, Value: bson.D{{Key: "a", Value: noon}}}), `{"a":{"$date":"2026-01-02T12:00:00Z"}}`, true},
		"the order":       {with(bson.E{Key: fieldPayload, Value: append(rewritten[1:], rewritten[0])}), `{"large":5000000000,"whole":[7],"half":0.5,"text":"a/b","small":5}`, true},
		"to a text":       {with(bson.E{Key: fieldPayload, Value: "x"}), `x`, true},
		"another form":    {with(bson.E{Key: fieldPayloadForm, Value: 0}), strings.ReplaceAll(body, `\/`, `/`), true},
		"no fingerprint":  {with(bson.E{Key: fieldFingerprint}), strings.ReplaceAll(body, `\/`, `/`), true},
		"taken out":       {with(bson.E{Key: fieldPayload}), ``, true},
		"dropped":         {with(bson.E{Key: fieldPayload}, bson.E{Key: fieldPayloadDropped, Value: noon}), ``, false},
		"dropped by ours": {with(bson.E{Key: fieldPayload}, bson.E{Key: fieldPayloadForm}), ``, false},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := decode(c.doc, true)
			if err != nil || r.Body.Data != c.want || r.BodyEdited != c.edited {
				t.Errorf("%q, edited %t, %v\nwant %q, %t", r.Body.Data, r.BodyEdited, err, c.want, c.edited)
			}
			if r, err = decode(c.doc, false); err != nil || r.BodyEdited || r.Body != (job.Body{}) {
				t.Errorf("without the body: %+v, %v", r, err)
			}
		})
	}
}

// replaced is d with another value of a field, or without it when there is none.
func replaced(d bson.D, e bson.E) (out bson.D) {
	for _, is := range d {
		if is.Key != e.Key {
			out = append(out, is)
		}
	}
	if e.Value != nil {
		out = append(out, e)
	}
	return out
}

// TestUnknownForm: what a newer version wrote is an error and no guess, and only for who wants the body.
func TestUnknownForm(t *testing.T) {
	for _, form := range []any{int32(payload.MaxForm) + 1, int64(1) << 32, -1, 0.5, "0", nil, bson.D{}} {
		raw, err := bson.Marshal(bson.D{{Key: fieldPayload, Value: bson.D{}}, {Key: fieldPayloadForm, Value: form}})
		testenv.Must(t, err)
		if _, err := decode(raw, true); !errors.Is(err, errForm) {
			t.Errorf("%v: %v", form, err)
		}
		if _, err := decode(raw, false); err != nil {
			t.Errorf("%v, without the body: %v", form, err)
		}
	}
}
