package mongostore_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

// leases records five jobs for their leases. The one at lost is then taken over by somebody else, the others lapse.
func (b *bench) leases(prefix string, lost int) (leases []job.Lease) {
	b.t.Helper()
	var deliveries []job.Delivery
	for i := range 5 {
		deliveries = append(deliveries, newDelivery(b.t, fmt.Sprint(prefix, i), "before", job.ModeLeased))
	}
	for _, o := range b.store.Record(within(b.t), deliveries) {
		if o.Err != nil {
			b.t.Fatal(o.Err)
		}
		leases = append(leases, *o.Lease)
	}
	b.clock.Advance(time.Hour)
	b.must(newDelivery(b.t, fmt.Sprint(prefix, lost), "another", job.ModeLeased))
	return leases
}

// changesInBulk are the kinds of changes, and what each makes of the work.
var changesInBulk = []struct {
	name   string
	change func(id, token string) job.LeaseChange
	want   string
}{
	{"renew", func(id, token string) job.LeaseChange { return job.RenewLease(id, token, time.Minute) }, "leased for 1m0s, 1 attempts"},
	{"complete", func(id, token string) job.LeaseChange { return job.CompleteWork(id, token, "done") }, "completed, 1 attempts"},
	{"release", func(id, token string) job.LeaseChange {
		return job.ReleaseWork(id, token, job.Release{Delay: time.Minute, Error: "later"})
	}, "queued for 1m0s, 1 attempts"},
	{"not started", func(id, token string) job.LeaseChange {
		return job.ReleaseWork(id, token, job.Release{NotStarted: true})
	}, "queued for 0s, 0 attempts"},
	{"give up", func(id, token string) job.LeaseChange {
		return job.ReleaseWork(id, token, job.Release{Dead: true, Error: "never"})
	}, "dead, 1 attempts"},
}

func (b *bench) workOf(id string) string {
	b.t.Helper()
	_, work := b.stored(id)
	state, _ := work.Lookup("state").StringValueOK()
	attempts, _ := work.Lookup("attempts").AsInt64OK()
	if due, ok := work.Lookup("due").TimeOK(); ok {
		state += b.until(due)
	}
	return fmt.Sprintf("%s, %d attempts", state, attempts)
}

// TestFaultsInBulk: five changes in one call, of which one has lost its lease, and a fault at each place. The four are made,
// once, and the one is lost, unless the fault has left that open.
func TestFaultsInBulk(t *testing.T) {
	for _, kind := range changesInBulk {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "")
			try := func(name string, lost int, strikes bool, fault wireproxy.Fault) {
				t.Run(name, func(t *testing.T) {
					defer b.calm()
					var changes []job.LeaseChange
					for i, l := range b.leases(name, lost) {
						changes = append(changes, kind.change(fmt.Sprint(name, i), l.Token))
					}
					if fault != nil {
						rule := b.proxy.Add(&wireproxy.Rule{Command: "update", If: isWork, Times: 1, Do: fault})
						defer func() {
							if rule.Hits() != 1 {
								t.Errorf("the fault struck %d times", rule.Hits())
							}
						}()
					}
					for _, when := range []string{"through the fault", "repeated"} {
						for i, o := range b.store.ChangeLeases(within(t), changes) {
							switch {
							case i != lost && o.Err != nil:
								t.Errorf("%s, %d: %v", when, i, o.Err)
							case i != lost && b.workOf(changes[i].JobID) != kind.want:
								t.Errorf("%s, %d is %s, want %s", when, i, b.workOf(changes[i].JobID), kind.want)
							case i == lost && !errors.Is(o.Err, job.ErrLeaseLost) && (!strikes || !errors.Is(o.Err, job.ErrOutcomeUnknown)):
								t.Errorf("%s, the lost one: %v", when, o.Err)
							case i != lost && kind.name == "renew":
								b.sameLease(changes[i].JobID, o.Lease)
							}
						}
						strikes = false
					}
				})
			}
			try("no fault", 2, false, nil)
			for name, fault := range ambiguous {
				if !strings.HasPrefix(name, "item, ") {
					try(name, 1, true, fault)
				}
			}
			for place := range 5 {
				id := func(name string) string { return fmt.Sprintf("%s at %d, ", name, place) }
				for name, item := range map[string]func(string) wireproxy.Fault{
					"interrupted": func(id string) wireproxy.Fault {
						return wireproxy.DisownItems(wireproxy.ItemError{Code: 11600}, ofJob(id))
					},
					"strange": func(id string) wireproxy.Fault {
						return wireproxy.DisownItems(wireproxy.ItemError{Code: 133}, ofJob(id))
					},
					"not applied": func(id string) wireproxy.Fault {
						return wireproxy.RefuseItems(wireproxy.ItemError{Code: 11602}, ofJob(id))
					},
					"conflict": func(id string) wireproxy.Fault {
						return wireproxy.RefuseItems(wireproxy.ItemError{Code: 112}, ofJob(id))
					},
				} {
					try(id(name), 2, place == 2, item(fmt.Sprint(id(name), place)))
				}
			}
		})
	}
}

