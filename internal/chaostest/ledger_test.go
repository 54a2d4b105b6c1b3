package chaostest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
)

// tally counts what happened over all rounds.
type tally struct {
	// calls are attempts of RPCs as the client's user sees them, a batch being one; deliveries those in RecordDelivery and
	// batches.
	calls, deliveries atomic.Int64
	// unknown and refused are calls, or deliveries of a batch, with an unknown outcome, and without an effect.
	unknown, refused atomic.Int64
	rounds           atomic.Int64
	trials           atomic.Int64
	operations       atomic.Int64 // of trials

	mu     sync.Mutex
	faults map[string]int
}

func newTally() *tally { return &tally{faults: make(map[string]int)} }

func (n *tally) fault(name string, times int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults[name] += times
}

// ledger is what the clients of one round were told.
type ledger struct {
	*tally
	mu   sync.Mutex
	jobs map[string]*account
}

// account is what is known of one job.
type account struct {
	// answered and unknown are deliveries; those that were refused count for nothing.
	answered, unknown int64
	// creators are the calls that were told that they made the record.
	creators map[creator]bool
	// bodies are those that may have been stored.
	bodies map[string]bool
	leases map[int64]*grant // by generation
	// completed is true when somebody was told that the work is.
	completed bool
}

// creator is a logical call: the same request id with another body or status is another one.
type creator struct{ request, body, status string }

// grant is a lease that somebody was told of.
type grant struct {
	token string
	// start is when it began at the latest, end when it ends as far as was told.
	start, end time.Time
	// givenUp is true when somebody tried to complete or release it, whatever the answer.
	givenUp bool
	// twice is another token that was told with the same generation.
	twice string
}

func newLedger(n *tally) *ledger { return &ledger{tally: n, jobs: make(map[string]*account)} }

// account returns the account of a job; mu is held.
func (l *ledger) account(jobID string) *account {
	a := l.jobs[jobID]
	if a == nil {
		a = &account{creators: make(map[creator]bool), bodies: make(map[string]bool), leases: make(map[int64]*grant)}
		l.jobs[jobID] = a
	}
	return a
}

// ids are the jobs' ids, in order.
func (l *ledger) ids() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.jobs))
}

func (l *ledger) failed(err error) {
	switch {
	case errors.Is(err, job.ErrOutcomeUnknown):
		l.unknown.Add(1)
	case errors.Is(err, job.ErrUnavailable), errors.Is(err, job.ErrOverloaded):
		l.refused.Add(1)
	}
}

// answered counts a call that is neither a delivery nor a claim.
func (l *ledger) answered(err error) {
	l.calls.Add(1)
	l.failed(err)
}

func (l *ledger) recorded(ds []job.Delivery, out []job.Outcome) {
	l.calls.Add(1)
	l.deliveries.Add(int64(len(ds)))
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range ds {
		d, o := &ds[i], &out[i]
		a := l.account(d.JobID)
		l.failed(o.Err)
		switch {
		case o.Err == nil:
			a.answered++
			a.bodies[d.Body.Data] = true
		case errors.Is(o.Err, job.ErrOutcomeUnknown):
			a.unknown++
			a.bodies[d.Body.Data] = true
		}
		if o.Err != nil {
			continue
		}
		if o.Verdict.FirstDelivery || o.Verdict.Disposition == job.First {
			a.creators[creator{d.RequestID, d.Body.Data, d.Status}] = true
		}
		if o.Lease != nil {
			a.leased(*o.Lease)
		}
	}
}

func (l *ledger) claimed(claimed []job.Claimed, err error) {
	l.answered(err)
	for i := range claimed {
		l.leased(claimed[i].Record.JobID, claimed[i].Lease)
	}
}

func (l *ledger) leased(jobID string, lease job.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.account(jobID).leased(lease)
}

