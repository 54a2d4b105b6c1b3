// Package storetest is the conformance suite: every job.Store passes it. The contract is the one on job.Store; each
// "must" there has a case here.
package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// MaxAttempts is what the store under test is to be configured with.
const MaxAttempts = 3

// Env is a store under test.
type Env struct {
	// Store is empty and ready. The suite closes it at most once itself; the factory's cleanup closes it again.
	Store job.Store
	// Clock is the store's clock. It stands still until a case moves it.
	Clock *testenv.Clock
	// Watched is what the store was told to tell. The factory makes it the store's job.Watch.
	Watched *Watched
	// Shared is set where several instances may use the store at once: a claim may then pass over what has been due for
	// longest, so that they do not all want the same.
	Shared bool
	// Reopen closes nothing: it opens a second store on the same data, after the case closed the first.
	Reopen func() job.Store
}

// Watched keeps what a store tells of its work.
type Watched struct {
	mu    sync.Mutex
	lines []string
}

// Tell is a job.Watch.
func (w *Watched) Tell(jobID string, work job.Work) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, fmt.Sprintf("%s: %v after %d lapses", jobID, work.State, work.Lapses))
}

func (w *Watched) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := w.lines
	w.lines = nil
	slices.Sort(lines)
	return lines
}

// Factory makes a fresh environment and cleans it up when the test ends.
type Factory func(t *testing.T) Env

// Run runs the suite.
func Run(t *testing.T, factory Factory) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, Env)
	}{
		{"FirstThenDuplicate", firstThenDuplicate},
		{"ReplayGetsTheSameAnswer", replayGetsTheSameAnswer},
		{"ReusedRequestIDIsAnotherCall", reusedRequestIDIsAnotherCall},
		{"LeaseIsForLeasedDeliveries", leaseIsForLeasedDeliveries},
		{"Conflicts", conflicts},
		{"OddIDs", oddIDs},
		{"Bodies", bodies},
		{"FieldsComeBack", fieldsComeBack},
		{"Times", times},
		{"NotFound", notFound},
		{"EmptyBatch", emptyBatch},
		{"BatchKeepsOrder", batchKeepsOrder},
		{"BatchHoldsOneIDTwice", batchHoldsOneIDTwice},
		{"RaceOnManyIDs", raceOnManyIDs},
		{"RaceOfOneRequest", raceOfOneRequest},
		{"RaceOfBatches", raceOfBatches},
		{"LeasedLife", leasedLife},
		{"QueuedLife", queuedLife},
		{"LapsedLeaseIsReclaimed", lapsedLeaseIsReclaimed},
		{"LapsedLeaseStillHolds", lapsedLeaseStillHolds},
		{"RepeatedOperations", repeatedOperations},
		{"ReleasedWorkWaits", releasedWorkWaits},
		{"NotStarted", notStarted},
		{"ManyChanges", manyChanges},
		{"OtherEventNeverClaims", otherEventNeverClaims},
		{"ClaimsOldestFirst", claimsOldestFirst},
		{"LongestDue", longestDue},
		{"Standings", standings},
		{"Resume", resume},
		{"GivenBackUnheard", givenBackUnheard},
		{"RaceToResume", raceToResume},
		{"ClaimsUnderAPrefix", claimsUnderAPrefix},
		{"RequestIDsAreTheirCallers", requestIDsAreTheirCallers},
		{"ClaimFitsTheReply", claimFitsTheReply},
		{"GrantedAndLapses", grantedAndLapses},
		{"AttemptsRunOut", attemptsRunOut},
		{"ToldOnce", toldOnce},
		{"UnclaimedWorkIsFree", unclaimedWorkIsFree},
		{"ToldLeasesStay", toldLeasesStay},
		{"RaceForTheWork", raceForTheWork},
		{"WorkBatch", workBatch},
		{"Requeued", requeued},
		{"RequeuedWaiting", requeuedWaiting},
		{"MovedOn", movedOn},
		{"Deleted", deleted},
		{"Erased", erased},
		{"Aged", aged},
		{"Lists", lists},
		{"CountsUnderAPrefix", countsUnderAPrefix},
		{"ListsWhileOthersWrite", listsWhileOthersWrite},
		{"PausedClaims", pausedClaims},
		{"PausedWorkIsNotDue", pausedWorkIsNotDue},
		{"Expectations", expectations},
		{"OverdueInParts", overdueInParts},
		{"OverdueUnderAPrefix", overdueUnderAPrefix},
		{"OneStart", oneStart},
		{"ReportedBeforeRecorded", reportedBeforeRecorded},
		{"AdminEnded", adminEnded},
		{"EndedContext", endedContext},
		{"CancelUnderWay", cancelUnderWay},
		{"UseAfterClose", useAfterClose},
		{"SurvivesReopening", survivesReopening},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, factory(t)) })
	}
}

