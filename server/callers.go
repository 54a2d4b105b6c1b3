package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1alpha"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/job"
)

// rights are those of which a caller needs one, by method. Methods that are not here are nobody's, but for those of health.
// What depends on the request is asked when it is there: see [mayTouch], [mayRecord] and [mayReadBody].
var rights = map[string]auth.Rights{
	joboncev1.IdempotencyService_RecordDelivery_FullMethodName:        auth.Record,
	joboncev1.IdempotencyService_BatchRecordDeliveries_FullMethodName: auth.Record,
	joboncev1.IdempotencyService_GetJob_FullMethodName:                auth.Read,
	joboncev1.WorkService_ClaimWork_FullMethodName:                    auth.Work,
	// The lease token proves the holder.
	joboncev1.WorkService_RenewLease_FullMethodName:        auth.Record | auth.Work,
	joboncev1.WorkService_CompleteWork_FullMethodName:      auth.Record | auth.Work,
	joboncev1.WorkService_ReleaseWork_FullMethodName:       auth.Record | auth.Work,
	joboncev1.WorkService_BatchChangeLeases_FullMethodName: auth.Record | auth.Work,

	joboncev1.ExpectationService_ExpectJob_FullMethodName:         auth.Expect,
	joboncev1.ExpectationService_ClaimOverdueJobs_FullMethodName:  auth.Expect,
	joboncev1.ExpectationService_ReportPoll_FullMethodName:        auth.Expect,
	joboncev1.ExpectationService_CancelExpectation_FullMethodName: auth.Expect,

	joboncev1.AdminService_ListJobs_FullMethodName:         auth.Read,
	joboncev1.AdminService_CountJobs_FullMethodName:        auth.Read,
	joboncev1.AdminService_RequeueWork_FullMethodName:      auth.Admin,
	joboncev1.AdminService_DeleteJob_FullMethodName:        auth.Admin,
	joboncev1.AdminService_RequeueJobs_FullMethodName:      auth.Admin,
	joboncev1.AdminService_ListExpectations_FullMethodName: auth.Read,
	joboncev1.AdminService_PauseClaims_FullMethodName:      auth.Admin,
	joboncev1.AdminService_ResumeClaims_FullMethodName:     auth.Admin,
	joboncev1.AdminService_ListClaimPauses_FullMethodName:  auth.Read,

	grpc_reflection_v1.ServerReflection_ServerReflectionInfo_FullMethodName:      auth.Any,
	grpc_reflection_v1alpha.ServerReflection_ServerReflectionInfo_FullMethodName: auth.Any,
}

// The bounds of what strangers may have under way: calls without a caller, where callers are configured. Health needs none.
const (
	maxStrangerChecks  = 64
	maxStrangerWatches = 256
)

// callers is what the door asks about who calls. nil: everybody may do everything.
type callers struct {
	authority *auth.Authority
	// certificates are nil in plaintext.
	certificates *auth.Certificates
	// checks and watches count those of strangers.
	checks, watches atomic.Int64
}

func newCallers(cfg Config) *callers {
	if cfg.Callers == nil {
		return nil
	}
	return &callers{authority: cfg.Callers, certificates: cfg.Certificates}
}

// isHealth tells whether the method is one of the health service, isReflection of reflection.
func isHealth(method string) bool     { return strings.HasPrefix(method, "/grpc.health.v1.Health/") }
func isReflection(method string) bool { return strings.HasPrefix(method, "/grpc.reflection.") }

// admit decides whether the call may come in, and returns a context that has its caller.
func (c *callers) admit(ctx context.Context, method string) (context.Context, error) {
	if c == nil {
		return ctx, nil
	}
	caller, err := c.who(ctx)
	switch {
	case isHealth(method):
		if err != nil {
			return ctx, nil // A stranger: who has lost its rights is to hear of that from its calls.
		}
		return auth.WithCaller(ctx, caller), nil
	case errors.Is(err, auth.ErrNobody) && isReflection(method) && auth.Loopback(connection(ctx).addr.Addr):
		return ctx, nil
	case err != nil:
		return ctx, unknownCaller(err)
	}
	ctx = auth.WithCaller(ctx, caller)
	if need := rights[method]; need == 0 {
		return ctx, denied("%s may not call this method", caller.Name)
	} else if !caller.May(need) {
		return ctx, denied("%s may not call this method: that needs the right %v", caller.Name, need)
	}
	if wait := caller.Wait(time.Now()); wait > 0 {
		p := newProblem(joboncev1.ErrorReason_ERROR_REASON_RATE_LIMITED, caller.Name+" makes more calls than it may")
		p.retry = max(wait, time.Millisecond)
		return ctx, p
	}
	return ctx, nil
}

