package client_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/jobonce/jobonce/client"
)

// The connection is cut after the service wrote: the retry, on a new connection, gets the true answer.
func TestLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		creators := map[string]string{}
		f := &fake{}
		c, lis := start(t, f)
		calls := 0
		f.record = func(_ context.Context, req *request) (*response, error) {
			calls++
			creator, found := creators[req.GetJobId()]
			if !found {
				creators[req.GetJobId()] = req.GetRequestId()
				lis.cut()
				return nil, status.Error(codes.Unknown, "never received")
			}
			return &response{StartWork: creator == req.GetRequestId(), FirstDelivery: creator == req.GetRequestId()}, nil
		}
		resp, err := c.RecordDelivery(t.Context(), &request{JobId: "j"})
		if err != nil || !resp.GetStartWork() || calls != 2 {
			t.Errorf("got %v, %v after %d calls", resp, err, calls)
		}
		resp, err = c.RecordDelivery(t.Context(), &request{JobId: "j"})
		if err != nil || resp.GetStartWork() {
			t.Errorf("another delivery got %v, %v", resp, err)
		}
	})
}

func TestServerAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		c, lis := start(t, f, client.WithTimeout(3*time.Second))
		lis.shut()
		_, err := c.RecordDelivery(t.Context(), &request{JobId: "j"})
		var e *client.Error
		if !errors.As(err, &e) || e.Code != codes.Unavailable || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if errors.Is(err, client.ErrOutcomeUnknown) {
			t.Errorf("nothing was sent, yet the outcome counts as unknown: %v", err)
		}
	})
}

// A cut call followed by refused connections: the last error alone would say that nothing was written.
func TestOutcomeStaysUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		c, lis := start(t, f)
		f.record = func(context.Context, *request) (*response, error) {
			lis.shut()
			return nil, status.Error(codes.Unknown, "never received")
		}
		_, err := c.RecordDelivery(t.Context(), &request{JobId: "j"})
		if status.Code(err) != codes.Unavailable || !errors.Is(err, client.ErrOutcomeUnknown) {
			t.Errorf("got %v", err)
		}
		var e *client.Error
		if !errors.As(err, &e) || e.RequestID == "" {
			t.Errorf("no request_id to try again with: %v", err)
		}
	})
}

// The peer vanishes without closing its connection: pings find out, and the retry goes over a new one.
func TestKeepalive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		c, lis := start(t, f, client.WithTimeout(time.Hour))
		calls := 0
		f.record = func(context.Context, *request) (*response, error) {
			if calls++; calls == 1 {
				lis.lose()
			}
			return &response{StartWork: true}, nil
		}
		begin := time.Now()
		resp, err := c.RecordDelivery(t.Context(), &request{JobId: "j"})
		if err != nil || !resp.GetStartWork() || calls < 2 {
			t.Errorf("got %v, %v after %d calls", resp, err, calls)
		}
		if took, limit := time.Since(begin), client.DefaultKeepaliveTime+client.DefaultKeepaliveTimeout+time.Second; took > limit {
			t.Errorf("took %v, want at most %v", took, limit)
		}
	})
}

// A server that was away for long is found again as soon as the client's own retries say.
func TestServerComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const away = 30 * time.Second
		s := &script{}
		c, lis := start(t, &fake{record: s.record}, client.WithTimeout(time.Hour))
		lis.shut()
		time.AfterFunc(away, lis.open)
		begin := time.Now()
		if _, err := c.RecordDelivery(t.Context(), &request{JobId: "j"}); err != nil {
			t.Fatal(err)
		}
		// One delay of the connection and one of the call, 2 s each, spread by a fifth and by half.
		if took := time.Since(begin); took > away+6*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// One layer retries. gRPC's own stays off even where a service config asks for it.
func TestTransportDoesNotRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := `{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":3,"initialBackoff":"0.1s","maxBackoff":"1s",
			"backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}}]}`
		s := &script{errs: []error{unavailable}, forever: true}
		c, _ := start(t, &fake{record: s.record}, client.WithoutRetry(), client.WithDialOptions(grpc.WithDefaultServiceConfig(config)))
		if _, err := c.RecordDelivery(t.Context(), &request{JobId: "j"}); !errors.Is(err, client.ErrStoreUnavailable) || len(s.ids) != 1 {
			t.Errorf("got %v after %d attempts", err, len(s.ids))
		}
	})
}

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
