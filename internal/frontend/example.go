package frontend

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/jobonce/jobonce/client/webhook"
)

// check tries the example, and fails unless it comes out as it should.
func (e *Example) check(s *Source, h *webhook.Handler) error {
	body := []byte(e.Body)
	if e.BodyFile != "" {
		var err error
		if body, err = os.ReadFile(e.BodyFile); err != nil {
			return fmt.Errorf("%s: source %q: example %s: %w", e.at, s.Name, e.Name, err)
		}
	}
	target := s.Path
	if e.Query != "" {
		target += "?" + e.Query
	}
	r, err := http.NewRequest(http.MethodPost, "https://example.com"+target, http.NoBody)
	if err != nil {
		return fmt.Errorf("%s: source %q: example %s: query: %w", e.at, s.Name, e.Name, err)
	}
	r.Header.Set("Content-Type", "application/json")
	for name, value := range e.Headers {
		r.Header.Set(name, value)
	}
	if err := e.compare(h.Interpret(r, body)); err != nil {
		return fmt.Errorf("%s: source %q: example %s: %w", e.at, s.Name, e.Name, err)
	}
	return nil
}

// compare returns how what came out differs from the example.
func (e *Example) compare(got webhook.Explanation) error {
	var recorded []webhook.ExplainedItem
	filtered := 0
	for _, item := range got.Items {
		switch {
		case item.Err != nil:
			if e.Outcome == "unreadable" {
				return nil
			}
			return fmt.Errorf("comes out unreadable: %w", item.Err)
		case item.Filtered:
			filtered++
		default:
			recorded = append(recorded, item)
		}
	}
	switch {
	case got.Reason != webhook.Accepted:
		return cmp.Or(got.Err, errors.New(string(got.Reason)))
	case e.Outcome == "unreadable":
		return errors.New("comes out readable")
	case e.Outcome == "filtered" && len(recorded) > 0:
		return fmt.Errorf("is recorded, as %q", recorded[0].JobID)
	case e.Outcome == "filtered" && filtered == 0, e.Outcome == "recorded" && len(recorded) == 0:
		return fmt.Errorf("of its events %d are recorded and %d filtered out", len(recorded), filtered)
	case len(e.Records) > 0 && len(e.Records) != len(recorded):
		return fmt.Errorf("%d jobs are recorded, and %d are expected", len(recorded), len(e.Records))
	}
	for i, want := range e.Records {
		var differ []string
		for _, f := range []struct{ name, want, got string }{
			{"job_id", want.JobID, recorded[i].JobID}, {"event", want.Event, recorded[i].Event}, {"status", want.Status, recorded[i].Status},
		} {
			if f.want != "" && f.got != f.want {
				differ = append(differ, fmt.Sprintf("%s is %q, and %q is expected", f.name, f.got, f.want))
			}
		}
		if len(differ) > 0 {
			return errors.New(strings.Join(differ, "; "))
		}
	}
	return nil
}
