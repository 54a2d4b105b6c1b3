package ui

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestChangeMany: what a list has chosen is confirmed, then done, each job for itself; each change is an audit line.
func TestChangeMany(t *testing.T) { eachStore(t, testChangeMany) }

func testChangeMany(t *testing.T, over func(*setup)) {
	w := start(t, everybody, over)
	for _, id := range []string{"a", "b", "c"} {
		w.record(id, "{}")
		w.work(true, "broken")
	}
	list := w.ask("admin", "/jobs?show=dead&all=1", nil)
	if n := strings.Count(list.text, " checked"); n != 3 {
		t.Errorf("%d are chosen", n)
	}
	if strings.Contains(list.text, `name="back" value="/jobs?all`) || !strings.Contains(list.text, `name="back" value="/jobs?show=dead"`) {
		t.Error("after a change, those that are listed then would be chosen")
	}
	chosen := list.handles()
	confirmed := w.ask("admin", "/confirm", url.Values{"do": {"delete"}, "job": chosen[:2], "back": {"/jobs?show=dead"}})
	if got := confirmed.handles(); !slices.Equal(got, chosen[:2]) || !confirmed.has("Delete 2 jobs?") || strings.Count(confirmed.text, ">Dead</span>") != 2 || !confirmed.has(`/jobs?show=dead`) {
		t.Fatalf("to be confirmed: %v\n%s", got, confirmed.text)
	}
	// One moves on meanwhile.
	if r := w.ask("admin", "/change", url.Values{"do": {"requeue"}, "job": chosen[:1]}); !r.has("Requeued") {
		t.Fatal(r.text)
	}
	w.work(false, "")
	r := w.ask("admin", "/change", url.Values{"do": {"delete"}, "job": confirmed.handles()})
	if !r.has("Deleted 1 of 2 jobs") || !r.has("the work has moved on: it was claimed since, and is completed by now") {
		t.Errorf("deleted: %s", r.text)
	}
	r = w.ask("admin", "/change", url.Values{"do": {"delete"}, "job": confirmed.handles()[1:]})
	if !r.has("Was gone already") {
		t.Errorf("deleted again: %s", r.text)
	}
	for _, line := range []string{"method=RequeueWork", "method=DeleteJob"} {
		if log := w.log.String(); !strings.Contains(log, "caller=admin "+line) {
			t.Errorf("no audit line with %s in\n%s", line, log)
		}
	}
}

// TestMovedOn: what one has requeued, another does not delete who saw it dead; a job that was recorded anew is another one.
func TestMovedOn(t *testing.T) { eachStore(t, testMovedOn) }

func testMovedOn(t *testing.T, over func(*setup)) {
	w := start(t, everybody, over)
	w.record("a", "{}")
	w.work(true, "broken")
	seen := w.ask("admin", "/jobs?show=dead", nil).handles()
	for _, want := range []string{"Requeued", "Queued already"} { // The second click of two does no more than the first.
		if r := w.ask("admin", "/change", url.Values{"do": {"requeue"}, "job": seen}); !r.has(want) {
			t.Errorf("not %q: %s", want, r.text)
		}
	}
	if r := w.ask("admin", "/change", url.Values{"do": {"delete"}, "job": seen}); !r.has("it was dead, and is queued by now") || strings.Contains(r.text, ">Deleted<") {
		t.Errorf("deleted: %s", r.text)
	}
	now := w.ask("admin", "/job?id=a", nil).handles()
	if r := w.ask("admin", "/change", url.Values{"do": {"delete"}, "job": now, "back": {"/job?id=a"}}); !r.has("Deleted") || !strings.Contains(r.text, `<a href="/jobs">Back</a>`) {
		t.Errorf("%s", r.text)
	}
	w.record("a", "{}")
	for _, do := range []string{"delete", "requeue"} {
		if r := w.ask("admin", "/change", url.Values{"do": {do}, "job": now}); !r.has("WRONG_STATE") || !r.has("Look at the job as it is now.") {
			t.Errorf("%s of another job under the id: %s", do, r.text)
		}
	}
}

// slow is a service that requeues when the test lets it.
type slow struct {
	joboncev1.AdminServiceClient
	came chan string
	let  chan error
}

func (s *slow) RequeueWork(ctx context.Context, req *joboncev1.RequeueWorkRequest, opts ...grpc.CallOption) (*joboncev1.RequeueWorkResponse, error) {
	s.came <- req.GetJobId()
	if err := <-s.let; err != nil {
		return nil, err
	}
	return s.AdminServiceClient.RequeueWork(ctx, req, opts...)
}

// TestChangeGoesOn: what was confirmed is done to all, also when the browser has gone meanwhile.
func TestChangeGoesOn(t *testing.T) {
	service := &slow{came: make(chan string), let: make(chan error)}
	asked := make(chan context.Context, 1)
	w := start(t, everybody, func(s *setup) {
		s.change = func(p *Page) {
			service.AdminServiceClient, p.admin = p.admin, service
			next := p.handler
			p.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/change" {
					asked <- r.Context()
				}
				next.ServeHTTP(w, r)
			})
		}
	})
	form := url.Values{"do": {"requeue"}}
	for _, id := range []string{"a", "b", "c"} {
		w.record(id, "{}")
		w.work(true, "broken")
	}
	form["job"] = w.ask("admin", "/jobs?show=dead", nil).handles()
	ctx, hangUp := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/change", strings.NewReader(form.Encode()))
	testenv.Must(t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.AddCookie(w.page.cookie(w.tokens["admin"]))
	gone := make(chan error)
	go func() {
		resp, err := w.client.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		gone <- err
	}()
	ids := []string{<-service.came}
	hangUp()
	if err := <-gone; err == nil {
		t.Fatal("the browser has an answer")
	}
	<-(<-asked).Done()
	service.let <- nil
	for range 2 {
		select {
		case id := <-service.came:
			ids = append(ids, id)
			service.let <- nil
		case <-time.After(10 * time.Second):
			t.Fatalf("only %q is requeued", ids)
		}
	}
	if slices.Sort(ids); !slices.Equal(ids, []string{"a", "b", "c"}) {
		t.Errorf("requeued: %q", ids)
	}
}

