package mongostore_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

// TestUnusableRecord: a document of somebody else's that no delivery can be counted in is a refusal for that job alone, and
// at once: its neighbours do not wait, and it is not counted again and again.
func TestUnusableRecord(t *testing.T) {
	b := newBench(t, "")
	for id, value := range map[string]any{"text": "3", "null": nil, "largest": int64(1<<63 - 1), "list": bson.A{1}} {
		if _, err := b.direct.InsertOne(t.Context(), bson.D{{Key: "job_id", Value: id}, {Key: "deliveries", Value: value}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.direct.InsertOne(t.Context(), bson.D{{Key: "job_id", Value: bson.A{"q", "r"}}, {Key: "deliveries", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	ids := []string{"text", "null", "largest", "list", "q", "r"}
	var deliveries []job.Delivery
	for _, id := range ids {
		deliveries = append(deliveries, newDelivery(t, id, "of "+id, job.ModeUntracked))
	}
	for i, o := range b.store.Record(within(t), append(deliveries, five(t, "j")...)) {
		if i >= len(ids) {
			firstOnce(t, o)
		} else if !errors.Is(o.Err, job.ErrRecordUnusable) {
			t.Errorf("%s: %v, want job.ErrRecordUnusable", ids[i], o.Err)
		}
	}
	for _, id := range ids {
		if n := b.attempted(id); n > 3 { // one fails by a code that a refused hint has too, and is looked into
			t.Errorf("%s was sent %d times", id, n)
		}
	}
	if _, err := b.store.Get(within(t), "q", true); !errors.Is(err, job.ErrRecordUnusable) {
		t.Errorf("get: %v, want job.ErrRecordUnusable", err)
	}
}

// TestOddCounters: whatever kind of number others have left as the counter, every answer tells the same.
func TestOddCounters(t *testing.T) {
	b := newBench(t, "")
	decimal := func(s string) bson.Decimal128 {
		d, err := bson.ParseDecimal128(s)
		testenv.Must(t, err)
		return d
	}
	for value, want := range map[any]int64{
		decimal("41"): 42, decimal("-5"): -4, decimal("4.5E3"): 4501, -8.0: -7, int64(-1): 0, int32(1<<31 - 1): 1 << 31, 2.5: 3,
	} {
		id := fmt.Sprint(value)
		if _, err := b.direct.InsertOne(t.Context(), bson.D{{Key: "job_id", Value: id}, {Key: "deliveries", Value: value}}); err != nil {
			t.Fatal(err)
		}
		o := b.must(newDelivery(t, id, "r", job.ModeUntracked))
		r, err := b.store.Get(within(t), id, false)
		if err != nil || o.Record.Deliveries != want || r.Deliveries != want {
			t.Errorf("%T %v: recorded as delivery %d, read as %d, %v; want %d", value, value, o.Record.Deliveries, r.Deliveries, err, want)
		}
	}
}

// TestNewerFields: what a newer version has put beside our fields stays, except for what it keeps for as long as a lease.
func TestNewerFields(t *testing.T) {
	b := newBench(t, "")
	for name, c := range map[string]struct {
		op   func(id string, l job.Lease) error
		ends bool
	}{
		"renew": {func(id string, l job.Lease) error {
			_, err := job.Renew(within(t), b.store, id, l.Token, time.Hour)
			return err
		}, false},
		"complete": {func(id string, l job.Lease) error { return job.Complete(within(t), b.store, id, l.Token, "done") }, true},
		"release": {func(id string, l job.Lease) error {
			return job.GiveBack(within(t), b.store, id, l.Token, job.Release{Error: "no"})
		}, true},
		"give up": {func(id string, l job.Lease) error {
			return job.GiveBack(within(t), b.store, id, l.Token, job.Release{Dead: true})
		}, true},
		"reclaim": {func(id string, l job.Lease) error {
			b.clock.Advance(2 * time.Minute)
			return b.store.Record(within(t), []job.Delivery{newDelivery(t, id, "another", job.ModeLeased)})[0].Err
		}, true},
		"claim": {func(id string, l job.Lease) error {
			b.clock.Advance(2 * time.Minute)
			_, err := b.store.Claim(within(t), job.ClaimRequest{RequestID: "c", Max: 1, Lease: time.Minute, Events: []string{"event of " + id}})
			return err
		}, true},
		"unclaim": {func(id string, l job.Lease) error {
			return b.store.Unclaim(within(t), []job.Claimed{{Record: job.Record{JobID: id}, Lease: l, Granted: true}})
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			o := b.must(newDelivery(t, name, "r", job.ModeLeased))
			if _, err := b.direct.UpdateOne(t.Context(), bson.D{{Key: "job_id", Value: name}}, bson.D{{Key: "$set", Value: bson.D{
				{Key: "work.newer", Value: 1}, {Key: "work.lease", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "newer", Value: 1},
			}}}); err != nil {
				t.Fatal(err)
			}
			_, before := b.stored(name)
			testenv.Must(t, c.op(name, *o.Lease))
			doc, work := b.stored(name)
			if work.Lookup("state").Equal(before.Lookup("state")) && work.Lookup("due").Equal(before.Lookup("due")) {
				t.Errorf("nothing has changed: %v", work)
			}
			if doc.Lookup("newer").Type == 0 || work.Lookup("newer").Type == 0 {
				t.Errorf("a newer version's field is gone: %v", doc)
			}
			if ended := work.Lookup("lease").Type == 0; ended != c.ends {
				t.Errorf("what ends with the lease is gone: %t, want %t", ended, c.ends)
			}
		})
	}
}

// TestUnpauseWhatAHandWrote: a pause without a time, or with an odd one, is ended like any other.
func TestUnpauseWhatAHandWrote(t *testing.T) {
	b := newBench(t, "")
	pauses := b.direct.Database().Collection(b.direct.Name() + "_claim_pauses")
	for prefix, since := range map[string]any{"a": nil, "b": "yesterday", "c": 1.5} {
		if _, err := pauses.InsertOne(t.Context(), bson.D{{Key: "_id", Value: prefix}, {Key: "since", Value: since}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pauses.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "d"}}); err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{"a", "b", "c", "d"} {
		if was, err := b.store.Unpause(within(t), prefix); err != nil || !was {
			t.Errorf("%s: was paused: %t, %v", prefix, was, err)
		}
	}
	if left, err := b.store.Pauses(within(t)); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// TestUnreadableWorkHidesNoOther: claims look beyond much that cannot be read, however long it has been due.
func TestUnreadableWorkHidesNoOther(t *testing.T) {
	b := newBench(t, "")
	var unreadable []any
	for i := range 100 {
		unreadable = append(unreadable, bson.D{{Key: "job_id", Value: bson.A{i}},
			{Key: "work", Value: bson.D{{Key: "state", Value: "queued"}, {Key: "due", Value: b.clock.Now().Add(-time.Hour)}}}})
	}
	if _, err := b.direct.InsertMany(t.Context(), unreadable); err != nil {
		t.Fatal(err)
	}
	b.must(newDelivery(t, "ours", "r", job.ModeQueued))
	for i := range 5 {
		claimed, err := b.store.Claim(within(t), job.ClaimRequest{RequestID: fmt.Sprint("c", i), Max: 1, Lease: time.Minute, MaxBytes: 1 << 20})
		testenv.Must(t, err)
		if len(claimed) == 1 && claimed[0].Record.JobID == "ours" {
			return
		}
	}
	t.Error("five claims did not find it")
}

// TestOddWork: work that a newer version or a hand has written hides no other, starts nothing where its state is not known,
// and is claimed where it is, whatever fields it lacks.
func TestOddWork(t *testing.T) {
	b := newBench(t, "")
	past := b.clock.Now().Add(-time.Hour)
	for id, work := range map[string]bson.D{
		"unknown":       {{Key: "state", Value: "paused"}, {Key: "mode", Value: "queued"}, {Key: "due", Value: past}, {Key: "generation", Value: int64(1)}},
		"no state":      {{Key: "due", Value: past}},
		"by hand":       {{Key: "state", Value: "queued"}, {Key: "due", Value: past}},
		"odd numbers":   {{Key: "state", Value: "leased"}, {Key: "due", Value: past}, {Key: "generation", Value: 1.5}, {Key: "attempts", Value: "x"}},
		"no generation": {{Key: "state", Value: "leased"}, {Key: "token", Value: "t"}, {Key: "due", Value: past}, {Key: "generation", Value: nil}},
	} {
		if _, err := b.direct.InsertOne(t.Context(), bson.D{{Key: "job_id", Value: id}, {Key: "deliveries", Value: 1}, {Key: "work", Value: work}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.direct.InsertOne(t.Context(), bson.D{{Key: "job_id", Value: bson.A{"a", "b"}},
		{Key: "work", Value: bson.D{{Key: "state", Value: "queued"}, {Key: "due", Value: past}}}}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"ours", "paused"} {
		b.must(newDelivery(t, id, "r", job.ModeQueued))
	}
	if _, err := b.direct.UpdateOne(t.Context(), bson.D{{Key: "job_id", Value: "paused"}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "work.state", Value: "paused"}}}}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := range 5 {
		claimed, err := b.store.Claim(within(t), job.ClaimRequest{RequestID: fmt.Sprint("c", i), Max: 1, Lease: time.Minute, MaxBytes: 1 << 20})
		testenv.Must(t, err)
		for _, c := range claimed {
			got = append(got, c.Record.JobID)
			if err := job.Complete(within(t), b.store, c.Record.JobID, c.Lease.Token, "done"); err != nil {
				t.Errorf("%s: %v", c.Record.JobID, err)
			}
		}
	}
	slices.Sort(got)
	if want := []string{"by hand", "no generation", "odd numbers", "ours"}; !slices.Equal(got, want) {
		t.Errorf("claimed %q, want %q", got, want)
	}
	for _, id := range []string{"unknown", "no state", "paused"} { // the last one's creator asks again
		_, before := b.stored(id)
		if o := b.must(newDelivery(t, id, "r", job.ModeLeased)); o.Verdict.Disposition != job.Pending || o.Verdict.StartWork {
			t.Errorf("%s: %+v, want PENDING", id, o.Verdict)
		}
		if _, after := b.stored(id); !slices.Equal(before, after) {
			t.Errorf("%s was changed: %v", id, after)
		}
	}
	if b.store.CountUnclaimable(within(t)); b.store.Unclaimable() != 4 {
		t.Errorf("%d count as work that nobody can claim, want 4", b.store.Unclaimable())
	}
}

// TestClaimTakesWhatItGives: whatever form bodies are stored in, a claim takes no more work than its answer has room for, and
// fills that room.
func TestClaimTakesWhatItGives(t *testing.T) {
	zeros := "[0" + strings.Repeat(",0", 5<<10-2) + "]"
	for name, body := range map[string]job.Body{
		"bytes":    {Kind: job.BodyBytes, Data: strings.Repeat("x", 10<<10)},
		"no JSON":  {Kind: job.BodyText, Data: strings.Repeat("x", 10<<10)},
		"document": {Kind: job.BodyText, Data: `{"a":"` + strings.Repeat("x", 10<<10-8) + `"}`},
		"numbers":  {Kind: job.BodyText, Data: `{"a":` + zeros + `}`},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "")
			var writes atomic.Int64
			b.proxy.Add(&wireproxy.Rule{Command: "update", Do: wireproxy.CutBefore, If: func(c wireproxy.Command) bool {
				if isWork(c) {
					writes.Add(1)
				}
				return false
			}})
			for i := range 12 {
				b.must(delivery(t, job.Input{JobID: fmt.Sprint("j", i), Mode: job.ModeQueued, Body: body}))
			}
			claimed, err := b.store.Claim(within(t), job.ClaimRequest{RequestID: "c", Max: 12, Lease: time.Minute, MaxBytes: 65 << 10})
			if err != nil || len(claimed) < 5 || writes.Load() != 1 {
				t.Errorf("%d claimed with %d writes: %v", len(claimed), writes.Load(), err)
			}
		})
	}
}
