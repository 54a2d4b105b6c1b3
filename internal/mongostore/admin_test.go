package mongostore_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

// TestRequeueMeetsRetention: work whose body is dropped between the look of a requeue and its write is not put into the queue
// without one, but by force.
func TestRequeueMeetsRetention(t *testing.T) {
	b := newBench(t, "")
	other := open(t, mongostore.Options{URI: testenv.MongoURI(t), Database: b.opts.Database, Now: b.clock.Now})
	for id, kind := range map[string]job.DeleteKind{"dropped": job.DropPayload, "erased": job.ErasePayload} {
		for _, force := range []bool{false, true} {
			t.Run(id, func(t *testing.T) {
				if force {
					id += " by force"
				}
				o := b.store.Record(within(t), []job.Delivery{newDelivery(t, id, "r", job.ModeLeased)})[0]
				testenv.Must(t, o.Err)
				testenv.Must(t, job.Complete(within(t), b.store, id, o.Lease.Token, "done"))
				r, err := b.store.Get(within(t), id, false)
				testenv.Must(t, err)
				release := make(chan struct{})
				rule := b.proxy.Add(&wireproxy.Rule{Command: "update", If: func(c wireproxy.Command) bool { return ofJob(id)(c.Items()[0]) },
					Times: 1, Do: wireproxy.Hold(release)})
				failed := make(chan error, 1)
				go func() {
					_, _, err := b.store.Requeue(within(t), job.Requeue{Expected: job.ExpectedOf(&r), Force: force})
					failed <- err
				}()
				testenv.Must(t, rule.Begun(within(t), 1))
				if o := other.Delete(within(t), []job.Deletion{{Expected: job.ExpectedOf(&r), Kind: kind}})[0]; !o.Deleted || o.Err != nil {
					t.Errorf("%+v", o)
				}
				close(release)
				err = <-failed
				after, getErr := b.store.Get(within(t), id, false)
				testenv.Must(t, getErr)
				switch {
				case force && (err != nil || after.Work.State != job.StateQueued):
					t.Errorf("by force: %v, %+v", err, after.Work)
				case !force && (!errors.Is(err, job.ErrWrongState) || !strings.Contains(err.Error(), "dropped") || after.Work.State != job.StateCompleted):
					t.Errorf("requeued without a body: %v, %+v", err, after.Work)
				}
			})
		}
	}
}
