package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jobonce/jobonce/internal/job"
)

// Op is an operation of the reference model on one job.
type Op struct{ op any }

// RecordOp records the job.
func RecordOp(request string, mode job.WorkMode) Op {
	return Op{refRecord{request: request, status: "OK", body: "body", mode: mode}}
}

// ClaimOp claims one job.
func ClaimOp(request string) Op { return Op{refClaim{request: request}} }

// OfCaller is a delivery or a claim of a caller with a name.
func OfCaller(name string, o Op) Op {
	switch op := o.op.(type) {
	case refRecord:
		op.caller = name
		return Op{op}
	case refClaim:
		op.caller = name
		return Op{op}
	}
	panic(fmt.Sprintf("%v has no caller", o))
}

// RenewOp renews a lease.
func RenewOp(token string) Op { return Op{refRenew{token}} }

// CompleteOp completes the work.
func CompleteOp(token, result string) Op { return Op{refComplete{token, result}} }

// ReleaseOp gives the work back.
func ReleaseOp(token, reason string) Op { return Op{refRelease{token: token, reason: reason}} }

// GiveUpOp gives the work up: it is dead.
func GiveUpOp(token, reason string) Op {
	return Op{refRelease{token: token, reason: reason, dead: true}}
}

// UnclaimOp gives a claim back that nobody got to hear of.
func UnclaimOp(token string, expires time.Time) Op {
	return Op{refUnclaim{token, expires.UnixMilli()}}
}

// GetOp reads the job, and tells whether it is there. What it finds may be one failover old: only that it is absent says something.
func GetOp() Op { return Op{refGet{}} }

// RequeueOp puts the work of a job that was read back into the queue. A running lease needs force.
func RequeueOp(as job.Expected, force bool) Op {
	return Op{refRequeue{asRefRead(as), force}}
}

// DeleteOp deletes a job that was read. A running lease needs force.
func DeleteOp(as job.Expected, force bool) Op {
	return Op{refDelete{asRefRead(as), force}}
}

// RetainOp removes the job if it is finished and was not delivered since.
func RetainOp(before time.Time) Op { return Op{refRetain{before.UnixMilli()}} }

// PauseOp keeps the job's work from being claimed, and ResumeOp ends that. They are in force where they were done; other
// stores hear of them later, which the model does not know.
func PauseOp() Op  { return Op{refPause{}} }
func ResumeOp() Op { return Op{refResume{}} }

// Deletes tells whether the next delivery may be a first one again after it.
func (o Op) Deletes() bool {
	switch o.op.(type) {
	case refDelete, refRetain:
		return true
	}
	return false
}

// Pauses and Resumes tell whether it is a pause, or the end of one.
func (o Op) Pauses() bool  { _, is := o.op.(refPause); return is }
func (o Op) Resumes() bool { _, is := o.op.(refResume); return is }

// Records tells whether it is a delivery.
func (o Op) Records() bool {
	_, is := o.op.(refRecord)
	return is
}

func (o Op) String() string {
	return strings.TrimPrefix(fmt.Sprintf("%T%+v", o.op, o.op), "storetest.ref")
}

// Answer is what an operation answered.
type Answer struct {
	refAnswer
	// Granted is when the lease ends that was granted to this very call, and no earlier one, as it was granted; zero without one. The
	// answer may have told of a later end.
	Granted time.Time
}

// Changed is the answer of what tells no more than whether it changed anything.
func Changed(is bool) Answer { return Answer{refAnswer: refAnswer{changed: is}} }

// IsChange tells whether the answer says that something was changed, by what tells no more than that.
func (a Answer) IsChange() bool { return a.changed }

// Token is that of the lease in the answer; empty without one.
func (a Answer) Token() string { return a.lease.token }

// First tells whether the answer says that the call made the record.
func (a Answer) First() bool { return a.first }

// String is the answer without what differs from run to run.
func (a Answer) String() string {
	switch {
	case a.err != "":
		return a.err
	case a.disposition != job.DispositionNone:
		return fmt.Sprintf("disposition %d, start %t, %v", a.disposition, a.start, a.lease)
	case a.lease.token != "":
		return fmt.Sprintf("lease %v", a.lease)
	case a.changed:
		return "changed"
	}
	return "done"
}

// Do does an operation on a store. Jobs meet in claims when they have the same event.
func Do(ctx context.Context, store job.Store, event, jobID string, o Op) (Answer, error) {
	d := driver{store, event}
	if op, is := o.op.(refClaim); is {
		a, granted, err := d.claim(ctx, jobID, op)
		answer := Answer{refAnswer: a}
		if granted {
			answer.Granted = time.UnixMilli(a.lease.expires).UTC()
		}
		return answer, err
	}
	a, err := d.do(ctx, jobID, o.op)
	return Answer{refAnswer: a}, err
}

