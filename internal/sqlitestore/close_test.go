package sqlitestore_test

import (
	"errors"
	"testing"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestGetThatMeetsClose: a read that found the store open, and comes to its statements when they are closed, hears that the
// store is away. That the record cannot be used would be a lie.
func TestGetThatMeetsClose(t *testing.T) {
	s := open(t, t.TempDir(), nil)
	record(t, s, "j")
	testenv.Must(t, s.Close())
	for _, withBody := range []bool{false, true} {
		if _, err := s.GetOpen(t.Context(), "j", withBody); !errors.Is(err, job.ErrUnavailable) || errors.Is(err, job.ErrRecordUnusable) {
			t.Errorf("told %v", err)
		}
	}
}
