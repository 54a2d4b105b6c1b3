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
	"crypto/sha256"
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

// Handler is an [http.Handler] that records the deliveries of one source. Make it with [NewHandler].
type Handler struct {
	jobs   Jobs
	source *config
	fetch  *fetcher
	works  works
	// decoding has a place for each large body that is decoded before it is known who sent it.
	decoding chan struct{}
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
	work        client.WorkFunc
	lease       time.Duration
}

// WithMaxBody takes bodies of up to n bytes: what the service takes ([DefaultMaxBody] unless its operator changed it).
func WithMaxBody(n int) Option { return func(o *options) { o.maxBody = n } }

// WithReadTimeout is how long a body may take to come. Default [DefaultReadTimeout].
func WithReadTimeout(d time.Duration) Option { return func(o *options) { o.readTimeout = d } }

// WithReport has fn called for every request.
func WithReport(fn ReportFunc) Option { return func(o *options) { o.report = fn } }

// WithClock has now tell the time by which the age of signatures is judged. Default [time.Now].
func WithClock(now func() time.Time) Option { return func(o *options) { o.now = now } }

// WithHTTPClient fetches keys and certificates, and confirms subscriptions of SNS, with c. It never follows redirects.
func WithHTTPClient(c *http.Client) Option { return func(o *options) { o.http = c } }

// NewHandler makes a handler. The error names the field of the source that is wrong.
func NewHandler(jobs Jobs, source Source, opts ...Option) (*Handler, error) {
	h := &Handler{jobs: jobs, decoding: make(chan struct{}, maxDecoding), options: options{
		maxBody: DefaultMaxBody, readTimeout: DefaultReadTimeout, now: time.Now, report: func(context.Context, Report) {},
	}}
	for _, opt := range opts {
		opt(&h.options)
	}
	var err error
	if h.source, err = source.compile(); err != nil {
		return nil, fmt.Errorf("webhook: source %q: %w", source.Name, err)
	}
	if h.maxBody < 1 {
		return nil, errors.New("webhook: WithMaxBody: is less than 1")
	}
	if err := h.checkWork(); err != nil {
		return nil, fmt.Errorf("webhook: source %q: WithWork: %w", source.Name, err)
	}
	h.fetch = newFetcher(h.http, h.now)
	return h, nil
}

// ServeHTTP answers one delivery.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), h.source.AnswerWithin)
	defer cancel() // Recording goes on when the sender hangs up.
	out := h.handle(ctx, w, r)
	h.decide(out)
	out.Source, out.Duration = h.source.Name, time.Since(begin)
	h.report(ctx, out.Report)
	h.send(w, out)
}

// outcome is what became of a request, and what is answered.
type outcome struct {
	Report
	handshake  *reply
	retryAfter time.Duration // 0: as usual.
	items      []*found
}

func refused(r *refusal) *outcome { return &outcome{Report: Report{Reason: r.reason, Err: r.err}} }

// handle does everything but answer.
func (h *Handler) handle(ctx context.Context, w http.ResponseWriter, r *http.Request) *outcome {
	out := h.examine(ctx, w, r)
	switch {
	case out.Reason == Accepted && h.work != nil:
		h.doWork(ctx, r.Header, out)
	case out.Reason == Accepted, out.Reason == Unreadable:
		h.record(ctx, r.Header, out)
	}
	return out
}

// examine reads the request, checks its signature, and finds out what there is to be recorded. Its reason is Accepted or
// Unreadable where there is something.
func (h *Handler) examine(ctx context.Context, w http.ResponseWriter, r *http.Request) *outcome {
	hs := h.source.handshake
	if hs.unsigned != nil {
		if reply, refusal := hs.unsigned(h, r); refusal != nil {
			return refused(refusal)
		} else if reply != nil {
			return &outcome{Report: Report{Reason: Handshaken}, handshake: reply}
		}
	}
	if r.Method != http.MethodPost {
		return refused(refuse(MethodNotAllowed, "the method is not POST"))
	}
	body, rest, refusal := h.read(w, r)
	if refusal != nil {
		return refused(refusal)
	}
	if rest != nil {
		return h.examineLarge(ctx, r, body, rest)
	}
	req := NewRequest(r.WithContext(ctx), body)
	if refusal := h.verify(ctx, req, r); refusal != nil {
		return refused(refusal)
	}
	if hs.signed != nil {
		if reply, refusal := hs.signed(ctx, h, req); refusal != nil {
			return refused(refusal)
		} else if reply != nil {
			return &outcome{Report: Report{Reason: Handshaken, Verified: true}, handshake: reply}
		}
	}
	sum := sha256.Sum256(body)
	return h.source.find(req, sum[:], 0)
}

// A signature that stands within the body can be checked only once a stranger's JSON is decoded, which can take some 70 times its
// size. Of bodies over largeBody bytes, maxDecoding are decoded at a time.
const (
	largeBody   = 16 << 10
	maxDecoding = 4
)

func (h *Handler) verify(ctx context.Context, req *Request, r *http.Request) *refusal {
	if len(req.Body) > largeBody && h.source.scheme(req.Header).decodes() {
		select {
		case h.decoding <- struct{}{}:
			defer func() { <-h.decoding }()
		case <-ctx.Done():
			return refuse(NotRecorded, "too many large bodies are being checked")
		}
	}
	return h.source.verify(ctx, h.evidence(req, r))
}

func (h *Handler) evidence(req *Request, r *http.Request) *evidence {
	e := &evidence{req: req, secrets: h.source.secrets(), now: h.now(), fetch: h.fetch}
	if h.source.usesURL() {
		e.urls = h.source.signedURLs(req, r.Host, r.TLS != nil)
	}
	return e
}
