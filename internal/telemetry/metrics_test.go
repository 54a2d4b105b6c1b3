package telemetry

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var recordInfo = &grpc.UnaryServerInfo{FullMethod: "/jobonce.v1.IdempotencyService/RecordDelivery"}

// newAll returns metrics of which nothing is left out, after two calls: one went well, one did not.
func newAll(t *testing.T, check func(context.Context) error) *Metrics {
	t.Helper()
	m := NewMetrics(Build{"v1.2.3", "abc", "go1.26"})
	m.WatchQueue(func() (int64, int64) { return 3, 4096 }, func() int64 { return 5 })
	m.WatchLine(func() int { return 3 })
	m.WatchUnclaimable(func() int64 { return 3 })
	m.WatchOverdue(func(context.Context) (int64, error) { return 4, nil })
	m.WatchCertificate(func() time.Time { return time.Unix(1, 0) })
	m.WatchCallers(func() map[string]time.Time { return map[string]time.Time{"a": time.Unix(1, 0)} })
	m.WatchClaims(func() (int64, int64) { return 7, 6 })
	m.WatchClock(func() time.Duration { return -1500 * time.Millisecond })
	m.WatchDue(func() (time.Duration, bool) { return 90 * time.Second, true }, func() time.Time { return time.UnixMilli(1500) })
	m.WatchReady(check)
	pages := http.NewServeMux()
	pages.HandleFunc("GET /{$}", func(http.ResponseWriter, *http.Request) {})
	pages.HandleFunc("GET /jobs", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	for _, r := range [][2]string{{"GET", "/"}, {"GET", "/jobs"}, {"POST", "/jobs"}, {"BREW", "/jobs"}, {"GET", "/pot?a=b"}} {
		get(t, m.HTTP("ui", pages), r[0], r[1])
	}
	for _, want := range []codes.Code{codes.OK, codes.Unavailable} {
		_, err := m.UnaryInterceptor()(t.Context(), nil, recordInfo, func(context.Context, any) (any, error) {
			return nil, status.Error(want, "")
		})
		if status.Code(err) != want {
			t.Fatal(err)
		}
	}
	return m
}

func isReady(context.Context) error { return nil }

// get asks a handler and returns the status and the body.
func get(t *testing.T, h http.Handler, method, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, nil))
	body, err := io.ReadAll(w.Result().Body)
	testenv.Must(t, err)
	return w.Code, string(body)
}

// scrape returns the lines of /metrics.
func scrape(t *testing.T, m *Metrics) []string {
	t.Helper()
	code, body := get(t, NewOps(m.Gatherer(), isReady, nil, testenv.Logger(t)).server.Handler, http.MethodGet, "/metrics")
	if code != http.StatusOK {
		t.Fatalf("%d: %s", code, body)
	}
	return strings.Split(body, "\n")
}

func wantLines(t *testing.T, lines []string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !slices.Contains(lines, w) {
			name, _, _ := strings.Cut(w, "{")
			t.Errorf("%s is missing; there is\n%s", w, strings.Join(slices.DeleteFunc(slices.Clone(lines), func(l string) bool {
				return !strings.HasPrefix(l, strings.Fields(name)[0])
			}), "\n"))
		}
	}
}

