package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// server is a service with one scenario's faults. It decides as the real one does, as far as the scenarios go, and counts.
type server struct {
	joboncev1.UnimplementedIdempotencyServiceServer
	joboncev1.UnimplementedWorkServiceServer
	joboncev1.UnimplementedAdminServiceServer
	lis     *gate
	grpc    *grpc.Server
	stopped chan struct{}

	mu      sync.Mutex
	faults  map[string][]Fault
	counts  map[string]int
	ids     map[string]map[string]bool // request ids by method
	until   map[string]time.Time       // when a method may be called again
	broken  []string                   // rules that the client broke
	offset  time.Duration              // of the server's clock
	jobs    map[string]*record
	changed chan struct{} // closed and replaced at every change
}

// record is what is stored of a job.
type record struct {
	job      *joboncev1.Job
	requests map[string]string // the leases that were granted, by the request ids of the calls that got them
	creator  string
	token    string // of the lease that runs, or of the one that ended the work
	ended    string // the token of a lease that was completed or released
	due      time.Time
}

func startServer(faults map[string][]Fault) (*server, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &server{
		lis: &gate{Listener: lis, conns: make(map[string]net.Conn)}, grpc: grpc.NewServer(), stopped: make(chan struct{}),
		faults: make(map[string][]Fault), counts: make(map[string]int), ids: make(map[string]map[string]bool),
		until: make(map[string]time.Time), jobs: make(map[string]*record), changed: make(chan struct{}),
	}
	s.lis.refusedOne = func() { s.count("refused") }
	s.addFaults(faults)
	joboncev1.RegisterIdempotencyServiceServer(s.grpc, s)
	joboncev1.RegisterWorkServiceServer(s.grpc, s)
	joboncev1.RegisterAdminServiceServer(s.grpc, s)
	go func() {
		defer close(s.stopped)
		_ = s.grpc.Serve(s.lis)
	}()
	return s, nil
}

func (s *server) stop() {
	s.grpc.Stop()
	<-s.stopped
}

// gate is a listener whose connections can be cut, and which can be shut while its port stays taken.
type gate struct {
	net.Listener
	refusedOne func()

	mu    sync.Mutex
	conns map[string]net.Conn // by the client's address
	shut  bool
}

func (g *gate) Accept() (net.Conn, error) {
	for {
		conn, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		g.mu.Lock()
		shut := g.shut
		if !shut {
			g.conns[conn.RemoteAddr().String()] = conn
		}
		g.mu.Unlock()
		if !shut {
			return conn, nil
		}
		_ = conn.Close()
		g.refusedOne()
	}
}

func (g *gate) cut(addr string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if conn := g.conns[addr]; conn != nil {
		_ = conn.Close()
		delete(g.conns, addr)
	}
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	if shut {
		for _, conn := range g.conns {
			_ = conn.Close()
		}
		clear(g.conns)
	}
}

// change does what a scenario has happen.
func (s *server) change(c *Change) error {
	if c.Down || c.Up {
		s.lis.set(c.Down)
	}
	s.addFaults(c.Calls)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offset += c.Clock
	for _, id := range c.Queue {
		s.jobs[id] = newRecord(&joboncev1.RecordDeliveryRequest{
			JobId: id, WorkMode: joboncev1.WorkMode_WORK_MODE_QUEUED, Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: "{}"},
		}, s.now())
	}
	if c.Take != "" {
		r := s.jobs[c.Take]
		if r == nil || r.token == "" {
			return fmt.Errorf("nobody has a lease of %s", c.Take)
		}
		r.grant("", time.Hour)
	}
	return nil
}

func (s *server) addFaults(faults map[string][]Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for method, list := range faults {
		s.faults[method] = append(s.faults[method], list...)
	}
}

func (s *server) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
	s.tell()
}

