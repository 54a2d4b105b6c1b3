package cli

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/jobonce/jobonce/internal/testenv"
)

// TestServeWeb: the page is there, and shows jobs and nothing else where no callers are configured; so is the HTTP door. The requests
// to both are measured.
func TestServeWeb(t *testing.T) {
	defer goleak.VerifyNone(t)
	cfg := testServeConfig(t)
	cfg.uiListen, cfg.httpListen = "127.0.0.1:0", "127.0.0.1:0"
	h := serveHere(t, cfg)
	defer h.stop()
	if code, _, stderr := run("record", "--server", h.addr, "--job-id", "shop:1"); code != 0 {
		t.Fatalf("record: exit code %d: %s", code, stderr)
	}
	address := regexp.MustCompile(`"ui_address":"([^"]+)"`).FindStringSubmatch(h.logged())
	if address == nil {
		t.Fatalf("logged\n%s", h.logged())
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get("http://" + address[1] + "/jobs")
	testenv.Must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	testenv.Must(t, err)
	if page := string(text); resp.StatusCode != http.StatusOK || !strings.Contains(page, "shop:1") || !strings.Contains(page, "No callers are configured") {
		t.Errorf("%s: %s", resp.Status, page)
	}
	address = regexp.MustCompile(`"http_address":"([^"]+)"`).FindStringSubmatch(h.logged())
	resp, err = c.Get("http://" + address[1] + "/v1/jobs?job_id=shop:1")
	testenv.Must(t, err)
	defer resp.Body.Close()
	_, metrics := h.get("/metrics")
	for _, line := range []string{
		`jobonce_http_requests_total{code="200",listener="ui",method="get",route="/jobs"} 1`,
		`jobonce_http_requests_total{code="200",listener="http",method="get",route="/v1/jobs"} 1`,
		`jobonce_http_request_duration_seconds_count{listener="http",route="/v1/jobs"} 1`,
	} {
		if !strings.Contains(metrics, line) {
			t.Errorf("the metrics have no %s", line)
		}
	}
}
