package runner

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/jobonce/jobonce/client"
)

// TestLimit: jobs begin at the rate and no faster, and one that waits when the worker stops was not started.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopping, stop := context.WithCancel(t.Context())
		began := 0
		fn := Limit(func(context.Context, *client.Work) error { began++; return nil }, rate.NewLimiter(0.5, 1), stopping)
		start := time.Now()
		for range 4 {
			if err := fn(t.Context(), nil); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(start); took != 6*time.Second || began != 4 {
			t.Errorf("%d jobs began in %v", began, took)
		}
		time.AfterFunc(time.Second, stop)
		if err := fn(t.Context(), nil); !errors.Is(err, context.Canceled) || began != 4 {
			t.Errorf("got %v, and %d jobs have begun", err, began)
		}
	})
}
