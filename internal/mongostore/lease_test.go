package mongostore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

// TestDueTooFar: a lease that a clock an hour fast has granted is measured anew: its holder keeps it for its length, and
// then the job is free. What was granted for a day stays.
func TestDueTooFar(t *testing.T) {
	b := newBench(t, "")
	b.clock.Advance(time.Hour)
	lease := b.must(newDelivery(t, "alive", "r", job.ModeLeased)).Lease
	b.must(newDelivery(t, "gone", "r", job.ModeLeased))
	b.clock.Advance(-time.Hour)
	b.must(delivery(t, job.Input{JobID: "long", Mode: job.ModeLeased, Lease: new(24 * time.Hour)}))
	wants := func(id string, d job.Disposition) {
		t.Helper()
		if o := b.must(newDelivery(t, id, "another", job.ModeLeased)); o.Verdict.Disposition != d {
			t.Errorf("%s: got %+v, want %d", id, o.Verdict, d)
		}
	}
	b.store.Anchor(within(t))
	wants("alive", job.InProgress)
	if r, err := b.store.Get(within(t), "alive", false); err != nil || !r.Work.Due.Equal(job.Millis(b.clock.Now().Add(time.Minute))) {
		t.Errorf("due %v, %v", r.Work.Due, err)
	}
	b.store.Anchor(within(t))
	b.clock.Advance(59 * time.Second)
	wants("alive", job.InProgress)
	wants("gone", job.InProgress)
	if _, err := job.Renew(within(t), b.store, "alive", lease.Token, time.Minute); err != nil {
		t.Errorf("its holder cannot renew it: %v", err)
	}
	b.clock.Advance(2 * time.Second)
	wants("alive", job.InProgress)
	wants("gone", job.Reclaimed)
	b.clock.Advance(time.Minute)
	wants("alive", job.Reclaimed)
	if r, err := b.store.Get(within(t), "long", false); err != nil || r.Work.Granted != 24*time.Hour || r.Work.Due.Before(b.clock.Now().Add(23*time.Hour)) {
		t.Errorf("the long lease: %+v, %v", r.Work, err)
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
	testenv.Must(t, look.Begun(within(t), 1))
	b.clock.Advance(10 * time.Second)
	lease := b.must(newDelivery(t, "meanwhile", "r", job.ModeLeased)).Lease
	close(release)
	<-looked
	b.sameLease("meanwhile", *lease)
}

// TestRenewLandsLater: a renewal whose caller has left lands after a later one was answered. The lease still runs for as
// long as that one's caller was told.
func TestRenewLandsLater(t *testing.T) {
	b := newBench(t, "")
	o := b.must(newDelivery(t, "j", "r", job.ModeLeased))
	release := make(chan struct{})
	rule := b.proxy.Add(&wireproxy.Rule{Command: "update", If: isWork, Times: 1, Do: wireproxy.Hold(release)})
	ctx, cancel := context.WithCancel(within(t))
	go func() {
		_ = rule.Begun(ctx, 1)
		cancel()
	}()
	if _, err := job.Renew(ctx, b.store, "j", o.Lease.Token, time.Minute); !errors.Is(err, job.ErrOutcomeUnknown) {
		t.Fatalf("given up: %v", err)
	}
	b.clock.Advance(20 * time.Second)
	told, err := job.Renew(within(t), b.store, "j", o.Lease.Token, time.Minute)
	testenv.Must(t, err)
	close(release)
	testenv.Must(t, rule.Ended(within(t), 1))
	b.clock.Advance(50 * time.Second) // its holder has 10 s left
	if o := b.must(newDelivery(t, "j", "another", job.ModeLeased)); o.Verdict.StartWork {
		t.Errorf("another caller got a lease at %v; the holder was told that its own runs until %v", b.clock.Now(), told.Expires)
	}
}

// TestRenewUnderAnchor: a lease that a clock which was ahead has granted is renewed while its due time is being measured
// anew. It runs for as long as the renewal's caller was told.
func TestRenewUnderAnchor(t *testing.T) {
	b := newBench(t, "")
	b.clock.Advance(3 * time.Hour)
	o := b.must(newDelivery(t, "j", "r", job.ModeLeased))
	b.clock.Advance(-3 * time.Hour)
	release := make(chan struct{})
	rule := b.proxy.Add(&wireproxy.Rule{Command: "update", Times: 1, Do: wireproxy.Hold(release)})
	anchored := make(chan struct{})
	go func() {
		b.store.Anchor(within(t))
		close(anchored)
	}()
	testenv.Must(t, rule.Begun(within(t), 1))
	told, err := job.Renew(within(t), b.store, "j", o.Lease.Token, time.Hour)
	testenv.Must(t, err)
	close(release)
	<-anchored
	for range 2 {
		b.clock.Advance(25 * time.Minute)
		if o := b.must(newDelivery(t, "j", "another", job.ModeLeased)); o.Verdict.StartWork {
			t.Fatalf("another caller got a lease at %v; the holder was told that its own runs until %v", b.clock.Now(), told.Expires)
		}
		b.store.Anchor(within(t))
	}
}

// TestToldDue: what a clock that was ahead has granted will be measured anew, so neither its holder nor anybody else is told
// that it runs longer than that leaves.
func TestToldDue(t *testing.T) {
	b := newBench(t, "")
	b.clock.Advance(3 * time.Hour)
	b.must(newDelivery(t, "j", "r", job.ModeLeased))
	b.clock.Advance(-3 * time.Hour)
	minute := job.Millis(b.clock.Now().Add(time.Minute))
	o := b.must(newDelivery(t, "j", "r", job.ModeLeased))
	if o.Lease == nil || !o.Lease.Expires.Equal(minute) {
		t.Fatalf("its holder is told %+v, want %v", o.Lease, minute)
	}
	if other := b.must(newDelivery(t, "j", "another", job.ModeLeased)); !other.Record.Work.Due.Equal(minute) {
		t.Errorf("another is told %v, want %v", other.Record.Work.Due, minute)
	}
	l, err := job.Renew(within(t), b.store, "j", o.Lease.Token, 2*time.Minute)
	if err != nil || !l.Expires.Equal(minute.Add(time.Minute)) {
		t.Errorf("renewed: %+v, %v", l, err)
	}
	b.store.Anchor(within(t))
	if r, err := b.store.Get(within(t), "j", false); err != nil || r.Work.Due.Before(l.Expires) {
		t.Errorf("due %v, %v; its holder was told %v", r.Work.Due, err, l.Expires)
	}
}

// TestRenewedWhileMarked: a delivery is told of a lease as it marked it, though it was renewed meanwhile.
func TestRenewedWhileMarked(t *testing.T) {
	b := newBench(t, "")
	b.must(newDelivery(t, "j", "r", job.ModeLeased))
	b.clock.Advance(time.Hour)
	marked := b.must(newDelivery(t, "j", "again", job.ModeLeased)).Lease.Expires.Add(time.Millisecond)
	renewed := job.Millis(marked.Add(time.Hour))
	rule := b.proxy.Add(&wireproxy.Rule{Command: "update", If: isWork, Times: 1, Do: func(x *wireproxy.Exchange) error {
		reply, err := x.Forward()
		if err != nil {
			return err
		}
		_, err = b.direct.UpdateOne(within(t), bson.D{{Key: "job_id", Value: "j"}}, bson.D{{Key: "$set", Value: bson.D{{Key: "work.due", Value: renewed}}}})
		testenv.OK(t, err)
		return x.Reply(reply)
	}})
	o := b.must(newDelivery(t, "j", "again", job.ModeLeased))
	r, err := b.store.Get(within(t), "j", false)
	testenv.Must(t, err)
	if o.Lease == nil || rule.Hits() != 1 || !o.Lease.Expires.Equal(marked) || !r.Work.Due.Equal(renewed) {
		t.Errorf("told %+v of a lease that it marked until %v, and that is renewed until %v and due at %v", o.Lease, marked, renewed, r.Work.Due)
	}
}

// TestRenewWithoutGranted: a renewal of a lease from before it was kept what was granted does not take a day for a minute.
func TestRenewWithoutGranted(t *testing.T) {
	b := newBench(t, "")
	d := newDelivery(t, "j", "r", job.ModeLeased)
	d.Lease = 24 * time.Hour
	o := b.must(d)
	if _, err := b.direct.UpdateOne(t.Context(), bson.D{{Key: "job_id", Value: "j"}}, bson.D{{Key: "$unset", Value: bson.D{{Key: "work.granted", Value: ""}}}}); err != nil {
		t.Fatal(err)
	}
	l, err := job.Renew(within(t), b.store, "j", o.Lease.Token, time.Minute)
	longer := o.Lease.Expires.Add(time.Millisecond)
	if err != nil || !l.Expires.Equal(longer) {
		t.Errorf("renewed: %+v, %v; want until %v", l, err, longer)
	}
	b.store.Anchor(within(t))
	if r, err := b.store.Get(within(t), "j", false); err != nil || !r.Work.Due.Equal(longer) {
		t.Errorf("due %v, %v", r.Work.Due, err)
	}
}

// TestRenewedAndOver: a renewal that was made is not called lost, though its lease is over before the caller hears of it:
// others were told that it runs.
func TestRenewedAndOver(t *testing.T) {
	b := newBench(t, "")
	lease := *b.must(newDelivery(t, "j", "r", job.ModeLeased)).Lease
	b.clock.Advance(time.Hour)
	release := make(chan struct{})
	rule := b.proxy.Add(&wireproxy.Rule{Command: "update", If: isWork, Times: 1, Do: wireproxy.HoldReply(release)})
	type answer struct {
		job.Lease
		error
	}
	renewed := make(chan answer, 1)
	go func() {
		l, err := job.Renew(within(t), b.store, "j", lease.Token, time.Minute)
		renewed <- answer{l, err}
	}()
	if err := rule.Begun(within(t), 1); err != nil {
		t.Fatal(err)
	}
	for { // until it was applied
		if o := b.must(newDelivery(t, "j", "another", job.ModeUntracked)); o.Verdict.Disposition == job.InProgress {
			break
		}
	}
	if err := job.Complete(within(t), b.store, "j", lease.Token, ""); err != nil {
		t.Fatal(err)
	}
	close(release)
	if got := <-renewed; got.error != nil || got.Generation != lease.Generation || !got.Expires.Equal(job.Millis(b.clock.Now().Add(time.Minute))) {
		t.Errorf("renewed: %+v, %v", got.Lease, got.error)
	}
}
