package sqlitestore

import (
	"context"
	"fmt"
	"time"

	"github.com/jobonce/jobonce/internal/job"
)

const (
	// anchorEvery is how many looks at the clock there are for one at what is due.
	anchorEvery = 60
	// anchorAllowance is how much further ahead than granted a due time may lie: restarts may find the wall clock set by
	// that much and need not do anything about it.
	anchorAllowance = time.Second
	// anchorAtOnce is how many due times one transaction measures anew.
	anchorAtOnce = 1000
	// maxUnclaimable is as far as work that nobody can claim is counted, and named in the log.
	maxUnclaimable = 1000
)

// upkeep does until ctx ends what is to be done now and then.
func (s *Store) upkeep(ctx context.Context) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.tend(ctx, n)
		}
	}
}

// tend is the n-th turn of the upkeep. What fails is logged, and tried again the next time.
func (s *Store) tend(ctx context.Context, n int) {
	defer s.tell()
	if err := s.inPlace(); err != nil {
		s.breakDown(err)
	}
	if s.clock != nil {
		s.follow()
	}
	if n%anchorEvery == 0 {
		_ = s.anchor(ctx)
		s.countUnclaimable(ctx)
	}
}

// countUnclaimable counts the work that is due and can never be claimed: that in a state which this version does not know,
// and that which claims have left alone.
func (s *Store) countUnclaimable(ctx context.Context) {
	var n int64
	if err := s.readerDB.QueryRowContext(ctx, unclaimableQuery, s.now().UnixMilli(), maxUnclaimable).Scan(&n); err != nil {
		_ = s.failed("read", err) // which is logged
		return
	}
	s.mu.Lock()
	n = min(n+int64(len(s.leftAlone)), maxUnclaimable)
	s.mu.Unlock()
	if before := s.unclaimable.Swap(n); before == 0 && n > 0 {
		s.log.Warn("embedded store: work is due that nobody can claim: its state is not one that this version knows, or its record cannot be used",
			"file", s.path, "jobs", n)
	}
}

// Unclaimable is how much work is due that can never be claimed, as counted last, once a minute, and up to 1,000.
func (s *Store) Unclaimable() int64 { return s.unclaimable.Load() }

// follow has the clock follow the wall clock.
func (s *Store) follow() {
	behind, set := s.clock.look()
	if set {
		s.log.Warn("embedded store: the machine's clock was set, or the machine was suspended; the store's clock follows it",
			"ahead", behind)
	}
	if behind >= jumpFrom {
		s.jump(behind.Truncate(time.Millisecond))
	}
}

// jump sets the clock forward, and what is due later along with it: a lease that runs, and a delay, keep the time that they
// have left.
func (s *Store) jump(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.usable() != nil {
		return
	}
	now := s.now()
	err := s.transact(func() error {
		_, err := s.writer.ExecContext(context.Background(), `UPDATE jobs SET work_due = work_due + ?
			WHERE work_state IN ('queued', 'leased') AND work_due > ?`, d.Milliseconds(), now.UnixMilli())
		return err
	})
	if err == nil {
		s.clock.jump(d)
	}
}

// anchor measures the due times anew that lie further ahead than was granted: a clock that was ahead has set them.
func (s *Store) anchor(ctx context.Context) error {
	for {
		ids, err := s.dueTooFar(ctx)
		if err != nil || len(ids) == 0 {
			return err
		}
		var anchored int
		err = s.update(ctx, func(now time.Time) error {
			anchored = 0
			for _, id := range ids {
				err := s.changeWork(id, func(w job.Work) (job.Work, error) {
					w, is := w.Anchor(anchorAllowance, now)
					if is {
						anchored++
					}
					return w, nil
				})
				if err != nil && !answer(err) { // gone, or for somebody to mend
					return err
				}
			}
			return nil
		})
		if err != nil || anchored == 0 {
			return err
		}
		s.log.Warn("embedded store: leases and delays lay further ahead than granted, as a clock that was ahead sets them; "+
			"they run anew from now", "jobs", anchored)
	}
}

// dueTooFar finds jobs whose due time lies too far ahead, the furthest first. It reads the index alone.
func (s *Store) dueTooFar(ctx context.Context) (ids []string, err error) {
	rows, err := s.readerDB.QueryContext(ctx, dueTooFarQuery, s.now().Add(anchorAllowance).UnixMilli(), job.MaxLease.Milliseconds(), anchorAtOnce)
	if err != nil {
		return nil, s.failed("read", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("due times: %w", err)
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}
