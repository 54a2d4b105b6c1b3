package server

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

func (r *running) admin() joboncev1.AdminServiceClient {
	return joboncev1.NewAdminServiceClient(r.conn)
}

// wantError wants a call to fail with a code and a reason.
func wantError(t *testing.T, err error, code codes.Code, want told) {
	t.Helper()
	if status.Code(err) != code || details(t, err) != want {
		t.Errorf("got %v, %+v; want %v, %+v", err, details(t, err), code, want)
	}
}

// die records jobs whose work is given up.
func die(t *testing.T, s *running, ids ...string) {
	t.Helper()
	for _, id := range ids {
		resp := must[*joboncev1.RecordDeliveryResponse](t)(s.RecordDelivery(t.Context(), leased(id, "r")))
		must[*joboncev1.ReleaseWorkResponse](t)(s.work().ReleaseWork(t.Context(), &joboncev1.ReleaseWorkRequest{JobId: id,
			LeaseToken: resp.GetLease().GetToken(), Dead: true, Error: strings.Repeat("x", 2<<10)}))
	}
}

var dead = &joboncev1.JobFilter{State: joboncev1.WorkState_WORK_STATE_DEAD}

func TestListJobs(t *testing.T) {
	jobs, clock := embedded(t)
	s := start(t, Config{}, jobs)
	var want []string
	for i := range 7 {
		id := fmt.Sprint("job-", i)
		die(t, s, id)
		want = append([]string{id}, want...)
		clock.Advance(time.Second)
	}
	must[*joboncev1.RecordDeliveryResponse](t)(s.RecordDelivery(t.Context(), text("other", "x")))
	list := func(req *joboncev1.ListJobsRequest) (ids, tokens []string) {
		for {
			resp := must[*joboncev1.ListJobsResponse](t)(s.admin().ListJobs(t.Context(), req))
			for _, j := range resp.GetJobs() {
				ids = append(ids, j.GetJobId())
				if j.GetBody() != nil || len(j.GetWork().GetLastError()) > maxListedError {
					t.Errorf("listed with %d bytes of error, %v", len(j.GetWork().GetLastError()), j.GetBody())
				}
			}
			if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
				return ids, tokens
			}
			tokens = append(tokens, req.GetPageToken())
		}
	}
	ids, tokens := list(&joboncev1.ListJobsRequest{Filter: dead, PageSize: 2})
	if !slices.Equal(ids, want) || len(tokens) < 3 {
		t.Errorf("got %v on %d pages, want %v", ids, len(tokens)+1, want)
	}
	at := timestamppb.New(clock.Now().Add(-3500 * time.Millisecond))
	if ids, _ := list(&joboncev1.ListJobsRequest{Filter: &joboncev1.JobFilter{FirstSeenBefore: at}}); !slices.Equal(ids, want[3:]) {
		t.Errorf("before %v: %v", at.AsTime(), ids)
	}
	if ids, _ := list(&joboncev1.ListJobsRequest{Order: joboncev1.JobOrder_JOB_ORDER_ID, Filter: &joboncev1.JobFilter{JobIdPrefix: "job-"}}); len(ids) != 7 || !slices.IsSorted(ids) {
		t.Errorf("by id: %v", ids)
	}
	good := tokens[0]
	for name, c := range map[string]struct {
		req   *joboncev1.ListJobsRequest
		field string
	}{
		"garbage":       {&joboncev1.ListJobsRequest{Filter: dead, PageToken: "garbage!"}, "page_token"},
		"cut":           {&joboncev1.ListJobsRequest{Filter: dead, PageToken: good[:8]}, "page_token"},
		"version":       {&joboncev1.ListJobsRequest{Filter: dead, PageToken: "B" + good[1:]}, "page_token"},
		"no place":      {&joboncev1.ListJobsRequest{Filter: dead, PageToken: tokensOf("jobs", dead, "JOB_ORDER_NEWEST_FIRST", "").token("x")}, "page_token"},
		"no text":       {&joboncev1.ListJobsRequest{Filter: dead, PageToken: tokensOf("jobs", dead, "JOB_ORDER_NEWEST_FIRST", "").token("1.\xff")}, "page_token"},
		"long":          {&joboncev1.ListJobsRequest{Filter: dead, PageToken: strings.Repeat("A", 100<<10)}, "page_token"},
		"other filter":  {&joboncev1.ListJobsRequest{PageToken: good}, "page_token"},
		"other order":   {&joboncev1.ListJobsRequest{Filter: dead, PageToken: good, Order: joboncev1.JobOrder_JOB_ORDER_ID}, "page_token"},
		"size":          {&joboncev1.ListJobsRequest{PageSize: 501}, "page_size"},
		"negative size": {&joboncev1.ListJobsRequest{PageSize: -1}, "page_size"},
		"order":         {&joboncev1.ListJobsRequest{Order: 9}, "order"},
		"state":         {&joboncev1.ListJobsRequest{Filter: &joboncev1.JobFilter{State: 261}}, "filter.state"},
		"prefix":        {&joboncev1.ListJobsRequest{Filter: &joboncev1.JobFilter{JobIdPrefix: "a\n"}}, "filter.job_id_prefix"},
		"time":          {&joboncev1.ListJobsRequest{Filter: &joboncev1.JobFilter{FirstSeenFrom: &timestamppb.Timestamp{Nanos: -1}}}, "filter.first_seen_from"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.admin().ListJobs(t.Context(), c.req)
			wantError(t, err, codes.InvalidArgument, told{reason: "INVALID_FIELD", field: c.field})
		})
	}
	counts := must[*joboncev1.CountJobsResponse](t)(s.admin().CountJobs(t.Context(), &joboncev1.CountJobsRequest{}))
	got := map[joboncev1.WorkState]int64{}
	for _, c := range counts.GetCounts() {
		got[c.GetState()] = c.GetJobs()
	}
	if len(got) != 5 || got[joboncev1.WorkState_WORK_STATE_DEAD] != 7 || got[joboncev1.WorkState_WORK_STATE_UNTRACKED] != 1 {
		t.Errorf("counts %v", counts)
	}
}

