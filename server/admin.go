package server

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
)

const (
	// maxListedError is how much of a job's error a list has.
	maxListedError = 1 << 10
	// stopEarly is how long before its deadline a call that changes many jobs stops, to tell what it has done.
	stopEarly = 500 * time.Millisecond
)

// adminService implements AdminService.
type adminService struct {
	joboncev1.UnimplementedAdminServiceServer
	jobs interface {
		job.Admin
		job.Expectations
	}
	bell *bell
}

// ListJobs returns a page of jobs. Those with an id that no call takes, which only others can have written, are left out.
func (s *adminService) ListJobs(ctx context.Context, req *joboncev1.ListJobsRequest) (*joboncev1.ListJobsResponse, error) {
	q, bound, err := listQuery(ctx, req.GetFilter(), req.GetOrder(), "page_size", req.GetPageSize(), req.GetPageToken())
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	page, err := s.jobs.List(ctx, q)
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	resp := &joboncev1.ListJobsResponse{NextPageToken: bound.token(page.Next.String()), Examined: int32(page.Examined)}
	for i := range page.Jobs {
		if job.CheckJobID(page.Jobs[i].JobID) != nil {
			continue
		}
		j := toJob(&page.Jobs[i])
		j.Work.LastError, j.Work.Result = clip(j.Work.LastError, maxListedError), ""
		resp.Jobs = append(resp.Jobs, j)
	}
	return resp, nil
}

// listQuery checks a request for a page of jobs. bound makes the tokens of the pages after it.
func listQuery(ctx context.Context, f *joboncev1.JobFilter, order joboncev1.JobOrder, sizeField string, size int32, token string) (
	q job.ListQuery, bound pageTokens, err error,
) {
	if q.Filter, err = jobFilter(ctx, f); err != nil {
		return q, bound, err
	}
	switch order {
	case joboncev1.JobOrder_JOB_ORDER_UNSPECIFIED, joboncev1.JobOrder_JOB_ORDER_NEWEST_FIRST:
		order = joboncev1.JobOrder_JOB_ORDER_NEWEST_FIRST
	case joboncev1.JobOrder_JOB_ORDER_ID:
		q.Order = job.ByID
	default:
		return q, bound, &job.InvalidError{Field: "order", Problem: fmt.Sprintf("%d is not known", order)}
	}
	if q.Size, err = pageSize(sizeField, size); err != nil {
		return q, bound, err
	}
	bound = tokensOf("jobs", f, order.String(), q.Prefix)
	place, err := bound.place(token)
	if err != nil {
		return q, bound, err
	}
	var ok bool
	if q.After, ok = job.ParsePlace(place); !ok {
		return q, bound, errPageToken()
	}
	return q, bound, nil
}

func pageSize(field string, size int32) (int, error) {
	switch {
	case size == 0:
		return job.DefaultPageSize, nil
	case size < 0 || size > job.MaxPageSize:
		return 0, &job.InvalidError{Field: field, Problem: fmt.Sprintf("must be 1 to %d", job.MaxPageSize)}
	}
	return int(size), nil
}

// jobFilter checks a filter, and narrows it to the caller's jobs.
func jobFilter(ctx context.Context, f *joboncev1.JobFilter) (job.Filter, error) {
	out := job.Filter{State: job.WorkState(f.GetState()), Conflicts: f.GetConflictsOnly(), Prefix: f.GetJobIdPrefix()}
	if err := checkState("filter.state", f.GetState()); err != nil {
		return out, err
	}
	if err := checkPrefix("filter.job_id_prefix", out.Prefix); err != nil {
		return out, err
	}
	for _, t := range []struct {
		field string
		from  *timestamppb.Timestamp
		into  *time.Time
	}{{"filter.first_seen_from", f.GetFirstSeenFrom(), &out.SeenFrom}, {"filter.first_seen_before", f.GetFirstSeenBefore(), &out.SeenBefore}} {
		at, err := fromTime(t.field, t.from)
		if err != nil {
			return out, err
		}
		if !at.IsZero() && !at.Equal(job.Millis(at)) { // what is stored is in whole milliseconds
			at = at.Add(time.Millisecond)
		}
		if !at.IsZero() {
			*t.into = job.Millis(at)
		}
	}
	var err error
	out.Prefix, err = narrowed(ctx, out.Prefix)
	return out, err
}

