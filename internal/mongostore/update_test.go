package mongostore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/payload"
	"github.com/jobonce/jobonce/internal/testenv"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func recordOf(body string) *job.Record {
	return &job.Record{JobID: "j", Body: job.Body{Kind: job.BodyText, Data: body}, FirstSeen: noon, LastSeen: noon,
		Work: job.Work{State: job.StateUntracked, Mode: job.ModeUntracked}}
}

// inserted is what an update sets when it makes the record.
func inserted(t *testing.T, u update) bson.Raw {
	t.Helper()
	if err := bson.Raw(u.bytes).Validate(); err != nil {
		t.Fatalf("the update is not BSON: %v", err)
	}
	return bson.Raw(u.bytes).Lookup("$setOnInsert").Document()
}

func TestUpdateBounds(t *testing.T) {
	nested := func(n int) string { return `{"a":` + strings.Repeat("[", n-1) + strings.Repeat("]", n-1) + `}` }
	for name, c := range map[string]struct {
		body     string
		embed    embedding
		embedded bool
	}{
		"object":                    {`{"a":1}`, besideText, true},
		"embedding off":             {`{"a":1}`, textAlone, false},
		"as deep as may be":         {nested(maxDepth), besideText, true},
		"one level deeper":          {nested(maxDepth + 1), besideText, false},
		"small ints, large BSON":    {`{"a":[` + strings.Repeat("1,", 1_100_000) + `1]}`, besideText, false},
		"objects without content":   {`{"a":[` + strings.Repeat("{},", 1_000_000) + `{}]}`, besideText, false},
		"largest body, one string":  {`{"a":"` + strings.Repeat("x", job.MaxBodyBytes-8) + `"}`, besideText, true},
		"large, and within bounds":  {`{"a":[` + strings.Repeat("1,", 200_000) + `1]}`, besideText, true},
		"unfaithful after the rest": {`{"a":{"b":[1,2]},"c":1e400}`, besideText, false},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpdate(recordOf(c.body), 1, true, c.embed)
			if u.embedded != c.embedded {
				t.Errorf("embedded: %t, want %t", u.embedded, c.embedded)
			}
			set := inserted(t, u)
			if _, there := set.Lookup(fieldPayload).DocumentOK(); there != c.embedded {
				t.Errorf("a document is in the update: %t, want %t", there, c.embedded)
			}
			if text, _ := set.Lookup(fieldPayloadText).StringValueOK(); text != c.body {
				t.Errorf("the text is not the body: %d bytes of %d", len(text), len(c.body))
			}
			if len(u.bytes) > maxDocument {
				t.Errorf("the update has %d bytes", len(u.bytes))
			}
		})
	}
}

// TestWriterStopsGrowing: what the sink appends after it has had enough is a small part of what the body would become.
func TestWriterStopsGrowing(t *testing.T) {
	body := `{"a":[` + strings.Repeat("1,", 1_000_000) + `1]}`
	var w bsonWriter
	if _, err := payload.Walk(body, fieldPayload, maxDepth, &w); err != nil {
		t.Fatal(err)
	}
	if w.err == nil || len(w.b) > maxDocument+100 {
		t.Errorf("the writer holds %d bytes (error %v), the limit is %d", len(w.b), w.err, maxDocument)
	}
}

func TestUpdateCountsAll(t *testing.T) {
	u := bson.Raw(newUpdate(recordOf(`x`), 7, false, insteadOfText).bytes)
	if n, _ := u.Lookup("$inc", fieldDeliveries).AsInt64OK(); n != 7 {
		t.Errorf("counts %d deliveries, want 7", n)
	}
	if seen, _ := u.Lookup("$max", fieldLastSeen).DateTimeOK(); seen != noon.UnixMilli() {
		t.Errorf("last seen %d", seen)
	}
}

// foreign are fields as others may leave them.
func foreign() []bson.D {
	text := func(name string, v any) bson.D { return bson.D{{Key: fieldJobID, Value: "j"}, {Key: name, Value: v}} }
	docs := []bson.D{{}, {{Key: "_id", Value: 1}}, text(fieldEvent, nil), text(fieldStatus, 7), text(fieldFirstSeen, "yesterday"),
		text(fieldLastSeen, int64(1)), text(fieldFingerprint, "text"), text(fieldRequestID, bson.A{}), text(fieldSource, bson.D{}),
		text(fieldContentType, 1), text(fieldTraceparent, bson.A{}), text(fieldPayloadOmitted, "much"), text(fieldPayloadOmitted, -1),
		text(fieldLastConflict, "x"), text(fieldLastConflict, bson.D{{Key: "kind", Value: 1}}), text(fieldWork, bson.A{1}),
		text(fieldWork, bson.D{{Key: "state", Value: "unheard-of"}}), text(fieldPayloadText, 1), text(fieldPayloadBytes, "x"),
		text(fieldEvent, "\xff"), text(fieldPayloadDropped, true), {{Key: fieldJobID, Value: bson.NewObjectID()}}}
	for _, v := range everyType() {
		docs = append(docs, text(fieldPayload, v), text(fieldPayload, bson.D{{Key: "v", Value: v}}), text(fieldDeliveries, v))
	}
	return docs
}

