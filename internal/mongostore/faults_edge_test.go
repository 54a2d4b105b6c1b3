package mongostore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

// ofJob picks the writes of one job.
func ofJob(id string) func(bson.Raw) bool {
	return func(item bson.Raw) bool { return jobIDOf(item) == id }
}

func firstOnce(t *testing.T, o job.Outcome) {
	t.Helper()
	if o.Err != nil || o.Verdict.Disposition != job.First || o.Record.Deliveries != 1 {
		t.Errorf("got %+v, deliveries %d, %v; want the first", o.Verdict, o.Record.Deliveries, o.Err)
	}
}

// refusedForGood: neither a retry of the client's nor of ours would help.
func refusedForGood(t *testing.T, o job.Outcome) {
	t.Helper()
	if o.Err == nil || errors.Is(o.Err, job.ErrOutcomeUnknown) || errors.Is(o.Err, job.ErrUnavailable) {
		t.Errorf("got %v, want an error that is neither unknown nor unavailable", o.Err)
	}
}

func five(t *testing.T, prefix string) (deliveries []job.Delivery) {
	t.Helper()
	for i := range 5 {
		id := fmt.Sprint(prefix, i)
		deliveries = append(deliveries, newDelivery(t, id, "request of "+id, job.ModeUntracked))
	}
	return deliveries
}

// TestRefusedItem: what is wrong with one delivery is no matter of those that share its bulk, in the store and behind the
// lanes.
func TestRefusedItem(t *testing.T) {
	b := newBench(t, "")
	behind := batch.New(b.store, batch.Config{})
	for name, record := range map[string]func(context.Context, []job.Delivery) []job.Outcome{"store ": b.store.Record, "lanes ": behind.Record} {
		for fault, e := range map[string]wireproxy.ItemError{
			"validation":             {Code: 121},
			"duplicate of something": {Code: 11000, KeyPattern: bson.D{{Key: "order", Value: 1}}},
			"duplicate unnamed":      {Code: 11000},
		} {
			t.Run(name+fault, func(t *testing.T) {
				defer b.calm()
				prefix := name + fault
				rule := b.proxy.Add(&wireproxy.Rule{Command: "update", If: func(c wireproxy.Command) bool {
					for _, item := range c.Items() {
						if jobIDOf(item) == prefix+"2" {
							return true
						}
					}
					return false
				}, Do: wireproxy.RefuseItems(e, ofJob(prefix+"2"))})
				for i, o := range record(within(t), five(t, prefix)) {
					if i == 2 {
						refusedForGood(t, o)
						continue
					}
					firstOnce(t, o)
				}
				// A validator may have stumbled over the embedded document, so that one is tried without; a duplicate that
				// is not named may be one of ours for a while.
				if most := map[string]int{"validation": 2, "duplicate of something": 1, "duplicate unnamed": 10}[fault]; rule.Hits() > most {
					t.Errorf("tried %d times, want at most %d", rule.Hits(), most)
				}
				b.calm()
				for i, o := range record(within(t), five(t, prefix)) {
					if o.Err != nil || o.Verdict.Disposition != job.First {
						t.Errorf("repeated, %d: %+v, %v", i, o.Verdict, o.Err)
					}
				}
			})
		}
	}
}

// TestUnknownBehindLanes: a batch that ends unknown says so to its callers, without its own deadline, which is not
// theirs; and each gets the true answer to the same call later.
func TestUnknownBehindLanes(t *testing.T) {
	b := newBench(t, "")
	behind := batch.New(b.store, batch.Config{Timeout: time.Second})
	patient := batch.New(b.store, batch.Config{})
	for _, name := range []string{"cut after", "write concern", "not primary"} {
		t.Run(name, func(t *testing.T) {
			defer b.calm()
			b.proxy.Add(&wireproxy.Rule{Command: "update", If: isUpsert, Do: ambiguous[name]})
			for i, o := range behind.Record(within(t), five(t, name)) {
				if !errors.Is(o.Err, job.ErrOutcomeUnknown) || errors.Is(o.Err, context.DeadlineExceeded) {
					t.Errorf("%d: %+v, %v; want job.ErrOutcomeUnknown alone", i, o.Verdict, o.Err)
				}
			}
			b.calm()
			for i, o := range patient.Record(within(t), five(t, name)) {
				if o.Err != nil || o.Verdict.Disposition != job.First || !o.Verdict.StartWork {
					t.Errorf("repeated, %d: %+v, %v; want the first", i, o.Verdict, o.Err)
				}
			}
		})
	}
}

