package server

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/job"
)

// lookTimeout bounds one look-up for all that wait.
const lookTimeout = 5 * time.Second

// waits bounds the calls that wait, claims too, and has the deliveries that wait for what becomes of their job. What this
// process changes it hears of at once; what others change, and leases that lapse, by one look-up now and then for all that wait.
// They wait on the goroutines of their calls, and hold nothing of the store meanwhile.
type waits struct {
	jobs job.Follower
	work job.Worker
	log  *slog.Logger
	// stopping ends when the server is to stop: nobody is kept waiting then.
	stopping context.Context
	// most is how many calls may wait, mostEach how many of one caller.
	most, mostEach int

	mu    sync.Mutex
	n     int
	each  map[string]int // by caller; empty where none are configured
	byJob map[string][]*follower
	timer *time.Timer
	// failing is set while how the jobs stand cannot be read.
	failing bool
}

// follower is a delivery that waits.
type follower struct {
	leased bool
	// seen is how the work stood when the delivery was decided last, told how it stood at the latest look.
	seen, told job.Standing
	// news holds one sign that it stands otherwise.
	news chan struct{}
}

func newWaits(jobs interface {
	job.Follower
	job.Worker
}, maxCalls int, log *slog.Logger, stopping context.Context) *waits {
	return &waits{
		jobs: jobs, work: jobs, log: log, stopping: stopping, most: maxCalls / 2, mostEach: maxCalls / 4,
		each: make(map[string]int), byJob: make(map[string][]*follower),
	}
}

// waitAsked is how long a call is to wait.
func waitAsked(d *durationpb.Duration) (time.Duration, error) {
	if d != nil && (d.CheckValid() != nil || d.AsDuration() < 0 || d.AsDuration() > maxWait) {
		return 0, &job.InvalidError{Field: "wait", Problem: fmt.Sprintf("must be 0 to %v", maxWait)}
	}
	return d.AsDuration(), nil
}

// unsettled tells whether there is something to wait for.
func unsettled(o *job.Outcome) bool {
	if o.Err != nil || o.Verdict.Conflict != nil && o.Verdict.Conflict.Kind == job.ConflictEvent {
		return false
	}
	return o.Verdict.Disposition == job.InProgress || o.Verdict.Disposition == job.Pending
}

// await waits until the job of a delivery that was recorded is done, given up or free for it, and returns what it has become; what
// stands, when the time is up. Nobody waits where there is no room.
func (w *waits) await(ctx context.Context, d *job.Delivery, o job.Outcome, wait time.Duration) job.Outcome {
	caller := auth.CallerOf(ctx)
	name := ""
	if caller != nil {
		name = caller.Name
	}
	me := w.enter(name, d, &o.Record.Work)
	if me == nil {
		return o
	}
	defer w.leave(name, d.JobID, me)
	if caller != nil {
		bound, release := caller.Bound(ctx) // Who may not record any more is granted nothing, and has left as far as this goes.
		defer release()
		ctx = bound
	}
	until, cancel := context.WithTimeout(ctx, waitWithin(ctx, wait))
	defer cancel()
	defer context.AfterFunc(w.stopping, cancel)()
	for last := false; !last; {
		select {
		case <-me.news:
		case <-until.Done():
			if last = true; ctx.Err() != nil || !w.moved(me) {
				return o
			}
		}
		next, ok := w.resume(ctx, d)
		if ok {
			o = next
		}
		if !unsettled(&o) {
			break
		}
		w.saw(me, &o, ok)
	}
	return o
}

// resume decides the delivery again. A failure is no answer: what was known before still is.
func (w *waits) resume(ctx context.Context, d *job.Delivery) (o job.Outcome, ok bool) {
	o = w.jobs.Resume(ctx, *d)
	switch {
	case ctx.Err() != nil: // The caller has left.
		if o.Err == nil && o.Granted != nil {
			w.giveBack(ctx, d.JobID, *o.Granted)
		}
		return o, false
	case o.Err != nil:
		w.log.LogAttrs(ctx, slog.LevelWarn, "a delivery that waits could not be decided again; it waits on", slog.Any("cause", o.Err))
		return o, false
	}
	return o, true
}

