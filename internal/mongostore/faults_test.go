package mongostore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

// bench is a store that reaches its database through a proxy, and the collection without it.
type bench struct {
	t      *testing.T
	proxy  *wireproxy.Proxy
	opts   mongostore.Options
	store  *mongostore.Store
	clock  *testenv.Clock
	direct *mongo.Collection

	mu   sync.Mutex
	sent map[string]int64 // deliveries in the upserts that the store sent, by job
}

// newBench starts one; uriOptions are added to the store's URI.
func newBench(t *testing.T, uriOptions string) *bench {
	t.Helper()
	uri, database := testenv.MongoURI(t), testenv.Database(t)
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	testenv.Must(t, err)
	t.Cleanup(func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) })
	b := &bench{
		t: t, proxy: wireproxy.Start(t, uri), clock: testenv.NewClock(), sent: map[string]int64{},
		direct: client.Database(database).Collection(mongostore.DefaultCollection),
	}
	b.opts = mongostore.Options{URI: b.proxy.URI() + uriOptions, Database: database, Now: b.clock.Now}
	b.store = open(t, b.opts)
	b.calm()
	return b
}

// calm takes the faults away. The counting stays.
func (b *bench) calm() {
	b.proxy.Clear()
	b.proxy.Add(&wireproxy.Rule{Command: "update", If: b.count, Do: wireproxy.CutBefore})
}

func (b *bench) count(c wireproxy.Command) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, item := range c.Items() {
		if n, ok := item.Lookup("u", "$inc", "deliveries").AsInt64OK(); ok {
			b.sent[jobIDOf(item)] += n
		}
	}
	return false
}

func jobIDOf(item bson.Raw) string {
	id, _ := item.Lookup("q", "job_id").StringValueOK()
	return id
}

func (b *bench) attempted(jobID string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sent[jobID]
}

// stored is the job's document, its work apart.
func (b *bench) stored(jobID string) (doc, work bson.Raw) {
	b.t.Helper()
	doc, err := b.direct.FindOne(b.t.Context(), bson.D{{Key: "job_id", Value: jobID}}).Raw()
	if err != nil {
		b.t.Fatalf("%s is missing: %v", jobID, err)
	}
	work, _ = doc.Lookup("work").DocumentOK()
	return doc, work
}

func (b *bench) deliveries(jobID string) int64 {
	b.t.Helper()
	doc, _ := b.stored(jobID)
	n, _ := doc.Lookup("deliveries").AsInt64OK()
	return n
}

// within is a context that ends long after everything should be over.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func newDelivery(t *testing.T, jobID, requestID string, mode job.WorkMode) job.Delivery {
	t.Helper()
	in := job.Input{JobID: jobID, RequestID: requestID, Event: "event of " + jobID, Mode: mode, Body: job.Body{Kind: job.BodyText, Data: `{"a":1}`}}
	if mode == job.ModeLeased {
		lease := time.Minute
		in.Lease = &lease
	}
	d, err := in.Delivery(job.DefaultMaxBodyBytes)
	testenv.Must(t, err)
	return d
}

// must records a delivery, and its error is the test's end.
func (b *bench) must(d job.Delivery) job.Outcome {
	b.t.Helper()
	o := b.store.Record(within(b.t), []job.Delivery{d})[0]
	if o.Err != nil {
		b.t.Fatal(o.Err)
	}
	return o
}

// operation is a call whose write a fault strikes. start prepares what it needs and returns the call, which may be
// repeated and then has to give the same answer.
type operation struct {
	name  string
	write func(wireproxy.Command) bool
	reads bool // it reads before or after the write
	// settles is true when the write is found out by reading, so that a write concern error alone cannot stop it.
	settles bool
	start   func(b *bench, id string) func(context.Context) (answer string, err error)
	want    string
}

func isUpsert(c wireproxy.Command) bool {
	items := c.Items()
	return len(items) > 0 && items[0].Lookup("u", "$inc", "deliveries").Type != 0
}

// ofJobs tells whether a read names its jobs. The store's upkeep reads meanwhile, by when work is due.
func ofJobs(c wireproxy.Command) bool {
	filter, _ := c.Body.Lookup("filter").DocumentOK()
	return filter.Lookup("job_id").Type != 0 && filter.Lookup("work.due").Type == 0
}

func isWork(c wireproxy.Command) bool {
	items := c.Items()
	return len(items) > 0 && strings.Contains(items[0].Lookup("u").String(), `"work.`)
}