// checkState checks that the state is one, or none.
func checkState(field string, s joboncev1.WorkState) error {
	if _, known := joboncev1.WorkState_name[int32(s)]; !known {
		return &job.InvalidError{Field: field, Problem: fmt.Sprintf("%d is not known", s)}
	}
	return nil
}

// fromTime is the time that a request names; zero when it names none.
func fromTime(field string, t *timestamppb.Timestamp) (time.Time, error) {
	if t == nil {
		return time.Time{}, nil
	}
	if t.CheckValid() != nil {
		return time.Time{}, &job.InvalidError{Field: field, Problem: "is not a valid time"}
	}
	return t.AsTime(), nil
}

// checkPrefix checks what ids are to begin with.
func checkPrefix(field, prefix string) error {
	if prefix == "" {
		return nil
	}
	err := job.CheckJobID(prefix)
	if invalid := (*job.InvalidError)(nil); errors.As(err, &invalid) {
		invalid.Field = field
	}
	return err
}

// pageTokens makes and reads the tokens of one list: of a kind, with its filters, and of a caller's jobs.
type pageTokens [9]byte

// tokensOf are those of a list of this kind, filter and order, of jobs with the prefix. The first byte is the version of the
// tokens.
func tokensOf(kind string, filter proto.Message, order, prefix string) (t pageTokens) {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %q ", kind, order, prefix)
	if filter != nil {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(filter)
		if err == nil { // it was decoded a moment ago
			h.Write(b)
		}
	}
	t[0] = 1
	copy(t[1:], h.Sum(nil))
	return t
}

