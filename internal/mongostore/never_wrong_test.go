package mongostore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

// items are the writes of an update command.
func items(command bson.Raw) (out []bson.Raw) {
	list, _ := command.Lookup("updates").Array().Values()
	for _, v := range list {
		out = append(out, v.Document())
	}
	return out
}

// upserted is the answer of a server that inserted all the command's writes but those that failed with the code.
func upserted(command bson.Raw, code int32, failed ...string) bson.D {
	var inserted, refused bson.A
	for i, item := range items(command) {
		if slices.Contains(failed, jobIDOf(item)) {
			refused = append(refused, bson.D{{Key: "index", Value: int32(i)}, {Key: "code", Value: code}, {Key: "errmsg", Value: "no"}})
		} else {
			inserted = append(inserted, bson.D{{Key: "index", Value: int32(i)}, {Key: "_id", Value: bson.NewObjectID()}})
		}
	}
	reply := bson.D{{Key: "ok", Value: 1.0}, {Key: "n", Value: int32(len(inserted))}, {Key: "nModified", Value: int32(0)}}
	if len(inserted) > 0 {
		reply = append(reply, bson.E{Key: "upserted", Value: inserted})
	}
	if len(refused) > 0 {
		reply = append(reply, bson.E{Key: "writeErrors", Value: refused})
	}
	return reply
}

// scripted is a store on a scripted server of a kind.
func scripted(t *testing.T, hello bson.D) (*fakeServer, *mongostore.Store) {
	t.Helper()
	f := startFake(t, nil)
	f.answer("hello", append(bson.D{{Key: "logicalSessionTimeoutMinutes", Value: int64(30)}}, hello...))
	return f, open(t, mongostore.Options{URI: "mongodb://" + f.addr() + "/?directConnection=true"})
}

// TestLargeBulk: bodies of 1 MiB that become 9 MB each. No bulk is so large that the driver would split it: a failed item of
// the second part would replace the write concern error of the first. What that part said it had written is written again.
func TestLargeBulk(t *testing.T) {
	body := job.Body{Kind: job.BodyText, Data: `{"a":[0` + strings.Repeat(",0", 1<<19-10) + `]}`}
	var deliveries []job.Delivery
	var records []job.Record
	for i := range 6 {
		deliveries = append(deliveries, delivery(t, job.Input{JobID: fmt.Sprint("j", i), Body: body}))
		records = append(records, deliveries[i].NewRecord(time.Now()))
	}
	for name, write := range map[string]func(*mongostore.Store){
		"record": func(s *mongostore.Store) {
			for i, o := range s.Record(within(t), deliveries) {
				if o.Err != nil || o.Verdict.Disposition != job.First {
					t.Errorf("%d: %+v, %v", i, o.Verdict, o.Err)
				}
			}
		},
		"copy": func(s *mongostore.Store) { wantCopied(t, s, records, len(records), 0) },
	} {
		f, s := scripted(t, bson.D{{Key: "setName", Value: "rs0"}})
		var mu sync.Mutex
		tries, first, largest := map[string]int{}, []string{}, 0
		f.answerWith("update", func(command bson.Raw) bson.D {
			mu.Lock()
			defer mu.Unlock()
			largest = max(largest, len(command))
			reply := upserted(command, 0)
			for _, item := range items(command) {
				switch id := jobIDOf(item); {
				case tries[id] > 0:
				case id == "j0":
					reply = append(reply, bson.E{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: int32(64)}, {Key: "errmsg", Value: "timed out"}}})
					for _, item := range items(command) {
						first = append(first, jobIDOf(item))
					}
				case id == "j5":
					reply = upserted(command, 112, id)
				}
				tries[jobIDOf(item)]++
			}
			return reply
		})
		write(s)
		if largest > 48_000_000 || largest < 20_000_000 {
			t.Errorf("%s: the largest command has %d bytes", name, largest)
		}
		for _, id := range first {
			if tries[id] != 2 {
				t.Errorf("%s: %s was written %d times, want 2: its write concern error was lost", name, id, tries[id])
			}
		}
	}
}

// TestSplitBulk: of a bulk that the driver has split all the same nothing counts as written.
func TestSplitBulk(t *testing.T) {
	f := startFake(t, nil)
	f.answer("hello", bson.D{{Key: "maxWriteBatchSize", Value: int32(2)}})
	f.answerWith("update", func(command bson.Raw) bson.D { return upserted(command, 112, "j4") })
	s := open(t, mongostore.Options{URI: "mongodb://" + f.addr() + "/?directConnection=true",
		NewPause: func() backoff.BackOff { return &backoff.ZeroBackOff{} }})
	for i, o := range s.Record(within(t), five(t, "j")) {
		if !errors.Is(o.Err, job.ErrOutcomeUnknown) {
			t.Errorf("%d: %+v, %v; want job.ErrOutcomeUnknown", i, o.Verdict, o.Err)
		}
	}
	if got, err := s.Copy(within(t), copiedRecords(t)[:5]); err == nil || got.Written != 0 {
		t.Errorf("copied %+v, %v", got, err)
	}
}

