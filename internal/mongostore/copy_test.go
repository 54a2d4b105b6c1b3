package mongostore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

// copiedRecords are records in every state, with bodies of every kind.
func copiedRecords(t *testing.T) []job.Record {
	t.Helper()
	now := time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.UTC)
	lease := time.Minute
	var out []job.Record
	for i, body := range []job.Body{
		{}, bodyOf(""), bodyOf(event), bodyOf("no JSON"), bodyOf(`{"a":1,"a":2}`), bodyOf(strings.Repeat("x", 100_000)),
		{Kind: job.BodyBytes, Data: "\xff\x00"}, bodyOf(`[1]`), bodyOf(`{"$set":{"a.b":1}}`),
	} {
		for _, mode := range []job.WorkMode{job.ModeUntracked, job.ModeLeased, job.ModeQueued} {
			in := job.Input{JobID: fmt.Sprintf("job %d.%d", i, mode), Event: "e", Status: "s", Source: "poll", Mode: mode, Body: body, Opaque: true}
			if mode == job.ModeLeased {
				in.Lease = &lease
			}
			d, err := in.Delivery(1 << 20)
			testenv.Must(t, err)
			r := d.NewRecord(now)
			r.Deliveries, r.LastSeen = int64(i+1), now.Add(time.Hour)
			switch {
			case i%3 == 1:
				r.Conflicts, r.LastConflict = 2, &job.Conflict{Kind: job.ConflictEvent, Event: "other", Time: now}
			case i == 0:
				r.BodyOmitted, r.ContentType, r.Caller = 5<<20, "text/xml", "shop"
				if mode != job.ModeUntracked {
					r.Work.Requeues = 2
				}
			case i == 2:
				r.ContentType, r.Traceparent = "application/json", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
			case i == 3:
				r.Body, r.BodyDropped = job.Body{}, now
			}
			if mode == job.ModeLeased && i%2 == 0 {
				if r.Work, err = r.Work.Complete(r.Work.Token, "done"); err != nil {
					t.Fatal(err)
				}
			}
			out = append(out, r)
		}
	}
	return out
}

func wantCopied(t *testing.T, s *mongostore.Store, records []job.Record, written, present int, differing ...string) {
	t.Helper()
	got, err := s.Copy(t.Context(), records)
	if err != nil || got.Written != written || got.Present != present || !slices.Equal(got.Differing, differing) {
		t.Errorf("%+v, %v; want %d written, %d present, differing %q", got, err, written, present, differing)
	}
}

func TestCopy(t *testing.T) {
	clock := testenv.NewClock()
	s := open(t, mongostore.Options{URI: testenv.MongoURI(t), Database: testenv.Database(t), Now: clock.Now})
	records := copiedRecords(t)
	wantCopied(t, s, records[:10], 10, 0)
	wantCopied(t, s, records, len(records)-10, 10)
	wantCopied(t, s, records, 0, len(records))
	wantCopied(t, s, nil, 0, 0)
	for _, want := range records {
		got, err := s.Get(t.Context(), want.JobID, true)
		testenv.Must(t, err)
		c := want.LastConflict
		if (got.LastConflict == nil) != (c == nil) || c != nil && *got.LastConflict != *c {
			t.Errorf("%s: the conflict is %+v, want %+v", want.JobID, got.LastConflict, c)
		}
		got.LastConflict, want.LastConflict = nil, nil
		if got != want {
			t.Errorf("%s is\n%+v, want\n%+v", want.JobID, got, want)
		}
	}
	// They are as good as our own: counted, completed, claimed.
	o := recordOne(t, s, job.Input{JobID: records[0].JobID}, job.Duplicate, records[0].Deliveries+1)
	if o.Verdict.StartWork {
		t.Errorf("a copied job starts work: %+v", o.Verdict)
	}
	claimed, err := s.Claim(t.Context(), job.ClaimRequest{RequestID: "r", Max: 100, Lease: time.Minute, MaxBytes: 1 << 20})
	if err != nil || len(claimed) == 0 {
		t.Errorf("claimed %d, %v", len(claimed), err)
	}
}

// TestCopyKeepsWhatIsThere: a record that went on, or that somebody else made, stays as it is and is named.
func TestCopyKeepsWhatIsThere(t *testing.T) {
	s := open(t, mongostore.Options{URI: testenv.MongoURI(t), Database: testenv.Database(t)})
	records := copiedRecords(t)[:5]
	recordOne(t, s, job.Input{JobID: records[3].JobID, Body: bodyOf("another")}, job.First, 1)
	wantCopied(t, s, records, 4, 0, records[3].JobID)
	recordOne(t, s, job.Input{JobID: records[0].JobID}, job.Duplicate, records[0].Deliveries+1)
	wantCopied(t, s, records, 0, 3, records[0].JobID, records[3].JobID)
	if r, err := s.Get(t.Context(), records[3].JobID, true); err != nil || r.Body.Data != "another" {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestCopyKeepsEditedBodies: a body that somebody has changed in the file comes back as it stands there.
func TestCopyKeepsEditedBodies(t *testing.T) {
	s := open(t, mongostore.Options{URI: testenv.MongoURI(t), Database: testenv.Database(t)})
	records := copiedRecords(t)[6:9] // whose fingerprint stays that of another body
	for i, body := range []string{`{"a": 1.0}`, "{\"a\":\"\\u00fc\"}\n", `{"a":1}`} {
		records[i].Body = bodyOf(body)
	}
	wantCopied(t, s, records, 3, 0)
	wantCopied(t, s, records, 0, 3)
	for _, want := range records {
		wantGet(t, s, want.JobID, want.Body.Data, false)
	}
}

// TestCopyUnderFaults: whatever happens on the way, all is there in the end, once.
func TestCopyUnderFaults(t *testing.T) {
	for name, fault := range map[string]wireproxy.Fault{
		"cut before": wireproxy.CutBefore, "cut after": wireproxy.CutAfter, "concern": wireproxy.FailConcern(64, "WriteConcernTimeout"),
		"refused items": wireproxy.RefuseItems(wireproxy.ItemError{Code: 112}, anyItem), "not primary": wireproxy.Fail(10107, "NotWritablePrimary"),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "")
			b.proxy.Add(&wireproxy.Rule{Command: "update", Times: 2, Do: fault})
			records := copiedRecords(t)
			got, err := b.store.Copy(t.Context(), records)
			if err != nil || got.Written+got.Present != len(records) || len(got.Differing) > 0 {
				t.Errorf("%+v, %v", got, err)
			}
			wantCopied(t, b.store, records, 0, len(records))
		})
	}
}

func TestCopyToNowhere(t *testing.T) {
	s := openUnready(t, mongostore.Options{URI: "mongodb://127.0.0.1:1/", Database: "d"})
	if got, err := s.Copy(t.Context(), copiedRecords(t)); err == nil || got.Written != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestCopyInterrupted ends the context before and during a copy.
func TestCopyInterrupted(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	away := openUnready(t, mongostore.Options{URI: "mongodb://127.0.0.1:1/", Database: "d"})
	if _, err := away.Copy(ended, copiedRecords(t)); !errors.Is(err, context.Canceled) || err.Error() != "interrupted" {
		t.Errorf("before: %v", err)
	}
	b := newBench(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b.proxy.Add(&wireproxy.Rule{Command: "update", Times: 1, Do: func(x *wireproxy.Exchange) error {
		cancel()
		return x.Pass()
	}})
	if _, err := b.store.Copy(ctx, copiedRecords(t)); !errors.Is(err, context.Canceled) || err.Error() != "interrupted" {
		t.Errorf("during: %v", err)
	}
}