// tell wakes those who wait for a change. The lock is held.
func (s *server) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// await waits until what was counted is enough, and returns what is missing once ctx ends.
func (s *server) await(ctx context.Context, counts map[string]int) error {
	for {
		s.mu.Lock()
		changed := s.changed
		var missing error
		for what, n := range counts {
			if s.counts[what] < n {
				missing = fmt.Errorf("%s: %d, and %d are awaited", what, s.counts[what], n)
			}
		}
		s.mu.Unlock()
		if missing == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return missing
		}
	}
}

// check says what is wrong with what was counted.
func (s *server) check(counts map[string]Count) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	problems := slices.Clone(s.broken)
	for method, want := range counts {
		calls, ids := s.counts[method], len(s.ids[method])
		switch {
		case want.None && calls > 0:
			problems = append(problems, fmt.Sprintf("%s: %d calls, and there must be none", method, calls))
		case want.Calls > 0 && calls != want.Calls:
			problems = append(problems, fmt.Sprintf("%s: %d calls, not %d", method, calls, want.Calls))
		case calls < want.AtLeast:
			problems = append(problems, fmt.Sprintf("%s: %d calls, and not at least %d", method, calls, want.AtLeast))
		case want.RequestIDs > 0 && ids != want.RequestIDs:
			problems = append(problems, fmt.Sprintf("%s: %d request ids, not %d", method, ids, want.RequestIDs))
		}
	}
	return problems
}

// now is the server's time. The lock is held.
func (s *server) now() time.Time { return time.Now().Add(s.offset) }

// arrive counts a call and returns what is to befall it.
func (s *server) arrive(ctx context.Context, method, requestID string) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[method]++
	if requestID != "" {
		if s.ids[method] == nil {
			s.ids[method] = make(map[string]bool)
		}
		s.ids[method][requestID] = true
	}
	if _, ok := ctx.Deadline(); !ok {
		s.broken = append(s.broken, method+": a call without a deadline")
	}
	if time.Now().Before(s.until[method]) {
		s.broken = append(s.broken, method+": called again before the time that the RetryInfo asked for")
	}
	s.tell()
	if len(s.faults[method]) == 0 {
		return Fault{}
	}
	fault := s.faults[method][0]
	s.faults[method] = s.faults[method][1:]
	return fault
}

// patient notes a client that asks the service to wait for longer than it does itself.
func (s *server) patient(ctx context.Context, method string, wait time.Duration) {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < wait {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.broken = append(s.broken, method+": a wait that is longer than the call's deadline")
	}
}

// serve carries a call out, or not, and answers, or not.
func serve[Resp any](s *server, ctx context.Context, method, requestID string, carryOut func() (Resp, error)) (Resp, error) {
	var none Resp
	fault := s.arrive(ctx, method, requestID)
	applied := fault.Applied || fault.Lose != "before" && !fault.Hang && fault.Error == nil
	var resp Resp
	var err error
	if applied {
		s.mu.Lock()
		resp, err = carryOut()
		s.mu.Unlock()
	}
	switch {
	case fault.Lose != "":
		p, _ := peer.FromContext(ctx)
		s.lis.cut(p.Addr.String())
		return none, status.Error(codes.Unavailable, "lost")
	case fault.Hang:
		<-ctx.Done()
		return none, ctx.Err()
	case fault.Error != nil:
		if fault.Error.RetryAfter > 0 {
			s.mu.Lock()
			s.until[method] = time.Now().Add(fault.Error.RetryAfter)
			s.mu.Unlock()
		}
		return none, fault.Error.status()
	case err != nil:
		return none, err
	}
	if answer, ok := any(resp).(*joboncev1.RecordDeliveryResponse); ok {
		if fault.Disposition != 0 {
			answer.Disposition = joboncev1.Disposition(fault.Disposition)
		}
		if fault.StartWork != nil {
			answer.StartWork = *fault.StartWork
		}
	}
	return resp, nil
}

func refusal(code codes.Code, reason, message string) error {
	return (&ErrorAnswer{Code: statusCode(code), Reason: reason, Message: message}).status()
}

