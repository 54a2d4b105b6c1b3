package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// What can be done to jobs, as forms have it.
const (
	requeue = "requeue"
	remove  = "delete"
)

// order is what a form asks for.
type order struct {
	// Do is what is to be done, Verb and Past how people say that.
	Do, Verb, Past string
	Jobs           []handle
	Force          bool
	// Back is the address of the view that the form was on.
	Back string
}

// readOrder reads a form. The error is a [refusal], also for a viewer who may change nothing.
func (p *Page) readOrder(r *request) (o order, err error) {
	if err := r.ParseForm(); errors.As(err, new(*http.MaxBytesError)) {
		return o, err
	} else if err != nil {
		return o, &refusal{http.StatusBadRequest, "The form cannot be read.", ""}
	}
	o = order{Do: r.PostFormValue("do"), Force: r.PostFormValue("force") == "yes", Back: here(r.PostFormValue("back"))}
	switch o.Do {
	case requeue:
		o.Verb, o.Past = "Requeue", "Requeued"
	case remove:
		o.Verb, o.Past = "Delete", "Deleted"
	default:
		return o, &refusal{http.StatusBadRequest, "The form does not say what is to be done.", ""}
	}
	if !r.viewer.Change {
		return o, p.mayNot(r, o.Do+" jobs", "admin")
	}
	for _, text := range r.PostForm["job"] {
		h, ok := parseHandle(text)
		if !ok {
			return o, &refusal{http.StatusBadRequest, "The form names a job in no way that this page does.", "Go back, load the list again, and choose anew."}
		}
		o.Jobs = append(o.Jobs, h)
	}
	if !whole(r.PostForm) {
		return o, &refusal{http.StatusBadRequest, "The form is not UTF-8.", ""}
	}
	if len(o.Jobs) > pageSize {
		return o, &refusal{http.StatusBadRequest, fmt.Sprintf("The form names more than %d jobs.", pageSize), ""}
	}
	if len(o.Jobs) == 0 {
		return o, &refusal{http.StatusBadRequest, "No job is chosen.", "Go back, and tick the boxes of those that are meant."}
	}
	return o, nil
}

// confirm asks whether it is meant.
func (p *Page) confirm(r *request) (*content, error) {
	o, err := p.readOrder(r)
	if err != nil {
		return nil, err
	}
	title := fmt.Sprintf("%s %d jobs?", o.Verb, len(o.Jobs))
	if len(o.Jobs) == 1 {
		title = o.Verb + " this job?"
	}
	return &content{template: "confirm", title: title, data: o}, nil
}

// outcome is what became of a job.
type outcome struct {
	ID, Done string
	Problem  *problem
}

// change does what the form says to each job, one after the other: what is done stays done when a later one fails. It goes on when
// the browser does not wait for the answer. Once the service does not answer, or time is up, the rest is not tried.
func (p *Page) change(r *request) (*content, error) {
	o, err := p.readOrder(r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), changeTime)
	defer cancel()
	defer p.counted.Clear()
	data := struct {
		Outcomes     []outcome
		Done, Failed int
		Back         string
	}{Back: o.Back}
	if o.Do == remove && strings.HasPrefix(data.Back, "/job?") {
		data.Back = "/jobs"
	}
	stopped := false
	for _, h := range o.Jobs {
		if stopped || ctx.Err() != nil {
			data.Outcomes = append(data.Outcomes, outcome{h.ID, "", &problem{Message: "Not tried: the service had not answered before."}})
			continue
		}
		done, err := p.changeOne(ctx, &o, h)
		if err == nil {
			data.Done++
			data.Outcomes = append(data.Outcomes, outcome{ID: h.ID, Done: done})
			continue
		}
		said := explain(err)
		switch status.Code(err) {
		case codes.DeadlineExceeded, codes.Unavailable, codes.Canceled, codes.ResourceExhausted, codes.Unauthenticated:
			if stopped = true; said.Reason == "" || said.Reason == "OUTCOME_UNKNOWN" {
				said.Hint = "It may have been done or not: look at the job."
			}
		}
		data.Outcomes = append(data.Outcomes, outcome{h.ID, "", &said})
	}
	data.Failed = len(o.Jobs) - data.Done
	title := fmt.Sprintf("%s %d of %d jobs", o.Past, data.Done, len(o.Jobs))
	switch {
	case len(o.Jobs) == 1 && data.Failed == 0:
		title = o.Past
	case len(o.Jobs) == 1:
		title = "Not " + strings.ToLower(o.Past)
	case data.Failed == 0:
		title = fmt.Sprintf("%s %d jobs", o.Past, data.Done)
	}
	return &content{template: "changed", title: title, data: data}, nil
}

// changeOne does it to a job that stands as it did when the viewer saw it.
func (p *Page) changeOne(ctx context.Context, o *order, h handle) (done string, err error) {
	if o.Do == requeue {
		resp, err := p.admin.RequeueWork(ctx, &joboncev1.RequeueWorkRequest{
			JobId: h.ID, ExpectedGeneration: h.Generation, ExpectedFirstSeenTime: h.FirstSeen, ExpectedState: h.State, Force: o.Force,
		})
		switch {
		case err != nil:
			return "", err
		case !resp.GetChanged():
			return "Queued already", nil
		}
		return "Requeued", nil
	}
	resp, err := p.admin.DeleteJob(ctx, &joboncev1.DeleteJobRequest{
		JobId: h.ID, ExpectedGeneration: h.Generation, ExpectedFirstSeenTime: h.FirstSeen, ExpectedState: h.State, Force: o.Force,
	})
	switch {
	case err != nil:
		return "", err
	case !resp.GetDeleted():
		return "Was gone already", nil
	}
	return "Deleted", nil
}
