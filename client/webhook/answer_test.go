package webhook_test

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/client/webhook"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// token is a source whose deliveries are easily signed.
func token() webhook.Source {
	return webhook.Source{
		Name: "shop", Secrets: webhook.Secrets("secret"), ID: webhook.Field("id"), Event: webhook.Field("type"),
		Signature: &webhook.Signature{Kind: webhook.Token, Header: "X-Token"},
	}
}

// deliver sends a body to a handler, and returns the answer and the report.
func deliver(t testing.TB, j webhook.Jobs, s webhook.Source, r *http.Request, opts ...webhook.Option) (*http.Response, webhook.Report) {
	t.Helper()
	var report webhook.Report
	reports := 0
	opts = append(opts, webhook.WithReport(func(_ context.Context, r webhook.Report) {
		report = r
		reports++
	}))
	w := httptest.NewRecorder()
	handler(t, j, s, opts...).ServeHTTP(w, r)
	resp := w.Result()
	if reports != 1 || report.Status != resp.StatusCode || report.Source != s.Name {
		t.Errorf("%d reports, the last of %d for %s; answered %d", reports, report.Status, report.Source, resp.StatusCode)
	}
	if !slices.Contains(webhook.Reasons(), report.Reason) {
		t.Errorf("the reason %q is not listed", report.Reason)
	}
	after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
	if (after > 0) != (resp.StatusCode == http.StatusServiceUnavailable) {
		t.Errorf("%d with Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
	}
	if resp.StatusCode == http.StatusConflict || resp.StatusCode == http.StatusGone {
		t.Errorf("answered %d, which makes senders stop", resp.StatusCode)
	}
	return resp, report
}

func post(body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/hook", strings.NewReader(body))
	r.Header.Set("X-Token", "secret")
	r.Header.Set("Content-Type", "application/json")
	return r
}

// TestEveryErrorIs503 goes through all that a call to the service can fail with.
func TestEveryErrorIs503(t *testing.T) {
	failures := map[string]error{
		"no error of ours": errors.New("broken"), "deadline": context.DeadlineExceeded, "closed": client.ErrClosed,
		"a code alone": &client.Error{Code: codes.Unknown},
	}
	for number, name := range joboncev1.ErrorReason_name {
		failures[name] = &client.Error{Code: codes.Unknown, Reason: joboncev1.ErrorReason(number)}
	}
	failures["a reason from the future"] = &client.Error{Code: codes.InvalidArgument, Reason: 9999}
	want := map[string]int{"ERROR_REASON_INVALID_FIELD": 400, "ERROR_REASON_PAYLOAD_TOO_LARGE": 413}
	for name, failure := range failures {
		for _, body := range []string{`{"id":"1"}`, `[{"id":"1"},{"id":"2"}]`} {
			t.Run(name, func(t *testing.T) {
				s := token()
				if body[0] == '[' {
					s.Items = webhook.Array("[]")
				}
				j := &jobs{answer: func(req *joboncev1.RecordDeliveryRequest) (*joboncev1.RecordDeliveryResponse, error) {
					if req.GetJobId() == "shop:1" {
						return nil, failure
					}
					return nil, nil
				}}
				status := 503
				if code, ok := want[name]; ok {
					status = code
				}
				resp, report := deliver(t, j, s, post(body))
				if resp.StatusCode != status || report.Err == nil {
					t.Errorf("answered %d, want %d; %v", resp.StatusCode, status, report.Err)
				}
				s.Provider, s.SignatureHeader, s.When, s.Signature = "assemblyai", "X-Token", nil, nil
				s.AllEvents = true
				if resp, _ := deliver(t, j, s, post(body)); resp.StatusCode != 503 {
					t.Errorf("AssemblyAI is answered %d, which ends the delivery", resp.StatusCode)
				}
			})
		}
	}
}

// TestEveryDispositionIsGood: what is durable is answered 200, whatever it turned out to be.
func TestEveryDispositionIsGood(t *testing.T) {
	dispositions := slices.Collect(maps.Keys(joboncev1.Disposition_name))
	for _, number := range append(dispositions, 9999) {
		j := &jobs{answer: func(*joboncev1.RecordDeliveryRequest) (*joboncev1.RecordDeliveryResponse, error) {
			return &joboncev1.RecordDeliveryResponse{Disposition: joboncev1.Disposition(number)}, nil
		}}
		resp, report := deliver(t, j, token(), post(`{"id":"1"}`))
		if resp.StatusCode != http.StatusOK || resp.ContentLength > 0 || report.Recorded != 1 {
			t.Errorf("disposition %d is answered %d", number, resp.StatusCode)
		}
		if req := j.all[0]; req.GetWorkMode() != joboncev1.WorkMode_WORK_MODE_QUEUED || req.GetRequestId() == "" || req.GetSource() != "shop" {
			t.Errorf("recorded as %v", req)
		}
	}
}

// TestRetryAfter is as long as the service asks for.
func TestRetryAfter(t *testing.T) {
	j := &jobs{answer: func(*joboncev1.RecordDeliveryRequest) (*joboncev1.RecordDeliveryResponse, error) {
		return nil, &client.Error{Reason: joboncev1.ErrorReason_ERROR_REASON_OVERLOADED, RetryDelay: 2100 * time.Millisecond}
	}}
	resp, _ := deliver(t, j, token(), post(`{"id":"1"}`))
	if got := resp.Header.Get("Retry-After"); got != "3" {
		t.Errorf("Retry-After %s", got)
	}
}

// TestFreshRequestIDs: two requests never share one, and events of one request share all but the number.
func TestFreshRequestIDs(t *testing.T) {
	j, s := &jobs{}, token()
	s.Items = webhook.Array("[]")
	deliver(t, j, s, post(`[{"id":"1"},{"id":"2"}]`))
	deliver(t, j, s, post(`[{"id":"1"},{"id":"2"}]`))
	var bases []string
	for i, req := range j.all {
		base, index, ok := strings.Cut(req.GetRequestId(), ".")
		if !ok || index != strconv.Itoa(i%2) {
			t.Errorf("request id %q for item %d", req.GetRequestId(), i%2)
		}
		bases = append(bases, base)
	}
	if len(bases) != 4 || bases[0] != bases[1] || bases[2] != bases[3] || bases[0] == bases[2] {
		t.Errorf("request ids begin with %q", bases)
	}
}
