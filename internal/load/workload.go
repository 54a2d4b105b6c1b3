package load

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"
)

// The limits of a [Workload].
const (
	MaxCallers   = 10_000
	MaxBodyBytes = 3 << 20
)

// Workload says what is sent. It is bounded by Count, by Duration, or by whichever of the two comes first.
type Workload struct {
	// Run names the run and is part of every key: at most 32 letters, digits and hyphens. A run that is repeated under
	// the same name sends the same keys. Required.
	Run string
	// Callers is how many deliveries are under way at a time, 1 to MaxCallers.
	Callers int
	// Count is how many deliveries are sent. 0: as many as the duration allows.
	Count int64
	// Duration is how long deliveries are sent; those under way at its end are waited for. 0: until the count is reached.
	Duration time.Duration
	// BodyBytes is the length of a body, MinBodyBytes to MaxBodyBytes.
	BodyBytes int
	// Duplicates is the percentage of deliveries, 0 to 100, that repeat a key which this run sent before: any with the same
	// probability, but for the Callers latest ones, which may still be under way. Providers deliver again when they have
	// waited for an answer, and not at once.
	Duplicates int
	// HotKeys lets all deliveries take turns on this many keys. 0: off. Not together with Duplicates.
	HotKeys int
}

// Validate says which field cannot be.
func (w Workload) Validate() error {
	if problem := w.problem(); problem != "" {
		return errors.New("workload: " + problem)
	}
	return nil
}

func (w Workload) problem() string {
	switch {
	case !isRunName(w.Run):
		return fmt.Sprintf("Run must be 1 to 32 letters, digits and hyphens, and is %q", w.Run)
	case w.Callers < 1 || w.Callers > MaxCallers:
		return fmt.Sprintf("Callers must be 1 to %d, and is %d", MaxCallers, w.Callers)
	case w.Count < 0:
		return fmt.Sprintf("Count must not be negative, and is %d", w.Count)
	case w.Duration < 0:
		return fmt.Sprintf("Duration must not be negative, and is %v", w.Duration)
	case w.Count == 0 && w.Duration == 0:
		return "one of Count and Duration must be set"
	case w.BodyBytes < MinBodyBytes || w.BodyBytes > MaxBodyBytes:
		return fmt.Sprintf("BodyBytes must be %d to %d, and is %d", MinBodyBytes, MaxBodyBytes, w.BodyBytes)
	case w.Duplicates < 0 || w.Duplicates > 100:
		return fmt.Sprintf("Duplicates must be 0 to 100, and is %d", w.Duplicates)
	case w.HotKeys < 0:
		return fmt.Sprintf("HotKeys must not be negative, and is %d", w.HotKeys)
	case w.HotKeys > 0 && w.Duplicates > 0:
		return "HotKeys and Duplicates exclude each other"
	}
	return ""
}

func isRunName(s string) bool {
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= maxRunName
}

const (
	maxRunName = 32
	keyDigits  = 9
)

// Key is the nth key of a run, counted from 0: "bench-RUN-000000000". The keys of a run are of one length, and their
// order is that of their numbers.
func Key(run string, n int64) string {
	digits := strconv.FormatInt(n, 10)
	if missing := keyDigits - len(digits); missing > 0 {
		digits = "000000000"[:missing] + digits
	}
	return "bench-" + run + "-" + digits
}

// keys gives out the numbers of the keys to send.
type keys struct {
	w    Workload
	next atomic.Int64
}

func (k *keys) pick(rng *rand.Rand) int64 {
	if k.w.HotKeys > 0 {
		return (k.next.Add(1) - 1) % int64(k.w.HotKeys)
	}
	if k.w.Duplicates > 0 && rng.IntN(100) < k.w.Duplicates {
		if settled := k.next.Load() - int64(k.w.Callers); settled > 0 {
			return rng.Int64N(settled)
		}
	}
	return k.next.Add(1) - 1
}

// distinct is how many different keys were given out.
func (k *keys) distinct() int64 {
	n := k.next.Load()
	if k.w.HotKeys > 0 {
		n = min(n, int64(k.w.HotKeys))
	}
	return n
}
