package mongostore_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// wantGet reads a job with its body.
func wantGet(t *testing.T, s job.Store, jobID, body string, edited bool) {
	t.Helper()
	r, err := s.Get(within(t), jobID, true)
	if err != nil || r.Body.Data != body || r.BodyEdited != edited {
		t.Errorf("%s: %q, edited %t, %v; want %q, %t", jobID, r.Body.Data, r.BodyEdited, err, body, edited)
	}
}

// leaseIn is what a delivery of the mode asks for.
func leaseIn(mode job.WorkMode) *time.Duration {
	if mode == job.ModeLeased {
		return new(time.Minute)
	}
	return nil
}

// TestOnceEverywhere: whoever is given a body that stands in the document alone gets it byte for byte.
func TestOnceEverywhere(t *testing.T) {
	b := newBench(t, "")
	const pattern = "{\n  \"job_id\": %q,\n  \"n\": [\n    1,\n    2.0\n  ],\n  \"url\": \"\\/\\u00fc\"\n}\n"
	body := func(id string) string { return fmt.Sprintf(pattern, id) }
	in := func(id, request string, mode job.WorkMode) job.Input {
		return job.Input{JobID: id, RequestID: request, Mode: mode, Lease: leaseIn(mode), Source: "webhook",
			Body: job.Body{Kind: job.BodyText, Data: body(id)}}
	}
	for id, mode := range map[string]job.WorkMode{"u": job.ModeUntracked, "q": job.ModeQueued, "l": job.ModeLeased} {
		recordOne(t, b.store, in(id, "first", mode), job.First, 1)
		doc, _ := b.stored(id)
		if doc.Lookup("payload_text").Type != 0 || doc.Lookup("payload_form").Int32() == 0 {
			t.Errorf("%s: stored as %v", id, doc)
		}
		wantGet(t, b.store, id, body(id), false)
	}
	recordOne(t, b.store, in("u", "second", job.ModeUntracked), job.Duplicate, 2)
	other := in("u", "third", job.ModeUntracked)
	other.Body.Data = strings.TrimSpace(other.Body.Data)
	if o := recordOne(t, b.store, other, job.Duplicate, 3); o.Verdict.Conflict == nil || o.Verdict.Conflict.Kind != job.ConflictBody {
		t.Errorf("another spelling: %+v", o.Verdict)
	}
	// The creator of the lease is known by the record's fingerprint, which the lease does not repeat.
	if doc, _ := b.stored("l"); doc.Lookup("work", "fingerprint").Type != 0 {
		t.Errorf("the lease has a fingerprint of its own: %v", doc.Lookup("work"))
	}
	if o := recordOne(t, b.store, in("l", "first", job.ModeLeased), job.First, 2); !o.Verdict.StartWork {
		t.Error("the holder may not start")
	}
	b.clock.Advance(job.MaxLease)
	if o := recordOne(t, b.store, in("l", "second", job.ModeLeased), job.Reclaimed, 3); o.Record.Body.Data != body("l") {
		t.Errorf("reclaimed with %q", o.Record.Body.Data)
	}
	recordOne(t, b.store, in("l", "second", job.ModeLeased), job.Reclaimed, 4)
	claimed, err := b.store.Claim(within(t), job.ClaimRequest{RequestID: "c", Max: 5, Lease: time.Minute, MaxBytes: 1 << 20})
	if err != nil || len(claimed) != 1 || claimed[0].Record.Body.Data != body("q") {
		t.Errorf("claimed %+v, %v", claimed, err)
	}

	if _, err := b.direct.UpdateMany(t.Context(), bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "payload", Value: bson.D{{Key: "x", Value: 1}}}}}}); err != nil {
		t.Fatal(err)
	}
	wantGet(t, b.store, "u", `{"x":1}`, true)
	b.clock.Advance(job.MaxLease)
	if o := recordOne(t, b.store, in("l", "third", job.ModeLeased), job.Reclaimed, 5); !o.Record.BodyEdited || o.Record.Body.Data != `{"x":1}` {
		t.Errorf("reclaimed, edited: %+v", o.Record)
	}
}

// TestTextToo: a service that is to keep the text keeps it, and reads what others have left out.
func TestTextToo(t *testing.T) {
	b := newBench(t, "")
	opts := b.opts
	opts.TextToo = true
	keeper := open(t, opts)
	body := job.Body{Kind: job.BodyText, Data: `{"a":1}`}
	recordOne(t, b.store, job.Input{JobID: "once", Body: body}, job.First, 1)
	recordOne(t, keeper, job.Input{JobID: "kept", Body: body}, job.First, 1)
	if doc, _ := b.stored("kept"); doc.Lookup("payload_text").StringValue() != body.Data || doc.Lookup("payload_form").Type != 0 {
		t.Errorf("stored as %v", doc)
	}
	for _, s := range []job.Store{b.store, keeper} {
		wantGet(t, s, "once", body.Data, false)
		wantGet(t, s, "kept", body.Data, false)
	}
}

