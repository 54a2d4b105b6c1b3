package frontend

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/jobonce/jobonce/client/webhook"
)

// answerBuckets are in seconds, up to the longest that a sender waits.
var answerBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// Metrics are those of one frontend; docs/metrics.md says what each means. They are safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry

	requests, verified, events, answers, refused *prometheus.CounterVec
	duration                                     *prometheus.HistogramVec
	underWay                                     prometheus.Gauge
}

// NewMetrics returns metrics that count from zero, in the registry.
func NewMetrics(registry *prometheus.Registry) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		registry: registry,
		requests: counter("jobonce_webhook_requests_total", "Requests to a source, by what became of them.", "source", "reason"),
		verified: counter("jobonce_webhook_verified_requests_total", "Requests whose signature was good.", "source"),
		events:   counter("jobonce_webhook_events_total", "Events in requests whose signature was good, by what became of them.", "source", "outcome"),
		answers:  counter("jobonce_webhook_answers_total", "Answers, by their HTTP status.", "source", "status"),
		refused:  counter("jobonce_webhook_refused_requests_total", "Requests and connections that came to no source, by the reason.", "reason"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "jobonce_webhook_answer_seconds", Help: "Time from the headers of a request to its answer.", Buckets: answerBuckets,
		}, []string{"source"}),
		underWay: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "jobonce_webhook_requests_under_way", Help: "Requests that are being read or answered.",
		}),
	}
	m.registry.MustRegister(m.requests, m.verified, m.events, m.answers, m.refused, m.duration, m.underWay)
	for _, reason := range []string{refusedPath, refusedBusy, refusedConnections} {
		m.refused.WithLabelValues(reason)
	}
	return m
}

// Gatherer gives the metrics to whoever shows them.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// WatchCertificate shows when the certificate of the listener expires. It may be called once.
func (m *Metrics) WatchCertificate(expires func() time.Time) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "jobonce_tls_certificate_expiry_timestamp_seconds", Help: "When the certificate that new connections get expires.",
	}, func() float64 { return float64(expires().Unix()) }))
}

// add makes a source's metrics, so that they are there before its first request.
func (m *Metrics) add(source string) {
	for _, reason := range webhook.Reasons() {
		m.requests.WithLabelValues(source, string(reason))
	}
	m.verified.WithLabelValues(source)
	for _, outcome := range []string{"new", "known", "filtered", "unreadable", "failed"} {
		m.events.WithLabelValues(source, outcome)
	}
	m.duration.WithLabelValues(source)
}

// count counts what became of a request.
func (m *Metrics) count(r webhook.Report) {
	m.requests.WithLabelValues(r.Source, string(r.Reason)).Inc()
	if r.Verified {
		m.verified.WithLabelValues(r.Source).Inc()
	}
	for outcome, n := range map[string]int{
		"new": r.First, "known": r.Recorded - r.First, "filtered": r.Filtered, "unreadable": r.Unreadable,
		"failed": r.Items - r.Recorded - r.Filtered - r.Unreadable,
	} {
		m.events.WithLabelValues(r.Source, outcome).Add(float64(max(0, n)))
	}
	m.answers.WithLabelValues(r.Source, strconv.Itoa(r.Status)).Inc()
	m.duration.WithLabelValues(r.Source).Observe(r.Duration.Seconds())
}
