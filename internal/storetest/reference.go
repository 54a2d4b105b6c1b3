package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jobonce/jobonce/internal/job"
)

// refJob is the reference model of one job: the design's tables written down once more, plainly and apart from
// internal/job, to hold the stores against. It is a comparable value. Times are milliseconds since 1970.
type refJob struct {
	exists                bool
	status, body, creator string
	mode                  job.WorkMode
	state                 job.WorkState
	due, generation       int64
	attempts              int
	// token is that of the latest lease, also after the operation that ended it; empty once it is good for nothing.
	token string
	// holder is the RecordDelivery call that the running lease was granted to, with its body; claim the ClaimWork call.
	holder, holderBody, claim string
	// creatorCaller and holderCaller made these calls; empty for nobody.
	creatorCaller, holderCaller string
	result, reason              string
	// firstSeen and requeues are those of the record. floor is what the generation had come to when it was deleted.
	firstSeen, requeues, floor int64
	// seen is when it was delivered last. skew is by how much nobody takes a lease over early, since clocks may differ by that.
	seen, skew int64
	paused     bool
}

// The operations of the model.
type (
	refRecord struct {
		request, status, body, caller string
		mode                          job.WorkMode
	}
	refClaim    struct{ request, caller string }
	refRenew    struct{ token string }
	refComplete struct{ token, result string }
	refRelease  struct {
		token, reason string
		delay         time.Duration
		dead          bool
	}
	refUnclaim struct {
		token   string
		expires int64
	}
	refRequeue struct {
		refRead
		force bool
	}
	refDelete struct {
		refRead
		force bool
	}
	// refRetain removes what is finished, and was not delivered since before.
	refRetain struct{ before int64 }
	refGet    struct{}
	refPause  struct{}
	refResume struct{}
)

// refRead is a job as it was read. StateUnknown: the state is not compared.
type refRead struct {
	generation, firstSeen int64
	state                 job.WorkState
}

func asRefRead(e job.Expected) refRead {
	return refRead{e.Generation, e.FirstSeen.UnixMilli(), e.State}
}

func (r refRead) expected(jobID string) job.Expected {
	return job.Expected{JobID: jobID, Generation: r.generation, FirstSeen: time.UnixMilli(r.firstSeen).UTC(), State: r.state}
}

// isNot tells whether the job is another one than was read, or was claimed since; movedOn whether its state has changed.
func (r refRead) isNot(j *refJob) bool {
	return r.generation != j.generation || r.firstSeen != j.firstSeen
}
func (r refRead) movedOn(j *refJob) bool { return r.state != job.StateUnknown && r.state != j.state }

// refAnswer is what an operation answered. Fields that an operation does not have stay empty.
type refAnswer struct {
	disposition  job.Disposition
	start, first bool
	conflict     job.ConflictKind
	lease        refLease
	result       string
	withBody     bool
	err          string // "", "lost", "absent", "refused"
	changed      bool   // by a requeue, a deletion or the end of a pause
}

// maxRetold bounds by how many milliseconds one claim that is told of its lease again may make it longer.
const maxRetold = 8

type refLease struct {
	token      string
	generation int64
	expires    int64
}

// step is one operation on the job at a time. It tells whether the answer is right, and what the job has become. The one
// thing that the answer decides is the token of a new lease.
func (j refJob) step(op any, got refAnswer, now int64) (bool, refJob) {
	ok, next := j.answer(op, got, now)
	return ok && (next.state != job.StateLeased || next.generation > next.floor), next
}

