package poll

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/client/webhook"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/expr"
)

const (
	// maxAnswer bounds an answer, in bytes: what the service takes as a payload by default.
	maxAnswer = 1 << 20
	// maxQuiet is how long a host is left alone at most that has answered with 429, and a job put off of one that is busy.
	maxQuiet = 5 * time.Minute
)

// Asker asks providers how jobs stand. Its method Poll is a [client.PollFunc].
type Asker struct {
	hosts   map[string]*host
	public  http.RoundTripper
	private http.RoundTripper
	metrics *Metrics
	now     func() time.Time
}

// New makes an asker for a poller that polls so many jobs at a time. Each host has an even share of them, one at least, so that one that
// is slow leaves places to the others. The error names the place in the configuration file at fault.
func New(hosts []Host, concurrency int, metrics *Metrics) (*Asker, error) {
	a := &Asker{hosts: make(map[string]*host), public: transport(false), private: transport(true), metrics: metrics, now: time.Now}
	for _, h := range hosts {
		compiled, err := h.compile(max(1, concurrency/len(hosts)))
		if err != nil {
			return nil, err
		}
		a.hosts[h.Name] = compiled
		metrics.host(h.Name)
	}
	return a, nil
}

// transport dials by the rules, without a proxy: that would dial in our place.
func transport(private bool) http.RoundTripper {
	return &http.Transport{DialContext: dialer(private).DialContext, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second, IdleConnTimeout: 90 * time.Second, MaxIdleConnsPerHost: 4, MaxResponseHeaderBytes: 64 << 10}
}

// Poll asks the provider of a job. An error has nothing of the URL's query in it, nor of a credential.
func (a *Asker) Poll(ctx context.Context, e *joboncev1.Expectation) (client.Polled, error) {
	u, err := url.Parse(e.GetStatusUrl())
	if err != nil {
		a.metrics.notAsked(otherHosts, unsentRefused)
		return client.Polled{}, errors.New("the status URL cannot be read")
	}
	h := a.hosts[nameOf(u)]
	if h == nil || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
		a.metrics.notAsked(otherHosts, unsentRefused)
		return client.Polled{}, fmt.Errorf("the host %.100q is not one that may be polled; list it under hosts", nameOf(u))
	}
	if !h.mayAsk(u) {
		a.metrics.notAsked(otherHosts, unsentRefused)
		return client.Polled{}, fmt.Errorf("the path of the status URL is not one that may be polled; list it under paths of %s", h.Name)
	}
	polled, err := a.ask(ctx, h, u)
	switch {
	case errors.Is(err, client.ErrPutOff):
		a.metrics.notAsked(h.Name, unsentPutOff)
	case err != nil:
		a.metrics.asked(h.Name, outcomeFailed)
	case polled.Delivery != nil:
		a.metrics.asked(h.Name, outcomeOver)
	default:
		a.metrics.asked(h.Name, outcomeNotOver)
	}
	return polled, err
}

// quiet is an error for as long as the host is to be left alone.
func (a *Asker) quiet(h *host) (client.Polled, error) {
	if wait := time.UnixMilli(h.quietUntil.Load()).Sub(a.now()); wait > 0 {
		return client.Polled{After: wait}, fmt.Errorf("%w: %s has answered with 429 a moment ago", client.ErrPutOff, h.Name)
	}
	return client.Polled{}, nil
}

// leaveAlone leaves the host alone until then, unless it is to be left alone for longer.
func (h *host) leaveAlone(until time.Time) {
	for ms := until.UnixMilli(); ; {
		before := h.quietUntil.Load()
		if before >= ms || h.quietUntil.CompareAndSwap(before, ms) {
			return
		}
	}
}

// later is when a job comes again of a host that has no place for it now.
func (h *host) later(now time.Time) time.Duration {
	turn := h.line.ReserveN(now, 1)
	if turn.DelayFrom(now) > maxQuiet {
		turn.CancelAt(now)
		return maxQuiet
	}
	return max(turn.DelayFrom(now), time.Second)
}