// Resume decides a delivery again that was recorded before, and waited: in the model that is the same delivery once more.
func Resume(ctx context.Context, store job.Store, event, jobID string, o Op) (Answer, error) {
	d := driver{store, event}
	delivery, err := d.delivery(jobID, o.op.(refRecord))
	if err != nil {
		return Answer{}, err
	}
	outcome := store.Resume(ctx, delivery)
	answer := Answer{}
	if outcome.Granted != nil {
		answer.Granted = outcome.Granted.Expires
	}
	answer.refAnswer, err = d.recorded(outcome)
	return answer, err
}

// DoTogether does one operation on each of several jobs in one call. The operations are of one kind, or all change leases, and a claim is
// the same for all.
func DoTogether(ctx context.Context, store job.Store, event string, jobIDs []string, ops []Op) ([]Answer, []error) {
	d := driver{store, event}
	answers, failures := d.together(ctx, jobIDs, ops)
	out := make([]Answer, len(answers))
	for i, a := range answers {
		out[i].refAnswer = a
	}
	return out, failures
}

// Call is an operation of a history.
type Call struct {
	Op     Op
	Answer Answer
	// Unknown is set when the operation failed with job.ErrOutcomeUnknown: it may take effect at any time from then on, or
	// never.
	Unknown bool
	// From and To are when it began and ended, as numbers in the order of what happened.
	From, To int
	// Nows are the times that the store's clock may have told it; those of an unknown one go on to the history's end.
	Nows []time.Time
	// straddles is set for a claim that got nothing. It looks at what its request holds and at what is due, and takes that, one
	// after the other: a lease that ran out or was given back in between was neither, and what an operator queued in between is
	// not what it wanted to take, and it does not look again when its caller has left.
	straddles bool
	// returns is set for a claim that got nothing beside a pause. It may have been granted the lease, and have given it back when it looked
	// at the pauses again.
	returns bool
	// by is set for what an earlier try of a call did that was answered then: nothing of it may land later.
	by int
}

// Clocks says what the clocks did during a history.
type Clocks struct {
	// Skew is by how much they may differ: nobody takes a lease over before it was due by that.
	Skew time.Duration
	// SetBack is set where one may have been set back. Then a lease that ends later than was ever granted is measured anew: it ends when
	// the time that was granted has passed once more, and who holds it is told that.
	SetBack bool
}

// Explain looks for an order of the calls on one job that explains their answers and leads to the record as it is in the
// end, which is nil when there is none. Calls that have promised to have had no effect are left out.
func Explain(calls []Call, end *job.Record, clocks Clocks) error {
	x := explanation{calls: slices.Clone(calls), end: end, tried: map[tried]bool{}}
	if clocks.SetBack {
		for _, c := range calls {
			for _, now := range c.Nows {
				x.anew = append(x.anew, now.Add(lease).UnixMilli())
			}
		}
	}
	deleted := slices.ContainsFunc(calls, func(c Call) bool { return c.Op.Deletes() })
	for _, c := range calls {
		// It may have been tried again, and what it made first is not what it was told of: its own lease may have run out, so that it
		// got another one, and others may have taken up what it recorded. After a deletion that would be two deliveries.
		tries := len(c.Nows) - 1
		if !c.grants() {
			tries = 0
			if c.Op.Records() && !c.Unknown && !deleted {
				tries = 1
			}
		}
		if !c.Unknown {
			c.Unknown, c.by = true, c.To
		}
		for range tries {
			x.calls = append(x.calls, c)
		}
	}
	for i, c := range x.calls {
		if _, claims := c.Op.op.(refClaim); !claims || c.Unknown || c.Answer.refAnswer != (refAnswer{}) {
			continue
		}
		beside := func(is func(*Call) bool) bool {
			return slices.ContainsFunc(calls, func(o Call) bool { return is(&o) && o.From < c.To && (o.Unknown || o.To > c.From) })
		}
		x.calls[i].straddles = len(c.Nows) > 1 || beside((*Call).frees)
		x.calls[i].returns = beside(func(o *Call) bool { return o.Op.Pauses() })
	}
	if x.search(refJob{skew: clocks.Skew.Milliseconds()}, 1<<len(x.calls)-1) {
		return nil
	}
	var b strings.Builder
	b.WriteString("no order of these calls explains their answers and what is stored:")
	for _, c := range calls {
		answer := fmt.Sprintf("%+v", c.Answer.refAnswer)
		if c.Unknown {
			answer = "unknown"
		}
		fmt.Fprintf(&b, "\n  %d to %d: %v -> %s", c.From, c.To, c.Op, answer)
	}
	if end == nil {
		b.WriteString("\n  in the end there is no record")
	} else {
		fmt.Fprintf(&b, "\n  in the end: %+v", endOf(end, &refJob{}))
	}
	return errors.New(b.String())
}

// grants tells whether the call may be granted a lease.
func (c *Call) grants() bool {
	switch op := c.Op.op.(type) {
	case refRecord:
		return op.mode == job.ModeLeased
	case refClaim:
		return true
	}
	return false
}

// frees tells whether the call may make work free that was under a lease.
func (c *Call) frees() bool {
	switch c.Op.op.(type) {
	case refUnclaim, refRequeue:
		return true
	}
	return false
}