func TestRequeueAndDelete(t *testing.T) {
	jobs, clock := embedded(t)
	s := start(t, Config{}, jobs)
	die(t, s, "j")
	clock.Advance(time.Second)
	j := must[*joboncev1.GetJobResponse](t)(s.GetJob(t.Context(), &joboncev1.GetJobRequest{JobId: "j"})).GetJob()
	requeue := &joboncev1.RequeueWorkRequest{JobId: "j", ExpectedGeneration: j.GetWork().GetGeneration(), ExpectedFirstSeenTime: j.GetFirstSeenTime()}
	for i := range 2 { // the second time as if the first answer had been lost
		resp := must[*joboncev1.RequeueWorkResponse](t)(s.admin().RequeueWork(t.Context(), requeue))
		if w := resp.GetJob().GetWork(); resp.GetChanged() != (i == 0) || w.GetState() != joboncev1.WorkState_WORK_STATE_QUEUED || w.GetRequeues() != 1 {
			t.Errorf("got %v", resp)
		}
	}
	claimed := must[*joboncev1.ClaimWorkResponse](t)(s.work().ClaimWork(t.Context(), &joboncev1.ClaimWorkRequest{LeaseDuration: minute()}))
	if len(claimed.GetJobs()) != 1 {
		t.Fatalf("claimed %v", claimed)
	}
	_, err := s.admin().RequeueWork(t.Context(), requeue)
	wantError(t, err, codes.FailedPrecondition, told{reason: "WRONG_STATE"})
	_, err = s.admin().RequeueWork(t.Context(), &joboncev1.RequeueWorkRequest{JobId: "absent"})
	wantError(t, err, codes.NotFound, told{reason: "JOB_NOT_FOUND"})

	clock.Advance(time.Second)
	del := &joboncev1.DeleteJobRequest{JobId: "j", ExpectedGeneration: claimed.GetJobs()[0].GetLease().GetGeneration(), ExpectedFirstSeenTime: j.GetFirstSeenTime()}
	_, err = s.admin().DeleteJob(t.Context(), del)
	wantError(t, err, codes.FailedPrecondition, told{reason: "WRONG_STATE"})
	del.Force, del.PayloadOnly = true, true
	for i := range 2 {
		if resp := must[*joboncev1.DeleteJobResponse](t)(s.admin().DeleteJob(t.Context(), del)); resp.GetDeleted() != (i == 0) {
			t.Errorf("payload: %v", resp)
		}
	}
	full := must[*joboncev1.GetJobResponse](t)(s.GetJob(t.Context(), &joboncev1.GetJobRequest{JobId: "j", View: joboncev1.JobView_JOB_VIEW_FULL})).GetJob()
	if full.GetBody() != nil || full.GetPayloadDroppedTime() == nil || full.GetWork().GetState() != joboncev1.WorkState_WORK_STATE_DEAD || full.GetWork().GetLastError() != "" {
		t.Errorf("after that: %v", full)
	}
	del.PayloadOnly = false
	for i := range 2 {
		if resp := must[*joboncev1.DeleteJobResponse](t)(s.admin().DeleteJob(t.Context(), del)); resp.GetDeleted() != (i == 0) {
			t.Errorf("job: %v", resp)
		}
	}
	die(t, s, "k")
	clock.Advance(time.Second)
	k := must[*joboncev1.GetJobResponse](t)(s.GetJob(t.Context(), &joboncev1.GetJobRequest{JobId: "k"})).GetJob()
	other := joboncev1.WorkState_WORK_STATE_LEASED
	for name, call := range map[string]func() error{
		"requeue": func() error {
			_, err := s.admin().RequeueWork(t.Context(), &joboncev1.RequeueWorkRequest{JobId: "k", ExpectedGeneration: k.GetWork().GetGeneration(),
				ExpectedFirstSeenTime: k.GetFirstSeenTime(), ExpectedState: other, Force: true})
			return err
		},
		"delete": func() error {
			_, err := s.admin().DeleteJob(t.Context(), &joboncev1.DeleteJobRequest{JobId: "k", ExpectedGeneration: k.GetWork().GetGeneration(),
				ExpectedFirstSeenTime: k.GetFirstSeenTime(), ExpectedState: other, Force: true})
			return err
		},
	} {
		err := call()
		wantError(t, err, codes.FailedPrecondition, told{reason: "WRONG_STATE"})
		if !strings.Contains(status.Convert(err).Message(), "it was leased, and is dead by now") {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = s.admin().DeleteJob(t.Context(), &joboncev1.DeleteJobRequest{JobId: "k", ExpectedGeneration: k.GetWork().GetGeneration()})
	wantError(t, err, codes.FailedPrecondition, told{reason: "WRONG_STATE"})
	if !strings.Contains(status.Convert(err).Message(), "when the job was first seen is missing") {
		t.Errorf("what is missing is not said: %v", err)
	}
	for field, req := range map[string]*joboncev1.DeleteJobRequest{
		"job_id": {}, "expected_generation": {JobId: "j", ExpectedGeneration: -1}, "expected_state": {JobId: "j", ExpectedState: 99},
		"expected_first_seen_time": {JobId: "j", ExpectedFirstSeenTime: &timestamppb.Timestamp{Nanos: -1}},
	} {
		_, err := s.admin().DeleteJob(t.Context(), req)
		wantError(t, err, codes.InvalidArgument, told{reason: "INVALID_FIELD", field: field})
	}
}

// TestRequeueJobs requeues in parts, each job with a line in the audit log, also where no callers are configured.
func TestRequeueJobs(t *testing.T) {
	jobs, clock := embedded(t)
	s := start(t, Config{}, jobs)
	var ids []string
	for i := range 5 {
		ids = append(ids, fmt.Sprint("job-", i))
	}
	die(t, s, ids...)
	clock.Advance(time.Second)
	erased := must[*joboncev1.GetJobResponse](t)(s.GetJob(t.Context(), &joboncev1.GetJobRequest{JobId: "job-1"})).GetJob()
	must[*joboncev1.DeleteJobResponse](t)(s.admin().DeleteJob(t.Context(), &joboncev1.DeleteJobRequest{JobId: "job-1", PayloadOnly: true,
		ExpectedGeneration: erased.GetWork().GetGeneration(), ExpectedFirstSeenTime: erased.GetFirstSeenTime()}))
	run := func(dry bool) (requeued, refused []string) {
		req := &joboncev1.RequeueJobsRequest{Filter: dead, MaxJobs: 2, DryRun: dry}
		for {
			resp := must[*joboncev1.RequeueJobsResponse](t)(s.admin().RequeueJobs(t.Context(), req))
			for _, r := range resp.GetResults() {
				switch {
				case r.GetRequeued():
					requeued = append(requeued, r.GetJobId())
				case r.GetError().GetReason() == joboncev1.ErrorReason_ERROR_REASON_WRONG_STATE:
					refused = append(refused, r.GetJobId())
				default:
					t.Errorf("got %v", r)
				}
			}
			if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
				return requeued, refused
			}
		}
	}
	want, bad := []string{"job-4", "job-3", "job-2", "job-0"}, []string{"job-1"}
	for i, c := range []struct {
		dry  bool
		want []string
	}{{true, want}, {true, want}, {false, want}, {false, nil}} {
		requeued, refused := run(c.dry)
		if !slices.Equal(requeued, c.want) || !slices.Equal(refused, bad) {
			t.Errorf("%d: requeued %v, refused %v", i, requeued, refused)
		}
	}
	outcomes := map[string]int{}
	for _, line := range s.log.lines(t, "audit") {
		if line["method"] == "DeleteJob" && line["payload_only"] != true {
			t.Errorf("the line does not tell a payload's deletion from a job's: %v", line)
		}
		outcomes[fmt.Sprint(line["method"], " ", line["outcome"])]++
	}
	wantLines := map[string]int{"DeleteJob OK": 1, "RequeueJobs OK": 4, "RequeueJobs DRY_RUN": 8, "RequeueJobs WRONG_STATE": 4}
	if fmt.Sprint(outcomes) != fmt.Sprint(wantLines) {
		t.Errorf("audit lines %v, want %v", outcomes, wantLines)
	}
	_, err := s.admin().RequeueJobs(t.Context(), &joboncev1.RequeueJobsRequest{})
	wantError(t, err, codes.InvalidArgument, told{reason: "INVALID_FIELD", field: "filter.state"})
}

// requeueFails is a store in which requeues of some jobs fail.
type requeueFails struct {
	Jobs
	errs map[string]error
}

func (s *requeueFails) Requeue(ctx context.Context, q job.Requeue) (job.Record, bool, error) {
	if err := s.errs[q.JobID]; err != nil {
		return job.Record{}, false, err
	}
	return s.Jobs.Requeue(ctx, q)
}

// TestRequeueJobsWithFaults: a job that cannot be requeued for a fault of its own keeps none behind it, one that may have been
// requeued has its audit line and ends the call, since the others could take as long, and an outage ends it where it stands.
func TestRequeueJobsWithFaults(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		calls int // until all are done; none for never
		audit string
	}{
		"unusable": {job.ErrRecordUnusable, 1, "RECORD_UNUSABLE"},
		"unknown":  {job.ErrOutcomeUnknown, 3, "OUTCOME_UNKNOWN"},
		"outage":   {job.ErrUnavailable, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			jobs, clock := embedded(t)
			s := start(t, Config{}, &requeueFails{jobs, map[string]error{"job-1": c.err, "job-3": c.err}})
			die(t, s, "job-0", "job-1", "job-2", "job-3", "job-4")
			clock.Advance(time.Second)
			var got []string
			token, calls := "", 0
			for calls == 0 || token != "" && c.calls > 0 {
				resp := must[*joboncev1.RequeueJobsResponse](t)(s.admin().RequeueJobs(t.Context(), &joboncev1.RequeueJobsRequest{Filter: dead, PageToken: token}))
				token = resp.GetNextPageToken()
				calls++
				for _, r := range resp.GetResults() {
					got = append(got, fmt.Sprint(r.GetJobId(), " ", r.GetRequeued()))
					if r.GetError().GetRetryDelay() != nil {
						t.Errorf("the same call is to be repeated for %s, which would requeue others", r.GetJobId())
					}
				}
			}
			want := []string{"job-4 true", "job-3 false", "job-2 true", "job-1 false", "job-0 true"}
			if c.calls == 0 {
				want = want[:1]
			}
			if !slices.Equal(got, want) || c.calls > 0 && calls != c.calls {
				t.Errorf("got %v in %d calls; want %v in %d", got, calls, want, c.calls)
			}
			audited := 0
			for _, line := range s.log.lines(t, "audit") {
				if id := line["job_id"]; (id == "job-1" || id == "job-3") && line["outcome"] == c.audit {
					audited++
				}
			}
			if audited != 2 && c.calls > 0 {
				t.Errorf("%d audit lines of those that failed", audited)
			}
			if c.calls == 0 {
				_, err := s.admin().RequeueJobs(t.Context(), &joboncev1.RequeueJobsRequest{Filter: dead, PageToken: token})
				wantError(t, err, codes.Unavailable, told{reason: "STORE_UNAVAILABLE", retry: 500 * time.Millisecond})
			}
		})
	}
}

