package mongostore_test

import (
	"errors"
	"testing"

	"github.com/jobonce/jobonce/internal/job"
)

// wantUnavailable checks that an error says that nothing was sent.
func wantUnavailable(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, job.ErrUnavailable) || errors.Is(err, job.ErrOutcomeUnknown) {
		t.Fatalf("got %v, want job.ErrUnavailable", err)
	}
}
