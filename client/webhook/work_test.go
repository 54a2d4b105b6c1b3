package webhook_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/client/webhook"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// workers is a service in memory that also does work: do stands for [client.Client.Do].
type workers struct {
	jobs
	do func(context.Context, *joboncev1.RecordDeliveryRequest) (client.Result, error)
}

func (w *workers) Do(
	ctx context.Context, req *joboncev1.RecordDeliveryRequest, _ client.WorkFunc, _ ...client.DoOption,
) (client.Result, error) {
	return w.do(ctx, req)
}

func nothing(context.Context, *client.Work) error { return nil }

func TestInlineWork(t *testing.T) {
	recorded := &joboncev1.RecordDeliveryResponse{}
	for name, test := range map[string]struct {
		takes  time.Duration
		result client.Result
		err    error
		status int
		reason webhook.Reason
	}{
		"done":            {result: client.Result{Settled: true, Response: recorded}, status: 200, reason: webhook.Accepted},
		"not settled":     {result: client.Result{RetryAfter: time.Second, Response: recorded}, status: 503, reason: webhook.WorkPending},
		"work's own 400":  {result: client.Result{Response: recorded}, err: client.ErrInvalidField, status: 503, reason: webhook.WorkPending},
		"not recorded":    {err: client.ErrStoreUnavailable, status: 503, reason: webhook.NotRecorded},
		"invalid":         {err: client.ErrInvalidField, status: 400, reason: webhook.Invalid},
		"neither":         {status: 503, reason: webhook.NotRecorded},
		"longer than 4 s": {takes: time.Minute, result: client.Result{Settled: true, Response: recorded}, status: 503, reason: webhook.WorkPending},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				finished := false
				w := &workers{do: func(ctx context.Context, req *joboncev1.RecordDeliveryRequest) (client.Result, error) {
					if req.GetLeaseDuration().AsDuration() != time.Minute || req.GetWorkMode() != joboncev1.WorkMode_WORK_MODE_LEASED {
						t.Errorf("asks for %v", req)
					}
					time.Sleep(test.takes)
					finished = ctx.Err() == nil
					return test.result, test.err
				}}
				s := token()
				s.RetriedFor = time.Hour
				var report webhook.Report
				h := handler(t, w, s, webhook.WithWork(time.Minute, nothing),
					webhook.WithReport(func(_ context.Context, r webhook.Report) { report = r }))
				rec := recorder()
				h.ServeHTTP(rec, post(`{"id":"1"}`))
				if rec.Code != test.status || report.Reason != test.reason {
					t.Errorf("answered %d for %s: %v", rec.Code, report.Reason, report.Err)
				}
				if err := h.Shutdown(t.Context()); err != nil || !finished {
					t.Errorf("the work was finished: %t; %v", finished, err)
				}
			})
		})
	}
}

// TestShutdownGivesBack: work that does not end in time is cancelled.
func TestShutdownGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &workers{do: func(ctx context.Context, _ *joboncev1.RecordDeliveryRequest) (client.Result, error) {
			<-ctx.Done()
			return client.Result{}, ctx.Err()
		}}
		s := token()
		s.RetriedFor = time.Hour
		h := handler(t, w, s, webhook.WithWork(time.Minute, nothing))
		h.ServeHTTP(recorder(), post(`{"id":"1"}`))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := h.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// TestInlineWorkIsRefused where the sender's rules would lose it.
func TestInlineWorkIsRefused(t *testing.T) {
	for preset, want := range map[string]string{
		"stripe": "", "mux": "", "openai": "",
		"github": "delivers again for 0s", "replicate": "delivers again for 1m0s", "shopify": "remove", "svix": "disabled",
		"slack": "disabled", "sendgrid": "several events", "twilio": "delivers again for 0s", "elevenlabs": "disable",
	} {
		_, err := webhook.NewHandler(&workers{}, webhook.Source{Name: "test", Provider: preset, Secrets: webhook.Secrets(secretOf(t, preset))},
			webhook.WithWork(time.Minute, nothing))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", preset, err)
		}
	}
	s := token()
	s.RetriedFor = time.Hour
	if _, err := webhook.NewHandler(&jobs{}, s, webhook.WithWork(time.Minute, nothing)); err == nil {
		t.Error("jobs that cannot do work are taken")
	}
}

func secretOf(t *testing.T, preset string) string {
	for _, v := range vectors(t) {
		if v.Preset == preset {
			return v.Secret
		}
	}
	return "secret"
}
