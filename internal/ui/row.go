package ui

import (
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// badge says how something stands. Tone is how that looks; empty for what needs nobody.
type badge struct{ Tone, Standing string }

// row is a job as it is shown.
type row struct {
	*joboncev1.Job
	clock
	badge
	// Advice says what that means, and what is to be done.
	Advice string
	// Pause is what keeps the job's work from being started; nil for nothing.
	Pause *joboncev1.ClaimPause
	// Handle names the job as it was read.
	Handle handle
}

// free tells whether a worker could claim the work, if it is not paused.
func free(w *joboncev1.Work, now time.Time) bool {
	queued := w.GetState() == joboncev1.WorkState_WORK_STATE_QUEUED || w.GetState() == joboncev1.WorkState_WORK_STATE_LEASED
	return queued && !w.GetDueTime().AsTime().After(now)
}

func newRow(j *joboncev1.Job, pauses []*joboncev1.ClaimPause, now clock) row {
	r := row{Job: j, clock: now, Handle: handleOf(j)}
	due := free(j.GetWork(), time.Time(now))
	for _, p := range pauses {
		if due && strings.HasPrefix(j.GetJobId(), p.GetJobIdPrefix()) {
			r.Pause, r.badge, r.Advice = p, badge{"due", "Paused"}, "It is due, and no worker gets it while it is paused."
			return r
		}
	}
	r.badge = badgeOf(j.GetWork().GetState())
	switch j.GetWork().GetState() {
	case joboncev1.WorkState_WORK_STATE_QUEUED:
		r.Advice = "It waits for a worker. If that takes long, see whether workers run, and what they claim."
		if r.badge = (badge{"due", "Due"}); !due {
			r.badge, r.Advice = badge{"", "Not due yet"}, "It is tried again when it is due."
		}
	case joboncev1.WorkState_WORK_STATE_LEASED:
		r.Advice = "A worker has it. Unless it completes or renews it in time, the next one gets it."
		if due {
			r.badge, r.Advice = badge{"due", "Due, lease lapsed"}, "Its holder has not completed it in time. The next claim, or delivery, gets it."
		}
	case joboncev1.WorkState_WORK_STATE_COMPLETED:
		r.Advice = "The work is done."
	case joboncev1.WorkState_WORK_STATE_DEAD:
		r.Advice = "It was given up, and nobody tries it again. Mend the cause, then requeue it."
	case joboncev1.WorkState_WORK_STATE_UNTRACKED:
		r.Advice = "Whoever delivered it first was told to start the work; what became of that is not known here."
	}
	return r
}

// badgeOf is that of a state by itself.
func badgeOf(state joboncev1.WorkState) badge {
	switch state {
	case joboncev1.WorkState_WORK_STATE_QUEUED:
		return badge{"", "Queued"}
	case joboncev1.WorkState_WORK_STATE_LEASED:
		return badge{"held", "Held"}
	case joboncev1.WorkState_WORK_STATE_COMPLETED:
		return badge{"done", "Completed"}
	case joboncev1.WorkState_WORK_STATE_DEAD:
		return badge{"dead", "Dead"}
	case joboncev1.WorkState_WORK_STATE_UNTRACKED:
		return badge{"", "Untracked"}
	}
	return badge{"", "Unknown to this version"}
}

// Tracked tells whether the job's work can be requeued at all.
func (r row) Tracked() bool {
	return r.GetWork().GetState() != joboncev1.WorkState_WORK_STATE_UNTRACKED
}

// handle names a job as it was read: what is done to it is done to that one, or not at all.
type handle struct {
	ID         string
	Generation int64
	State      joboncev1.WorkState
	FirstSeen  *timestamppb.Timestamp
}

func handleOf(j *joboncev1.Job) handle {
	return handle{j.GetJobId(), j.GetWork().GetGeneration(), j.GetWork().GetState(), j.GetFirstSeenTime()}
}

// Badge says how the job stood when it was read.
func (h handle) Badge() badge { return badgeOf(h.State) }

// String is how a form has it: generation, state, milliseconds, id.
func (h handle) String() string {
	seen := ""
	if h.FirstSeen != nil {
		seen = strconv.FormatInt(h.FirstSeen.AsTime().UnixMilli(), 10)
	}
	return strconv.FormatInt(h.Generation, 10) + "," + strconv.Itoa(int(h.State)) + "," + seen + "," + h.ID
}

// parseHandle is the reverse of [handle.String].
func parseHandle(s string) (h handle, ok bool) {
	parts := strings.SplitN(s, ",", 4)
	if len(parts) != 4 || parts[3] == "" {
		return h, false
	}
	h.ID = parts[3]
	var err error
	if h.Generation, err = strconv.ParseInt(parts[0], 10, 64); err != nil {
		return h, false
	}
	state, err := strconv.ParseInt(parts[1], 10, 32)
	if err != nil {
		return h, false
	}
	h.State = joboncev1.WorkState(state)
	if parts[2] != "" {
		ms, err := strconv.ParseInt(parts[2], 10, 64)
		if err != nil {
			return h, false
		}
		h.FirstSeen = timestamppb.New(time.UnixMilli(ms))
	}
	return h, true
}