// TestNewerForm: a body that a newer version wrote is given to nobody, its work is not claimed, and hides no other.
func TestNewerForm(t *testing.T) {
	b := newBench(t, "")
	for _, id := range []string{"newer", "ours"} {
		recordOne(t, b.store, job.Input{JobID: id, Mode: job.ModeQueued, Body: job.Body{Kind: job.BodyText, Data: `{"a":1}`}}, job.First, 1)
		b.clock.Advance(time.Second)
	}
	if _, err := b.direct.UpdateOne(t.Context(), bson.D{{Key: "job_id", Value: "newer"}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "payload_form", Value: 1 << 20}}}}); err != nil {
		t.Fatal(err)
	}
	claimed, err := b.store.Claim(within(t), job.ClaimRequest{RequestID: "c", Max: 1, Lease: time.Minute, MaxBytes: 1 << 20})
	if err != nil || len(claimed) != 1 || claimed[0].Record.JobID != "ours" {
		t.Errorf("claimed %+v, %v", claimed, err)
	}
	if b.store.CountUnclaimable(within(t)); b.store.Unclaimable() != 1 {
		t.Errorf("%d count as work that nobody can claim", b.store.Unclaimable())
	}
	if _, err := b.store.Get(within(t), "newer", true); !errors.Is(err, job.ErrRecordUnusable) {
		t.Errorf("get: %v", err)
	}
	if r, err := b.store.Get(within(t), "newer", false); err != nil || r.Work.Attempts != 0 {
		t.Errorf("without the body: %+v, %v", r.Work, err)
	}
	recordOne(t, b.store, job.Input{JobID: "newer", RequestID: "u", Mode: job.ModeUntracked}, job.Pending, 2)
	o := b.store.Record(within(t), []job.Delivery{newDelivery(t, "newer", "l", job.ModeLeased)})[0]
	if r, _ := b.store.Get(within(t), "newer", false); !errors.Is(o.Err, job.ErrRecordUnusable) || r.Work.Attempts != 0 {
		t.Errorf("reclaimed: %v, %+v", o.Err, r.Work)
	}
}

// TestTextAndDocument: a store of the version that kept every body twice is read, and goes on.
func TestTextAndDocument(t *testing.T) {
	b := newBench(t, "")
	lines, err := os.ReadFile("testdata/text-and-document.jsonl")
	testenv.Must(t, err)
	docs := map[string]bson.Raw{}
	for line := range bytes.Lines(lines) {
		var doc bson.Raw
		testenv.Must(t, bson.UnmarshalExtJSON(line, true, &doc))
		if _, err := b.direct.InsertOne(t.Context(), doc); err != nil {
			t.Fatal(err)
		}
		docs[doc.Lookup("job_id").StringValue()] = doc
	}
	bodyOf := func(id string) (body job.Body) {
		if text, ok := docs[id].Lookup("payload_text").StringValueOK(); ok {
			body = job.Body{Kind: job.BodyText, Data: text}
		} else if _, bytes, ok := docs[id].Lookup("payload_bytes").BinaryOK(); ok {
			body = job.Body{Kind: job.BodyBytes, Data: string(bytes)}
		}
		return body
	}
	token := func(id string) string { return docs[id].Lookup("work", "token").StringValue() }
	redeliver := func(id, request string, mode job.WorkMode, want job.Disposition) job.Outcome {
		t.Helper()
		n, _ := docs[id].Lookup("deliveries").AsInt64OK()
		o := recordOne(t, b.store, job.Input{JobID: id, RequestID: request, Mode: mode, Lease: leaseIn(mode), Source: "webhook",
			Body: bodyOf(id)}, want, n+1)
		if o.Verdict.Conflict != nil {
			t.Errorf("%s: a conflict with itself", id)
		}
		return o
	}
	for id := range docs {
		wantGet(t, b.store, id, bodyOf(id).Data, false)
	}
	redeliver("untracked", "request of untracked", job.ModeUntracked, job.First)
	redeliver("conflict", "again", job.ModeUntracked, job.Duplicate)
	redeliver("completed", "again", job.ModeLeased, job.Completed)
	redeliver("dead", "again", job.ModeLeased, job.Dead)
	redeliver("no body", "again", job.ModeUntracked, job.Duplicate)
	if o := redeliver("leased", "request of leased", job.ModeLeased, job.First); o.Lease == nil || o.Lease.Token != token("leased") {
		t.Errorf("the holder's lease is %+v", o.Lease)
	}
	testenv.OK(t, job.Complete(within(t), b.store, "leased", token("leased"), "done"))
	b.clock.Advance(2 * job.MaxLease)
	if o := redeliver("lapsed", "again", job.ModeLeased, job.Reclaimed); o.Record.Body != bodyOf("lapsed") {
		t.Errorf("reclaimed with %q", o.Record.Body.Data)
	}
	claimed, err := b.store.Claim(within(t), job.ClaimRequest{RequestID: "now", Max: 20, Lease: time.Minute, MaxBytes: 1 << 20})
	if err != nil || len(claimed) != 7 {
		t.Errorf("%d claimed, %v", len(claimed), err)
	}
	for _, c := range claimed {
		if id := c.Record.JobID; c.Record.Body != bodyOf(id) {
			t.Errorf("%s was claimed with %q", id, c.Record.Body.Data)
		}
	}
	opts := b.opts
	opts.TextOnly = true
	wantGet(t, open(t, opts), "untracked", bodyOf("untracked").Data, false)
}
