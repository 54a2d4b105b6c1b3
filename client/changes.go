package client

import (
	"context"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// changes makes attempts of changes of leases, each in a call of its own or with others. A renewal's answer is the lease.
type changes = coalescer[*joboncev1.LeaseChange, *joboncev1.Lease]

func newChanges(service joboncev1.WorkServiceClient, token *bearer, shared bool) *changes {
	return newCoalescer(changeOne(service), changeSeveral(service), token, shared)
}

// changeOne makes a call of its own.
func changeOne(service joboncev1.WorkServiceClient) func(context.Context, *joboncev1.LeaseChange) (*joboncev1.Lease, *Error) {
	return func(ctx context.Context, change *joboncev1.LeaseChange) (*joboncev1.Lease, *Error) {
		switch of := change.GetChange().(type) {
		case *joboncev1.LeaseChange_Renew:
			resp, err := attempt(ctx, service.RenewLease, of.Renew)
			return resp.GetLease(), err
		case *joboncev1.LeaseChange_Complete:
			_, err := attempt(ctx, service.CompleteWork, of.Complete)
			return nil, err
		}
		_, err := attempt(ctx, service.ReleaseWork, change.GetRelease())
		return nil, err
	}
}

// changeSeveral makes one call of several.
func changeSeveral(service joboncev1.WorkServiceClient) func(context.Context, []*joboncev1.LeaseChange) ([]answer[*joboncev1.Lease], *Error) {
	return func(ctx context.Context, changes []*joboncev1.LeaseChange) ([]answer[*joboncev1.Lease], *Error) {
		resp, err := attempt(ctx, service.BatchChangeLeases, &joboncev1.BatchChangeLeasesRequest{Changes: changes})
		answers := make([]answer[*joboncev1.Lease], len(resp.GetResults()))
		for i, result := range resp.GetResults() {
			answers[i].resp = result.GetLease()
			if result.GetError() != nil {
				answers[i].err = fromItem(result.GetError())
			}
		}
		return answers, err
	}
}