func everyType() []any {
	decimal, _ := bson.ParseDecimal128("1.5")
	return []any{1.5, math.NaN(), math.Inf(-1), "text", "<\xff>", bson.D{{Key: "a", Value: bson.A{1, bson.D{}}}}, bson.A{}, bson.A{nil},
		bson.Binary{Subtype: 4, Data: []byte("x")}, bson.Undefined{}, bson.ObjectID{1}, true, noon, nil, bson.Regex{Pattern: "a/b", Options: "i"},
		bson.DBPointer{DB: "d"}, bson.JavaScript("f"), bson.Symbol("s"), bson.CodeWithScope{Code: "f", Scope: bson.D{}}, int32(1),
		bson.Timestamp{T: 1}, int64(math.MaxInt64), decimal, bson.MinKey{}, bson.MaxKey{}}
}

func TestDecodeForeign(t *testing.T) {
	for _, d := range foreign() {
		bytes, err := bson.Marshal(d)
		testenv.Must(t, err)
		raw := bson.Raw(bytes)
		r, err := decode(raw, true)
		if err != nil {
			t.Errorf("%v: %v", d, err)
		}
		want := job.StateUntracked
		if raw.Lookup(fieldWork).Type == bson.TypeEmbeddedDocument {
			want = job.StateUnknown
		}
		if r.Work.State != want {
			t.Errorf("%v: work state %v, want %v", d, r.Work.State, want)
		}
		if v := raw.Lookup(fieldPayload); len(v.Value) > 0 && v.Type != bson.TypeString && !json.Valid([]byte(r.Body.Data)) {
			t.Errorf("%v: the payload becomes %q", d, r.Body.Data)
		}
		if strings.ToValidUTF8(r.Body.Data+r.Event, "") != r.Body.Data+r.Event {
			t.Errorf("%v: not valid UTF-8", d)
		}
	}
}

func TestDecodeDeliveries(t *testing.T) {
	for _, c := range []struct {
		value any
		want  int64
	}{{int32(3), 3}, {int64(1 << 40), 1 << 40}, {3.0, 3}, {"3", 0}, {nil, 0}} {
		raw, err := bson.Marshal(bson.D{{Key: fieldDeliveries, Value: c.value}})
		testenv.Must(t, err)
		if r, err := decode(raw, false); err != nil || r.Deliveries != c.want {
			t.Errorf("%T(%v): %d, %v", c.value, c.value, r.Deliveries, err)
		}
	}
}

// TestRender holds what JavaScript's drivers store of an event, and how the event reads.
func TestRender(t *testing.T) {
	date := bson.NewDateTimeFromTime(noon)
	for _, c := range []struct {
		value any
		want  string
	}{
		{bson.D{{Key: "b", Value: int32(1)}, {Key: "a", Value: bson.A{1.5, nil, true, "<é\u2028"}}, {Key: "", Value: bson.D{}}},
			`{"b":1,"a":[1.5,null,true,"<é\u2028"],"":{}}`},
		{bson.D{{Key: "ms", Value: 1.7e12}, {Key: "big", Value: 9007199254740992.0}, {Key: "huge", Value: 1e300}},
			`{"ms":1700000000000,"big":9007199254740992,"huge":1e+300}`},
		{bson.D{{Key: "$set", Value: "x"}, {Key: "a.b", Value: int64(math.MaxInt64)}}, `{"$set":"x","a.b":9223372036854775807}`},
		{bson.D{{Key: "at", Value: date}}, `{"at":{"$date":"2026-01-02T12:00:00Z"}}`},
		{bson.A{1.0, bson.A{}}, `[1,[]]`},
		{"form=encoded", `form=encoded`},
		{nil, ``},
	} {
		raw, err := bson.Marshal(bson.D{{Key: fieldPayload, Value: c.value}})
		testenv.Must(t, err)
		r, err := decode(raw, true)
		if err != nil || r.Body.Data != c.want {
			t.Errorf("%v becomes %s, want %s (error %v)", c.value, r.Body.Data, c.want, err)
		}
		if none := r.Body.Kind == job.BodyNone; none != (c.value == nil) {
			t.Errorf("%v: body kind %d", c.value, r.Body.Kind)
		}
	}
}