func (j refJob) answer(op any, got refAnswer, now int64) (bool, refJob) {
	switch op := op.(type) {
	case refRecord:
		return j.record(op, got, now)
	case refClaim:
		return j.claimWork(op, got, now)
	case refRenew:
		if want, failed := j.refuse(op.token, false); failed {
			return got == want, j
		}
		if asked := now + lease.Milliseconds(); got.lease.expires != j.due || j.due < asked { // else another one has made it
			j.due = max(j.due+1, asked)
		}
		want := refAnswer{lease: j.lease()}
		want.lease.expires -= min(max(j.due-got.lease.expires, 0), 1) // and of two at once, each may know of its own alone
		// The lease may have been told again, to a call whose answer is not known, before the renewal's caller was told of what
		// is stored.
		if j.claim != "" || j.holder != "" {
			want.lease.expires += min(max(got.lease.expires-j.due, 0), maxRetold)
		}
		return got == want, j
	case refComplete:
		if want, failed := j.refuse(op.token, j.state == job.StateCompleted); failed {
			return got == want, j
		}
		if j.state == job.StateLeased {
			j.state, j.result, j.reason = job.StateCompleted, op.result, ""
			j.settle()
		}
		return got == refAnswer{}, j
	case refRelease:
		if want, failed := j.refuse(op.token, j.state == job.StateQueued || j.state == job.StateDead); failed {
			return got == want, j
		}
		if j.state == job.StateLeased {
			j.settle()
			j.state, j.reason, j.due = job.StateQueued, op.reason, now+op.delay.Milliseconds()
			if op.dead {
				j.state, j.due = job.StateDead, 0
			}
		}
		return got == refAnswer{}, j
	case refUnclaim:
		if j.state == job.StateLeased && j.token == op.token && j.due == op.expires {
			j.settle()
			j.state, j.token, j.due = job.StateQueued, "", now
			j.attempts--
		}
		return got == refAnswer{}, j
	case refRequeue:
		return j.requeue(op, got, now)
	case refDelete:
		return j.remove(op, got, now)
	case refRetain:
		if got == (refAnswer{}) || !j.exists || j.state != job.StateUntracked && j.state != job.StateCompleted || j.seen >= op.before {
			return got == refAnswer{}, j
		}
		return got == refAnswer{changed: true}, j.gone()
	case refGet:
		return got == refAnswer{} || !j.exists && got == refAnswer{err: "absent"}, j
	case refPause:
		j.paused = true
		return got == refAnswer{}, j
	case refResume:
		was := j.paused
		j.paused = false
		return got == refAnswer{changed: was}, j
	}
	return false, j
}

// after is what an operation may have made of a job of which it is told that it is next. A renewal that is told the end that the lease
// had already has made it, or another one has, and it knows of its own alone.
func after(op any, before *refJob, next refJob) []refJob {
	out := []refJob{next}
	if r, renews := op.(refRenew); renews && r.token == next.token && next.state == job.StateLeased && next.due == before.due {
		next.due++
		out = append(out, next)
	}
	return out
}

// requeue resets what is followed, whatever became of it.
func (j refJob) requeue(op refRequeue, got refAnswer, now int64) (bool, refJob) {
	switch {
	case !j.exists:
		return got == refAnswer{err: "absent"}, j
	case op.isNot(&j) || j.state == job.StateUntracked:
		return got == refAnswer{err: "refused"}, j
	case j.state == job.StateQueued && j.attempts == 0:
		return got == refAnswer{}, j
	case op.movedOn(&j) || j.running(now-j.skew) && !op.force:
		return got == refAnswer{err: "refused"}, j
	}
	j.settle()
	j.state, j.due, j.token, j.result, j.attempts = job.StateQueued, now, "", "", 0
	j.requeues++
	return got == refAnswer{changed: true}, j
}

// remove deletes the job, after which the next one of its id is another one, with higher generations.
func (j refJob) remove(op refDelete, got refAnswer, now int64) (bool, refJob) {
	switch {
	case !j.exists:
		return got == refAnswer{}, j
	case op.isNot(&j) || op.movedOn(&j) || j.running(now-j.skew) && !op.force || j.generation >= now:
		return got == refAnswer{err: "refused"}, j
	}
	return got == refAnswer{changed: true}, j.gone()
}

// gone is what is left of a job.
func (j refJob) gone() refJob {
	return refJob{floor: max(j.floor, j.generation), paused: j.paused, skew: j.skew}
}

// free tells whether the work may be claimed.
func (j *refJob) free(now int64) bool {
	return j.exists && (j.state == job.StateQueued && now >= j.due || j.state == job.StateLeased && now >= j.due+j.skew)
}

func (j *refJob) running(now int64) bool { return j.state == job.StateLeased && now < j.due }

