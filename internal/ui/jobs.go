package ui

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// pageSize is how many jobs a list has.
const pageSize = 50

// conflicts is the word of the list of jobs in conflict.
const conflicts = "conflict"

// shows are the lists of jobs, by the word that stands in their address, and what is said of an empty one.
var shows = []struct {
	Word, Name, tone, title, empty string
	state                          joboncev1.WorkState
}{
	{"queued", "Queued", "", "Queued jobs", "No work is queued.", joboncev1.WorkState_WORK_STATE_QUEUED},
	{"held", "Held", "held", "Held jobs", "No job is held.", joboncev1.WorkState_WORK_STATE_LEASED},
	{"dead", "Dead", "dead", "Dead jobs", "No job is dead.", joboncev1.WorkState_WORK_STATE_DEAD},
	{conflicts, "In conflict", "due", "Jobs in conflict", "No job is in conflict.", 0},
	{"completed", "Completed", "", "Completed jobs", "No job is completed.", joboncev1.WorkState_WORK_STATE_COMPLETED},
	{"untracked", "Untracked", "", "Untracked jobs", "No job is untracked.", joboncev1.WorkState_WORK_STATE_UNTRACKED},
	{"", "All", "", "All jobs", "No job has been recorded.", 0},
}

// pages leads to the other pages of a list; each is empty where there is none.
type pages struct{ First, Next string }

// pagesOf makes the addresses of the first page, where this is another one, and of the next one. token is this one's.
func pagesOf(path string, query url.Values, token, next string) (p pages) {
	if token != "" {
		p.First = address(path, query, "", "")
	}
	if next != "" {
		p.Next = address(path, query, "page", next)
	}
	return p
}

// address is that of a view: its query with one more key in it, unless that has no value.
func address(path string, query url.Values, key, value string) string {
	query = maps.Clone(query)
	if value != "" {
		query.Set(key, value)
	}
	return path + "?" + query.Encode()
}

// list shows jobs: of a state or in conflict, and with ids that begin with something.
func (p *Page) list(r *request) (*content, error) {
	query := r.URL.Query()
	find, word, token := query.Get("find"), query.Get("show"), query.Get("page")
	data := struct {
		Shows                           any
		Show, Find, Trimmed, Empty      string
		Rows                            []row
		Change, All, HaveDue, HaveError bool
		Examined                        int32
		Pages                           pages
		Here, Toggle                    string
	}{Shows: shows, Show: word, Find: find, Change: r.viewer.Change, All: query.Has("all")}
	req := &joboncev1.ListJobsRequest{
		Filter:   &joboncev1.JobFilter{JobIdPrefix: find, ConflictsOnly: word == conflicts},
		PageSize: pageSize, PageToken: token,
	}
	title := ""
	for _, s := range shows {
		if s.Word == word {
			req.Filter.State, title, data.Empty = s.state, s.title, s.empty
		}
	}
	if title == "" {
		return nil, noPage
	}
	if find != "" {
		req.Order = joboncev1.JobOrder_JOB_ORDER_ID
	}
	page, err := p.admin.ListJobs(r.Context(), req)
	if err != nil {
		return nil, err
	}
	data.Rows = p.rows(r, page.GetJobs()...)
	data.HaveDue = slices.ContainsFunc(data.Rows, func(r row) bool { return r.GetWork().GetDueTime() != nil })
	data.HaveError = slices.ContainsFunc(data.Rows, func(r row) bool { return r.GetWork().GetLastError() != "" })
	data.Examined = page.GetExamined()
	if trimmed := strings.TrimSpace(find); trimmed != find {
		data.Trimmed = "/jobs?" + url.Values{"find": {trimmed}, "show": {word}}.Encode()
	}
	kept := url.Values{}
	for key, value := range map[string]string{"show": word, "find": find} {
		if value != "" {
			kept.Set(key, value)
		}
	}
	data.Pages = pagesOf("/jobs", kept, token, page.GetNextPageToken())
	data.Here = address("/jobs", kept, "page", token)
	if data.Toggle = data.Here; !data.All {
		kept.Set("all", "1")
		data.Toggle = address("/jobs", kept, "page", token)
	}
	return &content{template: "jobs", title: title, data: data}, nil
}