// withShop starts a server with an operator of the jobs under "shop:", and one of all jobs, who records them too.
func withShop(t *testing.T, jobs Jobs) (s *running, shop, all context.Context) {
	t.Helper()
	token, sum := auth.NewToken()
	open, openSum := auth.NewToken()
	s = start(t, Config{Callers: authority(t, auth.Config{}, fmt.Sprintf("- {name: shop, token_sha256: %s, allow: [admin, expect], job_id_prefix: 'shop:'}\n"+
		"- {name: all, token_sha256: %s, allow: [admin, record, expect]}", sum, openSum))}, jobs)
	return s, as(t.Context(), token), as(t.Context(), open)
}

// TestPagesOfAPrefix: an operator with a prefix gets all its jobs, each once, page by page, and no page token tells the id of
// another's; nor is a token taken by another list, or from an operator with other jobs.
func TestPagesOfAPrefix(t *testing.T) {
	jobs, clock := embedded(t)
	s, shop, all := withShop(t, jobs)
	want := 0
	for at := range 3 {
		for i := range 50 { // of one millisecond, around those of the shop
			prefix := []string{"bank:", "shop9:", "shop:", "shopping:", "zoo:"}[i%5]
			id := fmt.Sprintf("%s%d.%d", prefix, at, i)
			must[*joboncev1.RecordDeliveryResponse](t)(s.RecordDelivery(all, queued(id)))
			must[*joboncev1.ExpectJobResponse](t)(s.expectations().ExpectJob(all, &joboncev1.ExpectJobRequest{JobId: id + "x", StatusUrl: "https://p.example", OverdueAfter: minute()}))
			if prefix == "shop:" {
				want++
			}
		}
		clock.Advance(time.Millisecond)
	}
	for name, list := range map[string]func(ctx context.Context, token string) (ids []string, next string, err error){
		"jobs": func(ctx context.Context, token string) (ids []string, next string, err error) {
			resp, err := s.admin().ListJobs(ctx, &joboncev1.ListJobsRequest{PageSize: 1, PageToken: token})
			for _, j := range resp.GetJobs() {
				ids = append(ids, j.GetJobId())
			}
			return ids, resp.GetNextPageToken(), err
		},
		"jobs by id": func(ctx context.Context, token string) (ids []string, next string, err error) {
			resp, err := s.admin().ListJobs(ctx, &joboncev1.ListJobsRequest{PageSize: 1, PageToken: token, Order: joboncev1.JobOrder_JOB_ORDER_ID})
			for _, j := range resp.GetJobs() {
				ids = append(ids, j.GetJobId())
			}
			return ids, resp.GetNextPageToken(), err
		},
		"expectations": func(ctx context.Context, token string) (ids []string, next string, err error) {
			resp, err := s.admin().ListExpectations(ctx, &joboncev1.ListExpectationsRequest{PageSize: 1, PageToken: token})
			for _, e := range resp.GetExpectations() {
				ids = append(ids, e.GetJobId())
			}
			return ids, resp.GetNextPageToken(), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			seen, pages := map[string]int{}, 0
			for token := ""; pages == 0 || token != ""; pages++ {
				if _, _, err := list(all, token); token != "" && status.Code(err) != codes.InvalidArgument {
					t.Errorf("a token of the shop's list is taken in another: %v", err)
				}
				ids, next, err := list(shop, token)
				testenv.Must(t, err)
				for _, id := range ids {
					seen[id]++
				}
				place, err := base64.RawURLEncoding.DecodeString(next)
				testenv.Must(t, err)
				for _, other := range []string{"bank:", "shop9:", "shopping:", "zoo:"} {
					if strings.Contains(string(place), other) {
						t.Errorf("a token tells of another's job: %q", place)
					}
				}
				token = next
			}
			for id, n := range seen {
				if n != 1 || !strings.HasPrefix(id, "shop:") {
					t.Errorf("%s came %d times", id, n)
				}
			}
			if len(seen) != want {
				t.Errorf("%d came, want %d", len(seen), want)
			}
		})
	}
}

