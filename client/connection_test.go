package client_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
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