// TestChangeStops: once the service is away the rest is not tried, and each job is told of.
func TestChangeStops(t *testing.T) {
	service := &slow{came: make(chan string, 4), let: make(chan error, 4)}
	w := start(t, everybody, func(s *setup) {
		s.change = func(p *Page) { service.AdminServiceClient, p.admin = p.admin, service }
	})
	for _, id := range []string{"a", "b", "c", "d"} {
		w.record(id, "{}")
		w.work(true, "broken")
	}
	for _, err := range []error{nil, status.Error(codes.FailedPrecondition, "a secret"), status.Error(codes.Unavailable, "a secret")} {
		service.let <- err
	}
	r := w.ask("admin", "/change", url.Values{"do": {"requeue"}, "job": w.ask("admin", "/jobs?show=dead", nil).handles()})
	if !r.has("Requeued 1 of 4 jobs") || !r.has("3 of them were not.") || strings.Count(r.text, "The service has failed") != 1 ||
		strings.Count(r.text, "It may have been done or not") != 1 || strings.Count(r.text, "Not tried") != 1 || r.has("a secret") || len(service.came) != 3 {
		t.Errorf("%s", r.text)
	}
}

// TestRunningLease: it is left to its holder, unless that is asked for.
func TestRunningLease(t *testing.T) { eachStore(t, testRunningLease) }

func testRunningLease(t *testing.T, over func(*setup)) {
	w := start(t, everybody, over)
	w.record("a", "{}")
	_, err := joboncev1.NewWorkServiceClient(w.conn).ClaimWork(w.ctx("admin"), &joboncev1.ClaimWorkRequest{MaxJobs: 1, LeaseDuration: durationpb.New(time.Hour)})
	testenv.Must(t, err)
	form := url.Values{"do": {"requeue"}, "job": w.ask("admin", "/job?id=a", nil).handles()}
	if r := w.ask("admin", "/confirm", form); !r.has("whose holder then loses it") {
		t.Error(r.text)
	}
	if r := w.ask("admin", "/change", form); !r.has("WRONG_STATE") {
		t.Error(r.text)
	}
	form.Set("force", "yes")
	if r := w.ask("admin", "/change", form); !r.has("Requeued") {
		t.Error(r.text)
	}
}

func TestForms(t *testing.T) {
	w := start(t, everybody)
	for name, tc := range map[string]struct {
		form url.Values
		want int
	}{
		"nothing":        {url.Values{}, http.StatusBadRequest},
		"no job":         {url.Values{"do": {"delete"}}, http.StatusBadRequest},
		"no handle":      {url.Values{"do": {"delete"}, "job": {"a"}}, http.StatusBadRequest},
		"no number":      {url.Values{"do": {"delete"}, "job": {"x,1,1,a"}}, http.StatusBadRequest},
		"no time":        {url.Values{"do": {"delete"}, "job": {"1,1,x,a"}}, http.StatusBadRequest},
		"no state":       {url.Values{"do": {"delete"}, "job": {"1,x,1,a"}}, http.StatusBadRequest},
		"no id":          {url.Values{"do": {"delete"}, "job": {"1,1,1,"}}, http.StatusBadRequest},
		"something else": {url.Values{"do": {"drop"}, "job": {"1,1,1,a"}}, http.StatusBadRequest},
		"too many":       {url.Values{"do": {"delete"}, "job": slices.Repeat([]string{"1,1,1,a"}, pageSize+1)}, http.StatusBadRequest},
		"too large":      {url.Values{"do": {"delete"}, "job": {"1,1,1," + strings.Repeat("a", maxForm)}}, http.StatusRequestEntityTooLarge},
		"not UTF-8":      {url.Values{"do": {"delete"}, "job": {"1,1,1,\xff"}}, http.StatusBadRequest},
		"a comma":        {url.Values{"do": {"delete"}, "job": {"1,1,1,a,b"}}, http.StatusOK},
	} {
		for _, path := range []string{"/confirm", "/change"} {
			if r := w.ask("admin", path, tc.form); r.StatusCode != tc.want {
				t.Errorf("%s, %s: %s", name, path, r.Status)
			}
		}
	}
	for _, path := range []string{"/confirm?a=%zz", "/change?a=;"} {
		if r := w.ask("admin", path, url.Values{"do": {"delete"}, "job": {"1,1,1,a"}}); r.StatusCode != http.StatusBadRequest || !r.has("The form cannot be read.") {
			t.Errorf("%s: %s", path, r.Status)
		}
	}
	if r := w.ask("admin", "/change?do=delete&job=1,1,1,a", nil); r.StatusCode != http.StatusNotFound {
		t.Errorf("a change by GET: %s", r.Status)
	}
}
