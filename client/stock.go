package client

import (
	"context"
	"slices"
	"sync"
	"time"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

const (
	// A busy worker claims ahead what it starts within this part of a lease, but within aheadFor at most.
	aheadPart = 8
	aheadFor  = time.Second
	// It gives back what has waited for this part of a lease.
	waitPart = 4
	// maxAheadBytes bounds the payloads of the jobs that wait when more are claimed.
	maxAheadBytes = 4 << 20
)

// claimedJob is a job that was claimed.
type claimedJob struct {
	*joboncev1.ClaimedJob
	came time.Time
	// until is when the lease ends at the earliest.
	until time.Time
}

// stock is the jobs that a worker has claimed: those that it works on, and those that wait for a place.
type stock struct {
	work, giveBack func(claimedJob)
	cfg            WorkerConfig
	window         time.Duration // for which jobs are claimed ahead

	mu      sync.Mutex
	free    int          // places
	waiting []claimedJob // the longest first; none while places are free
	starts  []time.Time  // the latest ones, in a ring
	oldest  int          // in the ring
	old     *time.Timer  // fires when the first of those that wait has waited too long
	stopped bool
	changed chan struct{} // holds one sign that there may be room
	running sync.WaitGroup
}

// newStock makes an empty stock. It calls work for each job that has a place, and giveBack for each that gets none, both on
// goroutines that running counts.
func newStock(cfg WorkerConfig, work, giveBack func(claimedJob)) *stock {
	s := &stock{
		work: work, giveBack: giveBack, cfg: cfg, window: min(cfg.Lease/aheadPart, aheadFor), free: cfg.Concurrency,
		starts: make([]time.Time, max(maxClaimJobs, cfg.Concurrency)), changed: make(chan struct{}, 1),
	}
	s.old = time.AfterFunc(cfg.Lease, s.returnOld)
	return s
}

// room waits until there is room, and returns for how many jobs, and how long a claim may wait for them. When ctx ends
// first there is room for none.
func (s *stock) room(ctx context.Context) (n int, wait time.Duration) {
	for ctx.Err() == nil {
		if n, wait = s.wanted(); n > 0 {
			return n, wait
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
		}
	}
	return 0, 0
}

// wanted is room at present. Claims for jobs ahead are short: when those come, their leases began not long ago.
func (s *stock) wanted() (n int, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ahead, since := 0, time.Now().Add(-s.window)
	for _, start := range s.starts {
		if start.After(since) {
			ahead++
		}
	}
	bytes := 0
	for _, job := range s.waiting {
		bytes += len(job.GetJob().GetPayload()) + len(job.GetJob().GetPayloadBytes())
	}
	wait = s.cfg.Wait
	if ahead > 0 {
		wait = min(wait, s.window)
	}
	if s.free == 0 && len(s.waiting) > ahead/2 || bytes > maxAheadBytes {
		return 0, 0
	}
	return min(s.free+ahead-len(s.waiting), maxClaimJobs), wait
}

// add adds jobs that a claim has brought, which was sent at the time given, and starts as many as there are places for.
func (s *stock) add(jobs []*joboncev1.ClaimedJob, sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, claimed := range jobs {
		job := claimedJob{claimed, now, sent.Add(claimed.GetLease().GetRemaining().AsDuration())}
		switch {
		case s.stopped:
			s.returnAll([]claimedJob{job})
		case s.free > 0:
			s.free--
			s.start(job)
		default:
			if s.waiting = append(s.waiting, job); len(s.waiting) == 1 {
				s.old.Reset(s.cfg.Lease / waitPart)
			}
		}
	}
}

// start starts a job that has a place. The lock is held.
func (s *stock) start(job claimedJob) {
	s.starts[s.oldest] = time.Now()
	s.oldest = (s.oldest + 1) % len(s.starts)
	s.running.Go(func() {
		defer s.ended() // also when the function ends its goroutine
		s.work(job)
	})
}

// ended gives a place to the next job, or makes it free.
func (s *stock) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) > 0 {
		s.start(s.waiting[0])
		s.waiting = slices.Delete(s.waiting, 0, 1)
	} else {
		s.free++
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// returnOld gives back what has waited too long.
func (s *stock) returnOld() {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for n < len(s.waiting) && time.Since(s.waiting[n].came) >= s.cfg.Lease/waitPart {
		n++
	}
	s.returnAll(s.waiting[:n])
	if s.waiting = slices.Delete(s.waiting, 0, n); len(s.waiting) > 0 {
		s.old.Reset(s.cfg.Lease/waitPart - time.Since(s.waiting[0].came))
	}
}

// stop gives back all that waits, and whatever is added later.
func (s *stock) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.old.Stop()
	s.returnAll(s.waiting)
	s.waiting = nil
}

// returnWaiting gives back all that waits.
func (s *stock) returnWaiting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.returnAll(s.waiting)
	s.waiting = nil
}

// giveBackAll gives jobs back that a claim has brought, which was sent at the time given.
func (s *stock) giveBackAll(jobs []*joboncev1.ClaimedJob, sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, claimed := range jobs {
		s.returnAll([]claimedJob{{claimed, time.Now(), sent.Add(claimed.GetLease().GetRemaining().AsDuration())}})
	}
}

// returnAll gives jobs back. The lock is held.
func (s *stock) returnAll(jobs []claimedJob) {
	for _, job := range jobs {
		s.running.Go(func() { s.giveBack(job) })
	}
}
