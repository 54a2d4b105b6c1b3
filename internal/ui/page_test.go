package ui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestAccess asks for every view as everybody, with and without callers; what comes out stands in a file.
func TestAccess(t *testing.T) {
	var out strings.Builder
	for _, setting := range []struct {
		name    string
		callers map[string]string
		ids     []string
	}{
		{"no callers", nil, []string{"nobody"}},
		{"callers", everybody, []string{"nobody", "admin", "reader", "bodies", "worker", "shop", "expired", "unknown"}},
	} {
		fmt.Fprintln(&out, setting.name)
		for _, id := range setting.ids {
			w := start(t, setting.callers)
			w.tokens["unknown"], _ = auth.NewToken()
			w.record("shop:1", "secret")
			w.record("bank:1", "secret")
			list := w.ask(adminOr(setting.callers), "/jobs", nil).handles()
			fmt.Fprintf(&out, "  %s\n", id)
			for _, view := range []struct {
				name, path string
				form       url.Values
			}{
				{"overview", "/", nil}, {"jobs", "/jobs", nil}, {"another's jobs", "/jobs?find=bank:", nil}, {"job", "/job?id=shop:1", nil},
				{"another's job", "/job?id=bank:1", nil}, {"job and body", "/job?id=shop:1&body=1", nil}, {"expected", "/expected", nil},
				{"no such view", "/admin", nil}, {"sign out", "/sign-out", url.Values{}},
				{"confirm", "/confirm", url.Values{"do": {"requeue"}, "job": {handleIn(list, "shop:1")}}},
				{"requeue", "/change", url.Values{"do": {"requeue"}, "job": {handleIn(list, "shop:1")}}},
				{"delete another's", "/change", url.Values{"do": {"delete"}, "job": {handleIn(list, "bank:1")}}},
				{"delete", "/change", url.Values{"do": {"delete"}, "job": {handleIn(list, "shop:1")}}},
			} {
				r := w.ask(id, view.path, view.form)
				line := fmt.Sprintf("    %-17s %d", view.name, r.StatusCode)
				for _, mark := range []struct{ text, name string }{
					{`name="do"`, "buttons"}, {">secret<", "body"}, {"Show the body", "offers the body"}, {`name="token"`, "sign-in"}, {">Deleted</span>", "deleted"},
					{"Queued already", "requeued"}, {"PERMISSION_DENIED", "refused"}, {`<th scope="row"><a href="/job?id=bank%3a1"`, "another's listed"},
				} {
					if strings.Contains(r.text, mark.text) {
						line += ", " + mark.name
					}
				}
				fmt.Fprintln(&out, line)
			}
		}
	}
	const golden = "testdata/access.golden"
	if os.Getenv("JOBONCE_TEST_GOLDEN") != "" {
		testenv.Must(t, os.WriteFile(golden, []byte(out.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	testenv.Must(t, err)
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("who may see and do what has changed (-want +got); if it is to be so, run the test with JOBONCE_TEST_GOLDEN=1:\n%s", diff)
	}
}

func adminOr(callers map[string]string) string {
	if callers == nil {
		return ""
	}
	return "admin"
}

// handleIn is the handle of a job among those on a page, or one that was made up where the page has none.
func handleIn(all []string, id string) string {
	for _, h := range all {
		if strings.HasSuffix(h, ","+id) {
			return h
		}
	}
	return "0,1,," + id
}

func TestHeaders(t *testing.T) {
	w := start(t, everybody)
	w.record("a", "secret")
	for _, path := range []string{"/", "/jobs", "/job?id=a&body=1", "/style.css", "/icon.svg", "/nothing", "/confirm", "/sign-in"} {
		form := url.Values(nil)
		if path == "/confirm" || path == "/sign-in" {
			form = url.Values{"do": {"delete"}, "job": {"0,1,,a"}, "token": {w.tokens["admin"]}}
		}
		h := w.ask("admin", path, form).Header
		for name, want := range map[string]string{
			"Content-Security-Policy": policy, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin",
			"Cross-Origin-Opener-Policy": "same-origin",
		} {
			if h.Get(name) != want {
				t.Errorf("%s: %s is %q", path, name, h.Get(name))
			}
		}
	}
	if strings.Contains(policy, "script-src") || !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
		t.Errorf("the policy lets scripts run: %s", policy)
	}
}

// TestRequestsOfOthers: what a page of another origin has a browser send is refused, and so is a name that leads here by others' doing.
func TestRequestsOfOthers(t *testing.T) {
	w := start(t, everybody, func(c *setup) { c.Hosts = []string{"jobs.example.org"} })
	form := url.Values{"do": {"delete"}, "job": {"0,1,,a"}}
	for _, tc := range []struct {
		name    string
		form    url.Values
		headers []string
		want    int
	}{
		{"of another site", form, []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		{"of a neighbour", form, []string{"Sec-Fetch-Site", "same-site"}, http.StatusForbidden},
		{"of another origin", form, []string{"Origin", "http://evil.example"}, http.StatusForbidden},
		{"of no origin", form, []string{"Origin", "null"}, http.StatusForbidden},
		{"of the page", form, []string{"Sec-Fetch-Site", "same-origin"}, http.StatusOK},
		{"under another name", nil, []string{"Host", "evil.example"}, http.StatusMisdirectedRequest},
		{"under another name, of the page", form, []string{"Host", "evil.example:80", "Sec-Fetch-Site", "same-origin"}, http.StatusMisdirectedRequest},
		{"under its name", nil, []string{"Host", "Jobs.example.org:8081"}, http.StatusOK},
		{"on this machine", nil, []string{"Host", "localhost"}, http.StatusOK},
		{"by address", nil, []string{"Host", "[::1]:8081"}, http.StatusOK},
		{"without a name", nil, []string{"Host", "-"}, http.StatusMisdirectedRequest},
	} {
		path := "/jobs"
		if tc.form != nil {
			path = "/confirm"
		}
		if r := w.ask("admin", path, tc.form, tc.headers...); r.StatusCode != tc.want {
			t.Errorf("%s: %s", tc.name, r.Status)
		}
	}
}

func TestSignIn(t *testing.T) {
	w := start(t, everybody)
	for _, tc := range []struct {
		name, token, back string
		want              int
		location          string
	}{
		{"good", w.tokens["reader"], "/jobs?show=dead", http.StatusSeeOther, "/jobs?show=dead"},
		{"with a blank", " " + w.tokens["admin"] + "\n", "", http.StatusSeeOther, "/"},
		{"to elsewhere", w.tokens["admin"], "//evil.example/jobs", http.StatusSeeOther, "/"},
		{"to elsewhere with a scheme", w.tokens["admin"], "https://evil.example/jobs", http.StatusSeeOther, "/"},
		{"to elsewhere with a backslash", w.tokens["admin"], `/\evil.example/jobs`, http.StatusSeeOther, "/"},
		{"to a change", w.tokens["admin"], "/change?do=delete", http.StatusSeeOther, "/"},
		{"none", "", "", http.StatusUnauthorized, ""},
		{"unknown", "jobonce_x", "", http.StatusUnauthorized, ""},
		{"expired", w.tokens["expired"], "", http.StatusUnauthorized, ""},
		{"no right to look", w.tokens["worker"], "", http.StatusForbidden, ""},
	} {
		r := w.ask("", "/sign-in", url.Values{"token": {tc.token}, "back": {tc.back}})
		cookies := r.Cookies()
		if r.StatusCode != tc.want || r.Header.Get("Location") != tc.location || (len(cookies) == 1) != (tc.want == http.StatusSeeOther) {
			t.Errorf("%s: %s, to %q, cookies %v", tc.name, r.Status, r.Header.Get("Location"), cookies)
		}
		if tc.token != "" && strings.Contains(r.text+w.log.String(), strings.TrimSpace(tc.token)) && len(tc.token) > 20 {
			t.Errorf("%s: the token is in the answer or in the log", tc.name)
		}
	}
	out := w.ask("admin", "/sign-out", url.Values{})
	if c := out.Cookies(); len(c) != 1 || c[0].MaxAge >= 0 || c[0].Value != "" {
		t.Errorf("signed out: cookies %v", c)
	}
}

// TestCookie: what browsers are asked to keep, over TLS and in plaintext, and for how long.
func TestCookie(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for _, tc := range []struct {
		name         string
		certificates *auth.Certificates
		want         string
	}{
		{"plaintext", nil, "jobonce=1800028800.t; Path=/; Max-Age=28800; HttpOnly; SameSite=Strict"},
		{"TLS", new(auth.Certificates), "__Host-jobonce=1800028800.t; Path=/; Max-Age=28800; HttpOnly; Secure; SameSite=Strict"},
	} {
		p := &Page{cfg: Config{Certificates: tc.certificates}, now: func() time.Time { return now }}
		if got := p.cookie("t").String(); got != tc.want {
			t.Errorf("%s: %s", tc.name, got)
		}
		for after, want := range map[time.Duration]string{0: "t", 8*time.Hour - time.Second: "t", 8 * time.Hour: "", -time.Second: ""} {
			r := &http.Request{Header: http.Header{}}
			r.AddCookie(p.cookie("t"))
			later := &Page{cfg: p.cfg, now: func() time.Time { return now.Add(after) }}
			if got, err := later.token(r); got != want || err != nil {
				t.Errorf("%s, after %v: token %q, %v", tc.name, after, got, err)
			}
			r.AddCookie(p.cookie("t"))
			if got, err := later.token(r); got != "" || err == nil || !strings.Contains(err.Error(), "delete the cookies") {
				t.Errorf("%s: one of two cookies is taken: %q, %v", tc.name, got, err)
			}
		}
	}
}

// TestTLS: over TLS the cookie is of this host alone, and that of plaintext is not taken.
func TestTLS(t *testing.T) {
	pair, dir := testenv.NewCA(t, "servers").Issue("jobs.example.org"), t.TempDir()
	certificates, err := auth.LoadCertificates(auth.CertificateFiles{
		Cert: testenv.WriteFile(t, dir, "cert", pair.Cert), Key: testenv.WriteFile(t, dir, "key", pair.Key),
	}, testenv.Logger(t))
	testenv.Must(t, err)
	w := start(t, everybody, func(c *setup) { c.Certificates = certificates })
	r := w.ask("", "/sign-in", url.Values{"token": {w.tokens["reader"]}}, "Host", "jobs.example.org")
	cookies := r.Cookies()
	if len(cookies) != 1 || cookies[0].Name != "__Host-jobonce" || !cookies[0].Secure || !cookies[0].HttpOnly {
		t.Fatalf("%s, cookies %v", r.Status, cookies)
	}
	if r := w.ask("reader", "/jobs", nil); r.StatusCode != http.StatusOK {
		t.Error(r.Status)
	}
	if r := w.ask("", "/jobs", nil, "Cookie", "jobonce="+cookies[0].Value); r.StatusCode != http.StatusUnauthorized {
		t.Errorf("with the cookie of plaintext: %s", r.Status)
	}
}

// TestRightsAreLost: who has lost a right loses it with the next request, signed in or not.
func TestRightsAreLost(t *testing.T) {
	w := start(t, map[string]string{"admin": "allow: [admin, record]", "other": "allow: [admin]"})
	w.record("a", "x")
	form := url.Values{"do": {"delete"}, "job": w.ask("other", "/jobs", nil).handles()}
	w.allow(map[string]string{"admin": "allow: [admin, record]", "other": "allow: [read]"})
	for strings.Contains(w.ask("other", "/jobs", nil).text, `name="do"`) {
		time.Sleep(10 * time.Millisecond) // The file is looked at once a second.
	}
	if r := w.ask("other", "/change", form); r.StatusCode != http.StatusForbidden || !r.has("other may not delete jobs: that needs the right admin") {
		t.Errorf("a reader deletes: %s\n%s", r.Status, r.text)
	}
	if r := w.ask("other", "/job?id=a", nil); r.StatusCode != http.StatusOK {
		t.Errorf("the job: %s", r.Status)
	}
}

func TestLists(t *testing.T) { eachStore(t, testLists) }

func testLists(t *testing.T, over func(*setup)) {
	w := start(t, everybody, over)
	for i := range 120 {
		w.record(fmt.Sprintf("shop:%03d", i), "{}")
		switch i {
		case 0:
			w.work(true, "the shop is closed")
		case 1:
			w.work(false, "")
		}
	}
	w.record("bank:1", "{}", func(r *joboncev1.RecordDeliveryRequest) { r.WorkMode = joboncev1.WorkMode_WORK_MODE_UNTRACKED })
	w.record("bank:1", "{}", func(r *joboncev1.RecordDeliveryRequest) {
		r.WorkMode, r.Event = joboncev1.WorkMode_WORK_MODE_UNTRACKED, "refunded"
	})
	seen := make(map[string]bool)
	next, pages := "/jobs?show=queued", 0
	for ; next != ""; pages++ {
		r := w.ask("reader", next, nil)
		if first := strings.Contains(r.text, `<a href="/jobs?show=queued" rel="first">`); first != (pages > 0) {
			t.Errorf("page %d leads to the first: %v", pages, first)
		}
		next = ""
		for _, part := range strings.Split(r.text, `<a href="`)[1:] {
			link, rest, _ := strings.Cut(part, `"`)
			link = strings.ReplaceAll(link, "&amp;", "&")
			if strings.HasPrefix(rest, ` rel="next"`) {
				next = link
			} else if id, ok := strings.CutPrefix(link, "/job?id="); ok {
				if seen[id] {
					t.Errorf("%s comes twice", id)
				}
				seen[id] = true
			}
		}
	}
	if len(seen) != 118 || pages != 3 {
		t.Errorf("%d queued jobs on %d pages", len(seen), pages)
	}
	for path, want := range map[string][]string{
		"/jobs?show=dead":                {"shop:000", "the shop is closed", "Dead"},
		"/jobs?show=completed":           {"shop:001"},
		"/jobs?show=conflict":            {"bank:1"},
		"/jobs?find=bank:":               {"bank:1", "Untracked"},
		"/jobs?find=shop:11&show=queued": {"shop:110", "shop:119", "Due"},
		"/jobs?find=+bank":               {"capitals and blanks count", "/jobs?find=bank&show="},
		"/jobs?find=none":                {"There is none."},
		"/jobs?show=held":                {"No job is held."},
		"/job?id=bank:1":                 {"refunded", "event or status differ"},
		"/":                              {"118", "In conflict", "No work is paused"},
	} {
		r := w.ask("reader", path, nil)
		for _, text := range want {
			if !r.has(text) {
				t.Errorf("%s: %s, lacks %q", path, r.Status, text)
			}
		}
	}
	for path, want := range map[string]int{
		"/jobs?show=none": http.StatusNotFound, "/expected?show=none": http.StatusNotFound, "/jobs?page=x": http.StatusBadRequest, "/job?id=none": http.StatusNotFound,
		"/job?id=": http.StatusBadRequest, "/jobs?find=%01": http.StatusBadRequest, "/jobs?find=%ff": http.StatusBadRequest,
	} {
		if r := w.ask("reader", path, nil); r.StatusCode != want || !strings.Contains(r.text, `role="alert"`) {
			t.Errorf("%s: %s", path, r.Status)
		}
	}
}

func TestExpectedAndPauses(t *testing.T) { eachStore(t, testExpectedAndPauses) }

func testExpectedAndPauses(t *testing.T, over func(*setup)) {
	w := start(t, everybody, over)
	_, err := joboncev1.NewExpectationServiceClient(w.conn).ExpectJob(w.ctx("admin"), &joboncev1.ExpectJobRequest{
		JobId: "shop:1", StatusUrl: "https://shop.example/jobs/1%2F2?key=hidden", OverdueAfter: durationpb.New(0),
	})
	testenv.Must(t, err)
	w.record("shop:2", "{}")
	w.record("bank:1", "{}")
	_, err = joboncev1.NewAdminServiceClient(w.conn).PauseClaims(w.ctx("admin"), &joboncev1.PauseClaimsRequest{JobIdPrefix: "shop:", Reason: "the shop moves"})
	testenv.Must(t, err)
	r := w.ask("reader", "/expected?show=overdue", nil)
	if !strings.Contains(r.text, "https://shop.example/jobs/1%2F2<") || !r.has("Overdue") || strings.Contains(r.text, "key=") || strings.Contains(r.text, `href="https`) {
		t.Errorf("overdue: %s", r.text)
	}
	for path, paused := range map[string]bool{"/jobs?find=shop:": true, "/job?id=shop:2": true, "/jobs?find=bank:": false, "/job?id=bank:1": false} {
		if r := w.ask("reader", path, nil); strings.Contains(r.text, ">Paused</span>") != paused || strings.Contains(r.text, ">Due</span>") == paused {
			t.Errorf("%s: paused is to be %v: %s", path, paused, r.text)
		}
	}
	if r := w.ask("reader", "/job?id=shop:2", nil); !r.has("the shop moves") {
		t.Errorf("why it is paused is not said: %s", r.text)
	}
	if r := w.ask("reader", "/expected?show=given-up", nil); !r.has("No webhook was given up.") {
		t.Errorf("given up: %s", r.text)
	}
	r = w.ask("reader", "/?refresh", nil)
	if !r.has("the shop moves") || r.Header.Get("Refresh") != "10; url=/?refresh=" || !r.has("Pause") {
		t.Errorf("overview: %v %s", r.Header, r.text)
	}
	if r := w.ask("reader", "/", nil); r.Header.Get("Refresh") != "" {
		t.Error("the overview refreshes without being asked to")
	}
	// Who has a prefix counts its own jobs, whatever others have counted a moment ago.
	for name, want := range map[string]int{"reader": 2, "shop": 1} {
		for range 2 {
			if r := w.ask(name, "/", nil); r.StatusCode != http.StatusOK || !strings.Contains(r.text, fmt.Sprintf(">Queued</a></dt><dd>%d</dd>", want)) {
				t.Errorf("overview of %s, who sees %d: %s %s", name, want, r.Status, r.text)
			}
		}
	}
}

// TestServiceIsAway: the page says so, and nothing of why.
func TestServiceIsAway(t *testing.T) {
	w := start(t, everybody, func(s *setup) {
		s.Connect = func(context.Context) (net.Conn, error) { return nil, errors.New("a secret") }
	})
	for _, path := range []string{"/", "/jobs", "/job?id=a", "/expected"} {
		r := w.ask("admin", path, nil)
		if r.StatusCode != http.StatusServiceUnavailable || !r.has("The service is not to be reached for now.") || !r.has(again) || r.has("a secret") {
			t.Errorf("%s: %s\n%s", path, r.Status, r.text)
		}
	}
}

// TestServiceHangs: each view comes, and says what is the matter, though the service never answers.
func TestServiceHangs(t *testing.T) {
	w := start(t, everybody, func(s *setup) {
		s.CallTimeout = 50 * time.Millisecond
		s.Connect = func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go io.Copy(io.Discard, theirs)
			return ours, nil
		}
	})
	for _, path := range []string{"/", "/jobs", "/job?id=a", "/job?id=a&body=1", "/expected"} {
		r := w.ask("admin", path, nil)
		if r.StatusCode != http.StatusGatewayTimeout || !r.has("The service has not answered in time.") || !r.has(again) {
			t.Errorf("%s: %s\n%s", path, r.Status, r.text)
		}
	}
	r := w.ask("admin", "/change", url.Values{"do": {"delete"}, "job": {"0,1,,a", "0,1,,b"}})
	if !r.has("Deleted 0 of 2 jobs") || strings.Count(r.text, "It may have been done or not") != 1 || strings.Count(r.text, "Not tried") != 1 {
		t.Errorf("changes: %s", r.text)
	}
}

// fake is a service whose counts are the test's. The rest is the service's own.
type fake struct {
	joboncev1.AdminServiceClient
	counts func(ctx context.Context) error
}

func (f *fake) CountJobs(ctx context.Context, req *joboncev1.CountJobsRequest, opts ...grpc.CallOption) (*joboncev1.CountJobsResponse, error) {
	if err := f.counts(ctx); err != nil {
		return nil, err
	}
	return f.AdminServiceClient.CountJobs(ctx, req, opts...)
}

// TestCountsHang: what else is on the overview is there.
func TestCountsHang(t *testing.T) {
	w := start(t, everybody, func(s *setup) {
		s.CallTimeout = 2 * time.Second
		s.change = func(p *Page) {
			p.admin = &fake{p.admin, func(ctx context.Context) error {
				<-ctx.Done()
				return status.FromContextError(ctx.Err()).Err()
			}}
		}
	})
	r := w.ask("reader", "/", nil)
	if r.StatusCode != http.StatusGatewayTimeout || !r.has("The service has not answered in time.") || !r.has("/jobs?show=dead") || !r.has("/expected?show=overdue") ||
		!r.has("No work is paused.") {
		t.Errorf("%s: %s", r.Status, r.text)
	}
}

// TestCountsAreShared: the viewers of a moment have the jobs counted once, and who has changed something sees that.
func TestCountsAreShared(t *testing.T) {
	var counted, sec atomic.Int64
	w := start(t, everybody, func(s *setup) {
		s.change = func(p *Page) {
			p.admin = &fake{p.admin, func(context.Context) error { counted.Add(1); return nil }}
			began := time.Now()
			p.now = func() time.Time { return began.Add(time.Duration(sec.Load()) * time.Second) }
		}
	})
	var viewers sync.WaitGroup
	for _, caller := range []string{"admin", "reader", "bodies"} { // who see the same jobs
		viewers.Go(func() {
			if r := w.ask(caller, "/", nil); r.StatusCode != http.StatusOK {
				t.Errorf("%s: %s", caller, r.Status)
			}
		})
	}
	viewers.Wait()
	if n := counted.Load(); n != 1 {
		t.Errorf("3 viewers have the jobs counted %d times", n)
	}
	w.record("a", "{}")
	if r := w.ask("reader", "/", nil); counted.Load() != 1 || r.has("<dd>1</dd>") {
		t.Error("counted again at once")
	}
	sec.Store(int64(countTime / time.Second))
	if r := w.ask("reader", "/", nil); counted.Load() != 2 || !strings.Contains(r.text, "<dd>1</dd>") {
		t.Error("not counted again")
	}
	w.ask("admin", "/change", url.Values{"do": {"delete"}, "job": w.ask("admin", "/jobs", nil).handles()})
	if r := w.ask("reader", "/", nil); counted.Load() != 3 || strings.Contains(r.text, "<dd>1</dd>") {
		t.Error("not counted again after a change")
	}
}

// listed is a service whose lists of expectations are the test's: how many each page has.
type listed struct {
	joboncev1.AdminServiceClient
	pages []int
}

func (l *listed) ListExpectations(_ context.Context, req *joboncev1.ListExpectationsRequest, _ ...grpc.CallOption) (*joboncev1.ListExpectationsResponse, error) {
	i, _ := strconv.Atoi(req.GetPageToken())
	resp := &joboncev1.ListExpectationsResponse{Expectations: make([]*joboncev1.Expectation, l.pages[i])}
	if i+1 < len(l.pages) {
		resp.NextPageToken = strconv.Itoa(i + 1)
	}
	return resp, nil
}

// TestExpectedCounts: overdue webhooks are counted though the first pages have none, and no further than is wanted.
func TestExpectedCounts(t *testing.T) {
	for want, pages := range map[string][]int{
		"0": {0}, "2": {0, 0, 0, 2}, "100": {60, 40}, "100+": {60, 40, 0}, "100+ ": {99, 99}, "0+": {0, 0, 0, 0, 0, 9},
	} {
		p := &Page{admin: &listed{pages: pages}}
		counts, err := p.countExpected(t.Context())
		testenv.Must(t, err)
		got := fmt.Sprint(counts[0].N)
		if counts[0].More {
			got += "+"
		}
		if got != strings.TrimSpace(want) {
			t.Errorf("%d are %s, want %s", pages, got, want)
		}
	}
}

// TestLinkFromElsewhere: whoever comes by a link of another site is asked again from here, once, since only then the cookie comes along.
func TestLinkFromElsewhere(t *testing.T) {
	w := start(t, everybody)
	for _, tc := range []struct{ path, site, want string }{
		{"/job?id=a%26b", "cross-site", "0; url=/job?again=1&id=a%26b"},
		{"/jobs", "same-site", "0; url=/jobs?again=1"},
		{"/job?id=a&body=1", "cross-site", "0; url=/job?again=1&id=a"}, // A look at a body would be logged as the viewer's.
		{"/jobs?again=1", "cross-site", ""},
		{"/jobs", "same-origin", ""},
		{"/jobs", "none", ""},
		{"/jobs", "", ""},
		{"/style.css", "cross-site", ""},
		{"/..%2f%2fevil.example", "cross-site", "0; url=/"},
	} {
		r := w.ask("", tc.path, nil, "Sec-Fetch-Site", tc.site)
		if got := r.Header.Get("Refresh"); got != tc.want {
			t.Errorf("%s from %s: %s, %q, want %q", tc.path, tc.site, r.Status, got, tc.want)
		}
	}
	if r := w.ask("reader", "/jobs", nil, "Sec-Fetch-Site", "cross-site"); r.Header.Get("Refresh") != "" || r.StatusCode != http.StatusOK {
		t.Errorf("signed in: %s, %v", r.Status, r.Header)
	}
}
