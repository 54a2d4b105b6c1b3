package layout_test

import (
	"testing"
	"time"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/internal/job"
)

// TestWorkIsTriedForADay holds the service's number of leases and the client's pauses together: work whose downstream is
// away for a night or a day is not given up, and work that cannot be done is before the week is over.
func TestWorkIsTriedForADay(t *testing.T) {
	tried := time.Duration(0)
	for attempts := 1; attempts < job.DefaultMaxAttempts; attempts++ { // After the last there is no pause.
		tried += client.DefaultBackoff(attempts)
	}
	if tried < 24*time.Hour || tried > 48*time.Hour {
		t.Errorf("work that always fails is given up after %v and %d leases", tried, job.DefaultMaxAttempts)
	}
}
