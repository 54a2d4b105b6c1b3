package mongostore_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
)

// TestClockLostMeanwhile: the clock becomes unknown while a try is under way that fails. The next one grants no lease by the
// old time.
func TestClockLostMeanwhile(t *testing.T) {
	lapsed := document(bson.D{{Key: "state", Value: "leased"}, {Key: "mode", Value: "leased"}, {Key: "due", Value: time.UnixMilli(1)}, {Key: "token", Value: "old"},
		{Key: "generation", Value: int64(1)}})
	expired := failure(50, "MaxTimeMSExpired", "operation exceeded time limit")
	for name, call := range map[string]func(ctx context.Context, s *mongostore.Store) error{
		"record": func(ctx context.Context, s *mongostore.Store) error {
			return s.Record(ctx, []job.Delivery{newDelivery(t, "j", "r2", job.ModeLeased)})[0].Err
		},
		"claim": func(ctx context.Context, s *mongostore.Store) error {
			_, err := s.Claim(ctx, job.ClaimRequest{RequestID: "c", Max: 1, Lease: time.Minute, MaxBytes: 1 << 20})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := scripted(t, bson.D{{Key: "setName", Value: "rs0"}})
			var silent atomic.Bool
			release := make(chan struct{})
			defer close(release)
			f.answerWith("hello", func(bson.Raw) bson.D {
				if silent.Load() {
					<-release
				}
				return bson.D{{Key: "setName", Value: "rs0"}, {Key: "logicalSessionTimeoutMinutes", Value: int64(30)}}
			})
			var granted atomic.Int64
			f.answerWith("update", func(command bson.Raw) bson.D {
				granted.Add(1)
				silent.Store(true)
				s.ForgetClock()
				return expired
			})
			f.answerWith("find", func(command bson.Raw) bson.D {
				if command.Lookup("filter", "work.claim_id").Type != 0 {
					return cursorOf()
				}
				return cursorOf(lapsed...)
			})
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if err := call(ctx, s); !errors.Is(err, job.ErrOutcomeUnknown) {
				t.Errorf("got %v", err)
			}
			if n := granted.Load(); n != 1 {
				t.Errorf("%d writes that grant a lease, %d of them by a clock that is not known", n, n-1)
			}
		})
	}
}
