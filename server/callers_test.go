package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// callersOf makes an authority of entries in which each SUM stands for a token of its own, the last of which it tells.
func callersOf(t testing.TB, token *string, entries string) *auth.Authority {
	t.Helper()
	for strings.Contains(entries, "SUM") {
		made, sum := auth.NewToken()
		if token != nil {
			*token = made
		}
		entries = strings.Replace(entries, "SUM", sum, 1)
	}
	return authority(t, auth.Config{}, entries)
}

func authority(t testing.TB, cfg auth.Config, entries string) *auth.Authority {
	t.Helper()
	cfg.File, cfg.Logger = testenv.WriteFile(t, t.TempDir(), "auth.yaml", []byte("callers:\n"+entries+"\n...\n")), testenv.Logger(t)
	a, err := auth.Open(cfg)
	testenv.Must(t, err)
	return a
}

// as is a context whose calls show the token.
func as(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// TestCallersJobs tries calls about jobs that are the caller's, and others; the answers say nothing about those.
func TestCallersJobs(t *testing.T) {
	var token string
	jobs := new(memoryJobs)
	s := start(t, Config{Callers: callersOf(t, &token, "- {name: shop, token_sha256: SUM, allow: [record: [untracked, queued], work, read], job_id_prefix: 'shop:'}")}, jobs)
	work := joboncev1.NewWorkServiceClient(s.conn)
	ctx := as(t.Context(), token)
	lease := durationpb.New(time.Minute)
	for _, id := range []string{"shop:1", "bank:1"} { // bank:1 is there, bank:2 is not
		d, err := job.Input{JobID: id}.Delivery(10)
		testenv.Must(t, err)
		if o := jobs.RecordOne(t.Context(), d); o.Err != nil {
			t.Fatal(o.Err)
		}
	}
	calls := map[string]func(id string) error{
		"record": func(id string) error {
			_, err := s.RecordDelivery(ctx, &joboncev1.RecordDeliveryRequest{JobId: id})
			return err
		},
		"record by body": func(id string) error {
			_, err := s.RecordDelivery(ctx, text("", `{"job_id":"`+id+`"}`))
			return err
		},
		"record in a batch": func(id string) error {
			resp, err := s.BatchRecordDeliveries(ctx, &joboncev1.BatchRecordDeliveriesRequest{Deliveries: []*joboncev1.RecordDeliveryRequest{{JobId: "shop:3"}, {JobId: id}}})
			if err != nil || resp.GetResults()[0].GetError() != nil {
				return fmt.Errorf("the batch failed: %v %v", err, resp)
			}
			e := resp.GetResults()[1].GetError()
			return status.Error(codes.Code(e.GetCode()), e.GetMessage())
		},
		"get": func(id string) error { _, err := s.GetJob(ctx, &joboncev1.GetJobRequest{JobId: id}); return err },
		"renew": func(id string) error {
			_, err := work.RenewLease(ctx, &joboncev1.RenewLeaseRequest{JobId: id, LeaseToken: "t", LeaseDuration: lease})
			return err
		},
		"complete": func(id string) error {
			_, err := work.CompleteWork(ctx, &joboncev1.CompleteWorkRequest{JobId: id, LeaseToken: "t"})
			return err
		},
		"release": func(id string) error {
			_, err := work.ReleaseWork(ctx, &joboncev1.ReleaseWorkRequest{JobId: id, LeaseToken: "t"})
			return err
		},
		"change in a batch": func(id string) error {
			resp, err := work.BatchChangeLeases(ctx, &joboncev1.BatchChangeLeasesRequest{Changes: []*joboncev1.LeaseChange{{Change: &joboncev1.LeaseChange_Complete{
				Complete: &joboncev1.CompleteWorkRequest{JobId: id, LeaseToken: "t"}}}}})
			if err != nil {
				return err
			}
			e := resp.GetResults()[0].GetError()
			return status.Error(codes.Code(e.GetCode()), e.GetMessage())
		},
	}
	for name, call := range calls {
		if err := call("shop:1"); status.Code(err) == codes.PermissionDenied {
			t.Errorf("%s: %v", name, err)
		}
		there, absent := call("bank:1"), call("bank:2")
		if status.Code(there) != codes.PermissionDenied || there.Error() != absent.Error() {
			t.Errorf("%s: %v, and of a job that there is not %v", name, there, absent)
		}
	}
	if records, _ := jobs.size(); records != 3 {
		t.Errorf("%d records", records)
	}
	for name, err := range map[string]error{
		"body": func() error {
			_, err := s.GetJob(ctx, &joboncev1.GetJobRequest{JobId: "shop:1", View: joboncev1.JobView_JOB_VIEW_FULL})
			return err
		}(),
		"leased": func() error {
			_, err := s.RecordDelivery(ctx, &joboncev1.RecordDeliveryRequest{JobId: "shop:4", WorkMode: joboncev1.WorkMode_WORK_MODE_LEASED, LeaseDuration: lease})
			return err
		}(),
		"claim under another prefix": func() error {
			_, err := work.ClaimWork(ctx, &joboncev1.ClaimWorkRequest{LeaseDuration: lease, JobIdPrefix: "shopping:"})
			return err
		}(),
	} {
		if status.Code(err) != codes.PermissionDenied || details(t, err).reason != "PERMISSION_DENIED" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRefusalsSayWhatIsNeeded: who may not is told by which right it could, in the words of the auth file.
func TestRefusalsSayWhatIsNeeded(t *testing.T) {
	var token string
	c := newCallers(Config{Callers: callersOf(t, &token, "- {name: prometheus, token_sha256: SUM, allow: [metrics]}")})
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer "+token))
	lease, service := "record or work", "/jobonce.v1."
	want := map[string]string{
		service + "IdempotencyService/GetJob": "read", service + "AdminService/ListJobs": "read", service + "AdminService/CountJobs": "read",
		service + "AdminService/ListExpectations": "read", service + "AdminService/ListClaimPauses": "read",
		service + "WorkService/RenewLease": lease, service + "WorkService/CompleteWork": lease, service + "WorkService/ReleaseWork": lease,
		service + "WorkService/BatchChangeLeases": lease, service + "WorkService/ClaimWork": "work",
	}
	of := map[string]string{"IdempotencyService": "record", "ExpectationService": "expect", "AdminService": "admin"}
	for method := range rights {
		needs := want[method]
		if needs == "" {
			name, _, _ := strings.Cut(strings.TrimPrefix(method, service), "/")
			needs = of[name]
		}
		if isReflection(method) {
			needs = "record or work or read or read_bodies or expect or admin"
		}
		if _, err := c.admit(ctx, method); err == nil || err.Error() != "prometheus may not call this method: that needs the right "+needs {
			t.Errorf("%s: %v", method, err)
		}
	}
	if _, err := c.admit(ctx, service+"AdminService/FromTheFuture"); err == nil || err.Error() != "prometheus may not call this method" {
		t.Error(err)
	}

	s := start(t, Config{Callers: callersOf(t, &token, "- {name: shop, token_sha256: SUM, allow: [record: [queued], read, work], job_id_prefix: 'shop:'}")}, new(memoryJobs))
	ctx = as(t.Context(), token)
	_, body := s.GetJob(ctx, &joboncev1.GetJobRequest{JobId: "shop:1", View: joboncev1.JobView_JOB_VIEW_FULL})
	_, mode := s.RecordDelivery(ctx, &joboncev1.RecordDeliveryRequest{JobId: "shop:1"})
	_, other := s.GetJob(ctx, &joboncev1.GetJobRequest{JobId: "bank:1"})
	_, claim := joboncev1.NewWorkServiceClient(s.conn).ClaimWork(ctx, &joboncev1.ClaimWorkRequest{LeaseDuration: durationpb.New(time.Minute), JobIdPrefix: "bank:"})
	for want, err := range map[string]error{
		"shop may not read bodies: that needs the right read_bodies; JOB_VIEW_BASIC goes without":    body,
		"shop may not record with the work mode untracked: that needs the right record: [untracked]": mode,
		`the ids of the jobs of shop begin with "shop:"`:                                             other,
	} {
		if status.Code(err) != codes.PermissionDenied || status.Convert(err).Message() != want {
			t.Errorf("%v; want %s", err, want)
		}
	}
	if claim.Error() != other.Error() {
		t.Error(claim)
	}
}

// claims is a store that notes what it is asked for.
type claims struct {
	*memoryJobs
	asked []job.ClaimRequest
}

func (c *claims) Claim(_ context.Context, r job.ClaimRequest) ([]job.Claimed, error) {
	c.asked = append(c.asked, r)
	return nil, nil
}

// TestClaimsAreNarrowed: a claim is of jobs under the prefix asked for, and under the caller's own; the store also hears
// whose claim it is.
func TestClaimsAreNarrowed(t *testing.T) {
	var token string
	jobs := &claims{memoryJobs: new(memoryJobs)}
	s := start(t, Config{Callers: callersOf(t, &token, "- {name: shop, token_sha256: SUM, allow: [work], job_id_prefix: 'shop:'}")}, jobs)
	for asked, want := range map[string]string{
		"": "shop:", "shop:": "shop:", "shop:eu:": "shop:eu:", "shopping:": "PERMISSION_DENIED", "bank:": "PERMISSION_DENIED", ":": "PERMISSION_DENIED",
		"shop": "INVALID_FIELD", "shop:x": "INVALID_FIELD", "a\n:": "INVALID_FIELD", strings.Repeat("x", job.MaxJobIDBytes) + ":": "INVALID_FIELD",
	} {
		jobs.asked = nil
		_, err := s.work().ClaimWork(as(t.Context(), token), &joboncev1.ClaimWorkRequest{LeaseDuration: minute(), JobIdPrefix: asked})
		switch {
		case err != nil:
			if d := details(t, err); d.reason != want || want == "INVALID_FIELD" && d.field != "job_id_prefix" || len(jobs.asked) > 0 {
				t.Errorf("claim under %q: %v, and the store was asked for %+v; want %s", asked, err, jobs.asked, want)
			}
		case len(jobs.asked) != 1 || jobs.asked[0].Prefix != want || jobs.asked[0].Caller != "shop":
			t.Errorf("claim under %q asks the store for %+v, want the prefix %q", asked, jobs.asked, want)
		}
	}
	// Where there are no callers, what is asked for is all that counts.
	s = start(t, Config{}, jobs)
	for _, asked := range []string{"", "bank:"} {
		jobs.asked = nil
		_, err := s.work().ClaimWork(t.Context(), &joboncev1.ClaimWorkRequest{LeaseDuration: minute(), JobIdPrefix: asked})
		if err != nil || len(jobs.asked) != 1 || jobs.asked[0].Prefix != asked || jobs.asked[0].Caller != "" {
			t.Errorf("claim under %q without callers: %v, asks for %+v", asked, err, jobs.asked)
		}
	}
}

// TestStrangersHealth: strangers may ask for health, not too many at a time; callers always may.
func TestStrangersHealth(t *testing.T) {
	var token string
	s := start(t, Config{Callers: callersOf(t, &token, "- {name: a, token_sha256: SUM, allow: [record]}")}, new(memoryJobs))
	c := s.server.door.callers
	health := grpc_health_v1.NewHealthClient(s.conn)
	check := func(ctx context.Context) codes.Code {
		_, err := health.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		return status.Code(err)
	}
	watch := func(ctx context.Context) codes.Code {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		w, err := health.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
		testenv.Must(t, err)
		_, err = w.Recv()
		return status.Code(err)
	}
	wrong := as(t.Context(), "wrong")
	for _, ctx := range []context.Context{t.Context(), wrong, as(t.Context(), token)} {
		if check(ctx) != codes.OK || watch(ctx) != codes.OK {
			t.Error("health is refused")
		}
	}
	eventually(t, "watches count", func() bool { return c.watches.Load() == 0 && c.checks.Load() == 0 })
	c.checks.Store(maxStrangerChecks)
	c.watches.Store(maxStrangerWatches)
	for _, ctx := range []context.Context{t.Context(), wrong} {
		if got := check(ctx); got != codes.ResourceExhausted {
			t.Errorf("check: %v", got)
		}
		if got := watch(ctx); got != codes.Unimplemented {
			t.Errorf("watch: %v", got)
		}
	}
	if ctx := as(t.Context(), token); check(ctx) != codes.OK || watch(ctx) != codes.OK {
		t.Error("a caller is refused")
	}
}

// TestTiresomePeers: a connection that is refused all the time is closed, but not while it has a good call under way, nor
// one whose calls are good now and then.
func TestTiresomePeers(t *testing.T) {
	var token string
	hold, held := make(chan struct{}), make(chan struct{}, 1)
	s := start(t, Config{Callers: callersOf(t, &token, "- {name: a, token_sha256: SUM, allow: [read]}")}, &memoryJobs{onGet: func(context.Context) error {
		held <- struct{}{}
		<-hold
		return nil
	}})
	good := []string{"authorization", "Bearer " + token}
	get := field(1, []byte("j"))
	p := dial(t, s.conn.Target())
	for range maxRefusals - 1 {
		p.headers(t, getPath, false)
		wantStatus(t, p, codes.Unauthenticated)
	}
	under := p.headers(t, getPath, false, good...)
	p.send(t, under, true, append(prefix(0, len(get)), get...))
	<-held
	for range 2 {
		p.headers(t, recordPath, false, good...)
		wantStatus(t, p, codes.PermissionDenied)
	}
	time.Sleep(3 * closeDelay)
	close(hold)
	wantStatus(t, p, codes.NotFound)
	for range maxRefusals {
		p.headers(t, "/no.such/Method", false)
		wantStatus(t, p, codes.Unauthenticated)
	}
	eventually(t, "the connection stays", func() bool { return p.WritePing(false, [8]byte{}) != nil })
}

// TestAudit: each change of a caller that may administer is a line, also within batches; reads, refusals and others' are not.
func TestAudit(t *testing.T) {
	var admin string
	s := start(t, Config{Callers: callersOf(t, &admin, "- {name: root, token_sha256: SUM, allow: [admin, record, work]}")}, new(memoryJobs))
	work := joboncev1.NewWorkServiceClient(s.conn)
	ctx := as(t.Context(), admin)
	for _, call := range []func() error{
		func() error { _, err := s.RecordDelivery(ctx, text("", `{"job_id":"a"}`)); return err },
		func() error {
			_, err := s.BatchRecordDeliveries(ctx, &joboncev1.BatchRecordDeliveriesRequest{Deliveries: []*joboncev1.RecordDeliveryRequest{{JobId: "b"}, {JobId: "c", RequestId: "c"}}})
			return err
		},
		func() error { _, err := s.GetJob(ctx, &joboncev1.GetJobRequest{JobId: "a"}); return err },
	} {
		testenv.OK(t, call())
	}
	if _, err := work.CompleteWork(ctx, &joboncev1.CompleteWorkRequest{JobId: "a"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("complete: %v", err)
	}
	if _, err := s.RecordDelivery(t.Context(), text("d", "{}")); status.Code(err) != codes.Unauthenticated {
		t.Errorf("refused: %v", err)
	}
	for _, line := range s.log.lines(t, "call failed") {
		if from, _ := line["from"].(string); strings.HasPrefix(from, "127.0.0.1:") != (line["reason"] == "UNAUTHENTICATED") {
			t.Errorf("where it comes from is told of those that are refused: %v", line)
		}
	}
	var got []string
	for _, line := range s.log.lines(t, "audit") {
		got = append(got, fmt.Sprintf("%v %v %v %v", line["caller"], line["method"], line["job_id"], line["outcome"]))
	}
	want := []string{"root RecordDelivery a OK", "root BatchRecordDeliveries b OK", "root BatchRecordDeliveries c INVALID_FIELD", "root CompleteWork a INVALID_FIELD"}
	if !slices.Equal(got, want) {
		t.Errorf("the log has\n%s", strings.Join(got, "\n"))
	}
}
