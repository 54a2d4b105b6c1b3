package storetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jobonce/jobonce/internal/job"
)

// driver runs the reference model's operations on a store. Jobs of different drivers do not meet: claims are limited to
// the driver's own event.
type driver struct {
	store job.Store
	event string
}

// do runs an operation on one job and returns what it answered. An error of the store that is none of the domain's
// answers comes back as an error.
func (d driver) do(ctx context.Context, jobID string, op any) (refAnswer, error) {
	switch op := op.(type) {
	case refRecord:
		in := job.Input{JobID: jobID, Event: d.event, Status: op.status, RequestID: op.request, Mode: op.mode,
			Body: job.Body{Kind: job.BodyText, Data: op.body}}
		if op.mode == job.ModeLeased {
			l := lease
			in.Lease = &l
		}
		delivery, err := in.Delivery(1 << 20)
		if err != nil {
			return refAnswer{}, err
		}
		return d.recorded(d.store.Record(ctx, []job.Delivery{delivery})[0])
	case refClaim:
		claimed, err := d.store.Claim(ctx, job.ClaimRequest{RequestID: op.request, Max: 1, Lease: lease, Events: []string{d.event}, MaxBytes: 1 << 20})
		if err != nil || len(claimed) == 0 {
			return refAnswer{}, err
		}
		if len(claimed) > 1 || claimed[0].Record.JobID != jobID {
			return refAnswer{}, fmt.Errorf("claimed %d jobs, the first is %s", len(claimed), claimed[0].Record.JobID)
		}
		return refAnswer{lease: leaseOf(&claimed[0].Lease), withBody: claimed[0].Record.Body.Data != ""}, nil
	case refRenew:
		l, err := job.Renew(ctx, d.store, jobID, op.token, lease)
		if err != nil {
			return failed(err)
		}
		return refAnswer{lease: leaseOf(&l)}, nil
	case refComplete:
		return failed(job.Complete(ctx, d.store, jobID, op.token, op.result))
	case refRelease:
		return failed(job.GiveBack(ctx, d.store, jobID, op.token, job.Release{Delay: op.delay, Error: op.reason, Dead: op.dead}))
	case refUnclaim:
		return failed(d.store.Unclaim(ctx, []job.Claimed{{Record: job.Record{JobID: jobID}, Granted: true,
			Lease: job.Lease{Token: op.token, Expires: time.UnixMilli(op.expires).UTC()}}}))
	}
	return refAnswer{}, fmt.Errorf("no such operation: %T", op)
}

func (d driver) recorded(o job.Outcome) (refAnswer, error) {
	if o.Err != nil {
		return refAnswer{}, o.Err
	}
	v := o.Verdict
	a := refAnswer{disposition: v.Disposition, start: v.StartWork, first: v.FirstDelivery, withBody: o.Record.Body.Data != ""}
	if v.Conflict != nil {
		a.conflict = v.Conflict.Kind
	}
	if o.Lease != nil {
		a.lease = leaseOf(o.Lease)
	}
	if v.Disposition == job.Completed {
		a.result = o.Record.Work.Result
	}
	return a, nil
}

func leaseOf(l *job.Lease) refLease { return refLease{l.Token, l.Generation, l.Expires.UnixMilli()} }

func failed(err error) (refAnswer, error) {
	switch {
	case errors.Is(err, job.ErrLeaseLost):
		return refAnswer{err: "lost"}, nil
	case errors.Is(err, job.ErrNotFound):
		return refAnswer{err: "absent"}, nil
	}
	return refAnswer{}, err
}
