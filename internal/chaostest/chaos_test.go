package chaostest

import (
	"os"
	"testing"
	"time"
)

// envLong makes the runs last so long each, such as 30m.
const envLong = "JOBONCE_TEST_CHAOS"

// Rounds of a short run, and faults of each round that strike once, beside those that last.
const (
	shortEmbedded, shortMongoDB = 12, 4
	faultsPerRound              = 2
)

// chaos runs rounds: so many, or for as long as the environment says.
func chaos(t *testing.T, w *world, rounds int) {
	t.Helper()
	var limit time.Duration
	if s := os.Getenv(envLong); s != "" {
		var err error
		if limit, err = time.ParseDuration(s); err != nil || limit <= 0 {
			t.Fatalf("%s is %q; it must be a duration such as 30m", envLong, s)
		}
		rounds, w.leastCalls = 0, leastCallsLong
	}
	for _, f := range w.run(rounds, limit, faultsPerRound) {
		t.Error(f)
	}
	if names := w.missing(); len(names) > 0 && !t.Failed() {
		t.Errorf("never struck, so the run was too short: %v", names)
	}
}