// refuse is the answer to an operation whose token is not good: neither that of the lease nor, with done set, that of the
// operation which brought the job where it is.
func (j *refJob) refuse(token string, done bool) (refAnswer, bool) {
	switch {
	case !j.exists:
		return refAnswer{err: "absent"}, true
	case token == "" || token != j.token || j.state != job.StateLeased && !done:
		return refAnswer{err: "lost"}, true
	}
	return refAnswer{}, false
}

func (j *refJob) settle() { j.due, j.holder, j.holderBody, j.claim, j.holderCaller = 0, "", "", "", "" }

func (j *refJob) lease() refLease { return refLease{j.token, j.generation, j.due} }

// grant puts the job under the lease that the answer shows, or makes it dead.
func (j *refJob) grant(got refLease, holder, body, claim, caller string, now int64) {
	if j.attempts == MaxAttempts {
		j.settle()
		j.state, j.token = job.StateDead, ""
		if j.reason == "" {
			j.reason = "every attempt was used up"
		}
		return
	}
	j.state, j.token, j.due = job.StateLeased, got.token, now+lease.Milliseconds()
	j.generation = max(j.generation+1, now)
	j.attempts++
	j.holder, j.holderBody, j.claim, j.holderCaller = holder, body, claim, caller
}

func (j refJob) record(op refRecord, got refAnswer, now int64) (bool, refJob) {
	if !j.exists {
		j = refJob{exists: true, status: op.status, body: op.body, creator: op.request, creatorCaller: op.caller, mode: op.mode, state: job.StateUntracked,
			firstSeen: now, seen: now, floor: j.floor, paused: j.paused, skew: j.skew}
		switch op.mode {
		case job.ModeQueued:
			j.state, j.due = job.StateQueued, now
		case job.ModeLeased:
			if got.lease.token == "" {
				return false, j
			}
			j.grant(got.lease, op.request, op.body, "", op.caller, now)
		}
		want := refAnswer{disposition: job.First, start: op.mode != job.ModeQueued, first: true}
		if op.mode == job.ModeLeased {
			want.lease = j.lease()
		}
		return got == want, j
	}
	j.seen = max(j.seen, now)
	want := refAnswer{}
	switch {
	case op.status != j.status:
		want.conflict = job.ConflictEvent
	case op.body != j.body:
		want.conflict = job.ConflictBody
	}
	sameEvent := want.conflict != job.ConflictEvent
	creator := op.request == j.creator && op.body == j.body && sameEvent && sameName(op.caller, j.creatorCaller)
	want.first = creator

	granted := false
	if j.free(now) && !(j.state == job.StateQueued && creator) && op.mode == job.ModeLeased && sameEvent && !j.paused {
		old := j.token
		granted = true
		j.grant(got.lease, op.request, op.body, "", op.caller, now)
		if j.state == job.StateLeased && (j.token == "" || j.token == old) {
			return false, j
		}
	}
	running := j.running(now)
	holder := running && op.mode == job.ModeLeased && op.request == j.holder && op.body == j.holderBody && sameEvent && sameName(op.caller, j.holderCaller)
	switch {
	case j.state == job.StateUntracked && creator:
		want.disposition, want.start = job.First, true
	case j.state == job.StateUntracked:
		want.disposition = job.Duplicate
	case j.state == job.StateCompleted:
		want.disposition, want.result = job.Completed, j.result
	case j.state == job.StateDead:
		want.disposition = job.Dead
	case j.state == job.StateQueued && creator:
		want.disposition = job.First
	case holder && creator && j.attempts == 1:
		want.disposition, want.start, want.lease = job.First, true, j.lease()
	case holder && granted:
		want.disposition, want.start, want.lease, want.withBody = job.Reclaimed, true, j.lease(), true
		// The call may have found a lease that it did not know to be its own, and marked it.
		want.lease.expires += min(max(got.lease.expires-j.due, 0), maxRetold)
	case holder:
		// Told again, as with claims.
		j.due += min(max(got.lease.expires-j.due, 1), maxRetold)
		want.disposition, want.start, want.lease, want.withBody = job.Reclaimed, true, j.lease(), true
	case running && creator && j.mode == job.ModeQueued:
		want.disposition = job.First
	case running:
		want.disposition = job.InProgress
	default:
		want.disposition = job.Pending
	}
	return got == want, j
}

