package client_test

import (
	"context"
	"errors"
	"path"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/internal/job"
)

// TestUnstartedLeaseIsGivenBack: work that was granted and cannot be started is free at once, not when the lease ends.
func TestUnstartedLeaseIsGivenBack(t *testing.T) {
	// slow has the answer to a delivery come when little is left of its lease, so that it is renewed first.
	slow := func(method string) {
		if method == recordRPC {
			time.Sleep(8 * time.Second)
		}
	}
	for name, test := range map[string]struct {
		before func(ctx context.Context, method string, leave context.CancelFunc) error // an error is the call's
		answer func(method string, leave context.CancelFunc)
		want   error
	}{
		"the caller leaves during the renewal": {
			before: func(ctx context.Context, method string, leave context.CancelFunc) error {
				if method == renewRPC {
					leave()
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			},
			answer: func(method string, _ context.CancelFunc) { slow(method) }, want: context.Canceled,
		},
		"the renewal is refused": {
			before: func(_ context.Context, method string, _ context.CancelFunc) error {
				if method == renewRPC {
					return failure(codes.Internal, "INTERNAL", "sorry", "", 0)
				}
				return nil
			},
			answer: func(method string, _ context.CancelFunc) { slow(method) }, want: client.ErrInternal,
		},
		"the caller left when the answer came": {
			answer: func(method string, leave context.CancelFunc) {
				if method == recordRPC {
					leave()
				}
			},
			want: context.Canceled,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startService(t)
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				if test.before != nil {
					s.through(func(ctx context.Context, method string, req any, handler grpc.UnaryHandler) (any, error) {
						if err := test.before(ctx, method, leave); err != nil {
							return nil, err
						}
						return handler(ctx, req)
					})
				}
				answered := func(
					ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
				) error {
					err := invoke(ctx, method, req, reply, cc, opts...)
					test.answer(path.Base(method), leave)
					return err
				}
				c := s.client(t, client.WithTimeout(time.Minute), client.WithDialOptions(grpc.WithUnaryInterceptor(answered)))
				begin := time.Now()
				result, err := c.Do(ctx, delivery("j"), never(t))
				if !errors.Is(err, test.want) || result.Settled || result.Ran || result.RetryAfter != time.Second {
					t.Errorf("got %+v, %v", result, err)
				}
				if took := time.Since(begin); took > 9*time.Second {
					t.Errorf("took %v", took)
				}
				stored := s.work(t, "j")
				if stored.State != job.StateQueued || stored.Due.After(time.Now()) {
					t.Errorf("stored %+v", stored)
				}
			})
		})
	}
}
