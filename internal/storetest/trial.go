package storetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/jobonce/jobonce/internal/job"
)

// LeaseTime is how long the leases of a trial run.
const LeaseTime = time.Minute

// maxGhosts is how many operations of a trial may have an unknown outcome before it ends: what the checker has to try
// doubles with each.
const maxGhosts = 8

// Trial is a history of concurrent operations on one job, through stores that may fail meanwhile. [Trial.Check] asks
// whether some order of the operations explains all answers, where
//
//   - an operation that failed with job.ErrOutcomeUnknown may have taken effect at any time from its call on, or never;
//   - one that failed with job.ErrUnavailable or job.ErrOverloaded has promised to have had no effect.
//
// Jobs of different trials do not meet, because each has an event of its own.
type Trial struct {
	*history
	untracked bool
	ghosts    int
	nows      []int64 // of the bursts
	settled   []settlement
}

// settlement says that the first so many operations of a trial have no effect after a time.
type settlement struct {
	operations int
	at         int64
	now        int64 // by the stores' clocks
}

// NewTrial starts a trial on a job that does not exist yet. rng is the trial's own.
func NewTrial(jobID string, rng *rand.Rand) *Trial {
	return &Trial{history: newHistory(Env{}, rng, jobID), untracked: rng.IntN(8) == 0}
}

// JobID is the trial's job, and the job's event.
func (tr *Trial) JobID() string { return tr.jobID }

// Operations is how many operations were answered or have an unknown outcome.
func (tr *Trial) Operations() int { return len(tr.operations) }

// Ended tells whether the trial takes no more operations, because the checker could not cope with them.
func (tr *Trial) Ended() bool { return tr.ghosts >= maxGhosts || len(tr.operations) >= linearHistory }

// Burst has one worker for each store do so many operations, all workers at once, while the stores' clocks stand at now.
// After a failure without an effect, again decides whether the worker tries once more; it may wait first. Burst returns the
// errors that a store may not give.
func (tr *Trial) Burst(ctx context.Context, now time.Time, stores []job.Store, each int, again func(error) bool) error {
	tr.mu.Lock()
	tr.nows = append(tr.nows, now.UnixMilli())
	tr.mu.Unlock()
	ops := make([][]any, len(stores))
	for w := range ops {
		for range each {
			ops[w] = append(ops[w], tr.choose())
		}
	}
	failures := make([]error, len(stores))
	together(len(stores), func(w int) {
		for _, op := range ops[w] {
			err := tr.attempt(ctx, w, stores[w], op, now.UnixMilli())
			for errors.Is(err, job.ErrUnavailable) || errors.Is(err, job.ErrOverloaded) {
				if !again(err) {
					return
				}
				err = tr.attempt(ctx, w, stores[w], op, now.UnixMilli())
			}
			if err != nil {
				failures[w] = fmt.Errorf("%s: %+v: %w", tr.jobID, op, err)
				return
			}
		}
	})
	return errors.Join(failures...)
}

// Settle says that whatever operations have an unknown outcome so far will not take effect any more: who was to carry them
// out is dead. The stores' clocks stand at now. The checker then has less to try.
func (tr *Trial) Settle(now time.Time) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.settled = append(tr.settled, settlement{len(tr.operations), time.Since(tr.began).Nanoseconds(), now.UnixMilli()})
}

// choose picks an operation that a client can ask for.
func (tr *Trial) choose() any {
	switch op := tr.history.choose().(type) {
	case refUnclaim:
		return refRenew{}
	case refRecord:
		if tr.rng.IntN(12) == 0 {
			op.body = "other"
		}
		if tr.untracked && tr.rng.IntN(2) == 0 {
			op.mode = job.ModeUntracked
		}
		return op
	default:
		return op
	}
}

