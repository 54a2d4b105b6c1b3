// Package telemetry is what an operator watches a service by: the metrics and the ops listener that shows them.
package telemetry

import (
	"context"
	"math"
	"net/http"
	"strings"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
)

// Build says what was built.
type Build struct{ Version, Commit, Go string }

// Metrics are those of one service; docs/metrics.md tells what each means. They are safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry
	rpc      *grpcprom.ServerMetrics

	// By their numbers, because they are counted with every delivery.
	deliveries map[job.Disposition]prometheus.Counter
	conflicts  map[job.ConflictKind]prometheus.Counter

	failures      *prometheus.CounterVec
	unread        *prometheus.CounterVec
	workJobs      *prometheus.CounterVec
	workFailures  *prometheus.CounterVec
	died          prometheus.Counter
	givenUp       prometheus.Counter
	dropped       *prometheus.CounterVec
	refused       *prometheus.CounterVec
	requests      *prometheus.CounterVec
	requestTime   *prometheus.HistogramVec
	lineWait      prometheus.Histogram
	batchSize     prometheus.Histogram
	batchDuration prometheus.Histogram
}

// durationBuckets are in seconds: from a fast answer of the embedded store to the longest that a call may last.
var durationBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// scrapeTimeout is how long a scrape waits for the store. It leaves time within Prometheus's own limit of 10 seconds.
const scrapeTimeout = 2 * time.Second

// NewRegistry returns a registry with what every command shows: what was built, and the metrics of the process.
func NewRegistry(b Build) *prometheus.Registry {
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "jobonce_build_info", Help: "Always 1; the labels say what was built.",
	}, []string{"version", "commit", "goversion"})
	build.WithLabelValues(b.Version, b.Commit, b.Go).Set(1)
	r := prometheus.NewRegistry()
	r.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// NewMetrics returns metrics that count from zero.
func NewMetrics(b Build) *Metrics {
	m := &Metrics{
		registry: NewRegistry(b),
		rpc: grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram(
			grpcprom.WithHistogramBuckets(durationBuckets))),
		deliveries: make(map[job.Disposition]prometheus.Counter),
		conflicts:  make(map[job.ConflictKind]prometheus.Counter),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "jobonce_delivery_failures_total", Help: "Deliveries answered with an error, by its reason.",
		}, []string{"reason"}),
		unread: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "jobonce_unread_fields_total", Help: "Fields of bodies that were left out of a delivery, by field.",
		}, []string{"field"}),
		workJobs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "jobonce_work_jobs_total", Help: "Jobs that calls about work leased or changed, by method.",
		}, []string{"method"}),
		workFailures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "jobonce_work_failures_total", Help: "Calls about work answered with an error, by its reason.",
		}, []string{"reason"}),
		givenUp: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "jobonce_expectations_given_up_total", Help: "Webhooks that never came and are waited for no longer.",
		}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "jobonce_retention_dropped_total", Help: "What retention has dropped: payloads, and whole jobs.",
		}, []string{"what"}),
		died: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "jobonce_dead_jobs_total", Help: "Jobs whose work was given up, or whose attempts were used up.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "jobonce_refused_calls_total", Help: "Calls that did not come to their handler, by the reason.",
		}, []string{"reason"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "jobonce_http_requests_total", Help: "Requests over HTTP, by listener, route, method and the status of their answer.",
		}, []string{"listener", "route", "method", "code"}),
		requestTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "jobonce_http_request_duration_seconds", Help: "Time from the headers of a request to the end of its answer.",
			Buckets: durationBuckets,
		}, []string{"listener", "route"}),
		lineWait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "jobonce_line_wait_seconds", Help: "Time that calls were in line before their request was received.",
			Buckets: durationBuckets,
		}),
		batchSize: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "jobonce_batch_size", Help: "Deliveries per write to the store.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 9),
		}),
		batchDuration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "jobonce_batch_duration_seconds", Help: "Time that a write to the store took.", Buckets: durationBuckets,
		}),
	}
	deliveries := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "jobonce_deliveries_total", Help: "Recorded deliveries, by disposition.",
	}, []string{"disposition"})
	conflicts := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "jobonce_conflicts_total", Help: "Recorded deliveries that disagree with the stored one, by kind.",
	}, []string{"kind"})
	// Every series is there from the start: a counter that appears with its first event hides that event from rate().
	for n, name := range joboncev1.Disposition_name {
		if n != 0 {
			m.deliveries[job.Disposition(n)] = deliveries.WithLabelValues(strings.TrimPrefix(name, "DISPOSITION_"))
		}
	}
	for n, name := range joboncev1.ConflictKind_name {
		if n != 0 {
			m.conflicts[job.ConflictKind(n)] = conflicts.WithLabelValues(strings.TrimPrefix(name, "CONFLICT_KIND_"))
		}
	}
	for n, name := range joboncev1.ErrorReason_name {
		if n != 0 {
			m.failures.WithLabelValues(strings.TrimPrefix(name, "ERROR_REASON_"))
			m.workFailures.WithLabelValues(strings.TrimPrefix(name, "ERROR_REASON_"))
			m.refused.WithLabelValues(strings.TrimPrefix(name, "ERROR_REASON_"))
		}
	}
	m.refused.WithLabelValues("GRPC")
	for _, method := range joboncev1.WorkService_ServiceDesc.Methods {
		m.workJobs.WithLabelValues(method.MethodName)
	}
	m.Dropped(0, 0)
	for _, field := range []string{"event", "status", "traceparent"} {
		m.unread.WithLabelValues(field)
	}
	m.registry.MustRegister(m.rpc, deliveries, conflicts, m.failures, m.unread, m.workJobs, m.workFailures, m.died, m.givenUp, m.dropped, m.refused, m.requests, m.requestTime, m.lineWait, m.batchSize, m.batchDuration)
	return m
}