// ask makes the request, and reads the answer.
func (a *Asker) ask(ctx context.Context, h *host, u *url.URL) (client.Polled, error) {
	if polled, err := a.quiet(h); err != nil {
		return polled, err
	}
	select {
	case h.places <- struct{}{}:
		defer func() { <-h.places }()
	default:
		return client.Polled{After: h.later(a.now())}, fmt.Errorf("%w: as many other jobs of %s are being polled as its share of --concurrency", client.ErrPutOff, h.Name)
	}
	if err := h.limit.Wait(ctx); err != nil {
		return client.Polled{After: h.later(a.now())}, fmt.Errorf("%w: too many jobs of %s are overdue for its rate", client.ErrPutOff, h.Name)
	}
	if polled, err := a.quiet(h); err != nil { // by what was answered meanwhile
		return polled, err
	}
	req := (&http.Request{Method: http.MethodGet, URL: u, Host: h.Name, Header: make(http.Header)}).WithContext(ctx)
	if u.Scheme == "https" {
		headers, err := h.headers()
		if err != nil {
			return client.Polled{}, err
		}
		req.Header = headers
	}
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", "jobonce-poll")
	}
	trip := a.public
	if h.AllowPrivate {
		trip = a.private
	}
	resp, err := trip.RoundTrip(req) // which follows no redirect
	if err != nil {
		return client.Polled{}, fmt.Errorf("%s: %w", h.Name, problem(err))
	}
	defer resp.Body.Close()
	after := retryAfter(resp.Header.Get("Retry-After"), a.now())
	if resp.StatusCode == http.StatusTooManyRequests { // which is said of all that we ask
		h.leaveAlone(a.now().Add(min(after, maxQuiet)))
	}
	switch {
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return client.Polled{After: after}, fmt.Errorf("%s answers with a redirect (%d), which is not followed", h.Name, resp.StatusCode)
	case resp.StatusCode < 200 || resp.StatusCode >= 300:
		return client.Polled{After: after}, fmt.Errorf("%s answers with %d", h.Name, resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return client.Polled{After: after}, fmt.Errorf("the answer of %s broke off", h.Name)
	}
	if len(body) > maxAnswer {
		return client.Polled{After: after}, fmt.Errorf("the answer of %s is over %d bytes", h.Name, maxAnswer)
	}
	delivery, err := h.read(ctx, resp, body)
	return client.Polled{Delivery: delivery, After: after}, err
}

// read evaluates the expressions of the host over an answer: nil when the job is not over.
func (h *host) read(ctx context.Context, resp *http.Response, body []byte) (*joboncev1.RecordDeliveryRequest, error) {
	vars := expr.Variables(func(name string) (any, error) {
		switch name {
		case "body":
			return webhook.DecodeJSON(body)
		case "text":
			return string(body), nil
		case "code":
			return int64(resp.StatusCode), nil
		}
		header := make(map[string]string, len(resp.Header))
		for k := range resp.Header {
			header[strings.ToLower(k)] = resp.Header.Get(k)
		}
		return header, nil
	})
	over, err := h.over.Truth(ctx, vars)
	if err != nil {
		return nil, fmt.Errorf("over of %s: %w", h.Name, err)
	}
	if !over {
		return nil, nil
	}
	// The body's own fields are the provider's, and may mean something else.
	d := &joboncev1.RecordDeliveryRequest{Source: "poll", OpaquePayload: true, WorkMode: joboncev1.WorkMode_WORK_MODE_QUEUED,
		ContentType: contentType(resp.Header.Get("Content-Type"))}
	for _, p := range []struct {
		key     string
		program *expr.Program
		into    *string
	}{{"event", h.event, &d.Event}, {"status", h.status, &d.Status}} {
		if p.program == nil {
			continue
		}
		if *p.into, err = p.program.Text(ctx, vars); err != nil {
			return nil, fmt.Errorf("%s of %s: %w", p.key, h.Name, err)
		}
	}
	if utf8.Valid(body) {
		d.Body = &joboncev1.RecordDeliveryRequest_Payload{Payload: string(body)}
	} else {
		d.Body = &joboncev1.RecordDeliveryRequest_PayloadBytes{PayloadBytes: body}
	}
	return d, nil
}