// attempt does an operation and notes it. The error is one without an effect, or one that must not be.
func (tr *Trial) attempt(ctx context.Context, worker int, store job.Store, op any, now int64) error {
	op = tr.withToken(op)
	call := time.Since(tr.began).Nanoseconds()
	got, err := driver{store, tr.jobID}.do(ctx, tr.jobID, op)
	back := time.Since(tr.began).Nanoseconds()
	if err != nil && !errors.Is(err, job.ErrOutcomeUnknown) {
		return err
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	o := porcupine.Operation{ClientId: worker, Input: linearInput{op, now}, Output: got, Call: call, Return: back}
	if err != nil {
		tr.ghosts++
		g := &ghost{op: op, from: now, token: fmt.Sprintf("%s%d", ghostToken, tr.ghosts)}
		o.Input, o.Output = g, refAnswer{}
		if _, is := op.(refClaim); is {
			// The service gives back what a caller that has left claimed.
			back := o
			back.Input = &ghost{op: refUnclaim{token: g.token}, from: now}
			tr.operations = append(tr.operations, back)
		}
	}
	tr.operations = append(tr.operations, o)
	if got.lease.token != "" {
		tr.leases = append(tr.leases, got.lease)
	}
	return nil
}

// Check looks for an order that explains the answers. Its error shows the whole history; finding no answer within the limit
// is an error too.
func (tr *Trial) Check(limit time.Duration) error {
	var end int64
	for _, o := range tr.operations {
		end = max(end, o.Return)
	}
	operations := slices.Clone(tr.operations)
	for i, o := range operations {
		if g, is := o.Input.(*ghost); is {
			operations[i].Return, g.nows = tr.until(i, end+1)
		}
	}
	switch porcupine.CheckOperationsTimeout(ghostModel, operations, limit) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("%s: the checker found no answer within %v: %d operations, %d of them unknown", tr.jobID, limit,
			len(operations), tr.ghosts)
	}
	slices.SortStableFunc(operations, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var b strings.Builder
	fmt.Fprintf(&b, "%s: no order of these operations explains their answers:", tr.jobID)
	for _, o := range operations {
		fmt.Fprintf(&b, "\n  worker %d, %d to %d: %s", o.ClientId, o.Call, o.Return, ghostModel.DescribeOperation(o.Input, o.Output))
	}
	return errors.New(b.String())
}

// until is when the operation may take effect at the latest, if its outcome is unknown, and what the stores' clocks may say
// then.
func (tr *Trial) until(operation int, end int64) (latest int64, nows []int64) {
	for _, s := range tr.settled {
		if operation < s.operations {
			last, _ := slices.BinarySearch(tr.nows, s.now+1)
			return s.at, tr.nows[:last]
		}
	}
	return end, tr.nows
}

// ghostToken begins the name of a lease that an operation with an unknown outcome may have been granted: nobody was told
// the real token.
const ghostToken = "?"

// ghost is an operation with an unknown outcome.
type ghost struct {
	op    any
	from  int64
	token string
	nows  []int64 // of the bursts, up to the last in which it may take effect
}

// ghostState is a job, and the latest time that something was done to it at.
type ghostState struct {
	refJob
	at int64
}

var ghostModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{ghostState{}} },
	Step: func(state, input, output any) []any {
		s := state.(ghostState)
		if g, is := input.(*ghost); is {
			return g.step(s)
		}
		in := input.(linearInput)
		return s.step(in.op, output.(refAnswer), in.now)
	},
	Equal: func(a, b any) bool { return a.(ghostState) == b.(ghostState) },
	DescribeOperation: func(input, output any) string {
		if g, is := input.(*ghost); is {
			return fmt.Sprintf("%T%+v at %d or later -> unknown (%s)", g.op, g.op, g.from, g.token)
		}
		in := input.(linearInput)
		return fmt.Sprintf("%T%+v at %d -> %+v", in.op, in.op, in.now, output)
	},
}).ToModel()

// step is an operation that was answered. The answer may show the token of a lease that nobody knew until now.
func (s ghostState) step(op any, got refAnswer, now int64) (next []any) {
	if now < s.at {
		return nil
	}
	before := []refJob{s.refJob}
	if strings.HasPrefix(s.token, ghostToken) && got.lease.token != "" {
		told := s.refJob
		told.token = got.lease.token
		before = append(before, told)
	}
	for _, j := range before {
		if ok, after := j.step(op, got, now); ok {
			next = append(next, ghostState{after, now})
		}
	}
	return next
}

// step is what the operation may have done, at any of the times since its call.
func (g *ghost) step(s ghostState) []any {
	next := []any{s}
	for _, now := range g.nows {
		if now < g.from {
			continue
		}
		op := g.op
		if unclaim, is := op.(refUnclaim); is {
			unclaim.expires = s.due
			op = unclaim
		}
		// Whether the answer would be right does not matter: nobody got it.
		if _, after := s.refJob.step(op, refAnswer{lease: refLease{token: g.token}}, now); after != s.refJob {
			next = append(next, ghostState{after, max(s.at, now)})
		}
	}
	return next
}