// TestForeignIndex: a real unique index of somebody else's, which the database may or may not name.
func TestForeignIndex(t *testing.T) {
	b := newBench(t, "")
	if _, err := b.direct.Indexes().CreateOne(t.Context(), mongo.IndexModel{
		Keys: bson.D{{Key: "source", Value: 1}}, Options: options.Index().SetUnique(true),
	}); err != nil {
		t.Fatal(err)
	}
	deliveries := five(t, "j")
	for i := range deliveries {
		deliveries[i].Source = fmt.Sprint("source ", i%4) // the first and the last
	}
	out := b.store.Record(within(t), deliveries)
	for _, o := range out[1:4] {
		firstOnce(t, o)
	}
	if out[0].Err != nil {
		out[0], out[4] = out[4], out[0]
	}
	firstOnce(t, out[0])
	refusedForGood(t, out[4])
}

// TestRefusedDocumentInBulk: a database that does not take the embedded document gets the text alone, and nobody notices.
func TestRefusedDocumentInBulk(t *testing.T) {
	b := newBench(t, "")
	hasDocument := func(item bson.Raw) bool {
		return item.Lookup("u", "$setOnInsert", "payload").Type != 0 && jobIDOf(item) == "j2"
	}
	b.proxy.Add(&wireproxy.Rule{Command: "update", Do: wireproxy.RefuseItems(wireproxy.ItemError{Code: 52}, hasDocument)})
	for _, o := range b.store.Record(within(t), five(t, "j")) {
		firstOnce(t, o)
	}
	for i := range 5 {
		doc, _ := b.stored(fmt.Sprint("j", i))
		_, text := doc.Lookup("payload_text").StringValueOK()
		if _, embedded := doc.Lookup("payload").DocumentOK(); text != (i == 2) || embedded == text {
			t.Errorf("job %d: text %t, embedded %t", i, text, embedded)
		}
	}
}

// TestOddDocuments: whatever of these the database takes or does not take as a document, every delivery is recorded.
func TestOddDocuments(t *testing.T) {
	b := newBench(t, "")
	bodies := []string{
		`{"$a":1}`, `{"a":{"$b":[{"$c":1}]}}`, `{"a.b":1}`, `{"":1}`, `{"a":{"":{"":1}}}`, `{"_id":1}`, `{"_id":{"$x":1},"a":[[]]}`, `{"a":1,"b":1e300}`,
		`{"a":` + strings.Repeat("[", 97) + strings.Repeat("]", 97) + `}`, `{"` + strings.Repeat("k", 2000) + `":1}`, `{"$set":{"job_id":"other"}}`,
	}
	var deliveries []job.Delivery
	for i, body := range bodies {
		d := newDelivery(t, fmt.Sprint("j", i), "r", job.ModeUntracked)
		d.Body.Data = body
		deliveries = append(deliveries, d)
	}
	for i, o := range b.store.Record(within(t), deliveries) {
		firstOnce(t, o)
		if r, err := b.store.Get(t.Context(), deliveries[i].JobID, true); err != nil || r.Body.Data != bodies[i] {
			t.Errorf("%.40s: the body is %.40q, %v", bodies[i], r.Body.Data, err)
		}
	}
}

// TestPoolWait: a delivery that never gets a connection was not sent.
func TestPoolWait(t *testing.T) {
	b := newBench(t, "&maxPoolSize=1")
	release := make(chan struct{})
	rule := b.proxy.Add(&wireproxy.Rule{Command: "update", Times: 1, Do: wireproxy.HoldReply(release)})
	held := make(chan job.Outcome, 1)
	go func() {
		held <- b.store.Record(within(t), []job.Delivery{newDelivery(t, "held", "r", job.ModeUntracked)})[0]
	}()
	testenv.Must(t, rule.Begun(within(t), 1))
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	waiting := newDelivery(t, "waiting", "r", job.ModeUntracked)
	err := b.store.Record(short, []job.Delivery{waiting})[0].Err
	wantUnavailable(t, err)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want context.DeadlineExceeded too", err)
	}
	close(release)
	firstOnce(t, <-held)
	if b.attempted("waiting") != 0 {
		t.Error("the delivery was sent")
	}
	firstOnce(t, b.must(waiting))
}

