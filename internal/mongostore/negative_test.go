package mongostore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
)

// deposed is a replica set around a failover: a majority read shows what the former primary had, a linearizable one what
// the present one has. No write matches.
type deposed struct {
	*fakeServer
	store *mongostore.Store

	mu       sync.Mutex
	old, now []bson.D
	// refuse is what a linearizable read gets instead, when it is set.
	refuse   bson.D
	confirms int
	// refused is called with each that is refused.
	refused func()
}

func startDeposed(t *testing.T) *deposed {
	t.Helper()
	f := startFake(t, nil)
	f.answer("hello", bson.D{{Key: "logicalSessionTimeoutMinutes", Value: int64(30)}, {Key: "setName", Value: "rs0"}})
	s := open(t, mongostore.Options{URI: "mongodb://" + f.addr() + "/?directConnection=true",
		NewPause: func() backoff.BackOff { return backoff.NewConstantBackOff(time.Millisecond) }}) // What never matches is soon given up.
	d := &deposed{fakeServer: f, store: s, refused: func() {}}
	f.answer("update", bson.D{{Key: "ok", Value: 1.0}, {Key: "n", Value: int32(0)}, {Key: "nModified", Value: int32(0)}})
	f.answerWith("find", func(command bson.Raw) bson.D {
		d.mu.Lock()
		defer d.mu.Unlock()
		level, _ := command.Lookup("readConcern", "level").StringValueOK()
		if level != "linearizable" {
			return cursorOf(d.old...)
		}
		if d.confirms++; d.refuse != nil {
			d.refused()
			return d.refuse
		}
		if command.Lookup("maxTimeMS").Type == 0 || command.Lookup("lsid").Type != 0 && command.Lookup("readConcern", "afterClusterTime").Type != 0 {
			t.Errorf("the confirming read is unbounded, or belongs to a causal session: %v", command)
		}
		return cursorOf(d.now...)
	})
	return d
}

func (d *deposed) set(old, now []bson.D, refuse bson.D) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.old, d.now, d.refuse = old, now, refuse
}

func document(work bson.D) []bson.D {
	return []bson.D{{{Key: "job_id", Value: "j"}, {Key: "deliveries", Value: int32(1)}, {Key: "request_id", Value: "r"}, {Key: "work", Value: work}}}
}

func leasedWith(token string) []bson.D {
	return document(bson.D{{Key: "state", Value: "leased"}, {Key: "mode", Value: "leased"}, {Key: "token", Value: token},
		{Key: "due", Value: time.Now().Add(time.Hour)}, {Key: "generation", Value: int64(1)}, {Key: "attempts", Value: int32(1)}})
}

// TestNegativeAnswers: that a job is absent, or a lease lost, is never said on the word of a primary that may have been
// deposed, and not on a read that failed either.
func TestNegativeAnswers(t *testing.T) {
	ended := document(bson.D{{Key: "state", Value: "completed"}, {Key: "mode", Value: "leased"}, {Key: "token", Value: "mine"}, {Key: "generation", Value: int64(1)}})
	failed := failure(50, "MaxTimeMSExpired", "out of time")
	d := startDeposed(t)
	ops := map[string]func(context.Context) error{
		"get": func(ctx context.Context) error { _, err := d.store.Get(ctx, "j", true); return err },
		"renew": func(ctx context.Context) error {
			_, err := job.Renew(ctx, d.store, "j", "mine", time.Minute)
			return err
		},
		"complete": func(ctx context.Context) error { return job.Complete(ctx, d.store, "j", "mine", "") },
		"release":  func(ctx context.Context) error { return job.GiveBack(ctx, d.store, "j", "mine", job.Release{}) },
	}
	for _, c := range []struct {
		name     string
		ops      string
		old, now []bson.D
		refuse   bson.D
		want     error
	}{
		{"absent", "get renew complete release", nil, nil, nil, job.ErrNotFound},
		{"not yet seen", "get", nil, leasedWith("mine"), nil, nil},
		{"lost", "renew complete release", leasedWith("another"), leasedWith("another"), nil, job.ErrLeaseLost},
		{"lost, then gone", "renew complete release", leasedWith("another"), nil, nil, job.ErrNotFound},
		{"done, not yet seen", "complete", leasedWith("another"), ended, nil, nil},
		{"done, before it was recorded", "complete", nil, ended, nil, nil},
		{"done", "complete", ended, nil, nil, nil}, // seen at a majority: nothing is left to confirm
		{"no time to confirm", "renew complete release", nil, nil, failed, job.ErrOutcomeUnknown},
		{"no time to confirm a lease", "renew complete release", leasedWith("another"), nil, failed, job.ErrOutcomeUnknown},
		{"no time to confirm a miss", "get", nil, nil, failed, job.ErrUnavailable},
		{"still held, but no write matches", "complete release", leasedWith("another"), leasedWith("mine"), nil, job.ErrUnavailable},
	} {
		for name, op := range ops {
			if !contains(c.ops, name) {
				continue
			}
			t.Run(c.name+"/"+name, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				d.refused = cancel // The call has had its time then.
				d.set(c.old, c.now, c.refuse)
				err := op(ctx)
				if c.want == nil && err != nil || c.want != nil && !errors.Is(err, c.want) {
					t.Errorf("got %v, want %v", err, c.want)
				}
				for _, negative := range []error{job.ErrNotFound, job.ErrLeaseLost} {
					if errors.Is(err, negative) && !errors.Is(c.want, negative) {
						t.Errorf("got %v", err)
					}
				}
			})
		}
	}
}