func (e *ErrorAnswer) status() error {
	st := status.New(codes.Code(e.Code), e.Message)
	var details []protoadapt.MessageV1
	if e.Reason != "" {
		domain := e.Domain
		if domain == "" {
			domain = "jobonce"
		}
		details = append(details, &errdetails.ErrorInfo{Domain: domain, Reason: e.Reason})
	}
	if e.Field != "" {
		details = append(details, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: e.Field}}})
	}
	if e.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)})
	}
	if detailed, err := st.WithDetails(details...); err == nil {
		st = detailed
	}
	p := st.Proto()
	for _, detail := range p.GetDetails() {
		if e.Garbled {
			p.Details = append([]*anypb.Any{{TypeUrl: detail.GetTypeUrl(), Value: []byte{0xff}}}, p.Details...)
		}
	}
	return status.ErrorProto(p)
}

func newRecord(req *joboncev1.RecordDeliveryRequest, now time.Time) *record {
	states := map[joboncev1.WorkMode]joboncev1.WorkState{
		joboncev1.WorkMode_WORK_MODE_LEASED: joboncev1.WorkState_WORK_STATE_LEASED,
		joboncev1.WorkMode_WORK_MODE_QUEUED: joboncev1.WorkState_WORK_STATE_QUEUED,
	}
	state, ok := states[req.GetWorkMode()]
	if !ok {
		state = joboncev1.WorkState_WORK_STATE_UNTRACKED
	}
	job := &joboncev1.Job{
		JobId: req.GetJobId(), Event: req.GetEvent(), FirstSeenTime: timestamppb.New(now),
		Work: &joboncev1.Work{State: state, Mode: req.GetWorkMode()},
	}
	switch body := req.GetBody().(type) {
	case *joboncev1.RecordDeliveryRequest_Payload:
		job.Body = &joboncev1.Job_Payload{Payload: body.Payload}
	case *joboncev1.RecordDeliveryRequest_PayloadBytes:
		job.Body = &joboncev1.Job_PayloadBytes{PayloadBytes: body.PayloadBytes}
	}
	return &record{job: job, creator: req.GetRequestId(), requests: make(map[string]string)}
}

// grant gives the lease to the call with the request id.
func (r *record) grant(requestID string, lease time.Duration) {
	r.token, r.due = rand.Text(), time.Now().Add(lease)
	r.requests[requestID] = r.token
	r.job.Work.State = joboncev1.WorkState_WORK_STATE_LEASED
	r.job.Work.Generation++
	r.job.Work.Attempts++
}

// lease is the lease that runs, as it is told.
func (s *server) lease(r *record) *joboncev1.Lease {
	left := time.Until(r.due)
	return &joboncev1.Lease{
		Token: r.token, Generation: r.job.GetWork().GetGeneration(), ExpireTime: timestamppb.New(s.now().Add(left)),
		Remaining: durationpb.New(left),
	}
}