// TestAdminOfAPrefix: an operator with a prefix sees and changes its own jobs alone.
func TestAdminOfAPrefix(t *testing.T) {
	jobs, clock := embedded(t)
	s, shop, all := withShop(t, jobs)
	for _, id := range []string{"shop:1", "bank:1"} {
		must[*joboncev1.RecordDeliveryResponse](t)(s.RecordDelivery(all, queued(id)))
		must[*joboncev1.ExpectJobResponse](t)(s.expectations().ExpectJob(all, &joboncev1.ExpectJobRequest{JobId: id + "x", StatusUrl: "https://p.example", OverdueAfter: minute()}))
	}
	clock.Advance(time.Second)
	list := must[*joboncev1.ListJobsResponse](t)(s.admin().ListJobs(shop, &joboncev1.ListJobsRequest{}))
	if len(list.GetJobs()) != 1 || list.GetJobs()[0].GetJobId() != "shop:1" {
		t.Errorf("listed %v", list)
	}
	if got := must[*joboncev1.ListExpectationsResponse](t)(s.admin().ListExpectations(shop, &joboncev1.ListExpectationsRequest{})); len(got.GetExpectations()) != 1 {
		t.Errorf("expected %v", got)
	}
	bank := must[*joboncev1.GetJobResponse](t)(s.GetJob(all, &joboncev1.GetJobRequest{JobId: "bank:1"})).GetJob()
	for name, call := range map[string]func(context.Context) error{
		"list": func(ctx context.Context) error {
			_, err := s.admin().ListJobs(ctx, &joboncev1.ListJobsRequest{Filter: &joboncev1.JobFilter{JobIdPrefix: "bank:"}})
			return err
		},
		"delete": func(ctx context.Context) error {
			_, err := s.admin().DeleteJob(ctx, &joboncev1.DeleteJobRequest{JobId: "bank:1", ExpectedFirstSeenTime: bank.GetFirstSeenTime()})
			return err
		},
		"pause": func(ctx context.Context) error {
			_, err := s.admin().PauseClaims(ctx, &joboncev1.PauseClaimsRequest{})
			return err
		},
	} {
		if err := call(shop); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", name, err)
		}
		testenv.Must(t, call(all))
	}
	_ = must[*joboncev1.PauseClaimsResponse](t)(s.admin().PauseClaims(all, &joboncev1.PauseClaimsRequest{JobIdPrefix: "bank:"}))
	pauses := must[*joboncev1.ListClaimPausesResponse](t)(s.admin().ListClaimPauses(shop, &joboncev1.ListClaimPausesRequest{})).GetPauses()
	if len(pauses) != 1 || pauses[0].GetJobIdPrefix() != "" {
		t.Errorf("its jobs are paused by %v, want the pause of all", pauses)
	}
}

