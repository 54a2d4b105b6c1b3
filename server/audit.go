package server

import (
	"context"
	"errors"
	"log/slog"
	"path"
	"strings"

	"google.golang.org/grpc"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/job"
)

// audit logs each change that a caller with the right to administer makes, and each of AdminService, also where no callers are
// configured: who, what, which job, and what became of it.
func audit(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(ctx, req)
		c := auth.CallerOf(ctx)
		audited := c == nil && strings.HasPrefix(info.FullMethod, adminMethods) || c != nil && c.May(auth.Admin)
		if !audited || isHealth(info.FullMethod) || reads[info.FullMethod] || errors.As(err, new(*refusal)) {
			return resp, err
		}
		name := ""
		if c != nil {
			name = c.Name
		}
		line := func(jobID, outcome string) {
			log.LogAttrs(ctx, slog.LevelInfo, "audit", append([]slog.Attr{slog.String("caller", name),
				slog.String("method", path.Base(info.FullMethod)), slog.String("job_id", jobID), slog.String("outcome", outcome)}, how(req)...)...)
		}
		if err != nil {
			line(named(req), outcomeOf(err))
			return resp, err
		}
		switch resp := resp.(type) {
		case *joboncev1.RecordDeliveryResponse:
			line(resp.GetJob().GetJobId(), "OK")
		case *joboncev1.BatchRecordDeliveriesResponse:
			for i, r := range resp.GetResults() {
				if e := r.GetError(); e != nil {
					line(named(req.(*joboncev1.BatchRecordDeliveriesRequest).GetDeliveries()[i]), reasonName(e.GetReason()))
				} else {
					line(r.GetResponse().GetJob().GetJobId(), "OK")
				}
			}
		case *joboncev1.BatchChangeLeasesResponse:
			for i, r := range resp.GetResults() {
				outcome := "OK"
				if e := r.GetError(); e != nil {
					outcome = reasonName(e.GetReason())
				}
				_, change := asCall(req.(*joboncev1.BatchChangeLeasesRequest).GetChanges()[i])
				line(named(change), outcome)
			}
		case *joboncev1.ClaimWorkResponse:
			for _, j := range resp.GetJobs() {
				line(j.GetJob().GetJobId(), "OK")
			}
		case *joboncev1.ClaimOverdueJobsResponse:
			for _, j := range resp.GetJobs() {
				line(j.GetExpectation().GetJobId(), "OK")
			}
		case *joboncev1.RequeueJobsResponse:
			for _, r := range resp.GetResults() {
				outcome := "OK"
				switch {
				case r.GetError() != nil:
					outcome = reasonName(r.GetError().GetReason())
				case req.(*joboncev1.RequeueJobsRequest).GetDryRun():
					outcome = "DRY_RUN"
				}
				line(r.GetJobId(), outcome)
			}
		default:
			line(named(req), "OK")
		}
		return resp, err
	}
}

// how is what makes a change another one than its method tells.
func how(req any) (attrs []slog.Attr) {
	if r, ok := req.(interface{ GetPayloadOnly() bool }); ok && r.GetPayloadOnly() {
		attrs = append(attrs, slog.Bool("payload_only", true))
	}
	if r, ok := req.(interface{ GetForce() bool }); ok && r.GetForce() {
		attrs = append(attrs, slog.Bool("force", true))
	}
	return attrs
}

// named is the job that a request names, or what the ids of its jobs begin with; empty when it names none.
func named(req any) string {
	if r, ok := req.(interface{ GetJobIdPrefix() string }); ok {
		return clip(r.GetJobIdPrefix(), job.MaxJobIDBytes)
	}
	if r, ok := req.(interface{ GetJobId() string }); ok {
		return clip(r.GetJobId(), job.MaxJobIDBytes)
	}
	return ""
}

func outcomeOf(err error) string {
	var p *problem
	if errors.As(err, &p) {
		return reasonName(p.reason)
	}
	return "UNKNOWN"
}
