package ui

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestChangeMany: what a list has chosen is confirmed, then done, each job for itself; each change is an audit line.
func TestChangeMany(t *testing.T) {
	w := start(t, everybody)
	for _, id := range []string{"a", "b", "c"} {
		w.record(id, "{}")
		w.work(true, "broken")
	}
	list := w.ask("admin", "/jobs?show=dead&all=1", nil)
	if n := strings.Count(list.text, " checked"); n != 3 {
		t.Errorf("%d are chosen", n)
	}
	chosen := list.handles()
	confirmed := w.ask("admin", "/confirm", url.Values{"do": {"delete"}, "job": chosen[:2], "back": {"/jobs?show=dead"}})
	if got := confirmed.handles(); !slices.Equal(got, chosen[:2]) || !confirmed.has("Delete 2 jobs") || !confirmed.has(`/jobs?show=dead`) {
		t.Fatalf("to be confirmed: %v\n%s", got, confirmed.text)
	}
	// One moves on meanwhile.
	if r := w.ask("admin", "/change", url.Values{"do": {"requeue"}, "job": chosen[:1]}); !r.has("Requeued") {
		t.Fatal(r.text)
	}
	w.work(false, "")
	r := w.ask("admin", "/change", url.Values{"do": {"delete"}, "job": confirmed.handles()})
	if !r.has("Done, but for 1 of 2") || !r.has("Deleted") || !r.has("WRONG_STATE") {
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

// TestRunningLease: it is left to its holder, unless that is asked for.
func TestRunningLease(t *testing.T) {
	w := start(t, everybody)
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
		"no number":      {url.Values{"do": {"delete"}, "job": {"x,1,a"}}, http.StatusBadRequest},
		"no time":        {url.Values{"do": {"delete"}, "job": {"1,x,a"}}, http.StatusBadRequest},
		"no id":          {url.Values{"do": {"delete"}, "job": {"1,1,"}}, http.StatusBadRequest},
		"something else": {url.Values{"do": {"drop"}, "job": {"1,1,a"}}, http.StatusBadRequest},
		"too many":       {url.Values{"do": {"delete"}, "job": slices.Repeat([]string{"1,1,a"}, pageSize+1)}, http.StatusBadRequest},
		"too large":      {url.Values{"do": {"delete"}, "job": {"1,1," + strings.Repeat("a", maxForm)}}, http.StatusRequestEntityTooLarge},
		"not UTF-8":      {url.Values{"do": {"delete"}, "job": {"1,1,\xff"}}, http.StatusBadRequest},
		"a comma":        {url.Values{"do": {"delete"}, "job": {"1,1,a,b"}}, http.StatusOK},
	} {
		for _, path := range []string{"/confirm", "/change"} {
			if r := w.ask("admin", path, tc.form); r.StatusCode != tc.want {
				t.Errorf("%s, %s: %s", name, path, r.Status)
			}
		}
	}
	if r := w.ask("admin", "/change?do=delete&job=1,1,a", nil); r.StatusCode != http.StatusNotFound {
		t.Errorf("a change by GET: %s", r.Status)
	}
}