// TestDocumented holds docs/metrics.md to what is exposed: names, types and labels. Those of other commands are tested
// where they are made.
func TestDocumented(t *testing.T) {
	families, err := newAll(t, isReady).registry.Gather()
	testenv.Must(t, err)
	exposed := make(map[string]string)
	for _, f := range families {
		name := f.GetName()
		if !strings.HasPrefix(name, "jobonce_") && !strings.HasPrefix(name, "grpc_") {
			continue
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		slices.Sort(labels)
		exposed[name] = fmt.Sprint(strings.ToLower(f.GetType().String()), labels)
	}

	doc, err := os.ReadFile("../../docs/metrics.md")
	testenv.Must(t, err)
	documented := make(map[string]string)
	row := regexp.MustCompile("(?m)^\\| `((?:jobonce|grpc)_\\w+)` \\| (\\w+) \\| ([^|]*)\\|")
	for _, m := range row.FindAllStringSubmatch(string(doc), -1) {
		if isCommands(m[1]) {
			continue
		}
		labels := regexp.MustCompile(`\w+`).FindAllString(strings.ReplaceAll(m[3], "as above", "grpc_type grpc_service grpc_method"), -1)
		slices.Sort(labels)
		if documented[m[1]] != "" {
			t.Errorf("%s is documented twice", m[1])
		}
		documented[m[1]] = fmt.Sprint(m[2], labels)
	}
	if !maps.Equal(exposed, documented) {
		t.Errorf("exposed:    %v\ndocumented: %v", exposed, documented)
	}
	for _, name := range regexp.MustCompile(`(?:jobonce|grpc_server)_\w+_\w+`).FindAllString(string(doc), -1) {
		if exposed[name] == "" && !isCommands(name) {
			t.Errorf("the text names %s, which is not exposed", name)
		}
	}
}

// isCommands tells whether a metric is one of another command than serve.
func isCommands(name string) bool {
	return strings.HasPrefix(name, "jobonce_webhook_") || strings.HasPrefix(name, "jobonce_poll_") || strings.HasPrefix(name, "jobonce_worker_")
}

func TestValues(t *testing.T) {
	m := newAll(t, isReady)
	m.Recorded(job.Verdict{Disposition: job.First})
	m.Recorded(job.Verdict{Disposition: job.Duplicate, Conflict: &job.Conflict{Kind: job.ConflictEvent}})
	m.Recorded(job.Verdict{Disposition: job.InProgress})
	m.Recorded(job.Verdict{Disposition: 99, Conflict: &job.Conflict{Kind: 99}}) // of a newer domain: no panic
	m.Failed("OVERLOADED")
	m.Unread("event")
	m.Work("ClaimWork", 3, "")
	m.Work("ClaimWork", 0, "INVALID_FIELD")
	m.Written(3, 20*time.Millisecond)
	m.Written(256, 2*time.Second)
	wantLines(t, scrape(t, m),
		`jobonce_deliveries_total{disposition="FIRST"} 1`,
		`jobonce_deliveries_total{disposition="DUPLICATE"} 1`,
		`jobonce_deliveries_total{disposition="IN_PROGRESS"} 1`,
		`jobonce_deliveries_total{disposition="DEAD"} 0`,
		`jobonce_conflicts_total{kind="EVENT"} 1`,
		`jobonce_conflicts_total{kind="PAYLOAD"} 0`,
		`jobonce_delivery_failures_total{reason="OVERLOADED"} 1`,
		`jobonce_delivery_failures_total{reason="OUTCOME_UNKNOWN"} 0`,
		`jobonce_unread_fields_total{field="event"} 1`,
		"jobonce_longest_due_seconds 90",
		"jobonce_last_claim_timestamp_seconds 1.5",
		`jobonce_unread_fields_total{field="status"} 0`,
		`jobonce_work_jobs_total{method="ClaimWork"} 3`, `jobonce_work_jobs_total{method="CompleteWork"} 0`,
		`jobonce_work_failures_total{reason="INVALID_FIELD"} 1`, `jobonce_work_failures_total{reason="LEASE_LOST"} 0`,
		`jobonce_batch_size_bucket{le="2"} 0`,
		`jobonce_batch_size_bucket{le="4"} 1`,
		`jobonce_batch_size_bucket{le="256"} 2`,
		`jobonce_batch_size_sum 259`,
		`jobonce_batch_duration_seconds_bucket{le="0.025"} 1`,
		`jobonce_batch_duration_seconds_sum 2.02`,
		`jobonce_queue_deliveries 3`,
		`jobonce_queue_bytes 4096`,
		`jobonce_queue_lease_changes 5`, `jobonce_claim_leases_tried_total 7`, `jobonce_claim_leases_won_total 6`,
		`jobonce_store_clock_offset_seconds -1.5`, `jobonce_unclaimable_jobs 3`,
		`jobonce_http_requests_total{code="200",listener="ui",method="get",route="/"} 1`,
		`jobonce_http_requests_total{code="418",listener="ui",method="get",route="/jobs"} 1`,
		`jobonce_http_requests_total{code="405",listener="ui",method="post",route="other"} 1`,
		`jobonce_http_requests_total{code="405",listener="ui",method="unknown",route="other"} 1`,
		`jobonce_http_requests_total{code="404",listener="ui",method="get",route="other"} 1`,
		`jobonce_http_request_duration_seconds_count{listener="ui",route="other"} 3`,
		`jobonce_store_ready 1`,
		`jobonce_build_info{commit="abc",goversion="go1.26",version="v1.2.3"} 1`,
		`grpc_server_handled_total{grpc_code="Unavailable",grpc_method="RecordDelivery",grpc_service="jobonce.v1.IdempotencyService",grpc_type="unary"} 1`,
		`grpc_server_handling_seconds_count{grpc_method="RecordDelivery",grpc_service="jobonce.v1.IdempotencyService",grpc_type="unary"} 2`,
	)
}

// TestScrapeDoesNotHang has a store that never answers by itself.
func TestScrapeDoesNotHang(t *testing.T) {
	m := newAll(t, func(ctx context.Context) error {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("the store is asked without a deadline")
			return nil
		}
		return context.DeadlineExceeded
	})
	wantLines(t, scrape(t, m), `jobonce_store_ready 0`)
}

// BenchmarkCall is what the metrics add to each call.
func BenchmarkCall(b *testing.B) {
	m := NewMetrics(Build{})
	intercept := m.UnaryInterceptor()
	handler := func(context.Context, any) (any, error) { return nil, nil }
	b.ReportAllocs()
	for b.Loop() {
		_, _ = intercept(b.Context(), nil, recordInfo, handler)
		m.Recorded(job.Verdict{Disposition: job.First})
	}
}
