package chaostest

import (
	"fmt"
	"maps"
	"slices"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

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
