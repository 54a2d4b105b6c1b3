package job

import (
	"context"
	"time"
)

// Outcome is what became of one delivery. When Err is nil, Record is the record as it stands after the write and
// Verdict is the decision on it. The record has its body only when the verdict is Reclaimed: the work is to be done on
// the stored event.
type Outcome struct {
	Record  Record
	Verdict Verdict
	// Lease is set when the caller holds the lease on the work.
	Lease *Lease
	// Granted is set when that lease was granted to this very call, on work that others had before, and is the lease as it was
	// granted. Whoever finds that the caller has left can give it back by [Worker].Unclaim, which leaves it in place when the
	// same call was sent again and told of it meanwhile: a store marks the lease then.
	Granted *Lease
	Err     error
}

// Store keeps jobs. Implementations are safe for concurrent use; internal/storetest holds each of them to what is said
// here. Each service uses the part that it needs.
type Store interface {
	Recorder
	Follower
	Worker
	Expectations
	Admin
	Checker

	// Close waits for the calls under way and gives up the store's resources. Later calls get ErrUnavailable. Closing
	// twice is fine.
	Close() error
}

// Recorder is the part of a store that deliveries go to.
type Recorder interface {
	// Record writes the deliveries and decides each. It returns one outcome per delivery, in their order, and all of
	// them are durable when it returns. An outcome's error is about that delivery alone: one that fails spoils no
	// other. Among deliveries of one job the earliest is written first.
	//
	// An outcome never guesses. When the write may or may not have been applied its error matches ErrOutcomeUnknown;
	// when certainly nothing was written, ErrUnavailable; when what is stored under the id cannot be used,
	// ErrRecordUnusable. When the context ended it matches the context's error as well. A delivery that repeats an
	// earlier request id gets what the first one got, and is counted.
	//
	// Deliveries must have been made by [Input.Delivery].
	Record(ctx context.Context, deliveries []Delivery) []Outcome

	// Get reads a record, with its body when withBody is set. It sees every write that was acknowledged before the
	// call, except that around a failover it may be one failover old. ErrNotFound when there is certainly none,
	// ErrRecordUnusable as for Record, ErrUnavailable when the store cannot be reached.
	Get(ctx context.Context, jobID string, withBody bool) (Record, error)
}

// Follower is the part of a store by which deliveries that were recorded wait for what becomes of their job.
type Follower interface {
	// Standings tells how the work of jobs stands, by one look-up for all of them. Jobs that have no record are left out. It
	// may be one failover old. Errors are those of Get.
	Standings(ctx context.Context, jobIDs []string) (map[string]Standing, error)

	// Resume decides a delivery that was recorded, on the record as it stands now, and lets it claim the work as Record does. It
	// counts neither the delivery nor its conflict. Errors are those of Record, and ErrNotFound when there is no record any more.
	Resume(ctx context.Context, d Delivery) Outcome
}

// Standing is how the work of a job stands, as far as those who wait for it need to know.
type Standing struct {
	State      WorkState
	Generation int64
	// Free is set where the work could be claimed, as far as the delivery is one that may: not where claims of it are paused.
	Free bool
}

// EachRecorder is a Recorder in which one delivery may take longer than its neighbours.
type EachRecorder interface {
	// RecordEach is Record, but calls settle once for each delivery, by its place, as soon as its outcome is known. It
	// returns when all are settled that need no more than the usual. What takes longer goes on by itself, for as long as
	// ctx lasts, and settle is then called from other goroutines.
	RecordEach(ctx context.Context, deliveries []Delivery, settle func(i int, o Outcome))
}

// Worker is the part of a store that work is claimed from and reported to.
type Worker interface {
	// Claim leases jobs whose work is free, within the limits of the request: the oldest due first, but that a store which
	// several instances share may pass one over for 5 s, and one claim, of each instance. They come oldest due first. A
	// request id that was seen before gets those of its leases that still run and are of jobs under the prefix, and nothing
	// new as long as there are any; that of another caller, by [SameCaller], was not seen. Jobs whose attempts are used up
	// become dead on the way. Work in StateUnknown, or that lacks a field, is left alone and holds nothing up. Nothing due
	// is no error. Errors are those of Record.
	Claim(ctx context.Context, r ClaimRequest) ([]Claimed, error)

	// LongestDue tells which of the work that a claim could take has been due for longest, and since how long by the store's
	// clock; paused work is none of it. An empty id: none is due. It is one look at an index, and one that may be old. Errors are
	// those of Get.
	LongestDue(ctx context.Context) (jobID string, since time.Duration, err error)

	// Unclaim gives claims back that nobody got to hear of, and takes back their attempts. Those that were granted to
	// another call, or that another call with the same request id was told of since, stay. A claim that is gone already
	// is no error.
	Unclaim(ctx context.Context, claims []Claimed) error

	// ChangeLeases makes the changes that holders of leases ask for, each under its own token. It returns one outcome per
	// change, in their order, and all that were made are durable when it returns. One that fails spoils no other. Among
	// changes with one token the earliest is made first. An outcome's error matches ErrLeaseLost when the token certainly
	// does not hold the lease, ErrNotFound when there is certainly no such job, and is otherwise as for Record. A change
	// repeated with the token that made it succeeds and changes nothing.
	ChangeLeases(ctx context.Context, changes []LeaseChange) []LeaseOutcome
}

// EachChanger is a Worker in which one change of a lease may take longer than its neighbours.
type EachChanger interface {
	// ChangeEach is ChangeLeases, but calls settle as [EachRecorder] says.
	ChangeEach(ctx context.Context, changes []LeaseChange, settle func(i int, o LeaseOutcome))
}

// Watch is told by a store of work that has died, and of leases that were granted after others on the work had lapsed, once
// that is durable. It is called from many goroutines and must not block. See [Work.Notable].
type Watch func(jobID string, w Work)

// Tell tells what has become of work, if it is to be told of.
func (f Watch) Tell(jobID string, before, after *Work) {
	died := after.State == StateDead && before.State != StateDead
	lapsed := after.State == StateLeased && after.Lapses > 0 && after.Token != before.Token
	if f != nil && (died || lapsed) {
		f(jobID, *after)
	}
}

// Checker tells how a store is.
type Checker interface {
	// Check returns nil when the store can serve, otherwise why it cannot, in words for an operator's log.
	Check(ctx context.Context) error

	// CheckWork returns nil when work can be claimed, as far as that is not said by Check, otherwise why it cannot.
	CheckWork(ctx context.Context) error
}

// Answer is the outcome of a delivery that was decided.
func Answer(r Record, v Verdict, now time.Time) Outcome {
	o := Outcome{Record: r, Verdict: v}
	if v.Leased {
		lease := r.Work.Lease(now)
		o.Lease = &lease
	}
	return o
}