// contentType is the media type of an answer as far as the service takes it: another one must not keep a job from being recorded.
func contentType(s string) string {
	if len(s) > 128 || !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
		return ""
	}
	return s
}

// problem is what went wrong with a request, without the URL, and without anything that the provider has sent.
func problem(err error) error {
	var timeout net.Error
	switch {
	case errors.Is(err, errInner): // within what net says of the address
		return errInner
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.Canceled):
		return errors.New("there was no answer in time")
	}
	for _, known := range []any{new(*net.DNSError), new(*net.OpError), new(*tls.CertificateVerificationError)} {
		if errors.As(err, known) {
			return err
		}
	}
	return errors.New("the connection ended without an answer in HTTP")
}

// retryAfter is what a header Retry-After asks for: seconds, or a date (RFC 9110, section 10.2.3). 0 when it asks for nothing.
func retryAfter(value string, now time.Time) time.Duration {
	if n, err := strconv.ParseUint(value, 10, 32); err == nil || errors.Is(err, strconv.ErrRange) { // then n is the largest
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(value); err == nil && t.After(now) {
		return t.Sub(now)
	}
	return 0
}

// The outcomes of a poll, why one is not made, and the host of those that are refused.
const (
	outcomeOver    = "over"
	outcomeNotOver = "not_over"
	outcomeFailed  = "failed"
	unsentPutOff   = "put_off"
	unsentRefused  = "refused"
	otherHosts     = "other"
)

// Metrics are those of one poller; docs/metrics.md says what each means. They are safe for concurrent use.
type Metrics struct{ polls, unsent, recovers *prometheus.CounterVec }

// NewMetrics returns metrics that count from zero, in the registry.
func NewMetrics(registry *prometheus.Registry) *Metrics {
	m := &Metrics{
		polls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "jobonce_poll_requests_total", Help: "Polls of jobs that are overdue, by host and by what became of them.",
		}, []string{"host", "outcome"}),
		unsent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "jobonce_poll_unsent_requests_total", Help: "Polls that were due and not made, by host and reason.",
		}, []string{"host", "reason"}),
		recovers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "jobonce_poll_recovered_jobs_total", Help: "Jobs that were recorded by polling: each is a webhook that did not come.",
		}, []string{"host"}),
	}
	registry.MustRegister(m.polls, m.unsent, m.recovers)
	m.unsent.WithLabelValues(otherHosts, unsentRefused)
	return m
}

// host has every series of a host from the start.
func (m *Metrics) host(name string) {
	m.recovers.WithLabelValues(name)
	m.unsent.WithLabelValues(name, unsentPutOff)
	for _, outcome := range []string{outcomeOver, outcomeNotOver, outcomeFailed} {
		m.polls.WithLabelValues(name, outcome)
	}
}

func (m *Metrics) asked(host, outcome string) { m.polls.WithLabelValues(host, outcome).Inc() }

func (m *Metrics) notAsked(host, reason string) { m.unsent.WithLabelValues(host, reason).Inc() }

// Recorded counts a job that was recorded by polling, if no webhook came before.
func (m *Metrics) Recorded(e *joboncev1.Expectation, resp *joboncev1.RecordDeliveryResponse) {
	if u, err := url.Parse(e.GetStatusUrl()); err == nil && resp.GetFirstDelivery() {
		m.recovers.WithLabelValues(nameOf(u)).Inc()
	}
}