// input is a delivery of the job with everything set.
func input(jobID, requestID string) job.Input {
	return job.Input{
		JobID: jobID, Event: "job.completed", Status: "OK", RequestID: requestID, Source: "webhook",
		Body: job.Body{Kind: job.BodyText, Data: fmt.Sprintf(`{"job_id":%q,"event":"job.completed","status":"OK"}`, jobID)},
	}
}

// plain is a delivery without a body, for ids that JSON would have to escape.
func plain(jobID, requestID string) job.Input { return job.Input{JobID: jobID, RequestID: requestID} }

func check(t *testing.T, in job.Input) job.Delivery {
	t.Helper()
	d, err := in.Delivery(job.MaxBodyBytes)
	if err != nil {
		t.Fatalf("delivery %.80q: %v", in.JobID, err)
	}
	return d
}

// record records one delivery and fails the test on an error.
func record(t *testing.T, s job.Store, in job.Input) job.Outcome {
	t.Helper()
	out := s.Record(t.Context(), []job.Delivery{check(t, in)})
	if len(out) != 1 {
		t.Fatalf("Record of one delivery gave %d outcomes", len(out))
	}
	if out[0].Err != nil {
		t.Fatalf("Record %.80q: %v", in.JobID, out[0].Err)
	}
	return out[0]
}

func get(t *testing.T, s job.Store, jobID string) job.Record {
	t.Helper()
	r, err := s.Get(t.Context(), jobID, true)
	if err != nil {
		t.Fatalf("Get %.80q: %v", jobID, err)
	}
	return r
}

// want checks what an outcome says.
func want(t *testing.T, o job.Outcome, d job.Disposition, start, first bool, deliveries int64) {
	t.Helper()
	if o.Err != nil {
		t.Fatalf("outcome: %v", o.Err)
	}
	v := o.Verdict
	if v.Disposition != d || v.StartWork != start || v.FirstDelivery != first || o.Record.Deliveries != deliveries {
		t.Errorf("got disposition %d, start %t, first %t, deliveries %d; want %d, %t, %t, %d",
			v.Disposition, v.StartWork, v.FirstDelivery, o.Record.Deliveries, d, start, first, deliveries)
	}
}

func wantFirst(t *testing.T, o job.Outcome, deliveries int64) {
	t.Helper()
	want(t, o, job.First, true, true, deliveries)
}

func wantDuplicate(t *testing.T, o job.Outcome, deliveries int64) {
	t.Helper()
	want(t, o, job.Duplicate, false, false, deliveries)
}

// oddJobIDs are ids that some layer below might fold, trim, cut, escape or read as something else.
func oddJobIDs() []string {
	return []string{
		" ", "   ", "a", "A", "Job_A", "job_a", "job_a ", " job_a", "caf\u00e9", "cafe\u0301", "\u212a", "K", "k", "ß", "ss",
		`{"$gt":""}`, "$where", "a.b", "..", "/", `\`, `"`, "'", "' OR 1=1 --", "%", "_", "0", "00", "0.0", "1e3", "NaN",
		"null", "true", "undefined", "ObjectId(\"0\")", "\u200b", "\ufeff", "\u2028", "😀", "\U0010ffff", "ı", "İ", "i",
		strings.Repeat("x", 254), strings.Repeat("x", 255), strings.Repeat("é", 127), strings.Repeat("😀", 63),
	}
}

// deadline bounds a wait for something that must happen anyway.
func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}
