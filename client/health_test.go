package client_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/jobonce/jobonce/client"
)

// TestNotServingIsAvoided: calls go to the instances that serve, and to those that do not say.
func TestNotServingIsAvoided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scripts := []*script{{}, {}, {}}
		good, bad := health.NewServer(), health.NewServer()
		bad.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
		c := instances(t, []*fake{
			{record: scripts[0].record, health: good}, {record: scripts[1].record, health: bad}, {record: scripts[2].record, noHealth: true},
		}, client.WithTokenOverPlaintext(), client.WithTokenSource(func(ctx context.Context) (string, error) {
			if _, ok := ctx.Value(caller{}).(string); !ok {
				return "", errors.New("nobody calls") // As when gRPC itself asks for the health.
			}
			return "token", nil
		}))
		ctx := context.WithValue(t.Context(), caller{}, "me")
		calls := func() (n [3]int) {
			for range 12 {
				if _, err := c.RecordDelivery(ctx, &request{JobId: "j"}); err != nil {
					t.Error(err)
				}
			}
			for i, s := range scripts {
				n[i], s.ids = len(s.ids), nil
			}
			return n
		}
		if got := calls(); got != [3]int{6, 0, 6} {
			t.Errorf("calls %v, want none to the second", got)
		}
		bad.SetServingStatus("", grpc_health_v1.HealthCheckResponse_SERVING)
		synctest.Wait()
		if got := calls(); got != [3]int{4, 4, 4} {
			t.Errorf("calls %v once all serve", got)
		}
		good.Shutdown()
		synctest.Wait()
		if got := calls(); got != [3]int{0, 6, 6} {
			t.Errorf("calls %v once the first is about to stop", got)
		}
	})
}

// TestOneAddressIsCalledInAnyCase: with no other to turn to, the service's own answer says most.
func TestOneAddressIsCalledInAnyCase(t *testing.T) {
	for _, target := range []string{"127.0.0.1:1", "dns:///[::1]:1", "localhost:1", "passthrough:///memory", "unix:///run/jobonce.sock"} {
		t.Run(target, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bad := health.NewServer()
				bad.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
				s := &script{errs: []error{unavailable}, forever: true}
				c, _ := startAt(t, target, &fake{record: s.record, health: bad}, client.WithInsecure(), client.WithoutRetry())
				if _, err := c.RecordDelivery(t.Context(), &request{JobId: "j"}); !errors.Is(err, client.ErrStoreUnavailable) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// TestHealthNeedsNoToken: a token source that has no token for gRPC's own question does not keep the calls of others out.
func TestHealthNeedsNoToken(t *testing.T) {
	for name, none := range map[string]struct {
		token string
		err   error
	}{
		"an error": {"", errors.New("nobody calls")}, "empty": {"", nil}, "malformed": {"a b", nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, well := &script{}, health.NewServer()
				c := instances(t, []*fake{{record: s.record, health: well}, {record: s.record, health: well}}, client.WithTokenOverPlaintext(),
					client.WithTokenSource(func(ctx context.Context) (string, error) {
						if _, ok := ctx.Value(caller{}).(string); !ok {
							return none.token, none.err
						}
						return "token", nil
					}))
				ctx := context.WithValue(t.Context(), caller{}, "me")
				if _, err := c.RecordDelivery(ctx, &request{JobId: "j"}); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