// giveBack returns a lease that was granted to a caller that has left, as if it had not been: unless the same call was sent again,
// and told of it. Where it fails the lease lapses.
func (w *waits) giveBack(ctx context.Context, jobID string, lease job.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	if err := w.work.Unclaim(ctx, []job.Claimed{{Record: job.Record{JobID: jobID}, Lease: lease, Granted: true}}); err != nil {
		w.log.LogAttrs(ctx, slog.LevelWarn, "a lease could not be given back; it lapses", slog.Any("cause", err))
	}
}

// enter puts a delivery among those that wait, or returns nil where there is no room for it.
func (w *waits) enter(caller string, d *job.Delivery, work *job.Work) *follower {
	if !w.admit(caller) {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	me := &follower{leased: d.Mode == job.ModeLeased, seen: standingOf(work), told: standingOf(work), news: make(chan struct{}, 1)}
	first := len(w.byJob) == 0
	w.byJob[d.JobID] = append(w.byJob[d.JobID], me)
	if first {
		w.timer = time.AfterFunc(w.pause(), w.look)
	}
	return me
}

// admit counts a call that is to wait, if there is room for it. dismiss must follow then.
func (w *waits) admit(caller string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n >= w.most || caller != "" && w.each[caller] >= w.mostEach {
		return false
	}
	w.n++
	w.each[caller]++
	return true
}

func (w *waits) dismiss(caller string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n--
	if w.each[caller]--; w.each[caller] == 0 {
		delete(w.each, caller)
	}
}

func (w *waits) leave(caller, jobID string, me *follower) {
	w.dismiss(caller)
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.byJob[jobID]
	for i := range all {
		if all[i] == me {
			all[i] = all[len(all)-1]
			all = all[:len(all)-1]
			break
		}
	}
	if w.byJob[jobID] = all; len(all) == 0 {
		delete(w.byJob, jobID)
	}
	if len(w.byJob) == 0 {
		w.timer.Stop()
	}
}

// saw notes how the work stood when the delivery was decided; or that this has to be done again.
func (w *waits) saw(me *follower, o *job.Outcome, decided bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := me.told
	me.seen = standingOf(&o.Record.Work)
	// Free, and not for this delivery, as when its event cannot be read: there is no use in trying that again.
	me.seen.Free = decided && before.Free && o.Verdict.Disposition == job.Pending &&
		before.State == me.seen.State && before.Generation == me.seen.Generation
}

// moved tells whether there is a point in deciding the delivery once more: its work stands otherwise than when that was done last, or
// is free, and claims may have been paused then.
func (w *waits) moved(me *follower) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return me.leased && me.told.Free || me.told.State != me.seen.State || me.told.Generation != me.seen.Generation
}

// standingOf leaves open whether the work is free. It was not for the delivery, or it would have it.
func standingOf(work *job.Work) job.Standing {
	return job.Standing{State: work.State, Generation: work.Generation}
}

// changed is told of a job whose lease this process has ended.
func (w *waits) changed(jobID string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.byJob[jobID] {
		signal(one.news)
	}
}

// pause is the time to the next look-up, which is longer the more wait for different jobs: 1 s for 8,192.
func (w *waits) pause() time.Duration {
	return pollAfter(1) + time.Duration(len(w.byJob))*100*time.Microsecond
}

// look looks how the jobs stand for which somebody waits, and tells those for whom it makes a difference.
func (w *waits) look() {
	w.mu.Lock()
	ids := make([]string, 0, len(w.byJob))
	for id := range w.byJob {
		ids = append(ids, id)
	}
	w.mu.Unlock()
	if len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(w.stopping, lookTimeout)
	defer cancel()
	found, err := w.jobs.Standings(ctx, ids)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && !w.failing && w.stopping.Err() == nil {
		w.log.LogAttrs(ctx, slog.LevelWarn, "deliveries wait, and how their jobs stand cannot be read", slog.Int("jobs", len(ids)), slog.Any("cause", err))
	}
	w.failing = err != nil
	for id, now := range found {
		for _, one := range w.byJob[id] {
			one.tell(now)
		}
	}
	if len(w.byJob) > 0 && w.stopping.Err() == nil {
		w.timer.Reset(w.pause())
	}
}

// tell tells the delivery how the work stands, if that makes a difference to it.
func (o *follower) tell(now job.Standing) {
	o.told = now
	if !now.Free { // once it is, it is to be tried
		o.seen.Free = false
	}
	waits := now.State == job.StateQueued || now.State == job.StateLeased || now.State == o.seen.State
	if !waits || o.leased && now.Free && now != o.seen {
		signal(o.news)
	}
}
