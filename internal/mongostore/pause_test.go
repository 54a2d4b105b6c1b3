package mongostore_test

import (
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

// TestPausedWhileBeingClaimed: a claim that looks at the pauses, and whose write takes its time, starts no work that was paused meanwhile
// at another instance. The work is as it was before.
func TestPausedWhileBeingClaimed(t *testing.T) {
	claimed := func(s job.Store, request string) (started []string, err error) {
		got, err := s.Claim(t.Context(), job.ClaimRequest{RequestID: request, Max: 10, Lease: time.Minute, MaxBytes: 1 << 20})
		for _, c := range got {
			started = append(started, c.Record.JobID)
		}
		return started, err
	}
	delivered := func(s job.Store, request string) (started []string, err error) {
		for _, id := range []string{"paused:1", "goes:1"} {
			o := s.Record(t.Context(), []job.Delivery{newDelivery(t, id, request, job.ModeLeased)})[0]
			if o.Err != nil {
				return started, o.Err
			}
			switch {
			case o.Verdict.StartWork:
				started = append(started, id)
			case o.Verdict.Disposition != job.Pending || o.Lease != nil:
				t.Errorf("%s: %+v, lease %v; want PENDING", id, o.Verdict, o.Lease)
			}
		}
		return started, nil
	}
	for name, start := range map[string]func(job.Store, string) ([]string, error){"claimed": claimed, "delivered": delivered} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "")
			opts := b.opts
			opts.PausesEvery = 20 * time.Millisecond
			here := open(t, opts)
			opts.URI = testenv.MongoURI(t)
			there := open(t, opts)
			for _, id := range []string{"paused:1", "goes:1"} {
				b.must(newDelivery(t, id, "before", job.ModeLeased))
			}
			b.clock.Advance(time.Hour) // the leases have lapsed
			before := job.Work{}
			if r, err := there.Get(t.Context(), "paused:1", false); err != nil {
				t.Fatal(err)
			} else {
				before = r.Work
			}
			release := make(chan struct{})
			write := b.proxy.Add(&wireproxy.Rule{Command: "update", If: isWork, Times: 1, Do: wireproxy.Hold(release)})
			looks := b.proxy.Add(&wireproxy.Rule{Command: "find", If: func(c wireproxy.Command) bool {
				name, _ := c.Body.Lookup("find").StringValueOK()
				return name == b.direct.Name()+"_claim_pauses"
			}, Do: (*wireproxy.Exchange).Pass})
			type answer struct {
				started []string
				err     error
			}
			got := make(chan answer, 1)
			go func() {
				started, err := start(here, "r")
				got <- answer{started, err}
			}()
			testenv.Must(t, write.Begun(within(t), 1))
			_, err := there.Pause(t.Context(), "paused:", "")
			testenv.Must(t, err)
			testenv.Must(t, looks.Ended(within(t), looks.Hits()+2)) // it is in force here too
			close(release)
			if a := <-got; a.err != nil || len(a.started) != 1 || a.started[0] != "goes:1" {
				t.Errorf("started %v, %v; want goes:1 alone", a.started, a.err)
			}
			r, err := there.Get(t.Context(), "paused:1", false)
			if err != nil || r.Work.Attempts != before.Attempts || r.Work.State == job.StateLeased {
				t.Errorf("paused:1 is %+v, %v; it was %+v", r.Work, err, before)
			}
			_, err = there.Unpause(t.Context(), "paused:")
			testenv.Must(t, err)
			testenv.Must(t, looks.Ended(within(t), looks.Hits()+2))
			if started, err := claimed(here, "later"); err != nil || len(started) != 1 || started[0] != "paused:1" {
				t.Errorf("after it was resumed: started %v, %v; want paused:1", started, err)
			}
		})
	}
}
