package ui

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

const (
	// pageSize is how many jobs a list has.
	pageSize = 50
	// mostCounted is up to how many expectations the overview counts.
	mostCounted = 100
	// refreshTime is after how many seconds the overview is asked for again, where that is wanted.
	refreshTime = 10
)

// count is how many there are of something; More tells that there are more, or may be.
type count struct {
	Name, Link string
	N          int64
	More       bool
}

// overview counts what there is.
func (p *Page) overview(r *request) (*content, error) {
	var data struct {
		Counts, Expected []count
		Refused          string
		Pauses           []*joboncev1.ClaimPause
		Refresh          int
	}
	counts, err := p.admin.CountJobs(r.Context(), &joboncev1.CountJobsRequest{})
	switch {
	case err == nil:
		for _, c := range counts.GetCounts() {
			data.Counts = append(data.Counts, count{stateNames[c.GetState()], "/jobs?show=" + showOf(c.GetState()), c.GetJobs(), c.GetMore()})
		}
		data.Counts = append(data.Counts, count{"In conflict", "/jobs?show=conflict", counts.GetConflicts(), counts.GetConflictsMore()})
	case status.Code(err) == codes.PermissionDenied: // The viewer has a prefix.
		data.Refused = explain(err).Message
	default:
		return nil, err
	}
	for _, e := range expectedShows[1:] {
		some, err := p.admin.ListExpectations(r.Context(), &joboncev1.ListExpectationsRequest{Filter: e.filter, PageSize: mostCounted})
		if err != nil {
			return nil, err
		}
		data.Expected = append(data.Expected, count{e.Name, "/expected?show=" + e.Word, int64(len(some.GetExpectations())), some.GetNextPageToken() != ""})
	}
	pauses, err := p.admin.ListClaimPauses(r.Context(), &joboncev1.ListClaimPausesRequest{})
	if err != nil {
		return nil, err
	}
	data.Pauses = pauses.GetPauses()
	if r.URL.Query().Has("refresh") {
		data.Refresh = refreshTime
	}
	return &content{template: "overview", title: "Overview", data: data, refresh: data.Refresh}, nil
}

// shows are the lists of jobs, by the word that stands in their address.
var shows = []struct {
	Word, Name string
	state      joboncev1.WorkState
}{
	{"queued", "Queued", joboncev1.WorkState_WORK_STATE_QUEUED},
	{"held", "Held", joboncev1.WorkState_WORK_STATE_LEASED},
	{"dead", "Dead", joboncev1.WorkState_WORK_STATE_DEAD},
	{"conflict", "In conflict", 0},
	{"completed", "Completed", joboncev1.WorkState_WORK_STATE_COMPLETED},
	{"untracked", "Untracked", joboncev1.WorkState_WORK_STATE_UNTRACKED},
	{"", "All", 0},
}

// showOf is the word of the list of a state's jobs.
func showOf(state joboncev1.WorkState) string {
	for _, s := range shows {
		if s.state == state {
			return s.Word
		}
	}
	return ""
}

// row is a job as it is listed.
type row struct {
	*joboncev1.Job
	Standing string
	// Handle names the job as it was read.
	Handle string
}

// standing is how the job's work stands now.
func standing(w *joboncev1.Work, now time.Time) string {
	due := !w.GetDueTime().AsTime().After(now)
	switch w.GetState() {
	case joboncev1.WorkState_WORK_STATE_QUEUED:
		if due {
			return "Due"
		}
		return "Queued, not due yet"
	case joboncev1.WorkState_WORK_STATE_LEASED:
		if due {
			return "Due, lease lapsed"
		}
		return "Held"
	}
	if name := stateNames[w.GetState()]; name != "" {
		return name
	}
	return "Unknown to this version"
}

// list shows jobs: of a state or in conflict, and with ids that begin with something.
func (p *Page) list(r *request) (*content, error) {
	query := r.URL.Query()
	find, word := query.Get("find"), query.Get("show")
	data := struct {
		Shows           any
		Show, Find      string
		Rows            []row
		Change, All     bool
		Examined        int32
		Next, AllLink   string
		Back, EmptyText string
	}{Shows: shows, Show: word, Find: find, Change: r.viewer.Change, All: query.Has("all"), Back: r.URL.RequestURI()}
	filter := &joboncev1.JobFilter{JobIdPrefix: find, ConflictsOnly: word == "conflict"}
	title := ""
	for _, s := range shows {
		if s.Word == word {
			filter.State, title = s.state, s.Name+" jobs"
		}
	}
	if title == "" {
		return nil, &refusal{http.StatusNotFound, "There is no such list."}
	}
	if word == "conflict" {
		title = "Jobs in conflict"
	}
	order := joboncev1.JobOrder_JOB_ORDER_NEWEST_FIRST
	if find != "" {
		order = joboncev1.JobOrder_JOB_ORDER_ID
	}
	page, err := p.admin.ListJobs(r.Context(), &joboncev1.ListJobsRequest{Filter: filter, Order: order, PageSize: pageSize, PageToken: query.Get("page")})
	if err != nil {
		return nil, err
	}
	for _, j := range page.GetJobs() {
		data.Rows = append(data.Rows, row{j, standing(j.GetWork(), r.now), handleOf(j).String()})
	}
	data.Examined = page.GetExamined()
	link := func(set, to string) string {
		q := url.Values{}
		for key, value := range map[string]string{"show": word, "find": find, "page": query.Get("page"), set: to} {
			if value != "" {
				q.Set(key, value)
			}
		}
		return "/jobs?" + q.Encode()
	}
	data.AllLink = link("all", "1")
	if token := page.GetNextPageToken(); token != "" {
		data.Next = link("page", token)
	}
	return &content{template: "jobs", title: title, data: data}, nil
}

