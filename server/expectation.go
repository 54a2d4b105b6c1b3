package server

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
)

// expectationService implements ExpectationService.
type expectationService struct {
	joboncev1.UnimplementedExpectationServiceServer
	jobs     job.Expectations
	log      *slog.Logger
	observer Observer
}

// ExpectJob keeps an expectation.
func (s *expectationService) ExpectJob(ctx context.Context, req *joboncev1.ExpectJobRequest) (*joboncev1.ExpectJobResponse, error) {
	overdue, err := toDuration("overdue_after", req.GetOverdueAfter())
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	giveUp, err := toDuration("give_up_after", req.GetGiveUpAfter())
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	r, err := job.NewExpectRequest(req.GetJobId(), req.GetStatusUrl(), overdue, giveUp)
	if err == nil {
		err = mayTouch(ctx, r.JobID)
	}
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	kept, recorded, err := s.jobs.Expect(ctx, r)
	switch {
	case err != nil:
		return nil, fail(ctx, err, "")
	case recorded:
		return &joboncev1.ExpectJobResponse{Recorded: true}, nil
	}
	return &joboncev1.ExpectJobResponse{Expectation: toExpectation(&kept)}, nil
}

// ClaimOverdueJobs hands out jobs to poll.
func (s *expectationService) ClaimOverdueJobs(ctx context.Context, req *joboncev1.ClaimOverdueJobsRequest) (*joboncev1.ClaimOverdueJobsResponse, error) {
	r := job.OverdueRequest{Max: max(1, int(req.GetMaxJobs())), Prefix: ownPrefix(ctx)}
	lease, err := toDuration("lease_duration", req.GetLeaseDuration())
	switch {
	case err != nil:
	case req.GetMaxJobs() < 0 || r.Max > job.MaxOverdueJobs:
		err = &job.InvalidError{Field: "max_jobs", Problem: fmt.Sprintf("must be 1 to %d", job.MaxOverdueJobs)}
	case lease == nil || *lease < job.MinLease || *lease > job.MaxPollLease:
		err = &job.InvalidError{Field: "lease_duration", Problem: fmt.Sprintf("is required, and must be %v to %v", job.MinLease, job.MaxPollLease)}
	default:
		r.Lease = *lease
	}
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	o, err := s.jobs.ClaimOverdue(ctx, r)
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	for i := range o.GivenUp {
		e := &o.GivenUp[i]
		s.log.LogAttrs(ctx, slog.LevelError, "a webhook never came, and the provider never said that the job is over: it is given up",
			slog.String("job_id", e.JobID), slog.String("status_url", withoutQuery(e.StatusURL)), slog.Time("expected_since", e.Created),
			slog.Int("polls", int(e.Polls)), slog.String("last_error", e.Error))
		s.observer.GivenUp()
	}
	resp := &joboncev1.ClaimOverdueJobsResponse{More: o.More}
	for i := range o.Jobs {
		resp.Jobs = append(resp.Jobs, &joboncev1.OverdueJob{Expectation: toExpectation(&o.Jobs[i]), LeaseToken: o.Jobs[i].Token})
	}
	return resp, nil
}

// withoutQuery is a URL without what may be a secret in it.
func withoutQuery(url string) string {
	url, _, _ = strings.Cut(url, "#")
	url, _, _ = strings.Cut(url, "?")
	return url
}

// ReportPoll gives a job back that was polled.
func (s *expectationService) ReportPoll(ctx context.Context, req *joboncev1.ReportPollRequest) (*joboncev1.ReportPollResponse, error) {
	p := job.PollReport{JobID: req.GetJobId(), Token: req.GetLeaseToken(), Error: req.GetError(), PutOff: req.GetPutOff(), Jitter: rand.Float64()}
	next, err := toDuration("next_after", req.GetNextAfter())
	for _, check := range []func() error{
		func() error { return err },
		func() error { return job.CheckJobID(p.JobID) },
		func() error { return job.CheckToken(p.Token) },
		func() error { return job.CheckText("error", p.Error, job.MaxPollErrorBytes) },
		func() error {
			if next != nil && (*next < 0 || *next > job.MaxNextAfter) {
				return &job.InvalidError{Field: "next_after", Problem: fmt.Sprintf("must be 0 to %v", job.MaxNextAfter)}
			}
			p.Next = next
			return nil
		},
		func() error { return mayTouch(ctx, p.JobID) },
	} {
		if err := check(); err != nil {
			return nil, fail(ctx, err, "")
		}
	}
	e, recorded, err := s.jobs.ReportPoll(ctx, p)
	switch {
	case err != nil:
		return nil, fail(ctx, err, "")
	case recorded:
		return &joboncev1.ReportPollResponse{Recorded: true}, nil
	}
	return &joboncev1.ReportPollResponse{Expectation: toExpectation(&e)}, nil
}

// CancelExpectation removes an expectation.
func (s *expectationService) CancelExpectation(ctx context.Context, req *joboncev1.CancelExpectationRequest) (*joboncev1.CancelExpectationResponse, error) {
	err := job.CheckJobID(req.GetJobId())
	if err == nil {
		err = mayTouch(ctx, req.GetJobId())
	}
	if err == nil {
		err = s.jobs.CancelExpectation(ctx, req.GetJobId())
	}
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	return &joboncev1.CancelExpectationResponse{}, nil
}

func toExpectation(e *job.Expectation) *joboncev1.Expectation {
	return &joboncev1.Expectation{
		JobId: e.JobID, StatusUrl: clip(e.StatusURL, job.MaxStatusURLBytes), CreateTime: toTime(e.Created), OverdueTime: toTime(e.Overdue),
		GiveUpTime: toTime(e.GiveUp), DueTime: toTime(e.Due), Leased: e.Leased, Polls: e.Polls, LastError: clip(e.Error, job.MaxPollErrorBytes),
		GivenUpTime: toTime(e.GivenUp),
	}
}