// TestMongosLosesConcern: a mongos in whose bulk an item failed is not believed that the others are durable before they
// were read: here they were rolled back.
func TestMongosLosesConcern(t *testing.T) {
	f, s := scripted(t, bson.D{{Key: "msg", Value: "isdbgrid"}})
	var mu sync.Mutex
	tries := map[string]int{}
	f.answerWith("update", func(command bson.Raw) bson.D {
		mu.Lock()
		defer mu.Unlock()
		for _, item := range items(command) {
			tries[jobIDOf(item)]++
		}
		if len(items(command)) > 1 {
			return upserted(command, 112, "j0")
		}
		return upserted(command, 0)
	})
	f.answer("find", cursorOf())
	deliveries := five(t, "j")
	for _, o := range s.Record(within(t), deliveries) {
		firstOnce(t, o)
	}
	for id, n := range tries {
		if n != 2 {
			t.Errorf("%s was written %d times, want 2", id, n)
		}
	}
}

// strangeCodes are in no list of ours: 133 and 202 are what mongos makes of a shard that it cannot reach.
var strangeCodes = []int32{82, 133, 202, 365, 371, 14031, 987654}

// TestStrangeCode: of an item's error code that we do not know nobody can say that nothing was applied. It is tried three
// times, and costs its neighbours nothing.
func TestStrangeCode(t *testing.T) {
	b := newBench(t, "")
	for _, code := range strangeCodes {
		prefix := fmt.Sprint(code, "-")
		rule := b.proxy.Add(&wireproxy.Rule{Command: "update", If: func(c wireproxy.Command) bool {
			return slices.ContainsFunc(c.Items(), ofJob(prefix+"2"))
		}, Do: wireproxy.RefuseItems(wireproxy.ItemError{Code: code}, ofJob(prefix+"2"))})
		for i, o := range b.store.Record(within(t), five(t, prefix)) {
			if i != 2 {
				firstOnce(t, o)
			} else if !errors.Is(o.Err, job.ErrOutcomeUnknown) || errors.Is(o.Err, job.ErrUnavailable) {
				t.Errorf("code %d: %v, want job.ErrOutcomeUnknown", code, o.Err)
			}
		}
		if rule.Hits() != 3 {
			t.Errorf("code %d: tried %d times", code, rule.Hits())
		}
		b.calm()
		firstOnce(t, b.store.Record(within(t), five(t, prefix)[2:3])[0])
	}
}

// TestStrangeCodeOnce: such a code costs the record nothing either, and whether the write was applied is found out.
func TestStrangeCodeOnce(t *testing.T) {
	b := newBench(t, "")
	for _, code := range strangeCodes {
		for name, fault := range map[string]func(wireproxy.ItemError, func(bson.Raw) bool) wireproxy.Fault{
			"applied": wireproxy.DisownItems, "not applied": wireproxy.RefuseItems,
		} {
			object, text := newDelivery(t, fmt.Sprint(code, name), "r", job.ModeUntracked), newDelivery(t, fmt.Sprint(code, name, " text"), "r", job.ModeUntracked)
			text.Body.Data, text.Object = "no JSON", false
			for _, d := range []job.Delivery{object, text} {
				b.proxy.Add(&wireproxy.Rule{Command: "update", If: isUpsert, Times: 1, Do: fault(wireproxy.ItemError{Code: code}, anyItem)})
				if o := b.store.Record(within(t), []job.Delivery{d})[0]; o.Err != nil || o.Verdict.Disposition != job.First {
					t.Errorf("%s: %+v, %v; want the first", d.JobID, o.Verdict, o.Err)
				}
				b.calm()
			}
			if doc, _ := b.stored(object.JobID); doc.Lookup("payload").Type == 0 {
				t.Errorf("%s: the document was dropped", object.JobID)
			}
		}
	}
}

// TestStrangeCodeThenGone: a write that was answered with such a code was sent, although the next try gets no connection.
func TestStrangeCodeThenGone(t *testing.T) {
	b := newBench(t, "&maxPoolSize=1")
	ctx, leave := context.WithCancel(within(t))
	release := make(chan struct{})
	rule := b.proxy.Add(&wireproxy.Rule{Command: "update", If: isUpsert, Do: wireproxy.DisownItems(wireproxy.ItemError{Code: 133}, anyItem)})
	var s *mongostore.Store
	occupy := sync.OnceFunc(func() {
		held := b.proxy.Add(&wireproxy.Rule{Command: "find", Do: wireproxy.Hold(release)})
		go func() { _, _ = s.Get(within(t), "j", false) }()
		if err := held.Begun(within(t), 1); err != nil {
			t.Error(err)
		}
		leave()
	})
	opts := b.opts
	opts.Now = func() time.Time { // asked before each try
		if rule.Hits() > 0 {
			occupy()
		}
		return b.clock.Now()
	}
	s = open(t, opts)
	o := s.Record(ctx, []job.Delivery{newDelivery(t, "j", "r", job.ModeUntracked)})[0]
	if !errors.Is(o.Err, job.ErrOutcomeUnknown) || errors.Is(o.Err, job.ErrUnavailable) {
		t.Errorf("%+v, %v; want job.ErrOutcomeUnknown", o.Verdict, o.Err)
	}
	close(release)
	if rule.Hits() != 1 || b.deliveries("j") != 1 {
		t.Errorf("sent %d times, %d deliveries stored", rule.Hits(), b.deliveries("j"))
	}
}

