package client_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlowServiceIsWaitedFor: a service that takes long for each call, and has no other instance beside it, is not asked
// again and again, which makes it slower still, until the time is up.
func TestSlowServiceIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		f := &fake{record: func(ctx context.Context, req *request) (*response, error) {
			calls++
			select {
			case <-time.After(6 * time.Second):
				return &response{StartWork: true}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}}
		c, _ := start(t, f)
		if _, err := c.RecordDelivery(t.Context(), &request{JobId: "j"}); err != nil || calls != 1 {
			t.Errorf("%v after %d calls", err, calls)
		}
	})
}
