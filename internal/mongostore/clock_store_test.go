package mongostore_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

// TestLeasesWaitForTheClock: while the database's clock is not known nothing is leased and nothing is sent for it; what
// needs no lease goes on.
func TestLeasesWaitForTheClock(t *testing.T) {
	f, s := scripted(t, bson.D{{Key: "setName", Value: "rs0"}})
	var silent atomic.Bool
	release := make(chan struct{})
	answer := sync.OnceFunc(func() { close(release) })
	t.Cleanup(answer) // else a test that fails hangs
	f.answerWith("hello", func(command bson.Raw) bson.D {
		if silent.Load() && !handshake(command) {
			<-release
		}
		return bson.D{{Key: "setName", Value: "rs0"}, {Key: "logicalSessionTimeoutMinutes", Value: int64(30)}}
	})
	f.answerWith("update", func(command bson.Raw) bson.D { return upserted(command, 0) })
	f.answer("find", cursorOf())
	silent.Store(true)
	s.ForgetClock()
	ctx, leave := context.WithTimeout(t.Context(), time.Minute)
	defer leave()
	leased := newDelivery(t, "leased", "r", job.ModeLeased)
	outcomes := [3]chan job.Outcome{make(chan job.Outcome, 1), make(chan job.Outcome, 1), make(chan job.Outcome, 1)}
	s.RecordEach(ctx, []job.Delivery{leased, newDelivery(t, "untracked", "r", job.ModeUntracked), newDelivery(t, "queued", "r", job.ModeQueued)},
		func(i int, o job.Outcome) { outcomes[i] <- o })
	firstOnce(t, <-outcomes[1])
	firstOnce(t, <-outcomes[2])
	time.AfterFunc(100*time.Millisecond, leave) // Time for the first to go wrong.
	wantUnavailable(t, (<-outcomes[0]).Err)
	<-ctx.Done()
	_, err := s.Claim(ctx, job.ClaimRequest{RequestID: "c", Max: 1, Lease: time.Minute})
	wantUnavailable(t, err)
	_, err = job.Renew(ctx, s, "j", "t", time.Minute)
	wantUnavailable(t, err)
	for _, command := range f.commands("update") {
		for _, item := range items(command) {
			if id := jobIDOf(item); id != "untracked" && id != "queued" {
				t.Errorf("an update of %q was sent", id)
			}
		}
	}
	answer()
	firstOnce(t, s.Record(within(t), []job.Delivery{leased})[0])
}

// TestSlowFirstConnection: an instance whose first connection took 2.5 s takes over nothing that another caller still holds.
func TestSlowFirstConnection(t *testing.T) {
	b := newBench(t, "")
	opts := b.opts
	opts.Now = nil
	granting := open(t, opts)
	until := time.Now().Add(2500 * time.Millisecond)
	rule := b.proxy.Add(&wireproxy.Rule{Command: "hello", Do: func(x *wireproxy.Exchange) error {
		time.Sleep(time.Until(until))
		return x.Pass()
	}})
	slow := open(t, opts)
	if rule.Hits() == 0 || time.Now().Before(until) {
		t.Error("the first connection was not slow")
	}
	for {
		in := job.Input{JobID: time.Now().String(), Mode: job.ModeLeased, Lease: new(job.MinLease)}
		begun := time.Now()
		if o := granting.Record(within(t), []job.Delivery{delivery(t, in)})[0]; o.Lease == nil {
			t.Fatal(o.Err)
		}
		o := slow.Record(within(t), []job.Delivery{delivery(t, in)})[0]
		if time.Since(begun) > job.MinLease {
			continue // the lease may have lapsed, on a machine as slow as this
		}
		if o.Err != nil || o.Verdict.StartWork || o.Lease != nil {
			t.Errorf("%+v, %v; the first caller still holds the lease", o.Verdict, o.Err)
		}
		return
	}
}

// TestFailoverClock: once another primary has answered, leases are granted by its clock.
func TestFailoverClock(t *testing.T) {
	for _, ahead := range []time.Duration{5 * time.Second, -5 * time.Second} {
		members := []*fakeServer{startFake(t, nil), startFake(t, nil)}
		var primary atomic.Int32
		due := make(chan time.Duration, 1) // from now on, by the second member's clock
		for i, f := range members {
			now := func() time.Time { return time.Now().Add(time.Duration(i) * ahead) }
			f.answerWith("hello", func(bson.Raw) bson.D {
				is := primary.Load() == int32(i)
				hello := bson.D{
					{Key: "setName", Value: "rs0"}, {Key: "hosts", Value: bson.A{members[0].addr(), members[1].addr()}}, {Key: "me", Value: f.addr()},
					{Key: "isWritablePrimary", Value: is}, {Key: "secondary", Value: !is}, {Key: "setVersion", Value: int32(1)},
					{Key: "localTime", Value: now()}, {Key: "logicalSessionTimeoutMinutes", Value: int64(30)},
				}
				if is {
					hello = append(hello, bson.E{Key: "electionId", Value: bson.ObjectID{11: byte(i + 1)}})
				}
				return hello
			})
			f.answerWith("update", func(command bson.Raw) bson.D {
				if primary.Load() != int32(i) {
					return failure(10107, "NotWritablePrimary", "not primary")
				}
				if until, ok := items(command)[0].Lookup("u", "$setOnInsert", "work", "due").TimeOK(); ok {
					due <- until.Sub(now())
				}
				return upserted(command, 0)
			})
		}
		s := open(t, mongostore.Options{URI: "mongodb://" + members[0].addr() + "," + members[1].addr() + "/?replicaSet=rs0&heartbeatFrequencyMS=500"})
		for i, id := range []string{"before", "after"} {
			primary.Store(int32(i))
			firstOnce(t, s.Record(within(t), []job.Delivery{newDelivery(t, id, "r", job.ModeUntracked)})[0])
			firstOnce(t, s.Record(within(t), []job.Delivery{newDelivery(t, id+" leased", "r", job.ModeLeased)})[0])
			if off := <-due - time.Minute; off.Abs() > 2*time.Second {
				t.Errorf("%s the failover to a clock %v ahead, a lease of a minute ends %v late", id, ahead, off)
			}
		}
	}
}

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
			f.answerWith("hello", func(command bson.Raw) bson.D {
				if silent.Load() && !handshake(command) {
					<-release
				}
				return bson.D{{Key: "setName", Value: "rs0"}, {Key: "logicalSessionTimeoutMinutes", Value: int64(30)}}
			})
			var granted atomic.Int64
			ctx, leave := context.WithTimeout(t.Context(), time.Minute)
			defer leave()
			f.answerWith("update", func(command bson.Raw) bson.D {
				if granted.Add(1) == 1 {
					time.AfterFunc(300*time.Millisecond, leave) // Time for the next try to go wrong.
				}
				silent.Store(true)
				s.ForgetClock()
				return expired
			})
			f.answerWith("find", func(command bson.Raw) bson.D {
				if command.Lookup("filter", "work.claim_id").Type != 0 || command.Lookup("filter", "work.group").Type != 0 {
					return cursorOf()
				}
				return cursorOf(lapsed...)
			})
			if err := call(ctx, s); !errors.Is(err, job.ErrOutcomeUnknown) {
				t.Errorf("got %v", err)
			}
			if n := granted.Load(); n != 1 {
				t.Errorf("%d writes that grant a lease, %d of them by a clock that is not known", n, n-1)
			}
		})
	}
}

// handshake tells whether a hello opens a connection.
func handshake(hello bson.Raw) bool { return hello.Lookup("client").Type != 0 }
