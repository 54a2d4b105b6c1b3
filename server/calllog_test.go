package server

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

const body = `{"card":"4111111111111111"}`

// callAll makes one call of each outcome.
func callAll(t *testing.T, cfg Config) *running {
	t.Helper()
	s := start(t, cfg, &memoryJobs{onRecord: func(_ context.Context, d job.Delivery) error {
		switch d.JobID {
		case "away":
			return job.ErrUnavailable
		case "broken":
			return errors.New("disk on fire")
		}
		return nil
	}})
	for _, id := range []string{"fine", "away", "broken", "bad\n", strings.Repeat("x", 300)} {
		_, _ = s.RecordDelivery(t.Context(), text(id, body))
	}
	_, _ = s.GetJob(t.Context(), &joboncev1.GetJobRequest{JobId: "absent"})
	_, err := s.GetJob(t.Context(), &joboncev1.GetJobRequest{JobId: "fine", View: joboncev1.JobView_JOB_VIEW_FULL})
	testenv.Must(t, err)
	if strings.Contains(s.log.String(), "4111111111111111") {
		t.Error("the log holds a payload")
	}
	return s
}

func TestCallLog(t *testing.T) {
	s := callAll(t, Config{SlowCall: time.Hour})
	if lines := append(s.log.lines(t, "call"), s.log.lines(t, "slow call")...); len(lines) != 0 {
		t.Errorf("logged calls that went well: %v", lines)
	}
	lines := s.log.lines(t, "call failed")
	want := []map[string]any{
		{"level": "WARN", "code": "Unavailable", "reason": "STORE_UNAVAILABLE", "job_id": "away", "cause": "store unavailable"},
		{"level": "ERROR", "code": "Internal", "reason": "INTERNAL", "job_id": "broken", "cause": "disk on fire"},
		{"level": "INFO", "code": "InvalidArgument", "reason": "INVALID_FIELD", "field": "job_id", "job_id": nil, "cause": nil},
		{"level": "INFO", "code": "InvalidArgument", "reason": "INVALID_FIELD", "field": "job_id", "job_id": nil},
		{"level": "DEBUG", "code": "NotFound", "reason": "JOB_NOT_FOUND", "job_id": "absent", "cause": nil,
			"method": joboncev1.IdempotencyService_GetJob_FullMethodName},
	}
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d: %s", len(lines), len(want), s.log)
	}
	for i := range want {
		for key, value := range want[i] {
			if lines[i][key] != value {
				t.Errorf("line %d: %s is %v, want %v", i, key, lines[i][key], value)
			}
		}
		if _, ok := lines[i]["duration"].(float64); !ok {
			t.Errorf("line %d has no duration", i)
		}
	}
}

func TestCallLogAll(t *testing.T) {
	s := callAll(t, Config{LogCalls: true, SlowCall: time.Hour})
	lines := s.log.lines(t, "call")
	if len(lines) != 2 || lines[0]["level"] != "INFO" || lines[0]["code"] != "OK" || lines[0]["job_id"] != "fine" {
		t.Errorf("logged %v", lines)
	}
}

func TestCallLogSlow(t *testing.T) {
	// Everything takes longer than a nanosecond.
	s := callAll(t, Config{SlowCall: time.Nanosecond})
	if lines := s.log.lines(t, "slow call"); len(lines) != 2 || lines[0]["level"] != "WARN" {
		t.Errorf("logged %v", lines)
	}
	for _, line := range s.log.lines(t, "call failed") {
		if line["level"] != "WARN" && line["level"] != "ERROR" {
			t.Errorf("a slow failure is logged at %v", line["level"])
		}
	}
}
