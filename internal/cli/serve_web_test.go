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

// TestServePage: the page is there, and shows jobs and nothing else where no callers are configured.
func TestServePage(t *testing.T) {
	defer goleak.VerifyNone(t)
	cfg := testServeConfig(t)
	cfg.uiListen = "127.0.0.1:0"
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
}
