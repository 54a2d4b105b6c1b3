package telemetry

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

func TestPages(t *testing.T) {
	ready := errors.New("the database is away")
	ops := NewOps(NewMetrics(Build{}).Gatherer(), func(ctx context.Context) error {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("the store is asked without a deadline")
		}
		return ready
	}, nil, testenv.Logger(t))
	for _, tc := range []struct {
		ready        error
		method, path string
		code         int
		body         string
	}{
		{ready, "GET", "/readyz", 503, "not ready: the database is away\n"},
		{ready, "GET", "/livez", 200, "ok\n"},
		{nil, "GET", "/readyz", 200, "ok\n"},
		{nil, "HEAD", "/readyz", 200, "ok\n"},
		{nil, "POST", "/readyz", 405, "Method Not Allowed\n"},
		{nil, "POST", "/metrics", 405, "Method Not Allowed\n"},
		{nil, "GET", "/", 404, "404 page not found\n"},
		{nil, "GET", "/readyz/x", 404, "404 page not found\n"},
	} {
		ready = tc.ready
		if code, body := get(t, ops.server.Handler, tc.method, tc.path); code != tc.code || body != tc.body {
			t.Errorf("%s %s: %d %q, want %d %q", tc.method, tc.path, code, body, tc.code, tc.body)
		}
	}
}

// TestAdmit: whom the metrics are not for is told why; the probes are for everybody.
func TestAdmit(t *testing.T) {
	ops := NewOps(NewMetrics(Build{}).Gatherer(), func(context.Context) error { return nil }, func(_ context.Context, shown []string) (int, error) {
		if len(shown) == 1 && shown[0] == "Bearer good" {
			return http.StatusOK, nil
		}
		return http.StatusUnauthorized, errors.New("who are you?")
	}, testenv.Logger(t))
	for _, c := range []struct {
		path  string
		shown []string
		code  int
	}{
		{"/metrics", nil, 401}, {"/metrics", []string{"Bearer bad"}, 401}, {"/metrics", []string{"Bearer good"}, 200},
		{"/metrics", []string{"Bearer good", "Bearer good"}, 401}, {"/livez", nil, 200}, {"/readyz", nil, 200},
	} {
		r, w := httptest.NewRequest(http.MethodGet, c.path, nil), httptest.NewRecorder()
		r.Header["Authorization"] = c.shown
		ops.server.Handler.ServeHTTP(w, r)
		asks := w.Header().Get("WWW-Authenticate") == "Bearer"
		if w.Code != c.code || (c.code == 401) != (w.Body.String() == "who are you?\n") || asks != (c.code == 401) {
			t.Errorf("%s as %q: %d %.60q, asks for a token: %t; want %d", c.path, c.shown, w.Code, w.Body, asks, c.code)
		}
	}
}

// start runs a listener and returns the address, what ends it, and what Run returns.
func start(t *testing.T, check func(context.Context) error) (base string, lis net.Listener, stop func(), ended <-chan error) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	ops := NewOps(NewMetrics(Build{}).Gatherer(), check, nil, testenv.Logger(t))
	go func() { done <- ops.Run(ctx, lis) }()
	return "http://" + lis.Addr().String(), lis, cancel, done
}

func TestRunFinishesWhatIsUnderWay(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	base, lis, stop, ended := start(t, func(context.Context) error {
		close(entered)
		<-release
		return nil
	})
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	answered := make(chan int, 1)
	go func() {
		resp, err := (&http.Client{Transport: transport}).Get(base + "/readyz")
		if err != nil {
			t.Error(err)
			answered <- 0
			return
		}
		resp.Body.Close()
		answered <- resp.StatusCode
	}()
	<-entered
	stop()
	// The listener is closed first: what comes now is refused.
	for {
		conn, err := net.Dial("tcp", lis.Addr().String())
		if err != nil {
			break
		}
		conn.Close()
	}
	close(release)
	if code := <-answered; code != http.StatusOK {
		t.Errorf("the request under way got %d", code)
	}
	testenv.OK(t, <-ended)
}

func TestRunThatCannotServe(t *testing.T) {
	_, lis, stop, ended := start(t, isReady)
	defer stop()
	lis.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}