// TestStuckItem: one job that cannot be written for now holds up neither its batch nor those after it. Its second try is
// over only once all others are.
func TestStuckItem(t *testing.T) {
	for name, code := range map[string]int32{"conflict": 112, "another unique index": 11000, "code nobody knows": 133} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "")
			behind := batch.New(b.store, batch.Config{Lanes: 1})
			refuse, release := wireproxy.RefuseItems(wireproxy.ItemError{Code: code}, ofJob("j2")), make(chan struct{})
			var alone atomic.Int32
			rule := b.proxy.Add(&wireproxy.Rule{Command: "update", If: func(c wireproxy.Command) bool {
				return slices.ContainsFunc(c.Items(), ofJob("j2"))
			}, Do: func(x *wireproxy.Exchange) error {
				if len(x.Command.Items()) == 1 && alone.Add(1) > 1 {
					<-release
				}
				return refuse(x)
			}})
			stuck := make(chan job.Outcome, 1)
			go func() { stuck <- behind.RecordOne(within(t), newDelivery(t, "j2", "r", job.ModeUntracked)) }()
			if err := rule.Begun(within(t), 2); err != nil {
				t.Fatal(err)
			}
			for _, d := range five(t, "other") {
				firstOnce(t, behind.RecordOne(within(t), d))
			}
			together, settled := five(t, "j"), make(chan int, 5)
			go b.store.RecordEach(within(t), together, func(i int, o job.Outcome) {
				if i != 2 {
					firstOnce(t, o)
				}
				settled <- i
			})
			for range 4 {
				if i := <-settled; i == 2 {
					t.Error("the stuck one came before its neighbours")
				}
			}
			b.calm()
			close(release)
			if i, o := <-settled, <-stuck; i != 2 || o.Err != nil {
				t.Errorf("%d was settled twice, or %+v, %v", i, o.Verdict, o.Err)
			}
		})
	}
}

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
		if n := b.attempted(id); n > 2 {
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
		if err != nil {
			t.Fatal(err)
		}
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
			_, err := b.store.Renew(within(t), id, l.Token, time.Hour)
			return err
		}, false},
		"complete": {func(id string, l job.Lease) error { return b.store.Complete(within(t), id, l.Token, "done") }, true},
		"release": {func(id string, l job.Lease) error {
			return b.store.Release(within(t), id, l.Token, job.Release{Error: "no"})
		}, true},
		"give up": {func(id string, l job.Lease) error {
			return b.store.Release(within(t), id, l.Token, job.Release{Dead: true})
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
			if err := c.op(name, *o.Lease); err != nil {
				t.Fatal(err)
			}
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
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range claimed {
			got = append(got, c.Record.JobID)
			if err := b.store.Complete(within(t), c.Record.JobID, c.Lease.Token, "done"); err != nil {
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

// TestDueTooFar: a lease that a clock an hour fast has granted is measured anew: its holder keeps it for its length, and
// then the job is free. What was granted for a day stays.
func TestDueTooFar(t *testing.T) {
	b := newBench(t, "")
	b.clock.Advance(time.Hour)
	lease := b.must(newDelivery(t, "alive", "r", job.ModeLeased)).Lease
	b.must(newDelivery(t, "gone", "r", job.ModeLeased))
	b.clock.Advance(-time.Hour)
	b.must(delivery(t, job.Input{JobID: "long", Mode: job.ModeLeased, Lease: new(24 * time.Hour)}))
	wants := func(id string, d job.Disposition) {
		t.Helper()
		if o := b.must(newDelivery(t, id, "another", job.ModeLeased)); o.Verdict.Disposition != d {
			t.Errorf("%s: got %+v, want %d", id, o.Verdict, d)
		}
	}
	b.store.Anchor(within(t))
	wants("alive", job.InProgress)
	if r, err := b.store.Get(within(t), "alive", false); err != nil || !r.Work.Due.Equal(job.Millis(b.clock.Now().Add(time.Minute))) {
		t.Errorf("due %v, %v", r.Work.Due, err)
	}
	b.store.Anchor(within(t))
	b.clock.Advance(59 * time.Second)
	wants("alive", job.InProgress)
	wants("gone", job.InProgress)
	if _, err := b.store.Renew(within(t), "alive", lease.Token, time.Minute); err != nil {
		t.Errorf("its holder cannot renew it: %v", err)
	}
	b.clock.Advance(2 * time.Second)
	wants("alive", job.InProgress)
	wants("gone", job.Reclaimed)
	b.clock.Advance(time.Minute)
	wants("alive", job.Reclaimed)
	if r, err := b.store.Get(within(t), "long", false); err != nil || r.Work.Granted != 24*time.Hour || r.Work.Due.Before(b.clock.Now().Add(23*time.Hour)) {
		t.Errorf("the long lease: %+v, %v", r.Work, err)
	}
}
