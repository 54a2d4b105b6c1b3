package sqlitestore_test

import (
	"errors"
	"testing"

	"github.com/jobonce/jobonce/internal/job"
)

// TestGetThatMeetsClose: a read that found the store open, and comes to its statements when they are closed, hears that the
// store is away. That the record cannot be used would be a lie.
func TestGetThatMeetsClose(t *testing.T) {
	s := open(t, t.TempDir(), nil)
	record(t, s, "j")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, withBody := range []bool{false, true} {
		if _, err := s.GetOpen(t.Context(), "j", withBody); !errors.Is(err, job.ErrUnavailable) || errors.Is(err, job.ErrRecordUnusable) {
			t.Errorf("told %v", err)
		}
	}
}
