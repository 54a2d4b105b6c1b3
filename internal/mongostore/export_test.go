package mongostore

import (
	"context"
	"time"
)

// ForgetClock makes what was measured of the database's clock void.
func (s *Store) ForgetClock() { s.clock.forget() }

// Anchor looks at due times now.
func (s *Store) Anchor(ctx context.Context) { s.anchor(ctx, time.Time{}) }

// CountUnclaimable counts now.
func (s *Store) CountUnclaimable(ctx context.Context) { s.countUnclaimable(ctx) }