// RecordDelivery decides as docs/clients.md says.
func (s *server) RecordDelivery(
	ctx context.Context, req *joboncev1.RecordDeliveryRequest,
) (*joboncev1.RecordDeliveryResponse, error) {
	s.patient(ctx, "RecordDelivery", req.GetWait().AsDuration())
	return serve(s, ctx, "RecordDelivery", req.GetRequestId(), func() (*joboncev1.RecordDeliveryResponse, error) {
		r, leased := s.jobs[req.GetJobId()], req.GetWorkMode() == joboncev1.WorkMode_WORK_MODE_LEASED
		resp := &joboncev1.RecordDeliveryResponse{}
		if r == nil {
			r = newRecord(req, s.now())
			s.jobs[req.GetJobId()] = r
			if leased {
				r.grant(req.GetRequestId(), req.GetLeaseDuration().AsDuration())
			}
		}
		r.job.Deliveries++
		r.job.LastSeenTime = timestamppb.New(s.now())
		resp.Deliveries, resp.FirstDelivery = r.job.GetDeliveries(), r.creator == req.GetRequestId()
		resp.Job = withoutBody(r.job)
		switch state := r.job.GetWork().GetState(); {
		case state == joboncev1.WorkState_WORK_STATE_COMPLETED:
			resp.Disposition, resp.Result = joboncev1.Disposition_DISPOSITION_COMPLETED, r.job.GetWork().GetResult()
		case state == joboncev1.WorkState_WORK_STATE_DEAD:
			resp.Disposition = joboncev1.Disposition_DISPOSITION_DEAD
		case state == joboncev1.WorkState_WORK_STATE_UNTRACKED && !resp.GetFirstDelivery():
			resp.Disposition = joboncev1.Disposition_DISPOSITION_DUPLICATE
		case resp.GetFirstDelivery():
			resp.Disposition = joboncev1.Disposition_DISPOSITION_FIRST
			resp.StartWork = state != joboncev1.WorkState_WORK_STATE_QUEUED
			if state == joboncev1.WorkState_WORK_STATE_LEASED {
				resp.Lease = s.lease(r)
			}
		case state == joboncev1.WorkState_WORK_STATE_LEASED && time.Now().Before(r.due):
			resp.Disposition = joboncev1.Disposition_DISPOSITION_IN_PROGRESS
		case leased:
			r.grant(req.GetRequestId(), req.GetLeaseDuration().AsDuration())
			resp.Disposition, resp.StartWork = joboncev1.Disposition_DISPOSITION_RECLAIMED, true
			resp.Lease, resp.Job = s.lease(r), proto.CloneOf(r.job)
		default:
			resp.Disposition = joboncev1.Disposition_DISPOSITION_PENDING
		}
		return resp, nil
	})
}

func withoutBody(job *joboncev1.Job) *joboncev1.Job {
	job = proto.CloneOf(job)
	job.Body = nil
	return job
}

// GetJob returns the record.
func (s *server) GetJob(ctx context.Context, req *joboncev1.GetJobRequest) (*joboncev1.GetJobResponse, error) {
	return serve(s, ctx, "GetJob", "", func() (*joboncev1.GetJobResponse, error) {
		r := s.jobs[req.GetJobId()]
		switch {
		case r == nil:
			return nil, refusal(codes.NotFound, "JOB_NOT_FOUND", "no such job")
		case req.GetView() == joboncev1.JobView_JOB_VIEW_FULL:
			return &joboncev1.GetJobResponse{Job: proto.CloneOf(r.job)}, nil
		}
		return &joboncev1.GetJobResponse{Job: withoutBody(r.job)}, nil
	})
}

// ClaimWork hands out what is queued. A call that finds nothing is answered at once, whatever it says of waiting: a minute
// is too long for a test, and the client must not rely on it.
func (s *server) ClaimWork(ctx context.Context, req *joboncev1.ClaimWorkRequest) (*joboncev1.ClaimWorkResponse, error) {
	s.patient(ctx, "ClaimWork", req.GetWait().AsDuration())
	return serve(s, ctx, "ClaimWork", req.GetRequestId(), func() (*joboncev1.ClaimWorkResponse, error) {
		resp := &joboncev1.ClaimWorkResponse{}
		for _, r := range s.jobs {
			replayed := r.token != "" && r.requests[req.GetRequestId()] == r.token
			queued, room := r.job.GetWork().GetState() == joboncev1.WorkState_WORK_STATE_QUEUED, len(resp.GetJobs()) < int(max(1, req.GetMaxJobs()))
			free := queued && room
			if free && !replayed {
				r.grant(req.GetRequestId(), req.GetLeaseDuration().AsDuration())
			}
			if free || replayed {
				resp.Jobs = append(resp.Jobs, &joboncev1.ClaimedJob{Job: proto.CloneOf(r.job), Lease: s.lease(r)})
			}
		}
		return resp, nil
	})
}