// recording is the operation of recording d. A lease in the answer must be the stored one.
func recording(d func(b *bench, id string) job.Delivery) func(*bench, string) func(context.Context) (string, error) {
	return func(b *bench, id string) func(context.Context) (string, error) {
		delivery := d(b, id)
		return func(ctx context.Context) (string, error) {
			o := b.store.Record(ctx, []job.Delivery{delivery})[0]
			if o.Err != nil {
				return "", o.Err
			}
			answer := fmt.Sprintf("%d start=%t first=%t", o.Verdict.Disposition, o.Verdict.StartWork, o.Verdict.FirstDelivery)
			if o.Lease != nil {
				answer += " lease"
				b.sameLease(delivery.JobID, *o.Lease)
			}
			if n, sent := b.deliveries(delivery.JobID), b.attempted(delivery.JobID); o.Record.Deliveries < 1 || o.Record.Deliveries > n || n > sent {
				b.t.Errorf("answered delivery %d, stored %d, sent %d", o.Record.Deliveries, n, sent)
			}
			return answer, nil
		}
	}
}

func (b *bench) sameLease(jobID string, l job.Lease) {
	b.t.Helper()
	_, work := b.stored(jobID)
	token, _ := work.Lookup("token").StringValueOK()
	generation, _ := work.Lookup("generation").AsInt64OK()
	due, _ := work.Lookup("due").TimeOK()
	if token != l.Token || generation != l.Generation || !due.Equal(l.Expires) {
		b.t.Errorf("the lease is %+v, stored is %v", l, work)
	}
}

// holding is an operation of the holder of a lease.
func holding(do func(ctx context.Context, b *bench, id string, l job.Lease) error) func(*bench, string) func(context.Context) (string, error) {
	return func(b *bench, id string) func(context.Context) (string, error) {
		lease := *b.must(newDelivery(b.t, id, "before", job.ModeLeased)).Lease
		b.clock.Advance(time.Second)
		return func(ctx context.Context) (string, error) {
			err := do(ctx, b, id, lease)
			_, work := b.stored(id)
			state, _ := work.Lookup("state").StringValueOK()
			due, _ := work.Lookup("due").TimeOK()
			if err == nil && !due.IsZero() {
				state += b.until(due)
			}
			return state, err
		}
	}
}

var operations = []operation{
	{name: "record untracked, first", write: isUpsert, want: "1 start=true first=true",
		start: recording(func(b *bench, id string) job.Delivery { return newDelivery(b.t, id, "r", job.ModeUntracked) })},
	{name: "record leased, first", write: isUpsert, want: "1 start=true first=true lease",
		start: recording(func(b *bench, id string) job.Delivery { return newDelivery(b.t, id, "r", job.ModeLeased) })},
	{name: "record queued, first", write: isUpsert, want: "1 start=false first=true",
		start: recording(func(b *bench, id string) job.Delivery { return newDelivery(b.t, id, "r", job.ModeQueued) })},
	{name: "record duplicate", write: isUpsert, reads: true, want: "2 start=false first=false",
		start: recording(func(b *bench, id string) job.Delivery {
			b.must(newDelivery(b.t, id, "before", job.ModeUntracked))
			return newDelivery(b.t, id, "r", job.ModeUntracked)
		})},
	{name: "reclaim", write: isWork, reads: true, settles: true, want: "3 start=true first=false lease",
		start: recording(func(b *bench, id string) job.Delivery {
			b.must(newDelivery(b.t, id, "before", job.ModeLeased))
			b.clock.Advance(time.Hour)
			return newDelivery(b.t, id, "r", job.ModeLeased)
		})},
	{name: "claim", write: isWork, reads: true, settles: true, want: "claimed",
		start: func(b *bench, id string) func(context.Context) (string, error) {
			b.must(newDelivery(b.t, id, "before", job.ModeQueued))
			return func(ctx context.Context) (answer string, err error) {
				claimed, err := b.store.Claim(ctx, job.ClaimRequest{RequestID: "claim " + id, Max: 10, Lease: time.Minute, MaxBytes: 1 << 20})
				for _, c := range claimed {
					answer += "claimed"
					if c.Record.JobID != id {
						answer = c.Record.JobID
					}
					b.sameLease(c.Record.JobID, c.Lease)
				}
				return answer, err
			}
		}},
	{name: "renew", write: isWork, settles: true, want: "leased for 1h0m0s",
		start: holding(func(ctx context.Context, b *bench, id string, l job.Lease) error {
			_, err := job.Renew(ctx, b.store, id, l.Token, time.Hour)
			return err
		})},
	{name: "complete", write: isWork, settles: true, want: "completed",
		start: holding(func(ctx context.Context, b *bench, id string, l job.Lease) error {
			return job.Complete(ctx, b.store, id, l.Token, "done")
		})},
	{name: "release", write: isWork, settles: true, want: "queued for 1m0s",
		start: holding(func(ctx context.Context, b *bench, id string, l job.Lease) error {
			return job.GiveBack(ctx, b.store, id, l.Token, job.Release{Delay: time.Minute})
		})},
	{name: "unclaim", write: isWork, want: "queued after 0 attempts",
		start: func(b *bench, id string) func(context.Context) (string, error) {
			b.must(newDelivery(b.t, id, "before", job.ModeQueued))
			claimed, err := b.store.Claim(within(b.t), job.ClaimRequest{RequestID: "claim " + id, Max: 1, Lease: time.Minute, Events: []string{"event of " + id}})
			if err != nil || len(claimed) != 1 {
				b.t.Fatalf("claimed %v, %v", claimed, err)
			}
			return func(ctx context.Context) (string, error) {
				err := b.store.Unclaim(ctx, claimed)
				_, work := b.stored(id)
				state, _ := work.Lookup("state").StringValueOK()
				attempts, _ := work.Lookup("attempts").AsInt64OK()
				return fmt.Sprintf("%s after %d attempts", state, attempts), err
			}
		}},
}