// UnaryInterceptor counts and times unary calls.
func (m *Metrics) UnaryInterceptor() grpc.UnaryServerInterceptor {
	return m.rpc.UnaryServerInterceptor()
}

// StreamInterceptor counts and times streams.
func (m *Metrics) StreamInterceptor() grpc.StreamServerInterceptor {
	return m.rpc.StreamServerInterceptor()
}

// HTTP counts and times the requests that a listener answers, by what Pattern they have then. Peers choose paths; patterns are few.
func (m *Metrics) HTTP(listener string, next http.Handler) http.Handler {
	by := prometheus.Labels{"listener": listener}
	route := promhttp.WithLabelFromRequest("route", routeOf)
	return promhttp.InstrumentHandlerDuration(m.requestTime.MustCurryWith(by),
		promhttp.InstrumentHandlerCounter(m.requests.MustCurryWith(by), next, route), route)
}

// routeOf is the path of the pattern that a request has matched; "other" when it came to no page or method of ours.
func routeOf(r *http.Request) string {
	_, path, found := strings.Cut(r.Pattern, " ")
	if !found {
		path = r.Pattern
	}
	if path == "" || path == "/" {
		return "other"
	}
	return strings.TrimSuffix(path, "{$}")
}

// Recorded counts a delivery that was recorded.
func (m *Metrics) Recorded(v job.Verdict) {
	if c := m.deliveries[v.Disposition]; c != nil {
		c.Inc()
	}
	if v.Conflict == nil {
		return
	}
	if c := m.conflicts[v.Conflict.Kind]; c != nil {
		c.Inc()
	}
}

// Failed counts a delivery that got an error, by the error's reason without its prefix.
func (m *Metrics) Failed(reason string) { m.failures.WithLabelValues(reason).Inc() }

// Unread counts a field, event or status, that a delivery lacks because the one in its body could not be taken.
func (m *Metrics) Unread(field string) { m.unread.WithLabelValues(field).Inc() }

// Work counts the jobs that a call about work leased or changed, or the reason of its error.
func (m *Metrics) Work(method string, jobs int, reason string) {
	if reason != "" {
		m.workFailures.WithLabelValues(reason).Inc()
		return
	}
	m.workJobs.WithLabelValues(method).Add(float64(jobs))
}

// Refused counts a call that did not come to its handler, by the reason without its prefix.
func (m *Metrics) Refused(reason string) { m.refused.WithLabelValues(reason).Inc() }

// Waited counts a call that was in line before its request was received.
func (m *Metrics) Waited(took time.Duration) { m.lineWait.Observe(took.Seconds()) }

// Died counts a job whose work was given up.
func (m *Metrics) Died() { m.died.Inc() }

// GivenUp counts a webhook that never came and is waited for no longer.
func (m *Metrics) GivenUp() { m.givenUp.Inc() }

// Dropped counts what retention has dropped.
func (m *Metrics) Dropped(payloads, jobs int) {
	m.dropped.WithLabelValues("payload").Add(float64(payloads))
	m.dropped.WithLabelValues("job").Add(float64(jobs))
}

// Written counts a write to the store.
func (m *Metrics) Written(deliveries int, took time.Duration) {
	m.batchSize.Observe(float64(deliveries))
	m.batchDuration.Observe(took.Seconds())
}

