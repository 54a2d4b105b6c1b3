package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/job"
)

func (r *running) expectations() joboncev1.ExpectationServiceClient {
	return joboncev1.NewExpectationServiceClient(r.conn)
}

// TestExpectedAndPolled: a webhook does not come, the job is polled until the provider says that it is over, and is recorded.
func TestExpectedAndPolled(t *testing.T) {
	jobs, clock := embedded(t)
	var n notes
	s := start(t, Config{Observer: &n}, jobs)
	x := s.expectations()
	const url = "https://provider.example/jobs/1?key=secret"
	ask := &joboncev1.ExpectJobRequest{JobId: "j", StatusUrl: url, OverdueAfter: minute()}
	e := must[*joboncev1.ExpectJobResponse](t)(x.ExpectJob(t.Context(), ask)).GetExpectation()
	if got := e.GetGiveUpTime().AsTime().Sub(e.GetCreateTime().AsTime()); got != 72*time.Hour {
		t.Errorf("given up after %v", got)
	}
	claim := func() []*joboncev1.OverdueJob {
		return must[*joboncev1.ClaimOverdueJobsResponse](t)(x.ClaimOverdueJobs(t.Context(), &joboncev1.ClaimOverdueJobsRequest{MaxJobs: 10, LeaseDuration: minute()})).GetJobs()
	}
	if got := claim(); len(got) > 0 {
		t.Errorf("overdue at once: %v", got)
	}
	clock.Advance(time.Minute)
	got := claim()
	if len(got) != 1 || got[0].GetExpectation().GetStatusUrl() != url || got[0].GetLeaseToken() == "" {
		t.Fatalf("overdue: %v", got)
	}
	report := &joboncev1.ReportPollRequest{JobId: "j", LeaseToken: got[0].GetLeaseToken(), NextAfter: durationpb.New(7 * time.Second)}
	if r := must[*joboncev1.ReportPollResponse](t)(x.ReportPoll(t.Context(), report)); r.GetExpectation().GetPolls() != 1 || r.GetExpectation().GetDueTime().AsTime() != job.Millis(clock.Now().Add(7*time.Second)) {
		t.Errorf("reported: %v", r)
	}
	listed := must[*joboncev1.ListExpectationsResponse](t)(s.admin().ListExpectations(t.Context(), &joboncev1.ListExpectationsRequest{Filter: joboncev1.ExpectationFilter_EXPECTATION_FILTER_OVERDUE}))
	if len(listed.GetExpectations()) != 1 {
		t.Errorf("listed %v", listed)
	}
	clock.Advance(7 * time.Second)
	report.LeaseToken = claim()[0].GetLeaseToken()
	poll := text("j", `{"event":"job.completed"}`)
	poll.Source = "poll"
	if r := must[*joboncev1.RecordDeliveryResponse](t)(s.RecordDelivery(t.Context(), poll)); !r.GetStartWork() {
		t.Errorf("recorded by poll: %v", r)
	}
	if r := must[*joboncev1.ReportPollResponse](t)(x.ReportPoll(t.Context(), report)); !r.GetRecorded() {
		t.Errorf("reported: %v", r)
	}
	_, err := x.ReportPoll(t.Context(), report)
	wantError(t, err, codes.NotFound, told{reason: "EXPECTATION_NOT_FOUND"})
	if r := must[*joboncev1.ExpectJobResponse](t)(x.ExpectJob(t.Context(), ask)); !r.GetRecorded() {
		t.Errorf("expected once more: %v", r)
	}

	ask.JobId = "never"
	must[*joboncev1.ExpectJobResponse](t)(x.ExpectJob(t.Context(), ask))
	clock.Advance(73 * time.Hour)
	if got := claim(); len(got) > 0 || !slices.Contains(n.take(), "given up") {
		t.Errorf("claimed %v, and told otherwise", got)
	}
	lines := 0
	for line := range strings.Lines(s.log.String()) {
		if strings.Contains(line, "given up") {
			lines++
			if !strings.Contains(line, `"level":"ERROR"`) || strings.Contains(line, "secret") || !strings.Contains(line, "provider.example/jobs/1") {
				t.Errorf("logged %s", line)
			}
		}
	}
	if lines != 1 {
		t.Errorf("%d lines", lines)
	}
	must[*joboncev1.CancelExpectationResponse](t)(x.CancelExpectation(t.Context(), &joboncev1.CancelExpectationRequest{JobId: "never"}))
	_, err = x.CancelExpectation(t.Context(), &joboncev1.CancelExpectationRequest{JobId: "never"})
	wantError(t, err, codes.NotFound, told{reason: "EXPECTATION_NOT_FOUND"})
}