// sameName tells whether two calls may be of one caller: nobody's may be anybody's.
func sameName(a, b string) bool { return a == b || a == "" || b == "" }

// claimWork is a ClaimWork call that this job may be a part of the answer to: no lease in the answer means that the job
// was not claimed by it.
func (j refJob) claimWork(op refClaim, got refAnswer, now int64) (bool, refJob) {
	if j.running(now) && j.claim == op.request && sameName(op.caller, j.holderCaller) {
		// Told again, see job.Work.Retell; several times over where the store had to find out whether it was marked so.
		j.due += min(max(got.lease.expires-j.due, 1), maxRetold)
		return got == refAnswer{lease: j.lease(), withBody: true}, j
	}
	if j.paused || !j.free(now) {
		return got == refAnswer{}, j
	}
	old := j.token
	j.grant(got.lease, "", "", op.request, op.caller, now)
	if j.state == job.StateDead {
		return got == refAnswer{}, j
	}
	return got == refAnswer{lease: j.lease(), withBody: true} && j.token != "" && j.token != old, j
}

// driver runs the reference model's operations on a store. Jobs of different drivers do not meet: claims are limited to
// the driver's own event.
type driver struct {
	store job.Store
	event string
}

// do runs an operation on one job and returns what it answered. An error of the store that is none of the domain's
// answers comes back as an error.
func (d driver) do(ctx context.Context, jobID string, op any) (refAnswer, error) {
	switch op := op.(type) {
	case refRecord:
		delivery, err := d.delivery(jobID, op)
		if err != nil {
			return refAnswer{}, err
		}
		return d.recorded(d.store.Record(ctx, []job.Delivery{delivery})[0])
	case refClaim:
		a, _, err := d.claim(ctx, jobID, op)
		return a, err
	case refRenew:
		l, err := job.Renew(ctx, d.store, jobID, op.token, lease)
		if err != nil {
			return failed(err)
		}
		return refAnswer{lease: leaseOf(&l)}, nil
	case refComplete:
		return failed(job.Complete(ctx, d.store, jobID, op.token, op.result))
	case refRelease:
		return failed(job.GiveBack(ctx, d.store, jobID, op.token, job.Release{Delay: op.delay, Error: op.reason, Dead: op.dead}))
	case refUnclaim:
		return failed(d.store.Unclaim(ctx, []job.Claimed{{Record: job.Record{JobID: jobID}, Granted: true,
			Lease: job.Lease{Token: op.token, Expires: time.UnixMilli(op.expires).UTC()}}}))
	case refRequeue:
		_, changed, err := d.store.Requeue(ctx, job.Requeue{Expected: op.expected(jobID), Force: op.force})
		return changing(changed, err)
	case refDelete:
		o := d.store.Delete(ctx, []job.Deletion{{Expected: op.expected(jobID), Force: op.force}})[0]
		return changing(o.Deleted, o.Err)
	case refGet:
		_, err := d.store.Get(ctx, jobID, false)
		return failed(err)
	case refPause:
		_, err := d.store.Pause(ctx, jobID, "why")
		return failed(err)
	case refResume:
		return changing(d.store.Unpause(ctx, jobID))
	}
	return refAnswer{}, fmt.Errorf("no such operation: %T", op)
}

