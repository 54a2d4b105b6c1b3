package server

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/job"
)

// giveBackTimeout bounds giving back claims whose caller has left, or that no response can hold.
const giveBackTimeout = 5 * time.Second

// workService implements WorkService.
type workService struct {
	joboncev1.UnimplementedWorkServiceServer
	jobs job.Worker
	log  *slog.Logger
	bell *bell
	// waits has the deliveries that wait for what becomes of their job.
	waits *waits
	due   *dueWatch
	// stopping ends when the server is to stop: nobody is kept waiting then.
	stopping context.Context
}

// ClaimWork leases due jobs, and waits for some if there are none.
func (s *workService) ClaimWork(ctx context.Context, req *joboncev1.ClaimWorkRequest) (*joboncev1.ClaimWorkResponse, error) {
	r, err := claimRequest(ctx, req)
	if err == nil {
		r.Prefix, err = narrowed(ctx, r.Prefix)
	}
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	s.due.asked()
	claimed, err := s.claim(ctx, r, req.GetWait().AsDuration())
	if err == nil && ctx.Err() != nil {
		err = ctx.Err()
		s.giveBack(ctx, claimed)
	}
	if err != nil {
		return nil, fail(ctx, err, r.RequestID)
	}
	if n := len(claimed); n == r.Max || n > 0 && sizeOf(claimed) > r.MaxBytes/2 {
		s.bell.ringAny() // there may be more
	}
	if s.log.Enabled(ctx, slog.LevelDebug) && len(claimed) > 0 {
		s.log.LogAttrs(ctx, slog.LevelDebug, "work claimed", slog.String("worker_id", req.GetWorkerId()), slog.Int("jobs", len(claimed)))
	}
	resp := &joboncev1.ClaimWorkResponse{}
	for i := range claimed {
		if err := unfit(&claimed[i].Record); err != nil {
			s.refuse(ctx, &claimed[i], r.Lease, err)
			continue
		}
		resp.Jobs = append(resp.Jobs, &joboncev1.ClaimedJob{Job: toJob(&claimed[i].Record), Lease: toLease(&claimed[i].Lease)})
	}
	return resp, nil
}

// claim claims, and as long as nothing is due and the time allows waits and claims again: when work was made here, and
// now and then for work that other instances made or that became due. Nobody waits where there is no room.
func (s *workService) claim(ctx context.Context, r job.ClaimRequest, wait time.Duration) ([]job.Claimed, error) {
	switch {
	case wait == 0:
	case s.waits.admit(r.Caller):
		defer s.waits.dismiss(r.Caller)
	default:
		wait = 0
	}
	waiting, cancel := context.WithTimeout(ctx, waitWithin(ctx, wait))
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
	if caller := auth.CallerOf(ctx); caller != nil {
		bound, release := caller.Bound(waiting)
		defer release()
		waiting = bound
	}
	w := s.bell.enter(r.Events, r.Prefix)
	defer s.bell.leave(w)
	for {
		claimed, err := s.jobs.Claim(ctx, r)
		if err != nil || len(claimed) > 0 {
			return claimed, err
		}
		taken := false
		select {
		case <-w.rung:
			taken = true
		case <-w.look:
		case <-waiting.Done():
		}
		if waiting.Err() != nil {
			if taken {
				s.bell.ringAny() // for somebody who still waits
			}
			return nil, nil
		}
	}
}

// waitWithin is how long to wait: as asked, but so that an empty answer still arrives before the call's deadline.
func waitWithin(ctx context.Context, asked time.Duration) time.Duration {
	const margin = 100 * time.Millisecond
	if deadline, ok := ctx.Deadline(); ok {
		return min(asked, time.Until(deadline)-margin)
	}
	return asked
}

// giveBack returns claims that the caller will not hear of. Where that fails they lapse.
func (s *workService) giveBack(ctx context.Context, claimed []job.Claimed) {
	if len(claimed) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	if err := s.jobs.Unclaim(ctx, claimed); err != nil {
		s.log.LogAttrs(ctx, slog.LevelWarn, "claims could not be given back; their leases lapse", slog.Int("jobs", len(claimed)), slog.Any("cause", err))
		return
	}
	s.bell.ringAny()
}

// unfit tells why a claimed job cannot be handed out: none of the calls about a lease takes such an id, or no response can
// hold the body, and work must not start without it. Only somebody who wrote the record by hand makes it so.
func unfit(r *job.Record) error {
	if err := job.CheckJobID(r.JobID); err != nil {
		return err
	}
	return tooLong(r)
}

// refuse gives back a claim that cannot be handed out, to be due when its lease would have lapsed. The attempt counts, so
// that it ends.
func (s *workService) refuse(ctx context.Context, c *job.Claimed, pause time.Duration, why error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	release := job.Release{Delay: pause, Error: "cannot be handed out: " + why.Error()}
	id := slog.String("job_id", clip(c.Record.JobID, job.MaxJobIDBytes))
	s.log.LogAttrs(ctx, slog.LevelError, "work cannot be handed out", id, slog.String("reason", why.Error()))
	if err := job.GiveBack(ctx, s.jobs, c.Record.JobID, c.Lease.Token, release); err != nil {
		s.log.LogAttrs(ctx, slog.LevelWarn, "a claim could not be given back; its lease lapses", id, slog.Any("cause", err))
	}
}

func sizeOf(claimed []job.Claimed) (bytes int) {
	for i := range claimed {
		bytes += len(claimed[i].Record.Body.Data)
	}
	return bytes
}

// claimRequest checks a request for work.
func claimRequest(ctx context.Context, req *joboncev1.ClaimWorkRequest) (job.ClaimRequest, error) {
	r := job.ClaimRequest{RequestID: req.GetRequestId(), Max: int(req.GetMaxJobs()), Events: req.GetEvents(), Prefix: req.GetJobIdPrefix()}
	if caller := auth.CallerOf(ctx); caller != nil {
		r.Caller = caller.Name
	}
	if r.Max == 0 {
		r.Max = 1
	}
	if r.Max < 0 || r.Max > job.MaxClaimJobs {
		return r, &job.InvalidError{Field: "max_jobs", Problem: fmt.Sprintf("must be 1 to %d", job.MaxClaimJobs)}
	}
	r.MaxBytes = job.MaxBodyBytes - r.Max*jobOverhead
	lease, err := leaseDuration(req.GetLeaseDuration())
	if err != nil {
		return r, err
	}
	r.Lease = lease
	if err := listTooLong("events", len(r.Events), job.MaxClaimEvents); err != nil {
		return r, err
	}
	for i, event := range r.Events {
		field := fmt.Sprintf("events[%d]", i)
		if event == "" {
			return r, &job.InvalidError{Field: field, Problem: "is empty"}
		}
		if err := job.CheckText(field, event, job.MaxEventBytes); err != nil {
			return r, err
		}
	}
	if r.Prefix != "" {
		if err := job.CheckPrefix("job_id_prefix", r.Prefix); err != nil {
			return r, err
		}
	}
	if err := job.CheckText("worker_id", req.GetWorkerId(), job.MaxWorkerIDBytes); err != nil {
		return r, err
	}
	if _, err := waitAsked(req.GetWait()); err != nil {
		return r, err
	}
	if err := job.CheckText("request_id", r.RequestID, job.MaxRequestIDBytes); err != nil {
		return r, err
	}
	if r.RequestID == "" {
		if isTransportRetry(ctx) {
			return r, errRetryWithoutID()
		}
		r.RequestID = job.NewToken()
	}
	return r, nil
}
