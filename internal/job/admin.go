package job

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Admin is the part of a store that operators use.
type Admin interface {
	// List returns a page of jobs. Each that is there all the while comes exactly once, whatever is recorded and deleted
	// meanwhile; one whose state changes may come or not where the filter asks for a state. A page looks at ExaminedPerJob
	// times its size of jobs at most. A record that cannot be read is left out. Errors are those of Get.
	List(ctx context.Context, q ListQuery) (Page, error)

	// Count counts the jobs, each number up to MaxCount; with a prefix, which ends in ":", those whose ids begin with it, among
	// the first MaxCountExamined of them. Errors are those of Get.
	Count(ctx context.Context, prefix string) (Counts, error)

	// Requeue makes work queued and due, see [Record.Requeue]. It returns the record as it stands, without its body, and
	// whether this call has changed it. ErrNotFound when there is certainly no such job, a [*StateError] when its state
	// certainly forbids it, otherwise errors are those of Record.
	Requeue(ctx context.Context, q Requeue) (r Record, changed bool, err error)

	// Delete removes jobs, with what is expected of them, or their bodies, see [Record.Delete]. It returns one outcome for
	// each, in their order; one that fails spoils no other. That there is no such job is no error. An outcome's error is a
	// [*StateError] when the job's state certainly forbids it, and otherwise as for Record.
	Delete(ctx context.Context, ds []Deletion) []DeleteOutcome

	// Pause keeps work from being claimed whose job's id begins with the prefix; a pause that is there already stays as it
	// is. It is in force at every instance within two seconds, and after a restart. It returns the pause as it is kept.
	// [ErrTooManyPauses] when there are MaxPauses. Errors are otherwise those of Record.
	Pause(ctx context.Context, prefix, reason string) (Pause, error)

	// Unpause ends a pause, and tells whether there was one. Errors are those of Record.
	Unpause(ctx context.Context, prefix string) (was bool, err error)

	// Pauses are all pauses, in the order of their prefixes. Errors are those of Get.
	Pauses(ctx context.Context) ([]Pause, error)
}

// ErrWrongState says that the job's state forbids it. Its errors are each a [*StateError].
var ErrWrongState = errors.New("the job's state forbids it")

// ErrTooManyPauses says that there are MaxPauses already.
var ErrTooManyPauses = &StateError{fmt.Sprintf("there are %d pauses already; resume one first", MaxPauses)}

// StateError says how a job's state forbids an operation, in words for whoever asked.
type StateError struct{ Problem string }

func (e *StateError) Error() string { return e.Problem }

// Is makes it match ErrWrongState.
func (e *StateError) Is(target error) bool { return target == ErrWrongState }

// Expected is a job as it was read.
type Expected struct {
	JobID      string
	Generation int64
	FirstSeen  time.Time
	// State is that of its work, which also changes without a new generation. StateUnknown: it is not compared.
	State WorkState
}

// ExpectedOf is the job as it was read.
func ExpectedOf(r *Record) Expected {
	return Expected{r.JobID, r.Work.Generation, r.FirstSeen, r.Work.State}
}

// check is nil when the record is the one that is expected.
func (e *Expected) check(r *Record) error {
	switch {
	case e.FirstSeen.IsZero() && !r.FirstSeen.IsZero():
		return &StateError{"when the job was first seen is missing: read the job, and send that along"}
	case !r.FirstSeen.Equal(e.FirstSeen):
		return &StateError{"the job is another one by now: it was first seen at another time"}
	case r.Work.Generation != e.Generation:
		return &StateError{fmt.Sprintf("the work has moved on: it was claimed since, and is %v by now", r.Work.State)}
	}
	return nil
}

// movedOn is nil when the work is in the state that is expected. What an earlier call with the same expectations has made of it is
// for the caller to know.
func (e *Expected) movedOn(w *Work) error {
	if e.State == StateUnknown || w.State == e.State {
		return nil
	}
	return &StateError{fmt.Sprintf("the work has moved on: it was %v, and is %v by now", e.State, w.State)}
}

// Requeue says which work is to be queued anew.
type Requeue struct {
	Expected
	// Force does it while a lease runs, and when the body was dropped.
	Force bool
}

// errRunning: a lease runs.
var errRunning = &StateError{"a lease runs on the work; force takes it away from its holder"}

// Requeue returns the work queued and due, without attempts, and with a token that nobody holds. Work that is so already
// comes back as it is, and so does what an earlier call with the same expectations has made, for as long as nobody has claimed
// it since.
func (r *Record) Requeue(q *Requeue, now time.Time) (Work, error) {
	w := r.Work
	if err := q.check(r); err != nil {
		return w, err
	}
	moved := q.movedOn(&w)
	switch {
	case w.State == StateUntracked:
		return w, &StateError{"the work is not tracked"}
	case w.State == StateUnknown:
		return w, &StateError{"the work is in a state that this version does not know"}
	case w.State == StateQueued && w.Attempts == 0 && (w.Granted == 0 || w.Free(now)):
		return w, nil
	case moved != nil:
		return w, moved
	case w.running(now) && !q.Force:
		return w, errRunning
	case !r.BodyDropped.IsZero() && !q.Force:
		return w, &StateError{"the payload was dropped; force requeues the work without it"}
	}
	w = w.settled()
	w.State, w.Token, w.Result, w.Attempts, w.Lapses = StateQueued, "", "", 0, 0
	w.Requeues++
	return w.dueIn(0, now), nil
}