// token is the token of the page that goes on behind the place; empty when there is none.
func (t pageTokens) token(place string) string {
	if place == "" {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(append(t[:], place...))
}

// place is the place that a token names.
func (t pageTokens) place(token string) (string, error) {
	if token == "" {
		return "", nil
	}
	const most = 64 << 10 // ids that others have written may be long
	if len(token) > most {
		return "", errPageToken()
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) <= len(t) || b[0] != t[0] || !utf8.Valid(b[len(t):]) {
		return "", errPageToken()
	}
	if string(b[:len(t)]) != string(t[:]) {
		return "", &job.InvalidError{Field: "page_token", Problem: "is of another list: send it with the filter and the order of the page before"}
	}
	return string(b[len(t):]), nil
}

func errPageToken() error {
	return &job.InvalidError{Field: "page_token", Problem: "is none that this service has made"}
}

// CountJobs counts the caller's jobs of each state.
func (s *adminService) CountJobs(ctx context.Context, _ *joboncev1.CountJobsRequest) (*joboncev1.CountJobsResponse, error) {
	counts, err := s.jobs.Count(ctx, ownPrefix(ctx))
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	resp := &joboncev1.CountJobsResponse{Conflicts: counts.Conflicts.N, ConflictsMore: counts.Conflicts.More}
	for _, state := range job.EveryState {
		c := counts.States[state]
		resp.Counts = append(resp.Counts, &joboncev1.StateCount{State: joboncev1.WorkState(state), Jobs: c.N, More: c.More})
	}
	return resp, nil
}

// expected is the job that a request names as it was read.
func expected(ctx context.Context, req interface {
	GetJobId() string
	GetExpectedGeneration() int64
	GetExpectedFirstSeenTime() *timestamppb.Timestamp
	GetExpectedState() joboncev1.WorkState
}) (job.Expected, error) {
	e := job.Expected{JobID: req.GetJobId(), Generation: req.GetExpectedGeneration(), State: job.WorkState(req.GetExpectedState())}
	if err := job.CheckJobID(e.JobID); err != nil {
		return e, err
	}
	if e.Generation < 0 {
		return e, &job.InvalidError{Field: "expected_generation", Problem: "must not be negative"}
	}
	if err := checkState("expected_state", req.GetExpectedState()); err != nil {
		return e, err
	}
	var err error
	if e.FirstSeen, err = fromTime("expected_first_seen_time", req.GetExpectedFirstSeenTime()); err != nil {
		return e, err
	}
	return e, mayTouch(ctx, e.JobID)
}

// RequeueWork starts the work of a job anew.
func (s *adminService) RequeueWork(ctx context.Context, req *joboncev1.RequeueWorkRequest) (*joboncev1.RequeueWorkResponse, error) {
	e, err := expected(ctx, req)
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	r, changed, err := s.jobs.Requeue(ctx, job.Requeue{Expected: e, Force: req.GetForce()})
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	s.bell.ringAny()
	return &joboncev1.RequeueWorkResponse{Job: toJob(&r), Changed: changed}, nil
}

// DeleteJob removes a job, or its payload.
func (s *adminService) DeleteJob(ctx context.Context, req *joboncev1.DeleteJobRequest) (*joboncev1.DeleteJobResponse, error) {
	e, err := expected(ctx, req)
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	d := job.Deletion{Expected: e, Force: req.GetForce()}
	if req.GetPayloadOnly() {
		d.Kind = job.ErasePayload
	}
	o := s.jobs.Delete(ctx, []job.Deletion{d})[0]
	if o.Err != nil {
		return nil, fail(ctx, o.Err, "")
	}
	return &joboncev1.DeleteJobResponse{Deleted: o.Deleted}, nil
}

// RequeueJobs starts the work of many jobs anew.
func (s *adminService) RequeueJobs(ctx context.Context, req *joboncev1.RequeueJobsRequest) (*joboncev1.RequeueJobsResponse, error) {
	q, bound, err := listQuery(ctx, req.GetFilter(), joboncev1.JobOrder_JOB_ORDER_NEWEST_FIRST, "max_jobs", req.GetMaxJobs(), req.GetPageToken())
	if err == nil && (q.State == job.StateUnknown || q.State == job.StateUntracked) {
		err = &job.InvalidError{Field: "filter.state", Problem: "must be QUEUED, LEASED, COMPLETED or DEAD"}
	}
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	page, err := s.jobs.List(ctx, q)
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	resp := &joboncev1.RequeueJobsResponse{NextPageToken: bound.token(page.Next.String()), Examined: int32(page.Examined)}
	deadline, limited := ctx.Deadline()
	for i := range page.Jobs {
		r := &page.Jobs[i]
		if job.CheckJobID(r.JobID) != nil {
			continue
		}
		if len(resp.Results) > 0 && (ctx.Err() != nil || limited && time.Until(deadline) < stopEarly) {
			resp.NextPageToken = bound.token(job.PlaceOf(&page.Jobs[i-1]).String())
			break
		}
		changed, err := s.requeueListed(ctx, r, req.GetDryRun())
		result, unknown := &joboncev1.RequeueResult{JobId: r.JobID, Requeued: changed}, false
		if err != nil {
			p := explain(ctx, err, "")
			// What one job alone is to blame for must not keep those behind it, and what may have been done is told: at once, as the
			// others may wait for a store that is away until nobody waits for the answer.
			unknown = p.reason == joboncev1.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN
			stop := serverFault(p.code) && !unknown
			if stop && len(resp.Results) == 0 {
				return nil, fail(ctx, err, "")
			}
			if stop {
				resp.NextPageToken = bound.token(job.PlaceOf(&page.Jobs[i-1]).String())
				break
			}
			result.Error = p.item()
		}
		if resp.Results = append(resp.Results, result); unknown && i < len(page.Jobs)-1 {
			resp.NextPageToken = bound.token(job.PlaceOf(r).String())
			break
		}
	}
	s.bell.ringAny()
	return resp, nil
}

// requeueListed requeues a job as it was listed, or says whether it would.
func (s *adminService) requeueListed(ctx context.Context, r *job.Record, dryRun bool) (changed bool, err error) {
	q := job.Requeue{Expected: job.ExpectedOf(r)}
	if dryRun {
		next, err := r.Requeue(&q, time.Now())
		return err == nil && next != r.Work, err
	}
	_, changed, err = s.jobs.Requeue(ctx, q)
	return changed, err
}

// ListExpectations returns a page of expectations.
func (s *adminService) ListExpectations(ctx context.Context, req *joboncev1.ListExpectationsRequest) (*joboncev1.ListExpectationsResponse, error) {
	size, err := pageSize("page_size", req.GetPageSize())
	if _, known := joboncev1.ExpectationFilter_name[int32(req.GetFilter())]; err == nil && !known {
		err = &job.InvalidError{Field: "filter", Problem: fmt.Sprintf("%d is not known", req.GetFilter())}
	}
	prefix := ownPrefix(ctx)
	bound := tokensOf("expectations", nil, req.GetFilter().String(), prefix)
	after := ""
	if err == nil {
		after, err = bound.place(req.GetPageToken())
	}
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	page, next, err := s.jobs.ListExpectations(ctx, job.ExpectationFilter(req.GetFilter()), prefix, after, size)
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	resp := &joboncev1.ListExpectationsResponse{NextPageToken: bound.token(next)}
	whole := mayPoll(ctx)
	for i := range page {
		e := toExpectation(&page[i])
		if !whole {
			e.StatusUrl = withoutQuery(e.StatusUrl)
		}
		resp.Expectations = append(resp.Expectations, e)
	}
	return resp, nil
}

// pausePrefix checks the prefix of a pause.
func pausePrefix(ctx context.Context, prefix string) error {
	if err := checkPrefix("job_id_prefix", prefix); err != nil {
		return err
	}
	return mayTouch(ctx, prefix)
}

// PauseClaims pauses the claims of jobs.
func (s *adminService) PauseClaims(ctx context.Context, req *joboncev1.PauseClaimsRequest) (*joboncev1.PauseClaimsResponse, error) {
	err := pausePrefix(ctx, req.GetJobIdPrefix())
	if err == nil {
		err = job.CheckText("reason", req.GetReason(), job.MaxReasonBytes)
	}
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	p, err := s.jobs.Pause(ctx, req.GetJobIdPrefix(), req.GetReason())
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	return &joboncev1.PauseClaimsResponse{Pause: toPause(&p)}, nil
}

// ResumeClaims ends a pause.
func (s *adminService) ResumeClaims(ctx context.Context, req *joboncev1.ResumeClaimsRequest) (*joboncev1.ResumeClaimsResponse, error) {
	if err := pausePrefix(ctx, req.GetJobIdPrefix()); err != nil {
		return nil, fail(ctx, err, "")
	}
	was, err := s.jobs.Unpause(ctx, req.GetJobIdPrefix())
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	s.bell.ringAny()
	return &joboncev1.ResumeClaimsResponse{Resumed: was}, nil
}

// ListClaimPauses returns the pauses under which jobs of the caller are.
func (s *adminService) ListClaimPauses(ctx context.Context, _ *joboncev1.ListClaimPausesRequest) (*joboncev1.ListClaimPausesResponse, error) {
	pauses, err := s.jobs.Pauses(ctx)
	if err != nil {
		return nil, fail(ctx, err, "")
	}
	resp := &joboncev1.ListClaimPausesResponse{}
	for i := range pauses {
		if _, err := narrowed(ctx, pauses[i].Prefix); err == nil {
			resp.Pauses = append(resp.Pauses, toPause(&pauses[i]))
		}
	}
	return resp, nil
}

func toPause(p *job.Pause) *joboncev1.ClaimPause {
	return &joboncev1.ClaimPause{JobIdPrefix: clip(p.Prefix, job.MaxJobIDBytes), PauseTime: toTime(p.Since), Reason: clip(p.Reason, job.MaxReasonBytes)}
}
