package mongostore_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

// TestManyWithoutDatabase: once the database is away, the rest of many is not tried one by one, each of which would wait for a server;
// and only what was certainly not done is called unwritten.
func TestManyWithoutDatabase(t *testing.T) {
	const many = 60 // each waits for 300 ms, and all for longer than the call may take
	goes := func(b *bench, fault wireproxy.Fault) wireproxy.Fault {
		return func(x *wireproxy.Exchange) error {
			defer b.proxy.Down()
			return fault(x)
		}
	}
	for name, c := range map[string]struct {
		kind job.DeleteKind
		// strike has the database go away; others deletes every other job by itself.
		strike func(b *bench, others func())
	}{
		"before": {job.DeleteJob, func(b *bench, _ func()) { b.proxy.Down() }},
		"in the look": {job.DropPayload, func(b *bench, _ func()) {
			b.proxy.Add(&wireproxy.Rule{Command: "find", If: ofJobs, Do: goes(b, wireproxy.CutBefore)})
		}},
		"before the bulk": {job.DeleteJob, func(b *bench, _ func()) {
			b.proxy.Add(&wireproxy.Rule{Command: "delete", Do: goes(b, wireproxy.CutBefore)})
		}},
		"behind the bulk": {job.DeleteJob, func(b *bench, _ func()) {
			b.proxy.Add(&wireproxy.Rule{Command: "delete", Do: goes(b, wireproxy.CutAfter)})
		}},
		"behind a bulk that made some": {job.DeleteJob, func(b *bench, others func()) {
			var made atomic.Bool
			b.proxy.Add(&wireproxy.Rule{Command: "delete", Times: 1, Do: func(x *wireproxy.Exchange) error {
				others()
				made.Store(true)
				return x.Pass()
			}})
			b.proxy.Add(&wireproxy.Rule{Command: "find", If: func(wireproxy.Command) bool { return made.Load() }, Do: goes(b, wireproxy.CutBefore)})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "&serverSelectionTimeoutMS=300")
			var ds []job.Deletion
			var elsewhere []string
			var deliveries []job.Delivery
			for i := range many {
				deliveries = append(deliveries, newDelivery(t, fmt.Sprint("job ", i), "r", job.ModeUntracked))
				if i%2 > 0 {
					elsewhere = append(elsewhere, deliveries[i].JobID)
				}
			}
			for _, o := range b.store.Record(within(t), deliveries) {
				testenv.Must(t, o.Err)
				ds = append(ds, job.Deletion{Expected: job.ExpectedOf(&o.Record), Kind: c.kind})
			}
			c.strike(b, func() {
				_, err := b.direct.DeleteMany(context.WithoutCancel(t.Context()), bson.D{{Key: "job_id", Value: bson.D{{Key: "$in", Value: elsewhere}}}})
				if err != nil {
					t.Error(err)
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			unwritten := 0
			for i, o := range b.store.Delete(ctx, ds) {
				if errors.Is(o.Err, context.DeadlineExceeded) || !errors.Is(o.Err, job.ErrUnavailable) && !errors.Is(o.Err, job.ErrOutcomeUnknown) {
					t.Fatalf("%s: %+v", ds[i].JobID, o)
				}
				if n, err := b.direct.CountDocuments(t.Context(), bson.D{{Key: "job_id", Value: ds[i].JobID}}); err != nil {
					t.Fatal(err)
				} else if !errors.Is(o.Err, job.ErrOutcomeUnknown) {
					if unwritten++; n == 0 && (i%2 == 0 || name == "behind the bulk") {
						t.Errorf("%s was deleted, and is said not to be: %v", ds[i].JobID, o.Err)
					}
				}
			}
			// One at most may have met its end on the way.
			if known := name == "before" || name == "in the look"; known && unwritten < many-1 {
				t.Errorf("of %d nobody knows", many-unwritten)
			}
		})
	}
}

// TestOverdueWithoutDatabase is that of expectations, which are handed out, or removed where their jobs are recorded.
func TestOverdueWithoutDatabase(t *testing.T) {
	for command, recorded := range map[string]bool{"update": false, "delete": true} {
		t.Run(command, func(t *testing.T) {
			b := newBench(t, "&serverSelectionTimeoutMS=300")
			var deliveries []job.Delivery
			for i := range 60 {
				overdue := time.Duration(0)
				req, err := job.NewExpectRequest(fmt.Sprint("job ", i), "https://provider.example/", &overdue, nil)
				testenv.Must(t, err)
				_, _, err = b.store.Expect(within(t), req)
				testenv.Must(t, err)
				deliveries = append(deliveries, newDelivery(t, req.JobID, "r", job.ModeUntracked))
			}
			if recorded {
				for _, o := range b.store.Record(within(t), deliveries) {
					testenv.Must(t, o.Err)
				}
			}
			b.clock.Advance(time.Second)
			b.proxy.Add(&wireproxy.Rule{Command: command, Skip: 3, Do: func(x *wireproxy.Exchange) error {
				defer b.proxy.Down()
				return wireproxy.CutBefore(x)
			}})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			out, err := b.store.ClaimOverdue(ctx, job.OverdueRequest{Max: job.MaxOverdueJobs, Lease: time.Minute})
			if ctx.Err() != nil || recorded && !errors.Is(err, job.ErrOutcomeUnknown) || !recorded && (err != nil || len(out.Jobs) != 3) {
				t.Errorf("%d jobs, %v, %v", len(out.Jobs), err, ctx.Err())
			}
		})
	}
}