// TestNoServer: without a server nothing is sent, and it is not waited for twice.
func TestNoServer(t *testing.T) {
	b := newBench(t, "&serverSelectionTimeoutMS=300")
	lease := *b.must(newDelivery(t, "leased", "r", job.ModeLeased)).Lease
	d := newDelivery(t, "j", "r", job.ModeUntracked)
	b.proxy.Down()
	// The first to notice may have written into a connection that is gone.
	if err := b.store.Record(within(t), []job.Delivery{d})[0].Err; !errors.Is(err, job.ErrOutcomeUnknown) && !errors.Is(err, job.ErrUnavailable) {
		t.Fatal(err)
	}
	for name, call := range map[string]func(context.Context) error{
		"record":   func(ctx context.Context) error { return b.store.Record(ctx, []job.Delivery{d})[0].Err },
		"complete": func(ctx context.Context) error { return job.Complete(ctx, b.store, "leased", lease.Token, "") },
		"claim": func(ctx context.Context) error {
			_, err := b.store.Claim(ctx, job.ClaimRequest{RequestID: "r", Max: 1, Lease: time.Minute})
			return err
		},
		"get": func(ctx context.Context) error { _, err := b.store.Get(ctx, "j", false); return err },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			err := call(ctx)
			wantUnavailable(t, err)
			if errors.Is(err, context.DeadlineExceeded) {
				t.Error("the caller's whole time went by with waiting for a server")
			}
		})
	}
	b.proxy.Up()
	for { // until the driver has found out
		o := b.store.Record(within(t), []job.Delivery{d})[0]
		if o.Err == nil {
			if o.Verdict.Disposition != job.First || b.deliveries("j") > b.attempted("j") {
				t.Errorf("got %+v", o.Verdict)
			}
			return
		}
		wantUnavailable(t, o.Err)
	}
}

// TestNotAllowed: the database says no to the write, for good.
func TestNotAllowed(t *testing.T) {
	b := newBench(t, "")
	lease := *b.must(newDelivery(t, "leased", "r", job.ModeLeased)).Lease
	rule := b.proxy.Add(&wireproxy.Rule{Command: "update", Do: wireproxy.Fail(13, "Unauthorized")})
	refusedForGood(t, b.store.Record(within(t), []job.Delivery{newDelivery(t, "j", "r", job.ModeUntracked)})[0])
	refusedForGood(t, job.Outcome{Err: job.Complete(within(t), b.store, "leased", lease.Token, "")})
	if rule.Hits() != 2 {
		t.Errorf("tried %d times, want 2", rule.Hits())
	}
}

// TestOpenClaim: a delivery whose claim may yet be applied is not told that the work waits for somebody.
func TestOpenClaim(t *testing.T) {
	b := newBench(t, "")
	b.must(newDelivery(t, "j", "before", job.ModeLeased))
	b.clock.Advance(time.Hour)
	d := newDelivery(t, "j", "r", job.ModeLeased)
	b.proxy.Add(&wireproxy.Rule{Command: "update", If: isWork, Do: wireproxy.RefuseItems(wireproxy.ItemError{Code: 11600}, anyItem)})
	if o := b.store.Record(within(t), []job.Delivery{d})[0]; !errors.Is(o.Err, job.ErrOutcomeUnknown) {
		t.Errorf("got %+v, %v; want job.ErrOutcomeUnknown", o.Verdict, o.Err)
	}
	b.calm()
	if o := b.must(d); o.Verdict.Disposition != job.Reclaimed || o.Lease == nil {
		t.Errorf("repeated: %+v", o.Verdict)
	}
}