func anyItem(bson.Raw) bool { return true }

// ambiguous are the faults after which a write may or may not have been applied.
var ambiguous = map[string]wireproxy.Fault{
	"cut before":            wireproxy.CutBefore,
	"cut after":             wireproxy.CutAfter,
	"write concern":         wireproxy.FailConcern(64, "WriteConcernTimeout"),
	"write concern, down":   wireproxy.FailConcern(91, "ShutdownInProgress"),
	"not primary":           wireproxy.Fail(10107, "NotWritablePrimary"),
	"shutdown":              wireproxy.Fail(91, "ShutdownInProgress"),
	"interrupted":           wireproxy.Fail(11600, "InterruptedAtShutdown"),
	"time limit":            wireproxy.Fail(50, "MaxTimeMSExpired"),
	"code nobody knows":     wireproxy.Fail(123456, "Unheard"),
	"item, not primary":     wireproxy.DisownItems(wireproxy.ItemError{Code: 10107}, anyItem),
	"item, interrupted":     wireproxy.DisownItems(wireproxy.ItemError{Code: 11600}, anyItem),
	"item, strange code":    wireproxy.DisownItems(wireproxy.ItemError{Code: 133}, anyItem),
	"item, strange, no":     wireproxy.RefuseItems(wireproxy.ItemError{Code: 202}, anyItem),
	"item, not applied yet": wireproxy.RefuseItems(wireproxy.ItemError{Code: 11602}, anyItem),
}

// landing are those of them with which the write is applied.
var landing = map[string]bool{
	"cut after": true, "write concern": true, "write concern, down": true, "item, not primary": true, "item, interrupted": true,
	"item, strange code": true,
}

// passing are those that say that the write was not applied, and that another try helps.
var passing = map[string]wireproxy.Fault{
	"item, write conflict":    wireproxy.RefuseItems(wireproxy.ItemError{Code: 112}, anyItem),
	"item, deadlock":          wireproxy.RefuseItems(wireproxy.ItemError{Code: 16908292}, anyItem),
	"item, duplicate job":     wireproxy.RefuseItems(wireproxy.ItemError{Code: 11000, KeyPattern: bson.D{{Key: "job_id", Value: 1}}}, anyItem),
	"item, duplicate unnamed": wireproxy.RefuseItems(wireproxy.ItemError{Code: 11000}, anyItem),
	"slow":                    wireproxy.Throttle(100_000),
}

// until says how long it is until then, but for some milliseconds: each renewal that is repeated makes a lease longer by one.
func (b *bench) until(then time.Time) string {
	return fmt.Sprint(" for ", then.Sub(job.Millis(b.clock.Now())).Truncate(10*time.Millisecond))
}

// eachOperation runs a test of every operation on a bench of its own, all at once: most of the time goes by with the
// driver finding out that its server is back.
func eachOperation(t *testing.T, test func(t *testing.T, op operation, b *bench)) {
	for _, op := range operations {
		t.Run(op.name, func(t *testing.T) {
			t.Parallel()
			test(t, op, newBench(t, ""))
		})
	}
}

