package ui

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
					{`name="do"`, "buttons"}, {">secret<", "body"}, {"Show the body", "offers the body"}, {`name="token"`, "sign-in"}, {"Deleted", "deleted"},
					{"Queued already", "requeued"}, {"PERMISSION_DENIED", "refused"},
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
	return "0,," + id
}

func TestHeaders(t *testing.T) {
	w := start(t, everybody)
	for _, path := range []string{"/", "/jobs", "/style.css", "/icon.svg", "/nothing"} {
		h := w.ask("admin", path, nil).Header
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
	w := start(t, everybody, func(c *Config) { c.Hosts = []string{"jobs.example.org"} })
	form := url.Values{"do": {"delete"}, "job": {"0,,a"}}
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
			if got := later.token(r); got != want {
				t.Errorf("%s, after %v: token %q", tc.name, after, got)
			}
			r.AddCookie(p.cookie("t"))
			if got := later.token(r); got != "" {
				t.Errorf("%s: one of two cookies is taken: %q", tc.name, got)
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
	w := start(t, everybody, func(c *Config) { c.Certificates = certificates })
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

func TestLists(t *testing.T) {
	w := start(t, everybody)
	for i := range 120 {
		w.record(fmt.Sprintf("shop:%03d", i), "{}")
	}
	w.record("bank:1", "{}", func(r *joboncev1.RecordDeliveryRequest) { r.WorkMode = joboncev1.WorkMode_WORK_MODE_UNTRACKED })
	w.record("bank:1", "{}", func(r *joboncev1.RecordDeliveryRequest) {
		r.WorkMode, r.Event = joboncev1.WorkMode_WORK_MODE_UNTRACKED, "refunded"
	})
	w.work(true, "the shop is closed")
	w.work(false, "")
	seen := make(map[string]bool)
	next, pages := "/jobs?show=queued", 0
	for ; next != ""; pages++ {
		r := w.ask("reader", next, nil)
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
		"/job?id=bank:1":                 {"refunded", "Event or status differ"},
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

func TestExpectedAndPauses(t *testing.T) {
	w := start(t, everybody)
	_, err := joboncev1.NewExpectationServiceClient(w.conn).ExpectJob(w.ctx("admin"), &joboncev1.ExpectJobRequest{
		JobId: "shop:1", StatusUrl: "https://shop.example/jobs/1?key=hidden", OverdueAfter: durationpb.New(0),
	})
	testenv.Must(t, err)
	_, err = joboncev1.NewAdminServiceClient(w.conn).PauseClaims(w.ctx("admin"), &joboncev1.PauseClaimsRequest{JobIdPrefix: "shop:", Reason: "the shop moves"})
	testenv.Must(t, err)
	r := w.ask("reader", "/expected?show=overdue", nil)
	if !r.has("https://shop.example/jobs/1") || !r.has("Overdue") || r.has("hidden") {
		t.Errorf("overdue: %s", r.text)
	}
	if r := w.ask("reader", "/expected?show=given-up", nil); !r.has("There are none") {
		t.Errorf("given up: %s", r.text)
	}
	r = w.ask("reader", "/?refresh", nil)
	if !r.has("the shop moves") || r.Header.Get("Refresh") != "10; url=/?refresh" || !r.has("Pause") {
		t.Errorf("overview: %v %s", r.Header, r.text)
	}
	if r := w.ask("reader", "/", nil); r.Header.Get("Refresh") != "" {
		t.Error("the overview refreshes without being asked to")
	}
	if r := w.ask("shop", "/", nil); r.StatusCode != http.StatusOK || !r.has("the counts are of all jobs") {
		t.Errorf("overview of a caller with a prefix: %s %s", r.Status, r.text)
	}
}

// TestServiceIsAway: the page says so, and nothing of why.
func TestServiceIsAway(t *testing.T) {
	w := start(t, everybody, func(c *Config) {
		c.Connect = func(context.Context) (net.Conn, error) { return nil, errors.New("a secret") }
	})
	for _, path := range []string{"/", "/jobs", "/job?id=a", "/expected"} {
		r := w.ask("admin", path, nil)
		if r.StatusCode != http.StatusServiceUnavailable || !r.has("The service is not to be reached for now.") || r.has("a secret") {
			t.Errorf("%s: %s\n%s", path, r.Status, r.text)
		}
	}
}