// one shows a job; its body and result when they are asked for, which is a line in the log.
func (p *Page) one(r *request) (*content, error) {
	id, asked := r.URL.Query().Get("id"), r.URL.Query().Has("body")
	if asked && !r.viewer.Bodies {
		return nil, p.mayNot(r, "see bodies", "read_bodies")
	}
	data := struct {
		row
		Conflict, Here, Offer string
		Body                  *body
		BodyProblem           *problem
		Result                []span
		Asked, Callers        bool
		Viewer                viewer
	}{Viewer: r.viewer, Asked: asked, Callers: p.cfg.Callers != nil, Here: "/job?" + url.Values{"id": {id}}.Encode()}
	req := &joboncev1.GetJobRequest{JobId: id}
	if asked {
		req.View = joboncev1.JobView_JOB_VIEW_FULL
	}
	got, err := p.jobs.GetJob(r.Context(), req)
	switch {
	case asked && err != nil: // It may be too large for an answer.
		said := explain(err)
		data.BodyProblem = &said
		got, err = p.jobs.GetJob(r.Context(), &joboncev1.GetJobRequest{JobId: id})
	case asked:
		p.cfg.Logger.Info("audit", "caller", r.viewer.Name, "method", "GetJob", "job_id", id, "outcome", "OK", "body", true)
	}
	if err != nil {
		return nil, err
	}
	j := got.GetJob()
	data.row = p.rows(r, j)[0]
	switch j.GetLastConflict().GetKind() {
	case joboncev1.ConflictKind_CONFLICT_KIND_EVENT:
		data.Conflict = "event or status differ"
	case joboncev1.ConflictKind_CONFLICT_KIND_PAYLOAD:
		data.Conflict = "the bodies differ"
	default:
		data.Conflict = "of a kind that this version does not know"
	}
	switch b := j.GetBody().(type) {
	case *joboncev1.Job_Payload:
		data.Body = showText(b.Payload)
	case *joboncev1.Job_PayloadBytes:
		data.Body = showBytes(b.PayloadBytes)
	}
	gone := j.GetPayloadDroppedTime() != nil || j.GetPayloadOmittedBytes() > 0
	switch completed := j.GetWork().GetState() == joboncev1.WorkState_WORK_STATE_COMPLETED; {
	case gone && completed:
		data.Offer = "Show the result"
	case completed:
		data.Offer = "Show the body and the result"
	case !gone:
		data.Offer = "Show the body"
	}
	if asked {
		data.Result = visible(j.GetWork().GetResult())
	}
	return &content{template: "job", title: plain(id), id: id, data: data}, nil
}

// mayNot is the refusal of what the viewer has no right to.
func (p *Page) mayNot(r *request, do, right string) error {
	if p.cfg.Callers == nil {
		return &refusal{http.StatusForbidden, "Without --auth-file nobody may " + do + " here.", "Start the service with callers: docs/security.md says how."}
	}
	return &refusal{http.StatusForbidden, r.viewer.Name + " may not " + do + ": that needs the right " + right + ".", "The auth file says who has it."}
}

// rows are the jobs as they are shown. The pauses are asked for where work is free; without an answer, none is known of.
func (p *Page) rows(r *request, jobs ...*joboncev1.Job) []row {
	var pauses []*joboncev1.ClaimPause
	if slices.ContainsFunc(jobs, func(j *joboncev1.Job) bool { return free(j.GetWork(), r.now) }) {
		resp, err := p.admin.ListClaimPauses(r.Context(), &joboncev1.ListClaimPausesRequest{})
		if err == nil {
			pauses = resp.GetPauses()
		}
	}
	var all []row
	for _, j := range jobs {
		all = append(all, newRow(j, pauses, clock(r.now)))
	}
	return all
}