// RequeueWork starts the work of a job anew. A job that has moved on is not as expected.
func (s *server) RequeueWork(ctx context.Context, req *joboncev1.RequeueWorkRequest) (*joboncev1.RequeueWorkResponse, error) {
	return serve(s, ctx, "RequeueWork", "", func() (*joboncev1.RequeueWorkResponse, error) {
		r := s.jobs[req.GetJobId()]
		if r == nil || req.GetExpectedGeneration() != r.job.GetWork().GetGeneration() ||
			!proto.Equal(req.GetExpectedFirstSeenTime(), r.job.GetFirstSeenTime()) {
			return nil, refusal(codes.FailedPrecondition, "WRONG_STATE", "it has moved on")
		}
		changed := r.job.GetWork().GetState() != joboncev1.WorkState_WORK_STATE_QUEUED
		if changed && req.GetExpectedState() != r.job.GetWork().GetState() { // unlike a repeated call, which finds it queued
			return nil, refusal(codes.FailedPrecondition, "WRONG_STATE", "it has moved on")
		}
		r.job.Work.State, r.job.Work.Attempts = joboncev1.WorkState_WORK_STATE_QUEUED, 0
		return &joboncev1.RequeueWorkResponse{Job: proto.CloneOf(r.job), Changed: changed}, nil
	})
}

// hold does something with the lease that the token names, unless it is lost.
func (s *server) hold(ctx context.Context, method, jobID, token string, do func(r *record) error) error {
	_, err := serve(s, ctx, method, "", func() (struct{}, error) {
		r := s.jobs[jobID]
		if r == nil {
			return struct{}{}, refusal(codes.NotFound, "JOB_NOT_FOUND", "no such job")
		}
		if token == r.ended && method != "RenewLease" {
			return struct{}{}, nil
		}
		if token != r.token || token == r.ended {
			return struct{}{}, refusal(codes.Aborted, "LEASE_LOST", "the lease is somebody else's")
		}
		return struct{}{}, do(r)
	})
	return err
}

// RenewLease lets a lease run anew.
func (s *server) RenewLease(ctx context.Context, req *joboncev1.RenewLeaseRequest) (*joboncev1.RenewLeaseResponse, error) {
	resp := &joboncev1.RenewLeaseResponse{}
	err := s.hold(ctx, "RenewLease", req.GetJobId(), req.GetLeaseToken(), func(r *record) error {
		r.due = time.Now().Add(req.GetLeaseDuration().AsDuration())
		resp.Lease = s.lease(r)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// CompleteWork ends the work.
func (s *server) CompleteWork(ctx context.Context, req *joboncev1.CompleteWorkRequest) (*joboncev1.CompleteWorkResponse, error) {
	err := s.hold(ctx, "CompleteWork", req.GetJobId(), req.GetLeaseToken(), func(r *record) error {
		r.ended, r.job.Work.State, r.job.Work.Result = r.token, joboncev1.WorkState_WORK_STATE_COMPLETED, req.GetResult()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &joboncev1.CompleteWorkResponse{}, nil
}

// ReleaseWork gives the work back, or up.
func (s *server) ReleaseWork(ctx context.Context, req *joboncev1.ReleaseWorkRequest) (*joboncev1.ReleaseWorkResponse, error) {
	err := s.hold(ctx, "ReleaseWork", req.GetJobId(), req.GetLeaseToken(), func(r *record) error {
		r.ended, r.job.Work.State, r.job.Work.LastError = r.token, joboncev1.WorkState_WORK_STATE_QUEUED, req.GetError()
		if req.GetDead() {
			r.job.Work.State = joboncev1.WorkState_WORK_STATE_DEAD
		}
		if req.GetNotStarted() {
			s.counts["NotStarted"]++
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &joboncev1.ReleaseWorkResponse{}, nil
}
