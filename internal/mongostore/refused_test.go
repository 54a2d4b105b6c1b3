package mongostore_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
)

// leaving is a pause during which the caller leaves.
type leaving struct {
	*backoff.StopBackOff
	leave func()
}

func (l leaving) NextBackOff() time.Duration {
	l.leave()
	return time.Hour
}

// TestRefusedDocumentAtTheEnd: the caller leaves after the database refused the embedded document of a delivery that goes
// alone, and before the text alone was sent.
func TestRefusedDocumentAtTheEnd(t *testing.T) {
	f := startFake(t, nil)
	f.answer("hello", bson.D{{Key: "setName", Value: "rs0"}, {Key: "logicalSessionTimeoutMinutes", Value: int64(30)}})
	ctx, leave := context.WithCancel(within(t))
	s := open(t, mongostore.Options{URI: "mongodb://" + f.addr() + "/?directConnection=true",
		NewPause: func() backoff.BackOff { return leaving{leave: leave} }})
	var updates atomic.Int64
	f.answerWith("update", func(command bson.Raw) bson.D {
		if updates.Add(1) == 1 {
			return upserted(command, 112, "j") // so that it goes alone
		}
		return upserted(command, 57, "j")
	})
	out := make(chan job.Outcome, 1)
	d := delivery(t, job.Input{JobID: "j", RequestID: "r", Mode: job.ModeLeased, Lease: new(time.Minute), Body: bodyOf(`{"a":1}`)})
	s.RecordEach(ctx, []job.Delivery{d}, func(_ int, o job.Outcome) { out <- o })
	wantUnavailable(t, (<-out).Err)
}
