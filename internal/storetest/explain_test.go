package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/jobonce/jobonce/internal/job"
)

// TestExplainAnsweredCalls: a claim that was answered with nothing while the clock moved may have been granted a lease before that,
// and not afterwards: somebody has seen the work in the queue since. Of an unknown one that is possible.
func TestExplainAnsweredCalls(t *testing.T) {
	at := time.UnixMilli(1_773_500_000_000).UTC()
	nows := []time.Time{at, at.Add(lease + time.Second)}
	queued := Answer{refAnswer: refAnswer{disposition: job.First}}
	queued.first = true
	seen := Answer{refAnswer: refAnswer{disposition: job.Pending}}
	end := &job.Record{JobID: "job", Status: "OK", RequestID: "one", FirstSeen: at, Work: job.Work{Mode: job.ModeQueued, State: job.StateLeased,
		Due: nows[1].Add(lease), Generation: nows[1].UnixMilli(), Attempts: 1, Token: "T", ClaimID: "two"}}
	claim := Call{Op: ClaimOp("two"), From: 3, To: 4, Nows: nows}
	unknown := claim
	unknown.Unknown = true
	for name, c := range map[string]struct {
		claim     Call
		look      int // when it was looked at begins
		explained bool
	}{
		"looked at before the answer":    {claim, 3, true},
		"looked at after the answer":     {claim, 5, false},
		"looked at after an unknown one": {unknown, 5, true},
	} {
		calls := []Call{
			{Op: RecordOp("one", job.ModeQueued), Answer: queued, From: 1, To: 2, Nows: nows[:1]},
			c.claim,
			{Op: RecordOp("three", job.ModeUntracked), Answer: seen, From: c.look, To: 6, Nows: nows[1:]},
		}
		if err := Explain(calls, end, Clocks{}); (err == nil) != c.explained {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRenewedAtOnce: two renewals of one lease at once are told the same end, of which each knows by itself. The lease ends a
// millisecond later, so that it cannot be given back by what they were told.
func TestRenewedAtOnce(t *testing.T) {
	told := func(expires int64) refAnswer {
		return refAnswer{lease: refLease{token: "t", generation: 1, expires: expires}}
	}
	history := []porcupine.Operation{{Input: linearInput{refRecord{request: "r", status: "OK", body: "body", mode: job.ModeLeased}, 1},
		Output: refAnswer{disposition: job.First, start: true, first: true, lease: told(1 + lease.Milliseconds()).lease}}}
	for _, renewed := range []int64{2, 2} {
		history = append(history, porcupine.Operation{Input: linearInput{refRenew{"t"}, 1}, Output: told(renewed + lease.Milliseconds())})
	}
	history = append(history, porcupine.Operation{Input: linearInput{refUnclaim{"t", 2 + lease.Milliseconds()}, 1}, Output: refAnswer{}})
	for last, want := range map[int64]bool{4: true, 2: false} {
		h := append(slices.Clone(history), porcupine.Operation{Input: linearInput{refRenew{"t"}, 1}, Output: told(last + lease.Milliseconds())})
		for i := range h {
			h[i].Call, h[i].Return = int64(2*i), int64(2*i+1)
		}
		if got := porcupine.CheckOperations(linearModel, h); got != want {
			t.Errorf("renewed until %d: %t", last, got)
		}
	}
}