// WatchQueue shows what waits for the store or is under way there. It may be called once.
func (m *Metrics) WatchQueue(queued func() (deliveries, bytes int64), changes func() int64) {
	m.gauge("jobonce_queue_deliveries", "Deliveries that wait or are being written.", func() float64 {
		n, _ := queued()
		return float64(n)
	})
	m.gauge("jobonce_queue_bytes", "Bytes of the bodies of those deliveries.", func() float64 {
		_, n := queued()
		return float64(n)
	})
	m.gauge("jobonce_queue_lease_changes", "Renewals, completions and releases that wait or are being written.",
		func() float64 { return float64(changes()) })
}

// WatchLine shows how many calls wait for their request to be received. It may be called once.
func (m *Metrics) WatchLine(waiting func() int) {
	m.gauge("jobonce_line_calls", "Calls in line that wait for their request to be received.",
		func() float64 { return float64(waiting()) })
}

// WatchReady shows whether the store is ready: whether check, asked with every scrape, returns nil in time. It may be
// called once.
func (m *Metrics) WatchReady(check func(context.Context) error) {
	m.gauge("jobonce_store_ready", "1 when the store can serve, else 0.", func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
		defer cancel()
		if check(ctx) == nil {
			return 1
		}
		return 0
	})
}

// WatchDue shows for how long work has been due, and when it was last asked for. It may be called once.
func (m *Metrics) WatchDue(longest func() (since time.Duration, ok bool), lastClaim func() time.Time) {
	m.gauge("jobonce_longest_due_seconds", "How long the work that has been due for longest has been due.", func() float64 {
		since, ok := longest()
		if !ok {
			return math.NaN()
		}
		return since.Seconds()
	})
	m.gauge("jobonce_last_claim_timestamp_seconds", "When ClaimWork was last called.", func() float64 {
		t := lastClaim()
		if t.IsZero() {
			return 0
		}
		return float64(t.UnixMilli()) / 1000
	})
}

// Gatherer gives the metrics to whoever shows them.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// WatchUnclaimable shows how much work is due that nobody can claim. It may be called once.
func (m *Metrics) WatchUnclaimable(count func() int64) {
	m.gauge("jobonce_unclaimable_jobs", "Work that is due and that this version cannot hand out.",
		func() float64 { return float64(count()) })
}

// WatchClaims shows how many leases claims have tried to get, and how many of these they got. It may be called once.
func (m *Metrics) WatchClaims(leases func() (tried, won int64)) {
	m.counter("jobonce_claim_leases_tried_total", "Leases that claims tried to get.", func() float64 {
		tried, _ := leases()
		return float64(tried)
	})
	m.counter("jobonce_claim_leases_won_total", "Those of them that they got; the others went to other instances.", func() float64 {
		_, won := leases()
		return float64(won)
	})
}

// WatchOverdue shows how many webhooks are overdue, as asked with every scrape. It may be called once.
func (m *Metrics) WatchOverdue(count func(context.Context) (int64, error)) {
	m.gauge("jobonce_expectations_overdue", "Webhooks that are overdue and not given up.", func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
		defer cancel()
		n, err := count(ctx)
		if err != nil {
			return math.NaN()
		}
		return float64(n)
	})
}

// WatchClock shows how far the store's clock is ahead of this machine's. It may be called once.
func (m *Metrics) WatchClock(offset func() time.Duration) {
	m.gauge("jobonce_store_clock_offset_seconds", "How far the database's clock is ahead of this machine's.",
		func() float64 { return offset().Seconds() })
}

// WatchCertificate shows when the certificate of the listener expires. It may be called once.
func (m *Metrics) WatchCertificate(expires func() time.Time) {
	m.gauge("jobonce_tls_certificate_expiry_timestamp_seconds", "When the certificate that new connections get expires.",
		func() float64 { return float64(expires().Unix()) })
}

// WatchCallers shows when callers expire. It may be called once.
func (m *Metrics) WatchCallers(expiries func() map[string]time.Time) {
	m.registry.MustRegister(callerExpiries{
		expiries: expiries,
		desc: prometheus.NewDesc("jobonce_caller_expiry_timestamp_seconds", "When the last credential of a caller expires.",
			[]string{"caller"}, nil),
	})
}

// callerExpiries are those of the callers that there are now.
type callerExpiries struct {
	expiries func() map[string]time.Time
	desc     *prometheus.Desc
}

// Describe implements [prometheus.Collector].
func (c callerExpiries) Describe(descs chan<- *prometheus.Desc) { descs <- c.desc }

// Collect implements [prometheus.Collector].
func (c callerExpiries) Collect(metrics chan<- prometheus.Metric) {
	for name, t := range c.expiries() {
		metrics <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(t.Unix()), name)
	}
}

func (m *Metrics) counter(name, help string, value func() float64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, value))
}

func (m *Metrics) gauge(name, help string, value func() float64) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
}
