package ui

import (
	"context"
	"sync"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

const (
	// mostCounted is how many expectations the overview counts before it stops, expectedPages how many pages it looks at for
	// that, each of up to 20 times as many.
	mostCounted, expectedPages = 100, 5
	// refreshTime is after how many seconds the overview is asked for again, where that is wanted.
	refreshTime = 10
	// countTime is for how long all viewers of the same jobs share what was counted.
	countTime = 10 * time.Second
)

// count is how many there are of something; More tells that there are more, or may be. Tone is how that looks.
type count struct {
	Name, Link, Tone string
	N                int64
	More             bool
}

// counted is what came of counting the jobs.
type counted struct {
	at time.Time
	*joboncev1.CountJobsResponse
}

// overview counts what there is. It asks for its parts at the same time, and shows those that come.
func (p *Page) overview(r *request) (*content, error) {
	var data struct {
		clock
		Jobs, Expected                              []count
		JobsProblem, ExpectedProblem, PausesProblem *problem
		Pauses                                      []*joboncev1.ClaimPause
		Refresh                                     int
	}
	data.clock = clock(r.now)
	ctx, cancel := context.WithTimeout(r.Context(), p.cfg.CallTimeout)
	defer cancel()
	var jobs, expected, paused error
	var parts sync.WaitGroup
	parts.Go(func() { data.Jobs, jobs = p.countJobs(ctx, r.viewer.Prefix) })
	parts.Go(func() { data.Expected, expected = p.countExpected(ctx) })
	parts.Go(func() {
		resp, err := p.admin.ListClaimPauses(ctx, &joboncev1.ListClaimPausesRequest{})
		data.Pauses, paused = resp.GetPauses(), err
	})
	parts.Wait()
	code := 0
	for _, part := range []struct {
		err  error
		into **problem
	}{{jobs, &data.JobsProblem}, {expected, &data.ExpectedProblem}, {paused, &data.PausesProblem}} {
		switch status.Code(part.err) {
		case codes.OK:
		case codes.Unauthenticated:
			return nil, part.err
		default:
			said := explain(part.err)
			*part.into, code = &said, runtime.HTTPStatusFromCode(status.Code(part.err))
		}
	}
	if r.URL.Query().Has("refresh") {
		data.Refresh = refreshTime
	}
	return &content{template: "overview", title: "Overview", code: code, data: data, refresh: data.Refresh}, nil
}

// countJobs counts the jobs of each state, of a viewer with the prefix. The service looks at up to 250,000 entries of its indexes for that, more than for any
// other view, so that one count goes on at a time, and is for a while that of everybody who
// sees the same jobs.
func (p *Page) countJobs(ctx context.Context, prefix string) ([]count, error) {
	select {
	case p.counting <- struct{}{}:
		defer func() { <-p.counting }()
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	was, _ := p.counted.Load(prefix)
	c, _ := was.(*counted)
	if now := p.now(); c == nil || now.Sub(c.at) >= countTime {
		resp, err := p.admin.CountJobs(ctx, &joboncev1.CountJobsRequest{})
		if err != nil {
			return nil, err
		}
		c = &counted{now, resp}
		p.counted.Store(prefix, c)
	}
	n := map[joboncev1.WorkState]*joboncev1.StateCount{}
	for _, s := range c.GetCounts() {
		n[s.GetState()] = s
	}
	var all []count
	for _, s := range shows {
		switch {
		case s.Word == conflicts:
			all = append(all, count{s.Name, "/jobs?show=" + s.Word, s.tone, c.GetConflicts(), c.GetConflictsMore()})
		case s.state != 0:
			all = append(all, count{s.Name, "/jobs?show=" + s.Word, s.tone, n[s.state].GetJobs(), n[s.state].GetMore()})
		}
	}
	return all, nil
}

// countExpected counts webhooks that did not come, among the first by id. No index knows their number.
func (p *Page) countExpected(ctx context.Context) (all []count, err error) {
	for _, e := range expectedShows[1:] {
		c, req := count{Name: e.Name, Link: "/expected?show=" + e.Word, Tone: e.tone}, &joboncev1.ListExpectationsRequest{Filter: e.filter, PageSize: mostCounted}
		for range expectedPages {
			page, err := p.admin.ListExpectations(ctx, req)
			if err != nil {
				return nil, err
			}
			c.N += int64(len(page.GetExpectations()))
			req.PageToken = page.GetNextPageToken()
			if c.More = req.PageToken != ""; !c.More || c.N >= mostCounted {
				break
			}
		}
		c.N, c.More = min(c.N, mostCounted), c.More || c.N > mostCounted
		all = append(all, c)
	}
	return all, nil
}
