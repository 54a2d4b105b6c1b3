package mongostore_test

import (
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

// plainDelivery is a delivery of a frontend without JobOnce, which counts it and keeps no time.
func (b *bench) plainDelivery(id string, first time.Time) {
	b.t.Helper()
	_, err := b.direct.UpdateOne(b.t.Context(), bson.D{{Key: "job_id", Value: id}}, bson.D{
		{Key: "$setOnInsert", Value: bson.D{{Key: "event", Value: "e"}, {Key: "first_seen", Value: first}}},
		{Key: "$inc", Value: bson.D{{Key: "deliveries", Value: 1}}},
	}, options.UpdateOne().SetUpsert(true))
	testenv.Must(b.t, err)
}

// TestAgedPlainUpsert: a frontend without JobOnce may have counted a delivery a moment ago. Its jobs are removed by their age while
// nobody has delivered them again, and lose their payload in any case.
func TestAgedPlainUpsert(t *testing.T) {
	b := newBench(t, "")
	now := b.clock.Now()
	first := job.Millis(now.Add(-31 * 24 * time.Hour))
	b.plainDelivery("once", first)
	b.plainDelivery("again", first)
	b.plainDelivery("again", first)
	for _, c := range []struct {
		id   string
		kind job.DeleteKind
		kept bool
	}{{"again", job.DeleteJob, true}, {"once", job.DeleteJob, false}, {"again", job.DropPayload, false}} {
		r, err := b.store.Get(within(t), c.id, false)
		testenv.Must(t, err)
		d := job.Deletion{Expected: job.ExpectedOf(&r), Kind: c.kind, ActiveBefore: now.Add(-30 * 24 * time.Hour), Deliveries: r.Deliveries}
		o := b.store.Delete(within(t), []job.Deletion{d})[0]
		if o.Deleted == c.kept || errors.Is(o.Err, job.ErrWrongState) != c.kept {
			t.Errorf("%s, %d: %+v", c.id, c.kind, o)
		}
	}
}

// TestAgedButDelivered: a delivery that is counted while retention is at work keeps the job, whoever counts it, whatever stands in the
// document; and an odd document goes like any other.
func TestAgedButDelivered(t *testing.T) {
	for name, odd := range map[string]bson.D{
		"plain":            {{Key: "deliveries", Value: 1}},
		"of an odd number": {{Key: "deliveries", Value: 1.5}},
		"uncounted":        nil,
		"of an odd time":   {{Key: "last_seen", Value: "yesterday"}},
		"ours":             {{Key: "last_seen", Value: time.UnixMilli(1).UTC()}, {Key: "request_id", Value: "r"}},
	} {
		for _, several := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				b := newBench(t, "")
				now := b.clock.Now()
				first := job.Millis(now.Add(-31 * 24 * time.Hour))
				ids := []string{"quiet", "delivered"}
				for _, id := range ids {
					b.plainDelivery(id, first)
					change := bson.D{{Key: "$set", Value: odd}}
					if odd == nil {
						change = bson.D{{Key: "$unset", Value: bson.D{{Key: "deliveries", Value: ""}}}}
					}
					_, err := b.direct.UpdateOne(t.Context(), bson.D{{Key: "job_id", Value: id}}, change)
					testenv.Must(t, err)
				}
				deletion := func(id string) job.Deletion {
					r, err := b.store.Get(within(t), id, false)
					testenv.Must(t, err)
					return job.Deletion{Expected: job.ExpectedOf(&r), ActiveBefore: now.Add(-30 * 24 * time.Hour), Deliveries: r.Deliveries}
				}
				release := make(chan struct{})
				deletes := b.proxy.Add(&wireproxy.Rule{Command: "delete", Do: wireproxy.Hold(release), Times: 1})
				var ds []job.Deletion
				for _, id := range ids {
					if several || id == "delivered" {
						ds = append(ds, deletion(id))
					}
				}
				done := make(chan []job.DeleteOutcome, 1)
				go func() { done <- b.store.Delete(within(t), ds) }()
				testenv.Must(t, deletes.Begun(within(t), 1))
				b.plainDelivery("delivered", first)
				close(release)
				for i, o := range <-done {
					if kept := ds[i].JobID == "delivered"; o.Deleted == kept {
						t.Errorf("%s: %+v", ds[i].JobID, o)
					}
				}
			})
		}
	}
}