// TestFaultOnce: after one fault each operation comes through by itself, with the answer that it would have had.
func TestFaultOnce(t *testing.T) {
	eachOperation(t, func(t *testing.T, op operation, b *bench) {
		try := func(name string, rule *wireproxy.Rule) {
			t.Run(name, func(t *testing.T) {
				defer b.calm()
				call := op.start(b, name)
				rule.Times = 1
				b.proxy.Add(rule)
				for _, when := range []string{"through the fault", "repeated"} {
					if answer, err := call(within(t)); err != nil || answer != op.want {
						t.Errorf("%s: %q, %v; want %q", when, answer, err, op.want)
					}
				}
				if rule.Hits() != 1 {
					t.Errorf("the fault struck %d times", rule.Hits())
				}
			})
		}
		for _, faults := range []map[string]wireproxy.Fault{ambiguous, passing} {
			for name, fault := range faults {
				try(name, &wireproxy.Rule{Command: "update", If: op.write, Do: fault})
			}
		}
		if op.reads {
			try("read, cut", &wireproxy.Rule{Command: "find", Do: wireproxy.CutBefore})
			try("read, not primary", &wireproxy.Rule{Command: "find", Do: wireproxy.Fail(10107, "NotWritablePrimary")})
		}
	})
}

// TestFaultForGood: a fault that stays leaves the outcome unknown, and the same call gets the true answer once it is
// over.
func TestFaultForGood(t *testing.T) {
	eachOperation(t, func(t *testing.T, op operation, b *bench) {
		for name, fault := range ambiguous {
			t.Run(name, func(t *testing.T) {
				defer b.calm()
				call := op.start(b, name)
				rule := b.proxy.Add(&wireproxy.Rule{Command: "update", If: op.write, Do: fault})
				ctx, cancel := context.WithCancel(within(t))
				defer cancel()
				// What landed may be found out by reading, and then there is an answer in spite of the fault.
				found := op.settles && landing[name]
				if !found {
					go func() {
						_ = rule.Begun(ctx, 2) // one reply is seen to the end
						cancel()
					}()
				}
				answer, err := call(ctx)
				if found && (err != nil || answer != op.want) {
					t.Errorf("got %q, %v; want %q", answer, err, op.want)
				}
				if !found && (!errors.Is(err, job.ErrOutcomeUnknown) || errors.Is(err, job.ErrUnavailable)) {
					t.Errorf("got %q, %v; want job.ErrOutcomeUnknown", answer, err)
				}
				b.calm()
				if answer, err := call(within(t)); err != nil || answer != op.want {
					t.Errorf("repeated after the fault: %q, %v; want %q", answer, err, op.want)
				}
			})
		}
	})
}

// TestLandsLater: a write that was under way when its caller gave up lands before or after the repetition, and changes
// no answer.
func TestLandsLater(t *testing.T) {
	eachOperation(t, func(t *testing.T, op operation, b *bench) {
		for _, name := range []string{"before the repetition", "after it"} {
			t.Run(name, func(t *testing.T) {
				defer b.calm()
				call := op.start(b, name)
				release := make(chan struct{})
				rule := b.proxy.Add(&wireproxy.Rule{Command: "update", If: op.write, Times: 1, Do: wireproxy.Hold(release)})
				ctx, cancel := context.WithCancel(within(t))
				go func() {
					_ = rule.Begun(ctx, 1)
					cancel()
				}()
				if _, err := call(ctx); !errors.Is(err, job.ErrOutcomeUnknown) || !errors.Is(err, context.Canceled) {
					t.Errorf("given up: %v, want job.ErrOutcomeUnknown", err)
				}
				land := func() {
					close(release)
					testenv.Must(t, rule.Ended(within(t), 1))
				}
				if name == "before the repetition" {
					land()
				}
				for i := range 2 {
					if answer, err := call(within(t)); err != nil || answer != op.want {
						t.Errorf("repetition %d: %q, %v; want %q", i, answer, err, op.want)
					}
					if i == 0 && name == "after it" {
						land()
					}
				}
				if o := b.must(newDelivery(t, name, "another", job.ModeUntracked)); o.Verdict.StartWork || o.Verdict.FirstDelivery {
					t.Errorf("another call may start the work: %+v", o.Verdict)
				}
			})
		}
	})
}