type explanation struct {
	calls []Call
	end   *job.Record
	tried map[tried]bool
	// anew are the ends that a lease may have when it is measured anew.
	anew []int64
}

// earlier tells whether a lease that the model ends at due may end at the other time instead, since it was measured anew.
func (x *explanation) earlier(other, due int64) bool {
	return slices.ContainsFunc(x.anew, func(end int64) bool { return due > end+maxRetold && other >= end && other <= end+maxRetold })
}

type tried struct {
	refJob
	left uint
}

// search tells whether the calls that are left lead from a job to the end.
func (x *explanation) search(j refJob, left uint) bool {
	if x.tried[tried{j, left}] {
		return false
	}
	x.tried[tried{j, left}] = true
	open, first, last := false, int(^uint(0)>>1), 0
	for i, c := range x.calls {
		switch {
		case left&(1<<i) == 0:
			last = max(last, c.From)
		case !c.Unknown:
			open, first = true, min(first, c.To)
		}
	}
	if !open && x.ends(j) {
		return true
	}
	for i, c := range x.calls {
		if left&(1<<i) == 0 || c.From > first || c.by > 0 && c.by < last {
			continue
		}
		before := []refJob{j}
		for _, end := range x.anew {
			if x.earlier(end, j.due) && j.state == job.StateLeased {
				anew := j
				anew.due = end
				before = append(before, anew)
			}
		}
		for _, j := range before {
			for _, next := range x.outcomes(&c, j, fmt.Sprint(ghostToken, i)) {
				if x.search(next, left&^(1<<i)) {
					return true
				}
			}
		}
	}
	return false
}

// outcomes are what a call may have made of a job.
func (x *explanation) outcomes(c *Call, j refJob, ghost string) (out []refJob) {
	if c.straddles {
		out = append(out, j)
	}
	for _, now := range c.Nows {
		if at := now.UnixMilli(); c.returns && j.paused && j.free(at) {
			taken := j
			taken.grant(refLease{token: ghost}, "", "", "", "", at)
			_, back := taken.step(refUnclaim{ghost, taken.due}, refAnswer{}, at)
			out = append(out, back)
		}
		if c.Unknown {
			_, next := j.step(c.Op.op, refAnswer{lease: refLease{token: ghost}}, now.UnixMilli())
			out = append(out, next)
			continue
		}
		before := []refJob{j}
		if strings.HasPrefix(j.token, ghostToken) && c.Answer.lease.token != "" {
			told := j
			told.token = c.Answer.lease.token
			before = append(before, told)
		}
		for _, j := range before {
			for _, answer := range c.answers() {
				ok, next := j.step(c.Op.op, answer, now.UnixMilli())
				if told := answer.lease.expires; !ok && x.earlier(told, next.due) {
					answer.lease.expires = next.due
					ok, next = j.step(c.Op.op, answer, now.UnixMilli())
				}
				if ok {
					out = append(out, after(c.Op.op, &j, next)...)
				}
			}
		}
	}
	return out
}

// answers are what the model may say where the store says what it did. An operation that is tried again cannot tell what an
// earlier try has changed from what others have: a requeue finds the job queued, and says that it has queued it; a deletion
// finds nothing, and says that it has deleted it, and so does the end of a pause.
func (c *Call) answers() []refAnswer {
	told := c.Answer.refAnswer
	switch c.Op.op.(type) {
	case refRequeue, refDelete, refResume:
		if told.changed {
			other := told
			other.changed = false
			return []refAnswer{told, other}
		}
	}
	return []refAnswer{told}
}

// ends tells whether a job is as the record says.
func (x *explanation) ends(j refJob) bool {
	if x.end == nil || !j.exists {
		return x.end == nil && !j.exists
	}
	stored := endOf(x.end, &j)
	if strings.HasPrefix(j.token, ghostToken) {
		j.token = stored.token
	}
	if d := stored.due - j.due; d > 0 && d <= maxRetold {
		j.due = stored.due // nobody was told that it was told again
	}
	if x.earlier(stored.due, j.due) {
		j.due = stored.due
	}
	return stored == j
}

// endOf is the record as a job of the model, which has the body of more calls than are stored.
func endOf(r *job.Record, j *refJob) refJob {
	due := int64(0)
	if !r.Work.Due.IsZero() {
		due = r.Work.Due.UnixMilli()
	}
	return refJob{exists: true, status: r.Status, body: j.body, creator: r.RequestID, creatorCaller: r.Caller, mode: r.Work.Mode, state: r.Work.State,
		due: due, generation: r.Work.Generation, attempts: int(r.Work.Attempts), token: r.Work.Token, holder: r.Work.RequestID,
		holderCaller: r.Work.Caller,
		holderBody:   j.holderBody, claim: r.Work.ClaimID, result: r.Work.Result, reason: r.Work.Error,
		firstSeen: r.FirstSeen.UnixMilli(), requeues: int64(r.Work.Requeues), floor: j.floor, seen: j.seen,
		skew: j.skew, paused: j.paused}
}
