package server

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
)

// dueJobs is a store that has had something due since a moment, unless that is zero.
type dueJobs struct {
	memoryJobs
	due  time.Time
	err  error
	asks int
}

func (d *dueJobs) LongestDue(context.Context) (string, time.Duration, error) {
	d.asks++
	if d.err != nil || d.due.IsZero() {
		return "", 0, d.err
	}
	return "j", time.Since(d.due), nil
}

func (d *dueJobs) Claim(context.Context, job.ClaimRequest) ([]job.Claimed, error) { return nil, nil }

// TestWorkThatNobodyDoes: it is said once a minute, from the limit on, until it is done; and otherwise who asks for work.
func TestWorkThatNobodyDoes(t *testing.T) {
	const idle = "work is due and nobody does it: nobody has asked this instance for work since it started; run jobonce worker, " +
		"or a program with the Go client's Worker"
	const slow = "work is due and is not done: the workers that ask for work are too few or too slow, or ask for other work than this"
	for name, c := range map[string]struct {
		limit      time.Duration
		due        bool
		err        error
		claims     bool
		idle, slow int
		known      bool
	}{
		"nothing due":   {limit: 5 * time.Minute, known: true},
		"nobody works":  {limit: 5 * time.Minute, due: true, idle: 6, known: true},
		"too few work":  {limit: 5 * time.Minute, due: true, claims: true, slow: 6, known: true},
		"another limit": {limit: 8 * time.Minute, due: true, idle: 3, known: true},
		"no limit":      {due: true, known: true},
		"store is away": {limit: time.Minute, due: true, err: job.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := new(logBuffer)
				jobs := &dueJobs{err: c.err}
				if c.due {
					jobs.due = time.Now()
				}
				w := newDueWatch(jobs, c.limit, slog.New(slog.NewJSONHandler(log, nil)))
				if c.claims {
					w.asked()
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+20*time.Second)
				defer cancel()
				w.run(ctx)
				idles, slows := log.lines(t, idle), log.lines(t, slow)
				if len(idles) != c.idle || len(slows) != c.slow {
					t.Errorf("said %d times that nobody works and %d times that too few do, want %d, %d", len(idles), len(slows), c.idle, c.slow)
				}
				for _, line := range append(idles, slows...) {
					if line["level"] != "ERROR" || line["job_id"] != "j" || line["due_for"] == nil || (line["last_claim"] != nil) != c.claims {
						t.Errorf("said %v", line)
					}
				}
				if jobs.asks != 41 {
					t.Errorf("asked the store %d times, want 41", jobs.asks)
				}
				s := &Server{due: w}
				if since, known := s.LongestDue(); known != c.known || c.known && c.due && since != 10*time.Minute+15*time.Second {
					t.Errorf("due for %v, known %t", since, known)
				}
			})
		})
	}
}

// TestLastClaim: that nobody has asked for work is told from that there was none.
func TestLastClaim(t *testing.T) {
	s := start(t, Config{}, new(dueJobs))
	if _, known := s.server.LongestDue(); known || !s.server.LastClaim().IsZero() {
		t.Errorf("at first: %v, known %t", s.server.LastClaim(), known)
	}
	work := joboncev1.NewWorkServiceClient(s.conn)
	if _, err := work.ClaimWork(t.Context(), &joboncev1.ClaimWorkRequest{}); err == nil || !s.server.LastClaim().IsZero() {
		t.Errorf("a claim that asks for nothing: %v, %v", s.server.LastClaim(), err)
	}
	before := time.Now().Truncate(time.Millisecond)
	_, err := work.ClaimWork(t.Context(), &joboncev1.ClaimWorkRequest{LeaseDuration: durationpb.New(time.Minute)})
	if last := s.server.LastClaim(); err != nil || last.Before(before) {
		t.Errorf("after a claim: %v, %v", last, err)
	}
}