// leased notes a lease. Whoever is told of it, it was granted or renewed for leaseTime: a repeated call that asks for none is
// told of its lease too.
func (a *account) leased(lease job.Lease) {
	// By its end, but for a lease that was told again before anybody heard of it, which runs longer; see job.Work.Retell. Its
	// number is no earlier than its beginning.
	start := lease.Expires.Add(-leaseTime)
	if numbered := time.UnixMilli(lease.Generation); numbered.Before(start) {
		start = numbered
	}
	g := a.leases[lease.Generation]
	if g == nil {
		g = &grant{token: lease.Token, start: start, end: lease.Expires}
		a.leases[lease.Generation] = g
	}
	if g.token != lease.Token {
		g.twice = lease.Token
	}
	if start.Before(g.start) {
		g.start = start
	}
	if lease.Expires.After(g.end) {
		g.end = lease.Expires
	}
}

// giveUp notes that somebody is about to complete or release a lease.
func (l *ledger) giveUp(jobID, token string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.account(jobID).leases {
		if g.token == token {
			g.givenUp = true
		}
	}
}

func (l *ledger) completed(jobID string, err error) {
	l.answered(err)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.account(jobID).completed = true
}

// finding is something that must not be.
type finding struct {
	kind kind
	text string
}

func (f finding) String() string { return string(f.kind) + ": " + f.text }

// kind says which promise is broken.
type kind string

const (
	missing   kind = "an acknowledged delivery is missing"
	otherBody kind = "the stored body is not the first one's"
	twoFirst  kind = "two calls were told that they are first"
	twoLeases kind = "two leases run at once"
	miscount  kind = "the counter is not between the acknowledged and the attempted deliveries"
	stuck     kind = "work is neither done nor to be had"
	noOrder   kind = "a history is not linearizable"
	badError  kind = "a call failed as no call may"
	damaged   kind = "the database file is damaged"
)

// check holds what the clients of one job were told against each other.
func (a *account) check(jobID string) (found []finding) {
	find := func(k kind, format string, args ...any) {
		found = append(found, finding{k, jobID + ": " + fmt.Sprintf(format, args...)})
	}
	if len(a.creators) > 1 {
		find(twoFirst, "%v", slices.Collect(maps.Keys(a.creators)))
	}
	var last *grant
	for _, generation := range slices.Sorted(maps.Keys(a.leases)) {
		g := a.leases[generation]
		switch {
		case g.twice != "":
			find(twoLeases, "two have the number %d", generation)
		case last != nil && g.start.Before(last.start):
			find(twoLeases, "lease %d began %v before the one with the number before", generation, last.start.Sub(g.start))
		case last != nil && !last.givenUp && g.start.Before(last.end):
			find(twoLeases, "lease %d began %v before the one before it ended", generation, last.end.Sub(g.start))
		}
		last = g
	}
	return found
}

// checkStored holds what the clients were told against what is stored, nil for nothing, after all work was to be drained.
// most is how many deliveries may have been written; 0 when nobody knows.
func (a *account) checkStored(jobID string, j *joboncev1.Job, most int64) (found []finding) {
	find := func(k kind, format string, args ...any) {
		found = append(found, finding{k, jobID + ": " + fmt.Sprintf(format, args...)})
	}
	if j == nil {
		if a.answered > 0 || a.completed {
			find(missing, "%d deliveries were acknowledged", a.answered)
		}
		return found
	}
	if n := j.GetDeliveries(); n < a.answered || most > 0 && n > most {
		find(miscount, "%d are stored; %d were acknowledged, %d may have been written", n, a.answered, most)
	}
	if !a.bodies[j.GetPayload()] {
		find(otherBody, "nobody delivered %q, unless it was refused", j.GetPayload())
	}
	for c := range a.creators {
		if c.body != j.GetPayload() || c.status != j.GetStatus() {
			find(otherBody, "%q with %q is stored; %q with %q was told that it is first", j.GetPayload(), j.GetStatus(), c.body, c.status)
		}
	}
	state := j.GetWork().GetState()
	switch {
	case a.completed && state != joboncev1.WorkState_WORK_STATE_COMPLETED:
		find(missing, "the work was acknowledged as completed, and is %v", state)
	case state == joboncev1.WorkState_WORK_STATE_QUEUED, state == joboncev1.WorkState_WORK_STATE_LEASED:
		find(stuck, "it is %v, and nobody can claim it", state)
	}
	return found
}
