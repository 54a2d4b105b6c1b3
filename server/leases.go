package server

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
)

// RenewLease lets a lease run anew.
func (s *workService) RenewLease(ctx context.Context, req *joboncev1.RenewLeaseRequest) (*joboncev1.RenewLeaseResponse, error) {
	lease, err := s.change(ctx, func() (job.LeaseChange, error) { return renewal(req) })
	if err != nil {
		return nil, err
	}
	return &joboncev1.RenewLeaseResponse{Lease: toLease(&lease)}, nil
}

// CompleteWork ends the work.
func (s *workService) CompleteWork(ctx context.Context, req *joboncev1.CompleteWorkRequest) (*joboncev1.CompleteWorkResponse, error) {
	if _, err := s.change(ctx, func() (job.LeaseChange, error) { return completion(req) }); err != nil {
		return nil, err
	}
	s.waits.changed(req.GetJobId())
	return &joboncev1.CompleteWorkResponse{}, nil
}

// ReleaseWork gives the work back or up.
func (s *workService) ReleaseWork(ctx context.Context, req *joboncev1.ReleaseWorkRequest) (*joboncev1.ReleaseWorkResponse, error) {
	if _, err := s.change(ctx, func() (job.LeaseChange, error) { return release(req) }); err != nil {
		return nil, err
	}
	s.waits.changed(req.GetJobId())
	if dueNow(req) {
		s.bell.ringAny()
	}
	return &joboncev1.ReleaseWorkResponse{}, nil
}

// change makes the change that a request asks for.
func (s *workService) change(ctx context.Context, read func() (job.LeaseChange, error)) (job.Lease, error) {
	c, err := read()
	if err == nil {
		err = mayTouch(ctx, c.JobID)
	}
	if err != nil {
		return job.Lease{}, fail(ctx, err, "")
	}
	lease, err := job.Change(ctx, s.jobs, c)
	if err != nil {
		return job.Lease{}, fail(ctx, err, "")
	}
	return lease, nil
}

// BatchChangeLeases makes the valid ones of many changes in one call of the store.
func (s *workService) BatchChangeLeases(ctx context.Context, req *joboncev1.BatchChangeLeasesRequest) (*joboncev1.BatchChangeLeasesResponse, error) {
	if err := checkChanges(req); err != nil {
		return nil, fail(ctx, err, "")
	}
	results := make([]*joboncev1.BatchChangeLeasesResponse_Result, len(req.GetChanges()))
	valid := make([]job.LeaseChange, 0, len(results))
	at := make([]int, 0, len(results)) // where the valid ones stand in the request
	for i, change := range req.GetChanges() {
		c, err := leaseChange(change)
		if err == nil {
			err = mayTouch(ctx, c.JobID)
		}
		if err != nil {
			results[i] = &joboncev1.BatchChangeLeasesResponse_Result{Error: explain(ctx, err, "").item()}
			continue
		}
		valid, at = append(valid, c), append(at, i)
	}
	if len(valid) > 0 {
		outcomes := s.jobs.ChangeLeases(ctx, valid)
		errs := make([]error, len(outcomes))
		due := false
		for i := range outcomes {
			o, result := &outcomes[i], &joboncev1.BatchChangeLeasesResponse_Result{}
			errs[i] = o.Err
			if o.Err != nil {
				result.Error = explain(ctx, o.Err, "").item()
			} else if valid[i].Kind == job.Renewal {
				result.Lease = toLease(&o.Lease)
			} else {
				s.waits.changed(valid[i].JobID)
				due = due || dueNow(req.GetChanges()[at[i]].GetRelease())
			}
			results[at[i]] = result
		}
		if due {
			s.bell.ringAny()
		}
		logFaults(ctx, s.log, errs)
	}
	return &joboncev1.BatchChangeLeasesResponse{Results: results}, nil
}

// checkChanges checks what concerns a batch as a whole.
func checkChanges(req *joboncev1.BatchChangeLeasesRequest) error {
	if err := listTooLong("changes", len(req.GetChanges()), maxBatchItems); err != nil {
		return err
	}
	if bytes := proto.Size(req); bytes > maxBatchBytes {
		return &job.InvalidError{Field: "changes", Problem: fmt.Sprintf("has %d bytes; the limit is %d", bytes, maxBatchBytes), TooLarge: true}
	}
	return nil
}

