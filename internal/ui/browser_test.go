package ui

import (
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
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestBrowser has people look for a dead job, requeue it, and delete others, in Chromium: testdata/browser/page.mjs. axe looks at every
// view. Screenshots go to the folder screenshots, which git ignores.
func TestBrowser(t *testing.T) {
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

	w := start(t, everybody)
	for _, id := range []string{"shop:dead-1", "shop:dead-2", "shop:dead-3"} {
		w.record(id, `{"order":9007199254740993}`)
		w.work(true, "the shop is closed")
	}
	untracked := func(r *joboncev1.RecordDeliveryRequest) { r.WorkMode = joboncev1.WorkMode_WORK_MODE_UNTRACKED }
	w.record("hostile", "</pre><script>document.title = \"mine\"</script><img src=//evil.example onerror=alert(1)>\u202e\u2066\x00", untracked)
	w.record("long", strings.Repeat("x", 1<<20), untracked)
	_, err = joboncev1.NewExpectationServiceClient(w.conn).ExpectJob(w.ctx("admin"), &joboncev1.ExpectJobRequest{
		JobId: "shop:late", StatusUrl: "https://shop.example/jobs/late", OverdueAfter: durationpb.New(0),
	})
	testenv.Must(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("/work", func(http.ResponseWriter, *http.Request) { w.work(false, "") })
	mux.HandleFunc("/revoke", func(http.ResponseWriter, *http.Request) {
		w.allow(map[string]string{"admin": "allow: [read, record, work]", "reader": "allow: [read]"})
		for strings.Contains(w.ask("admin", "/jobs", nil).text, `name="do"`) {
			time.Sleep(10 * time.Millisecond) // The file is looked at once a second.
		}
	})
	control := httptest.NewServer(mux)
	defer control.Close()
	cmd := exec.CommandContext(t.Context(), "node", "page.mjs", chromium, w.url, control.URL, screenshots)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "ADMIN_TOKEN="+w.tokens["admin"], "READER_TOKEN="+w.tokens["reader"])
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	} else if len(out) > 0 {
		t.Logf("%s", out)
	}
	for _, line := range []string{
		"caller=admin method=RequeueWork job_id=shop:dead-1", "caller=admin method=DeleteJob job_id=shop:dead-2", "caller=admin method=DeleteJob job_id=shop:dead-3",
	} {
		if log := w.log.String(); strings.Count(log, line) != 1 {
			t.Errorf("the audit line %q is there %d times in\n%s", line, strings.Count(log, line), log)
		}
	}
}
