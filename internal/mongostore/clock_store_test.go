package mongostore_test

import (
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

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

// TestSlowAnchor: a lease that is granted while due times are looked at keeps its length, however long the look takes.
func TestSlowAnchor(t *testing.T) {
	b := newBench(t, "")
	b.must(newDelivery(t, "before", "r", job.ModeLeased))
	release, looked := make(chan struct{}), make(chan struct{})
	look := b.proxy.Add(&wireproxy.Rule{Command: "find", Times: 1, If: func(c wireproxy.Command) bool {
		return c.Body.Lookup("filter", "work.due", "$gt").Type != 0
	}, Do: wireproxy.Hold(release)})
	go func() {
		defer close(looked)
		b.store.Anchor(within(t))
	}()
	if err := look.Begun(within(t), 1); err != nil {
		t.Fatal(err)
	}
	b.clock.Advance(10 * time.Second)
	lease := b.must(newDelivery(t, "meanwhile", "r", job.ModeLeased)).Lease
	close(release)
	<-looked
	b.sameLease("meanwhile", *lease)
}