// TestNarrowed: a caller with a prefix counts, lists and polls its own jobs, and cannot tell those of others from none.
func TestNarrowed(t *testing.T) {
	jobs, clock := embedded(t)
	s, shop, all := withShop(t, jobs)
	counted := func(ctx context.Context) (queued int64) {
		for _, c := range must[*joboncev1.CountJobsResponse](t)(s.admin().CountJobs(ctx, &joboncev1.CountJobsRequest{})).GetCounts() {
			queued += c.GetJobs()
		}
		return queued
	}
	polled := func(ctx context.Context) (ids []string, more bool) {
		resp := must[*joboncev1.ClaimOverdueJobsResponse](t)(s.expectations().ClaimOverdueJobs(ctx, &joboncev1.ClaimOverdueJobsRequest{MaxJobs: 2, LeaseDuration: minute()}))
		for _, j := range resp.GetJobs() {
			ids = append(ids, j.GetExpectation().GetJobId())
		}
		return ids, resp.GetMore()
	}
	record := func(ids ...string) {
		for _, id := range ids {
			must[*joboncev1.RecordDeliveryResponse](t)(s.RecordDelivery(all, queued(id)))
			must[*joboncev1.ExpectJobResponse](t)(s.expectations().ExpectJob(all, &joboncev1.ExpectJobRequest{JobId: id + "x", StatusUrl: "https://p.example", OverdueAfter: minute()}))
		}
	}
	record("bank:1", "bank:2", "shop", "shop9:1", "shopping:1")
	clock.Advance(time.Minute)
	if n := counted(shop); n != 0 {
		t.Errorf("counted %d of others", n)
	}
	if ids, more := polled(shop); len(ids) > 0 || more {
		t.Errorf("got %v of others to poll", ids)
	}
	record("shop:1", "shop:eu:1")
	clock.Advance(time.Minute)
	if n, everything := counted(shop), counted(all); n != 2 || everything != 7 {
		t.Errorf("counted %d of %d", n, everything)
	}
	if ids, _ := polled(shop); !slices.Equal(ids, []string{"shop:1x", "shop:eu:1x"}) {
		t.Errorf("got %v to poll", ids)
	}
	if ids, more := polled(all); len(ids) != 2 || !more {
		t.Errorf("got %v of all to poll", ids)
	}
	// A prefix that its own begins with is narrowed to its own, as with claims.
	for asked, want := range map[string]int{"": 2, "sh": 2, "shop:": 2, "shop:eu:": 1} {
		list := must[*joboncev1.ListJobsResponse](t)(s.admin().ListJobs(shop, &joboncev1.ListJobsRequest{Filter: &joboncev1.JobFilter{JobIdPrefix: asked}}))
		if len(list.GetJobs()) != want {
			t.Errorf("listed %d under %q, want %d", len(list.GetJobs()), asked, want)
		}
	}
}
