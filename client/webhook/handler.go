// Package webhook receives webhooks: it checks who sent them, records each event with a JobOnce service, and gives the
// sender the answer that makes it deliver again exactly when something would be lost otherwise.
//
//	jobs, err := client.New("127.0.0.1:50051")
//	...
//	handler, err := webhook.NewHandler(jobs, webhook.Source{
//		Name: "stripe", Provider: "stripe", Secrets: webhook.Secrets(os.Getenv("STRIPE_SECRET")),
//	})
//	...
//	http.Handle("POST /stripe", handler)
package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// Jobs is what a handler needs of a [*client.Client].
type Jobs interface {
	RecordDelivery(context.Context, *joboncev1.RecordDeliveryRequest) (*joboncev1.RecordDeliveryResponse, error)
	BatchRecordDeliveries(context.Context, []*joboncev1.RecordDeliveryRequest) ([]client.BatchResult, error)
}

// The limits of a handler.
const (
	// DefaultMaxBody is the largest body that is recorded whole, and the service's own default.
	DefaultMaxBody = 1 << 20
	// MaxItems is how many events one body may hold.
	MaxItems = 10_000
	// DefaultReadTimeout is how long a body may take to come.
	DefaultReadTimeout = 10 * time.Second
)

// Handler is an [http.Handler] that records the deliveries of one source.
type Handler struct {
	jobs   Jobs
	source *config
	options
}

// Option changes a default of [NewHandler].
type Option func(*options)

type options struct {
	maxBody     int
	readTimeout time.Duration
	report      ReportFunc
	now         func() time.Time
	http        *http.Client
}

// WithMaxBody takes bodies of up to n bytes: what the service takes ([DefaultMaxBody] unless its operator changed it).
func WithMaxBody(n int) Option { return func(o *options) { o.maxBody = n } }

// WithReadTimeout is how long a body may take to come. Default [DefaultReadTimeout].
func WithReadTimeout(d time.Duration) Option { return func(o *options) { o.readTimeout = d } }

// WithReport has fn called for every request.
func WithReport(fn ReportFunc) Option { return func(o *options) { o.report = fn } }

// WithClock takes the time that signatures are held against from now. Default [time.Now].
func WithClock(now func() time.Time) Option { return func(o *options) { o.now = now } }

// WithHTTPClient fetches keys and certificates with c, for the senders that need it.
func WithHTTPClient(c *http.Client) Option { return func(o *options) { o.http = c } }

// NewHandler makes a handler. The error names the field of the source that is wrong.
func NewHandler(jobs Jobs, source Source, opts ...Option) (*Handler, error) {
	h := &Handler{jobs: jobs, options: options{
		maxBody: DefaultMaxBody, readTimeout: DefaultReadTimeout, now: time.Now, report: func(context.Context, Report) {},
	}}
	for _, opt := range opts {
		opt(&h.options)
	}
	var err error
	if h.source, err = source.compile(); err != nil {
		return nil, fmt.Errorf("webhook: source %q: %w", source.Name, err)
	}
	return h, nil
}

// ServeHTTP answers one delivery.
func (h *Handler) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusServiceUnavailable)
}

// Explanation is what a handler would do with a request.
type Explanation struct {
	// Reason and Verified are as in [Report]; Accepted means that Items would be recorded.
	Reason   Reason
	Verified bool
	// Err says what is wrong, Hints what may be the cause. Neither has a secret in it.
	Err   error
	Hints []string
	// Status is what would be answered, given that the service records.
	Status int
	// Items are what would be recorded.
	Items []ExplainedItem
}

// ExplainedItem is what would become of one event.
type ExplainedItem struct {
	// JobID, Event and Status are what would be recorded; the JobID of what is unreadable is that under which the whole
	// body is kept.
	JobID, Event, Status string
	// Filtered: When says no. It would not be recorded.
	Filtered bool
	// Err is why it is unreadable.
	Err error
	// Size is the size of what would be stored, in bytes.
	Size int
}

// Explain says what the handler would do with a request, and records nothing. It reads the body.
func (h *Handler) Explain(*http.Request) Explanation {
	return Explanation{Reason: NotRecorded, Err: errors.New("not implemented")}
}
