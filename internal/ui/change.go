package ui

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// What can be done to jobs, as forms have it.
const (
	requeue = "requeue"
	remove  = "delete"
)

// order is what a form asks for.
type order struct {
	// Do is what is to be done, Verb how people say that.
	Do, Verb string
	Jobs     []handle
	Force    bool
	// Back is the address of the view that the form was on.
	Back string
}

// readOrder reads a form. The error is a [refusal], also for a viewer who may change nothing.
func (p *Page) readOrder(r *request) (o order, err error) {
	if err := r.ParseForm(); err != nil {
		return o, fmt.Errorf("read the form: %w", err)
	}
	o = order{Do: r.PostFormValue("do"), Force: r.PostFormValue("force") == "yes", Back: here(r.PostFormValue("back"))}
	switch o.Do {
	case requeue:
		o.Verb = "Requeue"
	case remove:
		o.Verb = "Delete"
	default:
		return o, &refusal{http.StatusBadRequest, "The form does not say what is to be done."}
	}
	if !r.viewer.Change {
		return o, p.mayNot(r, o.Do+" jobs", "admin")
	}
	for _, text := range r.PostForm["job"] {
		h, ok := parseHandle(text)
		if !ok {
			return o, &refusal{http.StatusBadRequest, "The form names a job in no way that this page does."}
		}
		o.Jobs = append(o.Jobs, h)
	}
	if !whole(r.PostForm) {
		return o, &refusal{http.StatusBadRequest, "The form is not UTF-8."}
	}
	if len(o.Jobs) > pageSize {
		return o, &refusal{http.StatusBadRequest, fmt.Sprintf("The form names more than %d jobs.", pageSize)}
	}
	if len(o.Jobs) == 0 {
		return o, &refusal{http.StatusBadRequest, "No job is chosen: go back, and tick the boxes of those that are meant."}
	}
	return o, nil
}

// parseHandle is the reverse of [handle.String].
func parseHandle(s string) (h handle, ok bool) {
	parts := strings.SplitN(s, ",", 3)
	if len(parts) != 3 || parts[2] == "" {
		return h, false
	}
	h.ID = parts[2]
	var err error
	if h.Generation, err = strconv.ParseInt(parts[0], 10, 64); err != nil {
		return h, false
	}
	if parts[1] != "" {
		ms, err := strconv.ParseInt(parts[1], 10, 64)
		if err != nil {
			return h, false
		}
		h.FirstSeen = timestamppb.New(time.UnixMilli(ms))
	}
	return h, true
}

// confirm asks whether it is meant.
func (p *Page) confirm(r *request) (*content, error) {
	o, err := p.readOrder(r)
	if err != nil {
		return nil, err
	}
	return &content{template: "confirm", title: o.Verb + "?", data: o}, nil
}

// outcome is what became of a job.
type outcome struct {
	ID, Text string
	Failed   bool
}

// change does what the form says to each job, one after the other: what is done stays done when a later one fails.
func (p *Page) change(r *request) (*content, error) {
	o, err := p.readOrder(r)
	if err != nil {
		return nil, err
	}
	data := struct {
		Outcomes []outcome
		Failed   int
		Back     string
	}{Back: o.Back}
	for _, h := range o.Jobs {
		done, err := p.changeOne(r, &o, h)
		if err != nil {
			said := explain(err)
			done, data.Failed = said.Message, data.Failed+1
			if said.Reason != "" {
				done += " (" + said.Reason + ")"
			}
		}
		data.Outcomes = append(data.Outcomes, outcome{h.ID, done, err != nil})
	}
	title := "Done"
	if data.Failed > 0 {
		title = fmt.Sprintf("Done, but for %d of %d", data.Failed, len(o.Jobs))
	}
	return &content{template: "changed", title: title, data: data}, nil
}

func (p *Page) changeOne(r *request, o *order, h handle) (done string, err error) {
	if o.Do == requeue {
		resp, err := p.admin.RequeueWork(r.Context(), &joboncev1.RequeueWorkRequest{
			JobId: h.ID, ExpectedGeneration: h.Generation, ExpectedFirstSeenTime: h.FirstSeen, Force: o.Force,
		})
		switch {
		case err != nil:
			return "", err
		case !resp.GetChanged():
			return "Queued already", nil
		}
		return "Requeued", nil
	}
	resp, err := p.admin.DeleteJob(r.Context(), &joboncev1.DeleteJobRequest{
		JobId: h.ID, ExpectedGeneration: h.Generation, ExpectedFirstSeenTime: h.FirstSeen, Force: o.Force,
	})
	switch {
	case err != nil:
		return "", err
	case !resp.GetDeleted():
		return "Was gone already", nil
	}
	return "Deleted", nil
}
