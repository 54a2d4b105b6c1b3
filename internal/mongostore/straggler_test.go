package mongostore_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
	"weak"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

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
			testenv.Must(t, rule.Begun(within(t), 2))
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

// TestSettledBodiesGo: a delivery that takes longer keeps no other's body.
func TestSettledBodiesGo(t *testing.T) {
	f, s := scripted(t, bson.D{{Key: "setName", Value: "rs0"}})
	release := make(chan struct{})
	f.answerWith("update", func(command bson.Raw) bson.D {
		if len(items(command)) > 1 {
			return upserted(command, 133, "stuck")
		}
		<-release
		return upserted(command, 0)
	})
	var stuck, settled sync.WaitGroup
	stuck.Add(1)
	settled.Add(1)
	record := func() weak.Pointer[byte] {
		body := strings.Repeat(fmt.Sprint(time.Now().UnixNano()%10), 1<<20)
		w := weak.Make(unsafe.StringData(body))
		s.RecordEach(within(t), []job.Delivery{
			delivery(t, job.Input{JobID: "big", Body: job.Body{Kind: job.BodyText, Data: body}}),
			newDelivery(t, "stuck", "r", job.ModeUntracked),
		}, func(i int, _ job.Outcome) {
			if i == 0 {
				settled.Done()
			} else {
				stuck.Done()
			}
		})
		return w
	}
	w := record()
	settled.Wait()
	runtime.GC()
	runtime.GC()
	if w.Value() != nil {
		t.Error("the body of a delivery that has its outcome is still there")
	}
	close(release)
	stuck.Wait()
}

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

// TestSessionsGone: a delivery goes on alone after the database said that it has no sessions. It does not use its call's.
func TestSessionsGone(t *testing.T) {
	f, s := scripted(t, bson.D{{Key: "setName", Value: "rs0"}})
	var hellos, updates atomic.Int64
	said := make(chan struct{})
	f.answerWith("update", func(command bson.Raw) bson.D {
		if updates.Add(1) > 1 {
			return upserted(command, 0)
		}
		f.answerWith("hello", func(command bson.Raw) bson.D {
			if command.Lookup("lsid").Type == 0 { // the driver's own
				return bson.D{{Key: "setName", Value: "rs0"}, {Key: "logicalSessionTimeoutMinutes", Value: int64(30)}}
			}
			if hellos.Add(1) == 2 {
				close(said) // the first one's answer has been taken in
			}
			return bson.D{{Key: "setName", Value: "rs0"}}
		})
		s.ForgetClock()
		<-said
		return upserted(command, 112, "j")
	})
	firstOnce(t, s.Record(within(t), []job.Delivery{newDelivery(t, "j", "r", job.ModeUntracked)})[0])
}
