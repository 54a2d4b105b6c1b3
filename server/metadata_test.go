package server

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// TestMetadataOverTheLimit: a call with too much metadata is refused in words, and no other call of its connection notices,
// whatever the metadata looks like: one long value, many short ones, or values that compress well.
func TestMetadataOverTheLimit(t *testing.T) {
	for name, extra := range map[string][]string{
		"a little over":   {"bomb", strings.Repeat("x", maxMetadataBytes-100)},
		"one long value":  {"bomb", strings.Repeat("x", 200_000)},
		"many values":     manyHeaders(5_000),
		"several of 60 K": {"a", strings.Repeat("x", 60_000), "b", strings.Repeat("y", 60_000), "c", strings.Repeat("z", 60_000)},
		"does not pack":   {"bomb", strings.Repeat("~", 100_000)},
	} {
		t.Run(name, func(t *testing.T) {
			inside, release := make(chan struct{}), make(chan struct{}, 2)
			s := start(t, Config{}, &memoryJobs{onGet: func(context.Context) error { close(inside); <-release; return nil }})
			p := dial(t, s.conn.Target())
			neighbour := p.call(t, getPath, encode(t, &joboncev1.GetJobRequest{JobId: "j"}))
			<-inside
			defer func() { release <- struct{}{} }()
			for range 10 {
				id := p.headers(t, getPath, false, extra...)
				if e := p.event(t); e.stream != id || e.status != codes.InvalidArgument || !e.isEnd {
					t.Fatalf("got %+v, want the call refused", e)
				}
			}
			release <- struct{}{}
			if e := p.event(t); e.stream != neighbour || e.status != codes.NotFound {
				t.Errorf("the neighbour got %+v", e)
			}
			p.close()
		})
	}
}

// Streams are refused like calls, and what lies just below the limit is taken.
func TestMetadataLimits(t *testing.T) {
	s := start(t, Config{}, new(memoryJobs))
	long := metadata.AppendToOutgoingContext(t.Context(), "bomb", strings.Repeat("x", maxMetadataBytes))
	_, err := s.GetJob(long, &joboncev1.GetJobRequest{JobId: "j"})
	if status.Code(err) != codes.InvalidArgument || details(t, err) != (told{reason: "INVALID_FIELD"}) ||
		!strings.Contains(err.Error(), "metadata") {
		t.Errorf("a call: %v", err)
	}
	watch, err := grpc_health_v1.NewHealthClient(s.conn).Watch(long, &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a stream: %v", err)
	}
	below := metadata.AppendToOutgoingContext(t.Context(), "fits", strings.Repeat("x", maxMetadataBytes-1000))
	if _, err := s.GetJob(below, &joboncev1.GetJobRequest{JobId: "j"}); status.Code(err) != codes.NotFound {
		t.Errorf("below the limit: %v", err)
	}
	if lines := s.log.lines(t, "call failed"); len(lines) == 0 || !strings.Contains(lines[0]["error"].(string), "metadata") {
		t.Errorf("logged: %v", lines)
	}
}