// TestUnlinear: where the database does not take the read concern, a plain read decides, and it is not asked again.
func TestUnlinear(t *testing.T) {
	d := startDeposed(t)
	d.set(nil, nil, failure(123, "NotAReplicaSet", "no"))
	for range 3 {
		if _, err := d.store.Get(within(t), "j", false); !errors.Is(err, job.ErrNotFound) {
			t.Errorf("get: %v", err)
		}
	}
	if d.confirms != 1 {
		t.Errorf("asked %d times", d.confirms)
	}
}

// TestMisses: how many reads of absent jobs are confirmed is bounded. Beyond that nothing is said of the job.
func TestMisses(t *testing.T) {
	d := startDeposed(t)
	d.store.LimitMisses(5)
	absent := 0
	for i := range 20 {
		switch _, err := d.store.Get(within(t), fmt.Sprint("j", i), false); {
		case errors.Is(err, job.ErrNotFound):
			absent++
		case !errors.Is(err, job.ErrUnavailable):
			t.Error(err)
		}
	}
	if absent != 5 || d.confirms != 5 {
		t.Errorf("%d absent after %d confirming reads, want 5", absent, d.confirms)
	}
}

func contains(words, word string) bool { return slices.Contains(strings.Fields(words), word) }

// TestMissIsNotOlderThanItsCall: a confirming read that began before a call says nothing to it.
func TestMissIsNotOlderThanItsCall(t *testing.T) {
	d := startDeposed(t)
	begun, release := make(chan struct{}), make(chan struct{})
	var n atomic.Int64
	reads := make(chan struct{}, 10)
	f := d.fakeServer
	f.answerWith("find", func(command bson.Raw) bson.D {
		if level, _ := command.Lookup("readConcern", "level").StringValueOK(); level != "linearizable" {
			reads <- struct{}{}
			return cursorOf() // the former primary
		}
		if n.Add(1) == 1 {
			close(begun)
			<-release
			return cursorOf() // as it was when the read began
		}
		return cursorOf(leasedWith("t")...)
	})
	first := make(chan error, 1)
	go func() {
		_, err := d.store.Get(within(t), "j", false)
		first <- err
	}()
	<-begun
	<-reads
	// Now the job is recorded and acknowledged; whoever knows that asks for it.
	second := make(chan error, 1)
	go func() {
		_, err := d.store.Get(within(t), "j", false)
		second <- err
	}()
	<-reads
	time.Sleep(50 * time.Millisecond)
	close(release)
	if err := <-first; !errors.Is(err, job.ErrNotFound) {
		t.Error(err)
	}
	if err := <-second; err != nil {
		t.Errorf("a job that was recorded before the call: %v", err)
	}
}

// TestNegativeAnswersInBulk: of several changes in one bulk, of which a deposed primary says that none or one matched, each
// is told what holds of its own job.
func TestNegativeAnswersInBulk(t *testing.T) {
	d := startDeposed(t)
	work := func(state, token string) bson.D {
		return bson.D{{Key: "state", Value: state}, {Key: "mode", Value: "leased"}, {Key: "token", Value: token},
			{Key: "due", Value: time.Now().Add(time.Hour)}, {Key: "generation", Value: int64(1)}, {Key: "attempts", Value: int32(1)}}
	}
	mine, another, ended := work("leased", "mine"), work("leased", "another"), work("completed", "mine")
	jobs := []struct {
		id       string
		old, now bson.D // the work that each read finds
		want     error
	}{
		{"done", ended, ended, nil},
		{"done, not yet seen", mine, ended, nil},
		{"done, before it was recorded", nil, ended, nil},
		{"lost", another, another, job.ErrLeaseLost},
		{"absent", nil, nil, job.ErrNotFound},
		{"held, but no write matches", another, mine, job.ErrUnavailable},
	}
	d.answerWith("find", func(command bson.Raw) bson.D {
		var found []bson.D
		filter := command.Lookup("filter").String()
		level, _ := command.Lookup("readConcern", "level").StringValueOK()
		for _, j := range jobs {
			w := j.old
			if level == "linearizable" || j.id == "done, not yet seen" && len(d.commands("update")) > 1 {
				w = j.now
			}
			if w != nil && strings.Contains(filter, `"`+j.id+`"`) {
				found = append(found, bson.D{{Key: "job_id", Value: j.id}, {Key: "deliveries", Value: int32(1)},
					{Key: "first_seen", Value: time.Now().Add(-time.Hour)}, {Key: "work", Value: w}})
			}
		}
		return cursorOf(found...)
	})
	for _, matched := range []int32{0, 1} {
		d.answer("update", bson.D{{Key: "ok", Value: 1.0}, {Key: "n", Value: matched}, {Key: "nModified", Value: matched}})
		var changes []job.LeaseChange
		for _, j := range jobs {
			changes = append(changes, job.CompleteWork(j.id, "mine", ""))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		for i, o := range d.store.ChangeLeases(ctx, changes) {
			want := jobs[i].want
			if matched == 1 && errors.Is(want, job.ErrUnavailable) && o.Err == nil { // alone it is the one that matched
				continue
			}
			if matched == 1 && errors.Is(want, job.ErrNotFound) { // it may be the one that matched, and was deleted since
				want = job.ErrOutcomeUnknown
			}
			if !errors.Is(o.Err, want) {
				t.Errorf("%s, %d matched: %v, want %v", jobs[i].id, matched, o.Err, want)
			}
		}
		cancel()
	}
}
