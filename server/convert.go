package server

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
)

// fromRequest is the delivery as it was sent. It fails only for what the domain's types cannot say.
func fromRequest(r *joboncev1.RecordDeliveryRequest) (job.Input, error) {
	in := job.Input{
		JobID: r.GetJobId(), Event: r.GetEvent(), Status: r.GetStatus(), Opaque: r.GetOpaquePayload(),
		RequestID: r.GetRequestId(), Mode: job.WorkMode(r.GetWorkMode()), Source: r.GetSource(),
		ContentType: r.GetContentType(), Traceparent: r.GetTraceparent(), BodyOmitted: r.GetPayloadOmittedBytes(),
	}
	switch b := r.GetBody().(type) {
	case *joboncev1.RecordDeliveryRequest_Payload:
		in.Body = job.Body{Kind: job.BodyText, Data: b.Payload}
	case *joboncev1.RecordDeliveryRequest_PayloadBytes:
		in.Body = job.Body{Kind: job.BodyBytes, Data: string(b.PayloadBytes)}
	}
	// The domain's type is narrower: 257 must not become 1.
	if _, known := joboncev1.WorkMode_name[int32(r.GetWorkMode())]; !known {
		return in, &job.InvalidError{Field: "work_mode", Problem: fmt.Sprintf("%d is not known", r.GetWorkMode())}
	}
	lease, err := toDuration("lease_duration", r.GetLeaseDuration())
	in.Lease = lease
	return in, err
}

// toDuration keeps an absent duration apart from zero.
func toDuration(field string, d *durationpb.Duration) (*time.Duration, error) {
	if d == nil {
		return nil, nil
	}
	if d.CheckValid() != nil {
		return nil, &job.InvalidError{Field: field, Problem: "is not a valid duration"}
	}
	v := d.AsDuration()
	return &v, nil
}

// toResponse is the answer to a delivery.
func toResponse(o *job.Outcome) *joboncev1.RecordDeliveryResponse {
	r := &o.Record
	resp := &joboncev1.RecordDeliveryResponse{
		Disposition:   joboncev1.Disposition(o.Verdict.Disposition),
		StartWork:     o.Verdict.StartWork,
		FirstDelivery: o.Verdict.FirstDelivery,
		Deliveries:    r.Deliveries,
		Conflict:      toConflict(r, o.Verdict.Conflict),
		Job:           toJob(r),
	}
	if o.Lease != nil {
		resp.Lease = toLease(o.Lease)
	}
	if o.Verdict.Disposition == job.InProgress {
		resp.HolderExpireTime = toTime(r.Work.Due)
	}
	if o.Verdict.Disposition == job.Completed {
		resp.Result = resp.Job.Work.Result
	}
	return resp
}

// toJob is the record, with its body if it was read. Its id is not cut: it would be another job's.
func toJob(r *job.Record) *joboncev1.Job {
	j := &joboncev1.Job{
		JobId: r.JobID, Event: clip(r.Event, job.MaxEventBytes), Status: clip(r.Status, job.MaxStatusBytes),
		Source:             clip(r.Source, job.MaxSourceBytes),
		PayloadDroppedTime: toTime(r.BodyDropped), FirstSeenTime: toTime(r.FirstSeen), LastSeenTime: toTime(r.LastSeen),
		Deliveries: r.Deliveries, Conflicts: r.Conflicts, LastConflict: toConflict(r, r.LastConflict),
		Work: toWork(&r.Work), PayloadEdited: r.BodyEdited, PayloadOmittedBytes: r.BodyOmitted,
		ContentType: clip(r.ContentType, job.MaxContentTypeBytes), Traceparent: clip(r.Traceparent, job.MaxTraceparentBytes),
	}
	switch r.Body.Kind {
	case job.BodyText:
		j.Body = &joboncev1.Job_Payload{Payload: r.Body.Data}
	case job.BodyBytes:
		j.Body = &joboncev1.Job_PayloadBytes{PayloadBytes: []byte(r.Body.Data)}
	}
	return j
}

// toWork is the state of the work. Only completed work has a result.
func toWork(w *job.Work) *joboncev1.Work {
	work := &joboncev1.Work{
		State: joboncev1.WorkState(w.State), Mode: joboncev1.WorkMode(w.Mode), Attempts: w.Attempts, Generation: w.Generation,
		DueTime: toTime(w.Due), LastError: clip(w.Error, job.MaxErrorBytes), Requeues: w.Requeues,
	}
	if w.State == job.StateCompleted {
		work.Result = clip(w.Result, job.MaxResultBytes)
	}
	return work
}

// toLease is the lease for its holder.
func toLease(l *job.Lease) *joboncev1.Lease {
	return &joboncev1.Lease{
		Token: clip(l.Token, job.MaxTokenBytes), Generation: l.Generation, ExpireTime: toTime(l.Expires), Remaining: durationpb.New(l.Remaining),
	}
}

// toConflict is a delivery's disagreement with the record.
func toConflict(r *job.Record, c *job.Conflict) *joboncev1.Conflict {
	if c == nil {
		return nil
	}
	return &joboncev1.Conflict{
		Kind:           joboncev1.ConflictKind(c.Kind),
		StoredEvent:    clip(r.Event, job.MaxEventBytes),
		StoredStatus:   clip(r.Status, job.MaxStatusBytes),
		DeliveredEvent: clip(c.Event, job.MaxEventBytes), DeliveredStatus: clip(c.Status, job.MaxStatusBytes),
		Time: toTime(c.Time),
	}
}

// toTime returns nil for the zero time.
func toTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