// together does operations of one kind in one call.
func (d driver) together(ctx context.Context, jobIDs []string, ops []Op) ([]refAnswer, []error) {
	answers, failures := make([]refAnswer, len(jobIDs)), make([]error, len(jobIDs))
	var deliveries []job.Delivery
	var changes []job.LeaseChange
	var deletions []job.Deletion
	for i, id := range jobIDs {
		switch op := ops[i].op.(type) {
		case refRecord:
			delivery, err := d.delivery(id, op)
			if err != nil {
				failures[i] = err
				return answers, failures
			}
			deliveries = append(deliveries, delivery)
		case refRenew:
			changes = append(changes, job.RenewLease(id, op.token, lease))
		case refComplete:
			changes = append(changes, job.CompleteWork(id, op.token, op.result))
		case refRelease:
			changes = append(changes, job.ReleaseWork(id, op.token, job.Release{Delay: op.delay, Error: op.reason, Dead: op.dead}))
		case refDelete:
			deletions = append(deletions, job.Deletion{Expected: op.expected(id), Force: op.force})
		}
	}
	switch op := ops[0].op.(type) {
	case refRecord:
		for i, o := range d.store.Record(ctx, deliveries) {
			answers[i], failures[i] = d.recorded(o)
		}
	case refRenew, refComplete, refRelease:
		for i, o := range d.store.ChangeLeases(ctx, changes) {
			if answers[i], failures[i] = failed(o.Err); o.Err == nil && changes[i].Kind == job.Renewal {
				answers[i].lease = leaseOf(&o.Lease)
			}
		}
	case refDelete:
		for i, o := range d.store.Delete(ctx, deletions) {
			answers[i], failures[i] = changing(o.Deleted, o.Err)
		}
	case refClaim:
		claimed, err := d.store.Claim(ctx, d.request(op, len(jobIDs)))
		for i, id := range jobIDs {
			failures[i] = err
			if at := slices.IndexFunc(claimed, func(c job.Claimed) bool { return c.Record.JobID == id }); at >= 0 {
				answers[i] = refAnswer{lease: leaseOf(&claimed[at].Lease), withBody: claimed[at].Record.Body.Data != ""}
			}
		}
	default:
		panic(fmt.Sprintf("there is no call for several of %T", op))
	}
	return answers, failures
}

func (d driver) request(op refClaim, most int) job.ClaimRequest {
	return job.ClaimRequest{RequestID: op.request, Caller: op.caller, Max: most, Lease: lease, Events: []string{d.event}, MaxBytes: 1 << 20}
}

// changing is the answer of what tells whether it changed anything.
func changing(changed bool, err error) (refAnswer, error) {
	if err != nil {
		return failed(err)
	}
	return refAnswer{changed: changed}, nil
}

// claim claims the job, and tells whether the lease was granted to this very call.
func (d driver) claim(ctx context.Context, jobID string, op refClaim) (_ refAnswer, granted bool, _ error) {
	claimed, err := d.store.Claim(ctx, d.request(op, 1))
	if err != nil || len(claimed) == 0 {
		return refAnswer{}, false, err
	}
	if len(claimed) > 1 || claimed[0].Record.JobID != jobID {
		return refAnswer{}, false, fmt.Errorf("claimed %d jobs, the first is %s", len(claimed), claimed[0].Record.JobID)
	}
	c := &claimed[0]
	return refAnswer{lease: leaseOf(&c.Lease), withBody: c.Record.Body.Data != ""}, c.Granted, nil
}

func (d driver) delivery(jobID string, op refRecord) (job.Delivery, error) {
	in := job.Input{JobID: jobID, Event: d.event, Status: op.status, RequestID: op.request, Caller: op.caller, Mode: op.mode,
		Body: job.Body{Kind: job.BodyText, Data: op.body}}
	if op.mode == job.ModeLeased {
		l := lease
		in.Lease = &l
	}
	return in.Delivery(1 << 20)
}

func (d driver) recorded(o job.Outcome) (refAnswer, error) {
	if o.Err != nil {
		return refAnswer{}, o.Err
	}
	v := o.Verdict
	a := refAnswer{disposition: v.Disposition, start: v.StartWork, first: v.FirstDelivery, withBody: o.Record.Body.Data != ""}
	if v.Conflict != nil {
		a.conflict = v.Conflict.Kind
	}
	if o.Lease != nil {
		a.lease = leaseOf(o.Lease)
	}
	if v.Disposition == job.Completed {
		a.result = o.Record.Work.Result
	}
	return a, nil
}

func leaseOf(l *job.Lease) refLease { return refLease{l.Token, l.Generation, l.Expires.UnixMilli()} }

func failed(err error) (refAnswer, error) {
	switch {
	case errors.Is(err, job.ErrLeaseLost):
		return refAnswer{err: "lost"}, nil
	case errors.Is(err, job.ErrNotFound):
		return refAnswer{err: "absent"}, nil
	case errors.Is(err, job.ErrWrongState):
		return refAnswer{err: "refused"}, nil
	}
	return refAnswer{}, err
}