// running tells whether a lease runs.
func (w *Work) running(now time.Time) bool { return w.State == StateLeased && now.Before(w.Due) }

// unfinished tells whether the work is not done, or may not be.
func (w *Work) unfinished() bool {
	return w.State == StateQueued || w.State == StateLeased || w.State == StateUnknown
}

// DeleteKind says what is deleted.
type DeleteKind uint8

// The kinds of deletions.
const (
	// DeleteJob removes the job and what is expected of it.
	DeleteJob DeleteKind = iota
	// ErasePayload drops the body, the result, the last error and the last conflict, and keeps the decision.
	ErasePayload
	// DropPayload drops the body alone.
	DropPayload
)

// Deletion says what is to be deleted.
type Deletion struct {
	Expected
	Kind DeleteKind
	// Force does it while a lease runs and, with ErasePayload, while the work is not done.
	Force bool
	// ActiveBefore, unless it is zero, wants that the job is finished or dead, that nothing has happened to it since that time, see
	// [Record.Aged], and that it still counts as many Deliveries as when it was read.
	ActiveBefore time.Time
	Deliveries   int64
}

// DeleteOutcome is what became of a deletion.
type DeleteOutcome struct {
	// Deleted is false when it was gone already. Where somebody else deletes some of several at the same moment, as many are told
	// as deleted as this call has deleted, but they may be others.
	Deleted bool
	Err     error
}

// Delete returns what a deletion makes of the record, as read without its body; gone when that is nothing.
func (r *Record) Delete(d *Deletion, now time.Time) (next Record, gone bool, err error) {
	if err := d.check(r); err != nil {
		return *r, false, err
	}
	w, moved := &r.Work, d.movedOn(&r.Work)
	switch {
	case !d.ActiveBefore.IsZero() && (w.unfinished() || r.Deliveries != d.Deliveries || !r.Aged(d.Kind, d.ActiveBefore)):
		return *r, false, &StateError{"something has happened to the job since"}
	case w.running(now) && !d.Force:
		return *r, false, errRunning
	case d.Kind == DeleteJob && w.Generation >= now.UnixMilli():
		// A lease of the next job of this id would get the same generation, or a lower one.
		return *r, false, &StateError{"the latest lease was granted in this moment, or by a clock that was ahead; try again later"}
	case d.Kind == DeleteJob:
		return *r, moved == nil, moved
	case d.Kind == ErasePayload && w.unfinished() && !d.Force:
		return *r, false, &StateError{"the work is not done; force gives it up"}
	}
	next = *r
	if r.BodyDropped.IsZero() && r.mayHaveBody() {
		next.BodyDropped = Millis(now)
	}
	if d.Kind == ErasePayload {
		next.LastConflict, next.Work.Result, next.Work.Error = nil, "", ""
		if w.State == StateQueued || w.State == StateLeased {
			next.Work = next.Work.settled()
			next.Work.State, next.Work.Token = StateDead, ""
		}
	}
	if moved != nil && next != *r { // An earlier call has left nothing to be dropped, but may have given the work up.
		return *r, false, moved
	}
	return next, false, nil
}

// mayHaveBody tells whether there may be a body, which is not read: of our own records those with a fingerprint have one.
func (r *Record) mayHaveBody() bool { return r.Fingerprint != "" || r.RequestID == "" }

// Aged tells whether the latest delivery was recorded, and the latest lease granted, before that time, as far as the record tells.
// Frontends that write to the database themselves keep no time of their redeliveries. A job that had one is never old enough to be
// removed; it does not need its payload to be recognized.
func (r *Record) Aged(kind DeleteKind, before time.Time) bool {
	return r.FirstSeen.Before(before) && r.LastSeen.Before(before) && r.Work.Generation < before.UnixMilli() &&
		(kind != DeleteJob || r.Deliveries <= 1 || !r.LastSeen.IsZero())
}

// The limits of pauses.
const (
	MaxPauses      = 100
	MaxReasonBytes = 256
)

// Pause keeps work from being claimed.
type Pause struct {
	// Prefix is what the ids of its jobs begin with; empty for all.
	Prefix string
	Since  time.Time
	Reason string
}

// PausedAll tells whether one of the pauses, which are in the order of their prefixes, is of all jobs.
func PausedAll(pauses []Pause) bool { return len(pauses) > 0 && pauses[0].Prefix == "" }

// Paused tells whether the work of the job is not to be claimed.
func Paused(pauses []Pause, jobID string) bool {
	for i := range pauses {
		if strings.HasPrefix(jobID, pauses[i].Prefix) {
			return true
		}
	}
	return false
}