// TestCompletedAmongOthersAndMoved: of two completions that are sent together one has lost its lease by then, and before that is
// read an operator requeues or deletes the job of the other, which is done, and it may be recorded anew. That one is not called lost or
// absent. Repeated, when the new job is older than clocks may differ by, it is.
func TestCompletedAmongOthersAndMoved(t *testing.T) {
	b := newBench(t, "")
	for name, move := range map[string]func(*testing.T, job.Expected) error{
		"requeued": func(t *testing.T, e job.Expected) error {
			_, _, err := b.store.Requeue(within(t), job.Requeue{Expected: e})
			return err
		},
		"deleted": func(t *testing.T, e job.Expected) error {
			return b.store.Delete(within(t), []job.Deletion{{Expected: e}})[0].Err
		},
		"recorded anew": func(t *testing.T, e job.Expected) error {
			if err := b.store.Delete(within(t), []job.Deletion{{Expected: e}})[0].Err; err != nil {
				return err
			}
			return b.store.Record(within(t), []job.Delivery{newDelivery(t, e.JobID, "anew", job.ModeLeased)})[0].Err
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer b.calm()
			var changes []job.LeaseChange
			for i, l := range b.leases(name, 1)[:2] {
				changes = append(changes, job.CompleteWork(fmt.Sprint(name, i), l.Token, "done"))
			}
			moved := make(chan struct{})
			read := b.proxy.Add(&wireproxy.Rule{Command: "find", If: func(c wireproxy.Command) bool {
				_, several := c.Body.Lookup("filter", "job_id", "$in").ArrayOK()
				return several
			}, Times: 1, Do: wireproxy.Hold(moved)})
			answers := make(chan []job.LeaseOutcome, 1)
			go func() { answers <- b.store.ChangeLeases(within(t), changes) }()
			testenv.Must(t, read.Begun(within(t), 1))
			r, err := b.store.Get(within(t), name+"0", false)
			testenv.Must(t, err)
			testenv.Must(t, move(t, job.ExpectedOf(&r)))
			close(moved)
			for i, o := range <-answers {
				if want := []error{job.ErrOutcomeUnknown, job.ErrLeaseLost}[i]; !errors.Is(o.Err, want) {
					t.Errorf("%d: %v, want %v", i, o.Err, want)
				}
			}
			if name != "recorded anew" {
				return
			}
			b.clock.Advance(2 * time.Second)
			held := b.must(newDelivery(t, name+" held", "r", job.ModeLeased)).Lease // some of the bulk is made
			changes = append(changes, job.CompleteWork(name+" held", held.Token, "done"))
			for i, o := range b.store.ChangeLeases(within(t), changes) {
				if want := []error{job.ErrLeaseLost, job.ErrLeaseLost, nil}[i]; !errors.Is(o.Err, want) {
					t.Errorf("repeated, %d: %v, want %v", i, o.Err, want)
				}
			}
		})
	}
}

// TestReleasedAmongOthersAndTaken: of two releases that are sent together one has lost its lease by then, and what the other
// gave back is taken before that is read. Which of the two was made nobody can tell. One that had lost its lease before is
// called so at once.
func TestReleasedAmongOthersAndTaken(t *testing.T) {
	b := newBench(t, "")
	var changes []job.LeaseChange
	for i, l := range b.leases("j", 1)[:3] {
		changes = append(changes, job.ReleaseWork(fmt.Sprint("j", i), l.Token, job.Release{}))
	}
	lost, taken := make(chan struct{}), make(chan struct{})
	write := b.proxy.Add(&wireproxy.Rule{Command: "update", If: isWork, Times: 1, Do: wireproxy.Hold(lost)})
	read := b.proxy.Add(&wireproxy.Rule{Command: "find", If: func(c wireproxy.Command) bool {
		ids, _ := c.Body.Lookup("filter", "job_id", "$in").ArrayOK()
		values, _ := ids.Values()
		return len(values) == 2
	}, Times: 1, Do: wireproxy.Hold(taken)})
	answers := make(chan []job.LeaseOutcome, 1)
	go func() { answers <- b.store.ChangeLeases(within(t), changes) }()
	testenv.Must(t, write.Begun(within(t), 1))
	b.must(newDelivery(t, "j2", "another", job.ModeLeased))
	close(lost)
	testenv.Must(t, read.Begun(within(t), 1))
	got, err := b.store.Claim(within(t), job.ClaimRequest{RequestID: "other", Max: 1, Lease: time.Minute, Events: []string{"event of j0"}})
	if err != nil || len(got) != 1 || got[0].Record.JobID != "j0" {
		t.Fatalf("claimed %v, %v", got, err)
	}
	close(taken)
	for i, o := range <-answers {
		if want := []error{job.ErrOutcomeUnknown, job.ErrLeaseLost, job.ErrOutcomeUnknown}[i]; !errors.Is(o.Err, want) {
			t.Errorf("%d: %v, want %v", i, o.Err, want)
		}
	}
	for i, o := range b.store.ChangeLeases(within(t), changes) {
		if !errors.Is(o.Err, job.ErrLeaseLost) {
			t.Errorf("repeated, %d: %v", i, o.Err)
		}
	}
}
