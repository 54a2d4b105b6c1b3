package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/job"
)

// TestWatchWork: what a person is to hear of is an ERROR line that names the job, and nothing else is.
func TestWatchWork(t *testing.T) {
	var log bytes.Buffer
	watch := watchWork(nil, slog.New(slog.NewTextHandler(&log, nil)))
	for _, c := range []struct {
		work job.Work
		want string
	}{
		{job.Work{State: job.StateDead, Attempts: 3, Error: "secret"}, "a job died"},
		{job.Work{State: job.StateLeased, Lapses: 4}, ""},
		{job.Work{State: job.StateLeased, Lapses: 5}, "a job is suspect"},
		{job.Work{State: job.StateLeased, Lapses: 6}, ""},
	} {
		log.Reset()
		watch("job_1", c.work)
		line := log.String()
		said := strings.Contains(line, "level=ERROR") && strings.Contains(line, "job_id=job_1") && strings.Contains(line, c.want)
		if c.want == "" && line != "" || c.want != "" && !said || strings.Contains(line, "secret") {
			t.Errorf("%+v: %q, want %q", c.work, line, c.want)
		}
	}
}
