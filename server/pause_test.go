package server

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

func TestPauseClaims(t *testing.T) {
	jobs, _ := embedded(t)
	s := start(t, Config{}, jobs)
	must[*joboncev1.RecordDeliveryResponse](t)(s.RecordDelivery(t.Context(), queued("shop:1")))
	p := must[*joboncev1.PauseClaimsResponse](t)(s.admin().PauseClaims(t.Context(), &joboncev1.PauseClaimsRequest{JobIdPrefix: "shop:", Reason: "closed"})).GetPause()
	if p.GetJobIdPrefix() != "shop:" || p.GetReason() != "closed" || p.GetPauseTime() == nil {
		t.Errorf("got %v", p)
	}
	claim := func() int {
		return len(must[*joboncev1.ClaimWorkResponse](t)(s.work().ClaimWork(t.Context(), &joboncev1.ClaimWorkRequest{LeaseDuration: minute()})).GetJobs())
	}
	if n := claim(); n != 0 {
		t.Errorf("claimed %d", n)
	}
	if list := must[*joboncev1.ListClaimPausesResponse](t)(s.admin().ListClaimPauses(t.Context(), &joboncev1.ListClaimPausesRequest{})).GetPauses(); len(list) != 1 {
		t.Errorf("pauses %v", list)
	}
	for _, want := range []bool{true, false} {
		if resp := must[*joboncev1.ResumeClaimsResponse](t)(s.admin().ResumeClaims(t.Context(), &joboncev1.ResumeClaimsRequest{JobIdPrefix: "shop:"})); resp.GetResumed() != want {
			t.Errorf("resumed %v", resp)
		}
	}
	if n := claim(); n != 1 {
		t.Errorf("claimed %d after it was resumed", n)
	}
	_, err := s.admin().PauseClaims(t.Context(), &joboncev1.PauseClaimsRequest{Reason: strings.Repeat("x", 257)})
	wantError(t, err, codes.InvalidArgument, told{reason: "INVALID_FIELD", field: "reason"})
}

// looked counts the looks at a store on behalf of calls that wait.
type looked struct {
	Jobs
	looks atomic.Int64
}

func (l *looked) Claim(ctx context.Context, r job.ClaimRequest) ([]job.Claimed, error) {
	l.looks.Add(1)
	return l.Jobs.Claim(ctx, r)
}

func (l *looked) Standings(ctx context.Context, ids []string) (map[string]job.Standing, error) {
	l.looks.Add(1)
	return l.Jobs.Standings(ctx, ids)
}

// TestResumedWhileWaiting: calls that wait under a pause hear within two seconds that it was ended, by whichever instance.
func TestResumedWhileWaiting(t *testing.T) {
	for name, wait := range map[string]func(ctx context.Context, s *running) (bool, error){
		"ClaimWork": func(ctx context.Context, s *running) (bool, error) {
			resp, err := s.work().ClaimWork(ctx, &joboncev1.ClaimWorkRequest{LeaseDuration: minute(), Wait: durationpb.New(30 * time.Second)})
			return len(resp.GetJobs()) == 1, err
		},
		"RecordDelivery": func(ctx context.Context, s *running) (bool, error) {
			req := leased("shop:1", "late")
			req.Wait = durationpb.New(30 * time.Second)
			resp, err := s.RecordDelivery(ctx, req)
			return resp.GetStartWork(), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			jobs, clock := embedded(t)
			store := &looked{Jobs: jobs}
			s := start(t, Config{}, store)
			must[*joboncev1.RecordDeliveryResponse](t)(s.RecordDelivery(t.Context(), leased("shop:1", "first")))
			clock.Advance(24 * time.Hour)
			_, err := jobs.Pause(t.Context(), "shop:", "")
			testenv.Must(t, err)
			done := make(chan error, 1)
			go func() {
				got, err := wait(t.Context(), s)
				if err == nil && !got {
					err = errors.New("it got no work")
				}
				done <- err
			}()
			// It has found the work paused, more than once.
			for range 3 {
				looks := store.looks.Load()
				eventually(t, "nobody waits", func() bool { return store.looks.Load() > looks })
			}
			resumed := time.Now()
			_, err = jobs.Unpause(t.Context(), "shop:") // as another instance does
			testenv.Must(t, err)
			testenv.Must(t, <-done)
			if took := time.Since(resumed); took > 2*time.Second {
				t.Errorf("it heard of it after %v", took)
			}
		})
	}
}