// known is nil when the call has a caller, which all calls but those of health must have.
func (c *callers) known(ctx context.Context) error {
	if c == nil {
		return nil
	}
	if _, err := c.who(ctx); err != nil {
		return unknownCaller(err)
	}
	return nil
}

// unknownCaller is the error of a call that is nobody's.
func unknownCaller(err error) error {
	if errors.Is(err, auth.ErrUnavailable) {
		return newProblem(joboncev1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE, err.Error())
	}
	return newProblem(joboncev1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, err.Error())
}

// who finds the caller.
func (c *callers) who(ctx context.Context) (*auth.Caller, error) {
	shown := auth.Shown{Authorization: metadata.ValueFromIncomingContext(ctx, "authorization")}
	if p, ok := peer.FromContext(ctx); ok && c.certificates != nil {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
			if err := c.certificates.Vouch(&connection(ctx).vouched, info.State.PeerCertificates); err != nil {
				return nil, err
			}
			shown.Certificate = info.State.PeerCertificates[0]
		}
	}
	return c.authority.Who(ctx, shown)
}

// health counts a call of the health service, if it is a stranger's. leave must be called when it has ended, error or not.
func (c *callers) health(ctx context.Context, method string) (leave func(), err error) {
	if c == nil || auth.CallerOf(ctx) != nil {
		return func() {}, nil
	}
	n, most, refusal := &c.checks, int64(maxStrangerChecks), error(job.ErrOverloaded)
	if method == grpc_health_v1.Health_Watch_FullMethodName {
		// gRPC's clients take this for healthy, and go on.
		n, most = &c.watches, maxStrangerWatches
		refusal = newProblem(joboncev1.ErrorReason_ERROR_REASON_UNIMPLEMENTED, "too many health watches without a caller")
	}
	if n.Add(1) <= most {
		refusal = nil
	}
	return func() { n.Add(-1) }, refusal
}

// denied is the error of a call that its caller has no right to.
func denied(format string, args ...any) error {
	return newProblem(joboncev1.ErrorReason_ERROR_REASON_PERMISSION_DENIED, fmt.Sprintf(format, args...))
}

// mayTouch is nil when the job is one of the caller's: this is the one place where that is decided. It is asked before the
// store is, so that the answer says nothing about the job.
func mayTouch(ctx context.Context, jobID string) error {
	if c := auth.CallerOf(ctx); c != nil && !c.Covers(jobID) {
		return elsewhere(c)
	}
	return nil
}

// elsewhere is the error of a caller that asks for jobs which are not its own.
func elsewhere(c *auth.Caller) error {
	return denied("the ids of the jobs of %s begin with %q", c.Name, c.Prefix)
}

// ownPrefix is what the ids of all the caller's jobs begin with; empty where it may have any.
func ownPrefix(ctx context.Context) string {
	if c := auth.CallerOf(ctx); c != nil {
		return c.Prefix
	}
	return ""
}

// mayPoll tells whether the caller may know the whole status URL of an expectation, whose query may be a secret: to ask there, or
// as an administrator.
func mayPoll(ctx context.Context) bool {
	c := auth.CallerOf(ctx)
	return c == nil || c.May(auth.Expect|auth.Admin)
}

// modeRights are the rights to record with a work mode.
var modeRights = map[job.WorkMode]auth.Rights{
	job.ModeUntracked: auth.RecordUntracked, job.ModeLeased: auth.RecordLeased, job.ModeQueued: auth.RecordQueued,
}

// mayRecord is nil when the caller may record the delivery.
func mayRecord(ctx context.Context, d *job.Delivery) error {
	if c := auth.CallerOf(ctx); c != nil && !c.May(modeRights[d.Mode]) {
		return denied("%s may not record with the work mode %v: that needs the right record: [%[2]v]", c.Name, d.Mode)
	}
	return mayTouch(ctx, d.JobID)
}

// mayReadBody is nil when the caller may read bodies.
func mayReadBody(ctx context.Context) error {
	if c := auth.CallerOf(ctx); c != nil && !c.May(auth.ReadBodies) {
		return denied("%s may not read bodies: that needs the right read_bodies; JOB_VIEW_BASIC goes without", c.Name)
	}
	return nil
}

// narrowed is the prefix of the jobs that a caller gets who asks for those under a prefix, empty for any: it is narrowed to its
// own. The error says that there can be none.
func narrowed(ctx context.Context, asked string) (prefix string, err error) {
	c := auth.CallerOf(ctx)
	switch {
	case c == nil || c.Covers(asked):
		return asked, nil
	case strings.HasPrefix(c.Prefix, asked):
		return c.Prefix, nil
	}
	return "", elsewhere(c)
}