func TestExpectationRequests(t *testing.T) {
	jobs, _ := embedded(t)
	x := start(t, Config{}, jobs).expectations()
	const url = "https://provider.example/1"
	days := func(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * 24 * time.Hour) }
	for name, c := range map[string]struct {
		req   *joboncev1.ExpectJobRequest
		field string
	}{
		"no id":             {&joboncev1.ExpectJobRequest{StatusUrl: url, OverdueAfter: minute()}, "job_id"},
		"no URL":            {&joboncev1.ExpectJobRequest{JobId: "j", OverdueAfter: minute()}, "status_url"},
		"relative":          {&joboncev1.ExpectJobRequest{JobId: "j", OverdueAfter: minute(), StatusUrl: "/jobs/1"}, "status_url"},
		"file":              {&joboncev1.ExpectJobRequest{JobId: "j", OverdueAfter: minute(), StatusUrl: "file:///etc/passwd"}, "status_url"},
		"user":              {&joboncev1.ExpectJobRequest{JobId: "j", OverdueAfter: minute(), StatusUrl: "https://user:secret@provider.example/"}, "status_url"},
		"control":           {&joboncev1.ExpectJobRequest{JobId: "j", OverdueAfter: minute(), StatusUrl: url + "\r\nX: y"}, "status_url"},
		"empty port":        {&joboncev1.ExpectJobRequest{JobId: "j", OverdueAfter: minute(), StatusUrl: "https://provider.example:/1?key=secret"}, "status_url"},
		"empty, IPv6":       {&joboncev1.ExpectJobRequest{JobId: "j", OverdueAfter: minute(), StatusUrl: "https://[2001:db8::1]:"}, "status_url"},
		"port 0":            {&joboncev1.ExpectJobRequest{JobId: "j", OverdueAfter: minute(), StatusUrl: "https://provider.example:0/1"}, "status_url"},
		"port 65536":        {&joboncev1.ExpectJobRequest{JobId: "j", OverdueAfter: minute(), StatusUrl: "https://provider.example:65536/1"}, "status_url"},
		"long":              {&joboncev1.ExpectJobRequest{JobId: "j", OverdueAfter: minute(), StatusUrl: url + strings.Repeat("x", 2048)}, "status_url"},
		"no time":           {&joboncev1.ExpectJobRequest{JobId: "j", StatusUrl: url}, "overdue_after"},
		"long time":         {&joboncev1.ExpectJobRequest{JobId: "j", StatusUrl: url, OverdueAfter: days(31)}, "overdue_after"},
		"before":            {&joboncev1.ExpectJobRequest{JobId: "j", StatusUrl: url, OverdueAfter: minute(), GiveUpAfter: minute()}, "give_up_after"},
		"given up too late": {&joboncev1.ExpectJobRequest{JobId: "j", StatusUrl: url, OverdueAfter: minute(), GiveUpAfter: days(91)}, "give_up_after"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := x.ExpectJob(t.Context(), c.req)
			wantError(t, err, codes.InvalidArgument, told{reason: "INVALID_FIELD", field: c.field})
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("it repeats a secret: %v", err)
			}
		})
	}
	for i, good := range []string{"https://provider.example:1", "http://[2001:db8::1]/", "https://[2001:db8::1]:65535/1", "HTTPS://provider.example/a:/?b=:"} {
		must[*joboncev1.ExpectJobResponse](t)(x.ExpectJob(t.Context(), &joboncev1.ExpectJobRequest{JobId: fmt.Sprint("good ", i), StatusUrl: good, OverdueAfter: minute()}))
	}
	_, err := x.ClaimOverdueJobs(t.Context(), &joboncev1.ClaimOverdueJobsRequest{MaxJobs: 101, LeaseDuration: minute()})
	wantError(t, err, codes.InvalidArgument, told{reason: "INVALID_FIELD", field: "max_jobs"})
	_, err = x.ClaimOverdueJobs(t.Context(), &joboncev1.ClaimOverdueJobsRequest{LeaseDuration: days(1)})
	wantError(t, err, codes.InvalidArgument, told{reason: "INVALID_FIELD", field: "lease_duration"})
	_, err = x.ReportPoll(t.Context(), &joboncev1.ReportPollRequest{JobId: "j", LeaseToken: "t", NextAfter: days(2)})
	wantError(t, err, codes.InvalidArgument, told{reason: "INVALID_FIELD", field: "next_after"})
}

// TestStatusURLQuery: the query of a status URL, which may be a secret, is for those who may poll or administer.
func TestStatusURLQuery(t *testing.T) {
	jobs, _ := embedded(t)
	const plain = "https://provider.example/jobs/1"
	contexts := map[string]context.Context{}
	file := ""
	for name, allow := range map[string]string{"reader": "read", "everything else": "read_bodies, read, record, work, metrics", "poller": "expect, read", "administrator": "admin"} {
		token, sum := auth.NewToken()
		contexts[name] = as(t.Context(), token)
		file += fmt.Sprintf("- {name: %s, token_sha256: %s, allow: [%s]}\n", strings.ReplaceAll(name, " ", "-"), sum, allow)
	}
	s := start(t, Config{Callers: authority(t, auth.Config{}, file)}, jobs)
	must[*joboncev1.ExpectJobResponse](t)(s.expectations().ExpectJob(contexts["poller"], &joboncev1.ExpectJobRequest{JobId: "j",
		StatusUrl: plain + "?key=swordfish#swordfish", OverdueAfter: minute()}))
	for name, ctx := range contexts {
		listed := must[*joboncev1.ListExpectationsResponse](t)(s.admin().ListExpectations(ctx, &joboncev1.ListExpectationsRequest{})).GetExpectations()
		want := plain
		if name == "poller" || name == "administrator" {
			want += "?key=swordfish#swordfish"
		}
		if len(listed) != 1 || listed[0].GetStatusUrl() != want {
			t.Errorf("%s gets %v, want %s", name, listed, want)
		}
	}
}
