package mongostore

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

// ForgetClock makes what was measured of the database's clock void.
func (s *Store) ForgetClock() { s.clock.forget() }

// Anchor looks at due times now.
func (s *Store) Anchor(ctx context.Context) { s.anchor(ctx, time.Time{}) }

// CountUnclaimable counts now.
func (s *Store) CountUnclaimable(ctx context.Context) { s.countUnclaimable(ctx) }

// HintName is what upserts send as their hint.
func (s *Store) HintName() string { return s.hintName() }

// IndexSuspect is what a write calls whose hint is refused.
func (s *Store) IndexSuspect(ctx context.Context) error { return s.indexSuspect(ctx) }

// Doubting is how many writes wait for a look that has not begun.
func (s *Store) Doubting() int {
	s.doubts.mu.Lock()
	defer s.doubts.mu.Unlock()
	return len(s.doubts.waiting)
}

// LookNow begins the look that otherwise comes once a minute.
func (s *Store) LookNow() { s.doubts.wake <- struct{}{} }

// LimitMisses has so many reads of absent jobs confirmed, and no more.
func (s *Store) LimitMisses(n int) { s.missRate = rate.NewLimiter(0, n) }
