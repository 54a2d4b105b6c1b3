package runner

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/jobonce/jobonce/client"
)

// workBuckets are in seconds: work takes from a moment to the longest lease that is usual.
var workBuckets = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}

// Metrics are those of one worker; docs/metrics.md says what each means. They are safe for concurrent use.
type Metrics struct {
	jobs     *prometheus.CounterVec
	duration prometheus.Histogram
	underWay prometheus.Gauge
}

// NewMetrics returns metrics that count from zero, in the registry.
func NewMetrics(registry *prometheus.Registry) *Metrics {
	m := &Metrics{
		jobs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "jobonce_worker_jobs_total", Help: "Jobs whose work was started, by how it ended.",
		}, []string{"outcome"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "jobonce_worker_job_seconds", Help: "Time from the start of a job's work until the service knew how it ended.", Buckets: workBuckets,
		}),
		underWay: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "jobonce_worker_jobs_under_way", Help: "Jobs that are being worked on.",
		}),
	}
	registry.MustRegister(m.jobs, m.duration, m.underWay)
	for _, outcome := range []client.WorkOutcome{client.WorkDone, client.WorkFailed, client.WorkDead, client.WorkGivenBack, client.WorkLost} {
		m.jobs.WithLabelValues(string(outcome))
	}
	return m
}

// Watch counts the jobs that fn is at.
func (m *Metrics) Watch(fn client.WorkFunc) client.WorkFunc {
	return func(ctx context.Context, w *client.Work) error {
		m.underWay.Inc()
		defer m.underWay.Dec()
		return fn(ctx, w)
	}
}

// Ended counts how the work of a job ended. It is for the field of that name in [client.WorkerConfig].
func (m *Metrics) Ended(outcome client.WorkOutcome, took time.Duration) {
	m.jobs.WithLabelValues(string(outcome)).Inc()
	m.duration.Observe(took.Seconds())
}
