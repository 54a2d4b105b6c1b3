package mongostore_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
)

// TestTogetherWithoutClock: what waited for the clock is written in one command once that is known, and fails as one in an
// outage, with few lines in the log.
func TestTogetherWithoutClock(t *testing.T) {
	f := startFake(t, nil)
	hello := bson.D{{Key: "setName", Value: "rs0"}, {Key: "logicalSessionTimeoutMinutes", Value: int64(30)}}
	f.answer("hello", hello)
	s, logs := openLogged(t, mongostore.Options{URI: "mongodb://" + f.addr() + "/?directConnection=true"})
	<-s.Ready()
	var updates atomic.Int64
	var fails atomic.Bool
	f.answerWith("update", func(command bson.Raw) bson.D {
		updates.Add(1)
		if fails.Load() {
			return failure(50, "MaxTimeMSExpired", "operation exceeded time limit")
		}
		return upserted(command, 0)
	})
	var measuring sync.RWMutex
	f.answerWith("hello", func(bson.Raw) bson.D {
		measuring.RLock()
		defer measuring.RUnlock()
		return hello
	})
	var deliveries []job.Delivery
	for i := range 256 {
		deliveries = append(deliveries, newDelivery(t, fmt.Sprint("j", i), "r", job.ModeLeased))
	}
	settled := func(ctx context.Context) chan job.Outcome {
		outcomes := make(chan job.Outcome, len(deliveries))
		measuring.Lock()
		defer measuring.Unlock()
		s.ForgetClock()
		s.RecordEach(ctx, deliveries, func(_ int, o job.Outcome) { outcomes <- o })
		return outcomes
	}
	outcomes := settled(within(t))
	for range deliveries {
		firstOnce(t, <-outcomes)
	}
	if n := updates.Load(); n != 1 {
		t.Errorf("%d commands", n)
	}
	logs.rest()
	fails.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	outcomes = settled(ctx)
	for range deliveries {
		<-outcomes
	}
	if n := strings.Count(logs.rest(), "\n"); n > 50 {
		t.Errorf("%d lines in the log for one call", n)
	}
}
