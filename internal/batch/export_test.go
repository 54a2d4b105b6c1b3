package batch

// Waiting is how many deliveries wait or are under way.
func Waiting(s *Store) int { return int(s.deliveries.items.Load()) }