// leaseChange is the change that one item of a batch asks for.
func leaseChange(c *joboncev1.LeaseChange) (job.LeaseChange, error) {
	switch c := c.GetChange().(type) {
	case *joboncev1.LeaseChange_Renew:
		return renewal(c.Renew)
	case *joboncev1.LeaseChange_Complete:
		return completion(c.Complete)
	case *joboncev1.LeaseChange_Release:
		return release(c.Release)
	}
	return job.LeaseChange{}, &job.InvalidError{Field: "change", Problem: "is required: one of renew, complete and release"}
}

// asCall is the method that makes the change in a call of its own, and its request. Both are empty for a change of no kind.
func asCall(c *joboncev1.LeaseChange) (method string, req any) {
	switch c := c.GetChange().(type) {
	case *joboncev1.LeaseChange_Renew:
		return "RenewLease", c.Renew
	case *joboncev1.LeaseChange_Complete:
		return "CompleteWork", c.Complete
	case *joboncev1.LeaseChange_Release:
		return "ReleaseWork", c.Release
	}
	return "", nil
}

func renewal(req *joboncev1.RenewLeaseRequest) (job.LeaseChange, error) {
	if err := checkLease(req); err != nil {
		return job.LeaseChange{}, err
	}
	d, err := leaseDuration(req.GetLeaseDuration())
	return job.RenewLease(req.GetJobId(), req.GetLeaseToken(), d), err
}

func completion(req *joboncev1.CompleteWorkRequest) (job.LeaseChange, error) {
	err := checkLease(req)
	if err == nil {
		err = job.CheckText("result", req.GetResult(), job.MaxResultBytes)
	}
	return job.CompleteWork(req.GetJobId(), req.GetLeaseToken(), req.GetResult()), err
}

func release(req *joboncev1.ReleaseWorkRequest) (job.LeaseChange, error) {
	r := job.Release{
		Error: req.GetError(), Dead: req.GetDead(), Delay: req.GetRetryDelay().AsDuration(), NotStarted: req.GetNotStarted(),
	}
	err := checkLease(req)
	if err == nil {
		err = job.CheckText("error", r.Error, job.MaxErrorBytes)
	}
	if err == nil {
		err = checkRelease(req)
	}
	return job.ReleaseWork(req.GetJobId(), req.GetLeaseToken(), r), err
}

// dueNow tells whether a release makes work that somebody may claim at once.
func dueNow(req *joboncev1.ReleaseWorkRequest) bool {
	return req != nil && !req.GetDead() && req.GetRetryDelay().AsDuration() == 0
}

// checkRelease checks which fields go together.
func checkRelease(req *joboncev1.ReleaseWorkRequest) error {
	delay := req.GetRetryDelay()
	switch {
	case req.GetNotStarted() && delay != nil:
		return &job.InvalidError{Field: "retry_delay", Problem: "goes with not_started unset only"}
	case req.GetNotStarted() && req.GetError() != "":
		return &job.InvalidError{Field: "error", Problem: "goes with not_started unset only"}
	case req.GetNotStarted() && req.GetDead():
		return &job.InvalidError{Field: "dead", Problem: "goes with not_started unset only"}
	case delay != nil && req.GetDead():
		return &job.InvalidError{Field: "retry_delay", Problem: "goes with dead unset only"}
	case delay != nil && (delay.CheckValid() != nil || delay.AsDuration() < 0 || delay.AsDuration() > job.MaxRetryDelay):
		return &job.InvalidError{Field: "retry_delay", Problem: fmt.Sprintf("must be 0 to %v", job.MaxRetryDelay)}
	}
	return nil
}

// checkLease checks what names a lease.
func checkLease(req interface {
	GetJobId() string
	GetLeaseToken() string
}) error {
	if err := job.CheckJobID(req.GetJobId()); err != nil {
		return err
	}
	return job.CheckToken(req.GetLeaseToken())
}

// leaseDuration checks how long a lease is to run.
func leaseDuration(d *durationpb.Duration) (time.Duration, error) {
	lease, err := toDuration("lease_duration", d)
	if err == nil {
		err = job.CheckLease(lease)
	}
	if err != nil {
		return 0, err
	}
	return *lease, nil
}
