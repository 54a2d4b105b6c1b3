package frontend_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/examples/frontend"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/embedded"
	"github.com/jobonce/jobonce/server"
)

const maxBody = 1 << 10

// start serves JobOnce in memory and returns a handler that calls it.
func start(t *testing.T, ship client.WorkFunc) http.Handler {
	t.Helper()
	lis := bufconn.Listen(64 << 10)
	embedded.Start(t, lis, server.Config{Logger: testenv.Logger(t), MaxBodyBytes: maxBody}, sqlitestore.Options{Logger: testenv.Logger(t)})
	return handler(t, ship, func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) })
}

// handler is a handler whose client dials by dial.
func handler(t *testing.T, ship client.WorkFunc, dial func(context.Context, string) (net.Conn, error)) http.Handler {
	t.Helper()
	log.SetOutput(io.Discard)
	c, err := client.New("passthrough:///memory", client.WithInsecure(), client.WithDialOptions(grpc.WithContextDialer(dial)))
	testenv.Must(t, err)
	t.Cleanup(func() {
		log.SetOutput(os.Stderr)
		testenv.OK(t, c.Close())
	})
	return frontend.Handler(c, ship)
}

// deliver is the answer to a provider.
func deliver(t *testing.T, h http.Handler, body string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	begin := time.Now()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/webhook", strings.NewReader(body)))
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("the provider was answered after %v", took)
	}
	return w
}

func TestHandler(t *testing.T) {
	for name, test := range map[string]struct {
		body  string
		ship  client.WorkFunc
		codes []int // of one delivery after the other
		ran   int
	}{
		"done once":          {body: `{"job_id":"j"}`, codes: []int{204, 204}, ran: 1},
		"not UTF-8":          {body: "{\"job_id\":\"j\xff\"}", codes: []int{204, 204}, ran: 1},
		"no job_id":          {body: `{"id":"j"}`, codes: []int{400, 400}},
		"too large for HTTP": {body: strings.Repeat("x", 1<<20+1), codes: []int{413, 413}},
		"too large for JobOnce": {
			body: `{"job_id":"j","x":"` + strings.Repeat("x", maxBody) + `"}`, codes: []int{413, 413},
		},
		// An error of the client's that is the work's, not the delivery's.
		"work whose result is too large": {
			body:  `{"job_id":"j"}`,
			ship:  func(_ context.Context, w *client.Work) error { return w.SetResult(strings.Repeat("x", 70<<10)) },
			codes: []int{503, 503}, ran: 1,
		},
		"work that fails":      {body: `{"job_id":"j"}`, ship: func(context.Context, *client.Work) error { return io.ErrUnexpectedEOF }, codes: []int{503, 503}, ran: 1},
		"work that never will": {body: `{"job_id":"j"}`, ship: func(context.Context, *client.Work) error { return client.Permanent(io.EOF) }, codes: []int{204, 204}, ran: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ran := 0
				h := start(t, func(ctx context.Context, w *client.Work) error {
					ran++
					if got := w.Job.GetPayload() + string(w.Job.GetPayloadBytes()); got != test.body {
						t.Errorf("works on %q", got)
					}
					if test.ship != nil {
						return test.ship(ctx, w)
					}
					return nil
				})
				for i, want := range test.codes {
					w := deliver(t, h, test.body)
					if w.Code != want {
						t.Errorf("delivery %d got %d, want %d", i+1, w.Code, want)
					}
					if after, _ := strconv.Atoi(w.Header().Get("Retry-After")); (after > 0) != (w.Code == 503) || after > 2 {
						t.Errorf("delivery %d got %d with Retry-After %q", i+1, w.Code, w.Header().Get("Retry-After"))
					}
				}
				if ran != test.ran {
					t.Errorf("the work ran %d times, want %d", ran, test.ran)
				}
			})
		})
	}
}

// Work that takes longer than the provider waits goes on, and is done once.
func TestSlowWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ran := 0
		h := start(t, func(context.Context, *client.Work) error {
			ran++
			time.Sleep(20 * time.Second)
			return nil
		})
		for i, want := range []int{503, 503, 204} {
			if w := deliver(t, h, `{"job_id":"j"}`); w.Code != want {
				t.Errorf("delivery %d got %d, want %d", i+1, w.Code, want)
			}
			time.Sleep(10 * time.Second)
		}
		if ran != 1 {
			t.Errorf("the work ran %d times", ran)
		}
	})
}

// With the service away the provider is asked to come again, within its own time.
func TestServiceAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := handler(t, func(context.Context, *client.Work) error {
			t.Error("the work was started")
			return nil
		}, func(context.Context, string) (net.Conn, error) { return nil, errors.New("connection refused") })
		if w := deliver(t, h, `{"job_id":"j"}`); w.Code != 503 {
			t.Errorf("got %d", w.Code)
		}
		time.Sleep(client.DefaultTimeout)
	})
}