// TestGrantedButNotSeen: a claim whose leases were granted, and that could not look for them, does not say that nothing was
// written, and not that there is no work either. Repeated, it is told of them.
func TestGrantedButNotSeen(t *testing.T) {
	for name, c := range map[string]struct {
		lose  func(b *bench, leave func())
		fault wireproxy.Fault
	}{
		"database gone": {func(b *bench, _ func()) { b.proxy.Down() }, wireproxy.CutBefore},
		"caller gone":   {func(_ *bench, leave func()) { leave() }, wireproxy.BlackHole},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "")
			b.must(newDelivery(t, "j", "r", job.ModeQueued))
			// The first two finds look for what the request holds and for what is due.
			ofClaim := func(c wireproxy.Command) bool { // and not the store's upkeep
				_, held := c.Body.LookupErr("filter", "work.claim_id")
				_, due := c.Body.LookupErr("filter", "$or")
				return held == nil || due == nil
			}
			ctx, leave := context.WithTimeout(within(t), time.Minute)
			defer leave()
			b.proxy.Add(&wireproxy.Rule{Command: "find", If: ofClaim, Skip: 2, Do: func(x *wireproxy.Exchange) error {
				c.lose(b, leave)
				return c.fault(x)
			}})
			req := job.ClaimRequest{RequestID: "claim", Max: 1, Lease: time.Hour, MaxBytes: 1 << 20}
			if got, err := b.store.Claim(ctx, req); !errors.Is(err, job.ErrOutcomeUnknown) || len(got) > 0 {
				t.Errorf("got %+v, %v; want job.ErrOutcomeUnknown", got, err)
			}
			b.calm()
			b.proxy.Up()
			for range 10 { // until the driver has found the database again
				got, err := b.store.Claim(within(t), req)
				if err == nil {
					if len(got) != 1 || got[0].Record.Work.Attempts != 1 {
						t.Errorf("repeated: %+v", got)
					}
					return
				}
			}
			t.Error("the repeated claim does not come through")
		})
	}
}

// TestCountedButNotClaimed: a delivery that was counted is not one of which nothing was sent, although nothing was of its
// claim: the only connection is busy, and the caller gives up.
func TestCountedButNotClaimed(t *testing.T) {
	b := newBench(t, "")
	b.must(newDelivery(t, "j", "before", job.ModeLeased))
	b.clock.Advance(time.Hour)
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	var read atomic.Bool
	var busy func()
	opts := b.opts
	opts.URI += "&maxPoolSize=1"
	opts.Now = func() time.Time { // which is asked between the read and the claim
		if read.CompareAndSwap(true, false) {
			busy()
			cancel()
		}
		return b.clock.Now()
	}
	s := open(t, opts)
	b.proxy.Add(&wireproxy.Rule{Command: "find", If: ofJobs, Times: 1, Do: func(x *wireproxy.Exchange) error {
		read.Store(true)
		return x.Pass()
	}})
	release := make(chan struct{})
	hold := b.proxy.Add(&wireproxy.Rule{Command: "find", If: ofJobs, Times: 1, Do: wireproxy.Hold(release)})
	other := make(chan error, 1)
	busy = func() {
		go func() {
			_, err := s.Get(within(t), "another", false)
			other <- err
		}()
		testenv.OK(t, hold.Begun(within(t), 1))
	}
	o := s.Record(ctx, []job.Delivery{newDelivery(t, "j", "r", job.ModeLeased)})[0]
	if !errors.Is(o.Err, job.ErrOutcomeUnknown) || errors.Is(o.Err, job.ErrUnavailable) {
		t.Errorf("got %+v, %v; want job.ErrOutcomeUnknown", o.Verdict, o.Err)
	}
	close(release)
	if err := <-other; !errors.Is(err, job.ErrNotFound) {
		t.Error(err)
	}
	if n := b.deliveries("j"); n != 2 {
		t.Errorf("%d deliveries, want 2", n)
	}
}

// TestReleasedAndTaken: a release was applied, its answer lost, and the work taken up by somebody else: that it was lost
// would be a guess.
func TestReleasedAndTaken(t *testing.T) {
	b := newBench(t, "")
	lease := *b.must(newDelivery(t, "j", "before", job.ModeLeased)).Lease
	b.proxy.Add(&wireproxy.Rule{Command: "update", If: isWork, Times: 1, Do: wireproxy.CutAfter})
	release := make(chan struct{})
	look := b.proxy.Add(&wireproxy.Rule{Command: "find", If: ofJobs, Times: 1, Do: wireproxy.Hold(release)})
	answer := make(chan error, 1)
	go func() { answer <- job.GiveBack(within(t), b.store, "j", lease.Token, job.Release{}) }()
	testenv.Must(t, look.Begun(within(t), 1))
	if got, err := b.store.Claim(within(t), job.ClaimRequest{RequestID: "other", Max: 1, Lease: time.Minute}); err != nil || len(got) != 1 {
		t.Fatalf("claimed %v, %v", got, err)
	}
	close(release)
	if err := <-answer; !errors.Is(err, job.ErrOutcomeUnknown) {
		t.Errorf("got %v, want job.ErrOutcomeUnknown", err)
	}
	if err := job.GiveBack(within(t), b.store, "j", lease.Token, job.Release{}); !errors.Is(err, job.ErrLeaseLost) {
		t.Errorf("repeated: %v, want job.ErrLeaseLost", err)
	}
}
