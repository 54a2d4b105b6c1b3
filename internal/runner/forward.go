package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/jobonce/jobonce/client"
)

const (
	// dialTimeout is how long the receiver may take to accept a connection.
	dialTimeout = 10 * time.Second
	// maxSaidBytes is how much of a refusal's body is stored as the error.
	maxSaidBytes = 1 << 10
)

// ForwardConfig says how jobs are sent to a receiver.
type ForwardConfig struct {
	// URL is where they are posted to: http or https, without user and password.
	URL string
	// Secrets sign what is sent, as Standard Webhooks has it: base64 of 24 to 64 bytes, after "whsec_" or not. With several
	// the receiver may know any of them. None: nothing is signed.
	Secrets []string
	// Timeout is how long the receiver may take, from the dial to the end of its answer.
	Timeout time.Duration
	// ResultBody stores the body of the answer as the job's result.
	ResultBody bool
	// DeadOn are the statuses that say that the job will never be done.
	DeadOn []int
	// Idle is how many connections are kept open between jobs.
	Idle int
	// UserAgent names the program.
	UserAgent string
}

// forward sends jobs to a receiver.
type forward struct {
	ForwardConfig
	signers []*standardwebhooks.Webhook
	http    *http.Client
}

// NewForward makes the function that posts each job to a receiver: an answer of 2xx completes it. docs/worker.md says what is sent,
// and what each answer does. An error names the field of the configuration, and holds no secret.
func NewForward(cfg ForwardConfig) (client.WorkFunc, error) {
	u, err := url.Parse(cfg.URL)
	switch {
	case err != nil:
		return nil, errors.New("URL is malformed") // The cause would repeat it, with what may be secret in it.
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, errors.New("URL must begin with http:// or https:// and name a host")
	case u.User != nil:
		return nil, errors.New("URL must not hold a user or a password: everybody on this machine could read it. The signature proves who sends")
	case u.Fragment != "":
		return nil, errors.New("URL must not have a fragment, which is never sent")
	}
	f := &forward{ForwardConfig: cfg}
	for i, secret := range cfg.Secrets {
		signer, err := newSigner(secret)
		if err != nil {
			return nil, fmt.Errorf("secrets[%d] %w", i, err)
		}
		f.signers = append(f.signers, signer)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = cfg.Idle, cfg.Idle
	transport.DisableCompression = true
	f.http = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return whole(f.work), nil
}

// newSigner checks what the library does not: an empty secret signs nothing.
func newSigner(secret string) (*standardwebhooks.Webhook, error) {
	signer, err := standardwebhooks.NewWebhook(secret)
	switch n := len(strings.TrimPrefix(secret, "whsec_")); {
	case err != nil:
		return nil, errors.New("must be base64, after whsec_ or without") // The cause may show a part of it.
	case n < 32 || n > 88: // of base64
		return nil, errors.New("must have 24 to 64 bytes: `openssl rand -base64 32` makes a good one")
	}
	return signer, nil
}

// work sends one job.
func (f *forward) work(ctx context.Context, w *client.Work) error {
	timed, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	var connected atomic.Bool
	traced := httptrace.WithClientTrace(timed, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	req, err := f.request(traced, w, time.Now())
	if err != nil {
		return err
	}
	resp, err := f.http.Do(req)
	if err != nil {
		return f.unanswered(ctx, timed, connected.Load(), err)
	}
	defer resp.Body.Close()
	limit := maxSaidBytes
	done := resp.StatusCode >= 200 && resp.StatusCode < 300
	if done {
		limit = maxResultBytes
	}
	// A body that is cut short is taken as far as it came: the status has decided.
	said, _ := io.ReadAll(io.LimitReader(resp.Body, int64(limit+moreBytes)))
	if done {
		if f.ResultBody {
			return w.SetResult(clean(said, maxResultBytes))
		}
		return nil
	}
	return f.refused(resp, said)
}

// request is the job as the receiver gets it.
func (f *forward) request(ctx context.Context, w *client.Work, now time.Time) (*http.Request, error) {
	content, contentType := body(w.Job)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.URL, bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	h, id := req.Header, messageID(w.Job)
	h.Set("User-Agent", f.UserAgent)
	if contentType != "" {
		h.Set("Content-Type", contentType)
	}
	// Not by its canonical name, by which net/http would send a request again by itself whose connection ended before the answer.
	h["idempotency-key"] = []string{id}
	h.Set(standardwebhooks.HeaderWebhookID, id)
	h.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	var signatures []string
	for _, s := range f.signers {
		signature, err := s.Sign(id, now, content)
		if err != nil {
			return nil, err
		}
		signatures = append(signatures, signature)
	}
	if len(signatures) > 0 {
		h.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	}
	if trace := traceparent(w.Job); trace != "" {
		h.Set("Traceparent", trace)
	}
	for _, v := range about(w) {
		if v.value != "" {
			h.Set("JobOnce-"+v.header, url.PathEscape(v.value))
		}
	}
	return req, nil
}

// fact is what a program is told about a job beside its body.
type fact struct{ header, variable, value string }

func about(w *client.Work) []fact {
	job := w.Job
	return []fact{
		{"Job-Id", "JOB_ID", job.GetJobId()},
		{"Event", "JOB_EVENT", job.GetEvent()},
		{"Status", "JOB_STATUS", job.GetStatus()},
		{"Source", "JOB_SOURCE", job.GetSource()},
		{"Attempt", "JOB_ATTEMPT", strconv.Itoa(int(job.GetWork().GetAttempts()))},
		{"Generation", "JOB_GENERATION", strconv.FormatInt(w.Lease.GetGeneration(), 10)},
	}
}

// unanswered is the error of a job that got no answer. That there is no connection, or that its TLS certificate is not the
// receiver's, says nothing about the job.
func (f *forward) unanswered(ctx, timed context.Context, connected bool, err error) error {
	var inner *url.Error
	if errors.As(err, &inner) { // It repeats the URL.
		err = inner.Err
	}
	var dial *net.OpError
	dials := errors.As(err, &dial) && dial.Op == "dial" // maybe anew, after a connection that was kept
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case timed.Err() != nil && connected:
		return &failure{happened: fmt.Sprintf("the receiver did not answer within %v", f.Timeout)}
	case timed.Err() != nil:
		return client.Unavailable(&failure{happened: fmt.Sprintf("the receiver cannot be reached within %v", f.Timeout)})
	case dials:
		return client.Unavailable(&failure{happened: "the receiver cannot be reached: " + dial.Err.Error()})
	case !connected:
		return client.Unavailable(&failure{happened: "the receiver cannot be reached: " + err.Error()})
	}
	return &failure{happened: "the receiver did not answer: " + err.Error()}
}

// refused is the error of a job that got another answer than 2xx.
func (f *forward) refused(resp *http.Response, said []byte) error {
	code := resp.StatusCode
	happened := strings.TrimSpace(fmt.Sprintf("the receiver answered %d %s", code, http.StatusText(code)))
	if code >= 300 && code < 400 {
		happened += ", and redirects are not followed"
	}
	err := error(&failure{happened, clean(said, maxSaidBytes)})
	if slices.Contains(f.DeadOn, code) {
		return client.Permanent(err)
	}
	if delay := retryAfter(resp, time.Now()); delay > 0 {
		err = client.RetryIn(err, delay)
	}
	switch code {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return client.Unavailable(err)
	}
	return err
}

// retryAfter is what the receiver says about when to come again, as RFC 9110 has it in section 10.2.3: seconds, or a date.
func retryAfter(resp *http.Response, now time.Time) time.Duration {
	value := strings.TrimSpace(resp.Header.Get("Retry-After"))
	if seconds, err := strconv.ParseInt(value, 10, 32); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return at.Sub(now)
	}
	return 0
}