func TestRenderTooDeep(t *testing.T) {
	doc := bsoncore.NewDocumentBuilder().Build()
	for range maxRenderDepth {
		doc = bsoncore.NewDocumentBuilder().AppendDocument("a", doc).Build()
	}
	doc = bsoncore.NewDocumentBuilder().AppendDocument(fieldPayload, doc).Build()
	if _, err := decode(bson.Raw(doc), true); err == nil {
		t.Error("a payload of any depth is rendered")
	}
	if _, err := decode(bson.Raw(doc), false); err != nil {
		t.Errorf("without its body: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, d := range foreign() {
		raw, err := bson.Marshal(d)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(raw))
	}
	for _, embed := range []embedding{besideText, insteadOfText} {
		set := bson.Raw(newUpdate(recordOf(`{"a":[1,{"b":null}]}`), 1, true, embed).bytes).Lookup("$setOnInsert").Document()
		f.Add([]byte(set))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := decode(raw, true)
		if err == nil && r.Body.Kind == job.BodyText && !bytes.Equal(bytes.ToValidUTF8([]byte(r.Body.Data), nil), []byte(r.Body.Data)) {
			t.Errorf("the body is not valid UTF-8: %q", r.Body.Data)
		}
		if _, err := decode(raw, false); err != nil && bson.Raw(raw).Validate() == nil {
			t.Errorf("a valid document is refused: %v", err)
		}
	})
}

// BenchmarkUpdate writes the upsert of a body of the size: the text as BSON, and what proves that it gives the text back.
func BenchmarkUpdate(b *testing.B) {
	for _, size := range []int{1 << 10, 16 << 10} {
		var body strings.Builder
		body.WriteString(`{"job_id":"job_0123456789","event":"job.completed","status":"OK","items":[`)
		for i := 0; body.Len() < size-64; i++ {
			if i > 0 {
				body.WriteByte(',')
			}
			fmt.Fprintf(&body, `{"n":%d,"price":%d.25,"name":"item \u00e9 %d","ok":true}`, i, i, i)
		}
		body.WriteString(`]}`)
		r := recordOf(body.String())
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(body.Len()))
			for b.Loop() {
				if u := newUpdate(r, 1, true, insteadOfText); !u.embedded {
					b.Fatal("not embedded")
				}
			}
		})
	}
}

// TestLeaseFieldsEndWithIt: what is kept under work.lease is set whole by the change that grants the lease, stays while it runs,
// whatever a newer version has put there, and goes with it.
func TestLeaseFieldsEndWithIt(t *testing.T) {
	const set, unset = "$set", "$unset"
	queued := job.Work{State: job.StateQueued, Mode: job.ModeQueued, Due: noon}
	held := func(token, caller string) job.Work {
		return job.Work{State: job.StateLeased, Mode: job.ModeQueued, Due: noon, Token: token, ClaimID: "c", Caller: caller}
	}
	renewed := held("t", "a")
	renewed.Due = noon.Add(time.Minute)
	for name, c := range map[string]struct {
		before, after job.Work
		op            string
		caller        any
	}{
		"granted":                    {queued, held("t", "a"), set, "a"},
		"granted to nobody":          {queued, held("t", ""), "", nil},
		"renewed":                    {held("t", "a"), renewed, "", nil},
		"granted anew":               {held("t", "a"), held("u", "b"), set, "b"},
		"granted anew, the same":     {held("t", "a"), held("u", "a"), set, "a"},
		"granted anew, to nobody":    {held("t", "a"), held("u", ""), unset, ""},
		"ended":                      {held("t", "a"), queued, unset, ""},
		"ended, and it was nobody's": {held("t", ""), queued, unset, ""},
	} {
		raw, err := bson.Marshal(workChange(&c.before, &c.after))
		testenv.Must(t, err)
		for _, op := range []string{set, unset} {
			v, err := bson.Raw(raw).LookupErr(op, inWork(workLease))
			if (err == nil) != (op == c.op) {
				t.Errorf("%s: %s is %v", name, op, v)
			}
			if d, ok := v.DocumentOK(); op == set && err == nil && (!ok || textOf(d.Lookup(leaseCaller)) != c.caller) {
				t.Errorf("%s: set to %v, want the caller %v", name, v, c.caller)
			}
		}
	}
}
