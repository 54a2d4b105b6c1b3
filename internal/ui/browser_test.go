package ui

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestBrowser has people look for a dead job, requeue it, and delete others, in Chromium: testdata/browser/page.mjs. Over the embedded
// store, axe looks at every view, and screenshots go to the folder screenshots, which git ignores.
func TestBrowser(t *testing.T) {
	eachStore(t, func(t *testing.T, over func(*setup)) {
		w := start(t, everybody, over)
		for _, id := range []string{"shop:dead-1", "shop:dead-2", "shop:dead-3"} {
			w.record(id, `{"order":9007199254740993}`)
			w.work(true, "the shop is closed")
		}
		untracked := func(r *joboncev1.RecordDeliveryRequest) { r.WorkMode = joboncev1.WorkMode_WORK_MODE_UNTRACKED }
		w.record("hostile", "</pre><script>document.title = \"mine\"</script><img src=//evil.example onerror=alert(1)>\u202e\u2066\x00", untracked)
		w.record("long", strings.Repeat("x", 1<<20), untracked)
		w.record("marked", strings.Repeat("x\u202e", 1<<18), untracked)
		_, err := joboncev1.NewExpectationServiceClient(w.conn).ExpectJob(w.ctx("admin"), &joboncev1.ExpectJobRequest{
			JobId: "shop:late", StatusUrl: "https://shop.example/jobs/late", OverdueAfter: durationpb.New(0),
		})
		testenv.Must(t, err)
		walk := "long"
		if strings.HasSuffix(t.Name(), "MongoDB") {
			walk = "short"
		}
		w.browse(walk)
		for _, line := range []string{
			"caller=admin method=RequeueWork job_id=shop:dead-1 outcome=OK", "caller=admin method=DeleteJob job_id=shop:dead-2 outcome=OK",
			"caller=admin method=GetJob job_id=shop:dead-1 outcome=OK body=true",
		} {
			if log := w.log.String(); !strings.Contains(log, line) {
				t.Errorf("the audit line %q is not there:\n%s", line, log)
			}
		}
	})
}

// browse walks through the page in Chromium.
func (w *world) browse(walk string) {
	t := w.t
	t.Helper()
	testenv.Need(t, "node", "npm", "chromium")
	chromium, err := exec.LookPath("chromium")
	testenv.Must(t, err)
	source := filepath.Join("testdata", "browser")
	lock := []string{filepath.Join(source, "package.json"), filepath.Join(source, "package-lock.json")}
	tools := testenv.Cached(t, "page-browser", lock, func(dir string) error {
		testenv.CopyFiles(t, dir, lock...)
		return testenv.Run(t, dir, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	})
	dir := t.TempDir()
	testenv.CopyFiles(t, dir, filepath.Join(source, "page.mjs"))
	testenv.Must(t, os.Symlink(filepath.Join(tools, "node_modules"), filepath.Join(dir, "node_modules")))
	screenshots, err := filepath.Abs("screenshots")
	testenv.Must(t, err)
	testenv.Must(t, os.MkdirAll(screenshots, 0o755))
	mux := http.NewServeMux()
	mux.HandleFunc("/work", func(http.ResponseWriter, *http.Request) { w.work(false, "") })
	mux.HandleFunc("/revoke", func(http.ResponseWriter, *http.Request) {
		w.allow(map[string]string{"admin": "allow: [read, record, work]", "reader": "allow: [read]"})
		for strings.Contains(w.ask("admin", "/jobs", nil).text, `name="do"`) {
			time.Sleep(10 * time.Millisecond) // The file is looked at once a second.
		}
	})
	mux.HandleFunc("/link", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(rw, `<a href="%s/jobs?show=conflict">an alert</a>`, w.url)
	})
	control := httptest.NewServer(mux)
	defer control.Close()
	cmd := exec.CommandContext(t.Context(), "node", "page.mjs", chromium, w.url, control.URL, screenshots, walk)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "ADMIN_TOKEN="+w.tokens["admin"], "READER_TOKEN="+w.tokens["reader"])
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	} else if len(out) > 0 {
		t.Logf("%s", out)
	}
}

// TestPicture makes the README's pictures. With JOBONCE_TEST_GOLDEN they are put where the README shows them.
func TestPicture(t *testing.T) {
	clock := testenv.NewClock()
	now := time.Date(2026, 11, 30, 9, 30, 0, 0, time.UTC)
	ago := func(d time.Duration) { clock.Set(now.Add(-d)) }
	ago(50 * time.Hour)
	w := start(t, map[string]string{"ana": "allow: [admin, record, work]"}, func(s *setup) {
		var err error
		s.store, err = sqlitestore.Open(t.Context(), t.TempDir(), sqlitestore.Options{Now: clock.Now, MaxAttempts: 10, Logger: testenv.Logger(t)})
		testenv.Must(t, err)
		s.change = func(p *Page) { p.now = clock.Now }
	})
	w.tokens["admin"] = w.tokens["ana"]
	work := joboncev1.NewWorkServiceClient(w.conn)
	claim := func(lease time.Duration) (id, token string) {
		resp, err := work.ClaimWork(w.ctx("ana"), &joboncev1.ClaimWorkRequest{MaxJobs: 1, LeaseDuration: durationpb.New(lease)})
		testenv.Must(t, err)
		return resp.GetJobs()[0].GetJob().GetJobId(), resp.GetJobs()[0].GetLease().GetToken()
	}
	record := func(id, event, status string, changes ...func(*joboncev1.RecordDeliveryRequest)) {
		w.record(id, `{"id":"`+id+`"}`, append(changes, func(r *joboncev1.RecordDeliveryRequest) { r.Event, r.Status = event, status })...)
	}
	record("github:delivery-7f31", "push", "")
	w.work(false, "")
	ago(26 * time.Hour)
	record("stripe:evt_1QhTz8", "invoice.paid", "paid")
	w.work(false, "")
	ago(5 * time.Hour)
	record("stripe:evt_1QhWc2", "charge.refunded", "succeeded")
	w.work(true, "409 from the ledger: no such charge")
	ago(3 * time.Hour)
	record("shopify:order-5102", "orders/paid", "paid")
	w.work(true, "the warehouse does not know SKU 88-113")
	untracked := func(r *joboncev1.RecordDeliveryRequest) { r.WorkMode = joboncev1.WorkMode_WORK_MODE_UNTRACKED }
	ago(40 * time.Minute)
	record("render:job_3391", "job.completed", "OK", untracked)
	record("render:job_3391", "job.failed", "ERROR", untracked)
	ago(12 * time.Minute)
	record("shopify:order-5117", "orders/paid", "paid")
	id, token := claim(time.Minute)
	_, err := work.ReleaseWork(w.ctx("ana"), &joboncev1.ReleaseWorkRequest{
		JobId: id, LeaseToken: token, Error: "503 from the warehouse", RetryDelay: durationpb.New(20 * time.Minute),
	})
	testenv.Must(t, err)
	ago(2 * time.Minute)
	record("stripe:evt_1QiBf0", "invoice.paid", "paid")
	claim(5 * time.Minute)
	ago(8 * time.Second)
	record("shopify:order-5121", "orders/paid", "paid")
	ago(0)
	w.browse("picture")
	if os.Getenv("JOBONCE_TEST_GOLDEN") != "" {
		for _, name := range []string{"page.png", "page-dark.png"} {
			picture, err := os.ReadFile(filepath.Join("screenshots", name))
			testenv.Must(t, err)
			testenv.Must(t, os.WriteFile(filepath.Join("..", "..", "docs", name), picture, 0o644))
		}
	}
}
