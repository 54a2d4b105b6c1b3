package client_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestRequeueJobsLostAnswer: a call whose answer is lost is not repeated, since it would requeue more than was asked for; one that
// was certainly refused is.
func TestRequeueJobsLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startService(t)
		c := s.client(t)
		for _, id := range []string{"a", "b", "c"} {
			queue(t, c, id)
			claimed := claimOne(t, c)
			testenv.Must(t, c.ReleaseWork(t.Context(), &joboncev1.ReleaseWorkRequest{JobId: id, LeaseToken: claimed.GetLease().GetToken(), Dead: true}))
		}
		requeued := func() (n int32) {
			for _, id := range []string{"a", "b", "c"} {
				n += int32(s.work(t, id).Requeues)
			}
			return n
		}
		req := &joboncev1.RequeueJobsRequest{Filter: &joboncev1.JobFilter{State: joboncev1.WorkState_WORK_STATE_DEAD}, MaxJobs: 1}
		s.through(answerLost("RequeueJobs", 1))
		if _, err := c.RequeueJobs(t.Context(), req); !errors.Is(err, client.ErrOutcomeUnknown) || requeued() != 1 {
			t.Errorf("answer lost: %v, and %d are requeued", err, requeued())
		}
		n := 1
		s.through(func(ctx context.Context, m string, req any, handler grpc.UnaryHandler) (any, error) {
			if n--; n == 0 {
				return nil, unavailable
			}
			return handler(ctx, req)
		})
		if resp, err := c.RequeueJobs(t.Context(), req); err != nil || len(resp.GetResults()) != 1 || requeued() != 2 {
			t.Errorf("refused before: %v, %v, and %d are requeued", resp, err, requeued())
		}
	})
}

// TestAdminLostAnswers: what an operator asks for is done once, also when the answer is lost, and when the call was refused
// before it did anything.
func TestAdminLostAnswers(t *testing.T) {
	// refusedTwice makes calls fail before they do anything.
	refusedTwice := func(method string, n int) hook {
		return func(ctx context.Context, m string, req any, handler grpc.UnaryHandler) (any, error) {
			if m == method && n > 0 {
				n--
				return nil, unknown
			}
			return handler(ctx, req)
		}
	}
	for name, fault := range map[string]func(string, int) hook{"answer lost": answerLost, "refused before": refusedTwice} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startService(t)
				c := s.client(t)
				queue(t, c, "j")
				claimed := claimOne(t, c)
				testenv.Must(t, c.ReleaseWork(t.Context(), &joboncev1.ReleaseWorkRequest{JobId: "j", LeaseToken: claimed.GetLease().GetToken(), Dead: true}))
				time.Sleep(time.Second)
				list, err := c.ListJobs(t.Context(), &joboncev1.ListJobsRequest{})
				testenv.Must(t, err)
				j := list.GetJobs()[0]

				s.through(fault("RequeueWork", 2))
				r, err := c.RequeueWork(t.Context(), &joboncev1.RequeueWorkRequest{JobId: "j", ExpectedGeneration: j.GetWork().GetGeneration(),
					ExpectedFirstSeenTime: j.GetFirstSeenTime()})
				if w := s.work(t, "j"); err != nil || w.Requeues != 1 || r.GetJob().GetWork().GetRequeues() != 1 {
					t.Errorf("requeued: %v, %v; %+v", r, err, w)
				}
				s.through(fault("PauseClaims", 1))
				_, err = c.PauseClaims(t.Context(), &joboncev1.PauseClaimsRequest{Reason: "r"})
				testenv.Must(t, err)
				s.through(fault("ResumeClaims", 1))
				_, err = c.ResumeClaims(t.Context(), &joboncev1.ResumeClaimsRequest{})
				testenv.Must(t, err)
				if p, err := c.ListClaimPauses(t.Context()); err != nil || len(p.GetPauses()) > 0 {
					t.Errorf("pauses %v, %v", p, err)
				}
				s.through(fault("DeleteJob", 2))
				_, err = c.DeleteJob(t.Context(), &joboncev1.DeleteJobRequest{JobId: "j", ExpectedGeneration: j.GetWork().GetGeneration(),
					ExpectedFirstSeenTime: j.GetFirstSeenTime()})
				testenv.Must(t, err)
				if _, err := c.GetJob(t.Context(), "j", joboncev1.JobView_JOB_VIEW_BASIC); !errors.Is(err, client.ErrJobNotFound) {
					t.Errorf("deleted: %v", err)
				}

				s.through(fault("ExpectJob", 2))
				e, err := c.ExpectJob(t.Context(), &joboncev1.ExpectJobRequest{JobId: "x", StatusUrl: "https://p.example/x", OverdueAfter: durationpb.New(0)})
				if err != nil || e.GetExpectation().GetJobId() != "x" {
					t.Errorf("expected: %v, %v", e, err)
				}
				s.through(nil)
				o, err := c.ClaimOverdueJobs(t.Context(), &joboncev1.ClaimOverdueJobsRequest{LeaseDuration: durationpb.New(time.Minute)})
				if err != nil || len(o.GetJobs()) != 1 {
					t.Fatalf("overdue: %v, %v", o, err)
				}
				s.through(fault("ReportPoll", 2))
				p, err := c.ReportPoll(t.Context(), &joboncev1.ReportPollRequest{JobId: "x", LeaseToken: o.GetJobs()[0].GetLeaseToken()})
				if err != nil || p.GetExpectation().GetPolls() != 1 {
					t.Errorf("reported: %v, %v", p, err)
				}
				s.through(nil)
				testenv.Must(t, c.CancelExpectation(t.Context(), "x"))
				if err := c.CancelExpectation(t.Context(), "x"); !errors.Is(err, client.ErrExpectationNotFound) {
					t.Errorf("cancelled again: %v", err)
				}
			})
		})
	}
}