// one shows a job; its body and result when they are asked for.
func (p *Page) one(r *request) (*content, error) {
	id, asked := r.URL.Query().Get("id"), r.URL.Query().Has("body")
	if asked && !r.viewer.Bodies {
		return nil, p.mayNot(r, "see bodies", "read_bodies")
	}
	data := struct {
		row
		Conflict              string
		Body                  *body
		BodyProblem           string
		Result                []span
		Bodies, Change, Asked bool
		Callers               bool
		Back                  string
	}{Bodies: r.viewer.Bodies, Change: r.viewer.Change, Asked: asked, Callers: p.cfg.Callers != nil}
	data.Back = "/job?" + url.Values{"id": {id}}.Encode()
	req := &joboncev1.GetJobRequest{JobId: id}
	if asked {
		req.View = joboncev1.JobView_JOB_VIEW_FULL
	}
	got, err := p.jobs.GetJob(r.Context(), req)
	if asked && err != nil { // It may be too large for an answer.
		data.BodyProblem = explain(err).Message
		got, err = p.jobs.GetJob(r.Context(), &joboncev1.GetJobRequest{JobId: id})
	}
	if err != nil {
		return nil, err
	}
	j := got.GetJob()
	data.row = row{j, standing(j.GetWork(), r.now), handleOf(j).String()}
	switch j.GetLastConflict().GetKind() {
	case joboncev1.ConflictKind_CONFLICT_KIND_EVENT:
		data.Conflict = "Event or status differ"
	case joboncev1.ConflictKind_CONFLICT_KIND_PAYLOAD:
		data.Conflict = "The bodies differ"
	default:
		data.Conflict = "Of a kind that this version does not know"
	}
	switch b := j.GetBody().(type) {
	case *joboncev1.Job_Payload:
		data.Body = showText(b.Payload)
	case *joboncev1.Job_PayloadBytes:
		data.Body = showBytes(b.PayloadBytes)
	}
	if asked {
		data.Result = visible(j.GetWork().GetResult())
	}
	return &content{template: "job", title: "Job", data: data}, nil
}

// mayNot is the refusal of what the viewer has no right to.
func (p *Page) mayNot(r *request, do, right string) error {
	if p.cfg.Callers == nil {
		return &refusal{http.StatusForbidden, "Without --auth-file nobody may " + do + " here."}
	}
	return &refusal{http.StatusForbidden, r.viewer.Name + " may not " + do + ": that needs the right " + right + "."}
}

// expectedShows are the lists of expectations, by the word that stands in their address.
var expectedShows = []struct {
	Word, Name string
	filter     joboncev1.ExpectationFilter
}{
	{"", "All", joboncev1.ExpectationFilter_EXPECTATION_FILTER_UNSPECIFIED},
	{"overdue", "Overdue", joboncev1.ExpectationFilter_EXPECTATION_FILTER_OVERDUE},
	{"given-up", "Given up", joboncev1.ExpectationFilter_EXPECTATION_FILTER_GIVEN_UP},
}

// expectation is a webhook that is to come, as it is listed.
type expectation struct {
	*joboncev1.Expectation
	// URL is where its job is asked about, without what follows the question mark, which may be a secret.
	URL, Standing string
}

// expected shows webhooks that are to come.
func (p *Page) expected(r *request) (*content, error) {
	word, title := r.URL.Query().Get("show"), ""
	data := struct {
		Shows      any
		Show, Next string
		Rows       []expectation
	}{Shows: expectedShows, Show: word}
	var filter joboncev1.ExpectationFilter
	for _, e := range expectedShows {
		if e.Word == word {
			filter, title = e.filter, "Expected webhooks: "+strings.ToLower(e.Name)
		}
	}
	if title == "" {
		return nil, &refusal{http.StatusNotFound, "There is no such list."}
	}
	page, err := p.admin.ListExpectations(r.Context(), &joboncev1.ListExpectationsRequest{
		Filter: filter, PageSize: pageSize, PageToken: r.URL.Query().Get("page"),
	})
	if err != nil {
		return nil, err
	}
	for _, e := range page.GetExpectations() {
		one := expectation{e, "", "Not due yet"}
		if u, err := url.Parse(e.GetStatusUrl()); err == nil {
			one.URL = (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
		}
		switch {
		case e.GetGivenUpTime() != nil:
			one.Standing = "Given up"
		case !e.GetOverdueTime().AsTime().After(r.now):
			one.Standing = "Overdue"
		}
		data.Rows = append(data.Rows, one)
	}
	if token := page.GetNextPageToken(); token != "" {
		data.Next = "/expected?" + url.Values{"show": {word}, "page": {token}}.Encode()
	}
	return &content{template: "expected", title: title, data: data}, nil
}

// handle names a job as it was read: what is done to it is done to that one, or not at all.
type handle struct {
	ID         string
	Generation int64
	FirstSeen  *timestamppb.Timestamp
}

func handleOf(j *joboncev1.Job) handle {
	return handle{j.GetJobId(), j.GetWork().GetGeneration(), j.GetFirstSeenTime()}
}

// String is how a form has it: generation, milliseconds, id.
func (h handle) String() string {
	seen := ""
	if h.FirstSeen != nil {
		seen = strconv.FormatInt(h.FirstSeen.AsTime().UnixMilli(), 10)
	}
	return strconv.FormatInt(h.Generation, 10) + "," + seen + "," + h.ID
}
