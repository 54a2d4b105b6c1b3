package explore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/modeldb"
	"github.com/jobonce/jobonce/internal/retention"
	"github.com/jobonce/jobonce/internal/storetest"
)

// word is what a call about a webhook that is to come was told.
type word struct {
	call, said string
	from, to   int
}

// hear makes a call, and notes what it is told.
func (c *caller) hear(call string, do func() (said string, err error)) string {
	c.begin()
	said, err := do()
	switch {
	case errors.Is(err, job.ErrNoExpectation):
		said, err = "absent", nil
	case errors.Is(err, job.ErrLeaseLost):
		said, err = "lost", nil
	}
	s := c.ended(call, said, err)
	s.hears = true
	c.note(s)
	return s.said
}

func recordedOr(recorded bool, otherwise string) string {
	if recorded {
		return "recorded"
	}
	return otherwise
}

// expect says that the job's webhook is to come, and is overdue at once.
func expect(c *caller) {
	c.hear("expect", func() (string, error) {
		at := time.Duration(0)
		req, err := job.NewExpectRequest(c.jobs[0], "https://provider.example/job", &at, nil)
		if err != nil {
			return "", err
		}
		_, recorded, err := c.store.Expect(c.ctx, req)
		return recordedOr(recorded, "kept"), err
	})
}

// poll asks what is overdue. Of a job that it gets it asks the provider, records what that says, and gives it back.
func poll(c *caller) {
	token := ""
	c.hear("poll", func() (string, error) {
		o, err := c.store.ClaimOverdue(c.ctx, job.OverdueRequest{Max: 10, Lease: storetest.LeaseTime})
		if len(o.Jobs) > 0 {
			token = o.Jobs[0].Token
			return "took", err
		}
		return recordedOr(o.Recorded > 0, "nothing"), err
	})
	if token == "" {
		return
	}
	c.do(storetest.RecordOp("poll", job.ModeUntracked))
	c.hear("report", func() (string, error) {
		next := time.Hour
		_, recorded, err := c.store.ReportPoll(c.ctx, job.PollReport{JobID: c.jobs[0], Token: token, Next: &next})
		return recordedOr(recorded, "kept"), err
	})
}

func cancel(c *caller) {
	c.hear("cancel", func() (string, error) { return "cancelled", c.store.CancelExpectation(c.ctx, c.jobs[0]) })
}

// old is longer than retention keeps jobs.
const (
	old  = 40 * 24 * time.Hour
	kept = 30 * 24 * time.Hour
)

// retain is a pass of retention.
func retain(c *caller) {
	c.begin()
	now := c.clocks[c.number%len(c.clocks)].Now()
	keeper := retention.New(retention.Config{Policy: retention.Policy{Job: kept}, Now: func() time.Time { return now }, Logger: slog.New(slog.DiscardHandler)}, c.store)
	report, err := keeper.Pass(c.ctx)
	if err != nil { // says nothing of what was done before
		err = fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, err)
	}
	c.end(c.jobs[0], storetest.RetainOp(now.Add(-kept)), storetest.Changed(report.Jobs > 0), err)
}

// awaited asks what became of the expectation, and whether that can be explained. recorded tells whether the job is.
func (w *world) awaited(p *play, words []word, calls []storetest.Call, recorded bool) (became string, problems []string) {
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	ctx, store := context.Background(), w.stores[0]
	page, _, err := store.ListExpectations(ctx, job.AllExpectations, "", "", 10)
	if err != nil {
		problem("listing expectations in the end: %v", err)
	}
	there := len(page) > 0
	for _, c := range w.clocks {
		c.Advance(2 * time.Hour) // those who took it are late
	}
	o, err := store.ClaimOverdue(ctx, job.OverdueRequest{Max: 10, Lease: storetest.LeaseTime})
	if err != nil {
		problem("claiming what is overdue in the end: %v", err)
	}
	if recorded && len(o.Jobs) > 0 {
		problem("the job is recorded, and handed out in the end")
	}
	if there && !recorded && len(o.Jobs) == 0 {
		problem("the expectation is there, and is not handed out in the end")
	}

	// may tells whether there may have been a call that did what is asked for, and ended after a time.
	may := func(is func(c *storetest.Call) bool, after int) bool {
		return slices.ContainsFunc(calls, func(c storetest.Call) bool { return is(&c) && (c.Unknown || c.To > after) })
	}
	deletes := func(c *storetest.Call) bool { return c.Op.Deletes() && (c.Unknown || c.Answer.IsChange()) }
	deleted, delivered := may(deletes, -1), may(func(c *storetest.Call) bool { return c.Op.Records() }, -1)
	since, expected, cancels, took := 0, w.expected, 0, 0
	written := w.expected
	for _, x := range words {
		doubtful := x.said == "unknown"
		switch {
		case x.call == "expect" && x.said == "kept":
			since, expected = x.from, true
		case x.call == "cancel" && (doubtful || x.said == "cancelled"):
			cancels++
		case x.call == "poll" && x.said == "took":
			took++
		}
		written = written || x.call == "expect" && x.said != "unavailable"
	}
	if !recorded && expected && cancels == 0 && !there && !may(deletes, since) {
		problem("the job is not recorded, and is expected no more")
	}
	if there && !written {
		problem("nothing was written, and the job is expected")
	}
	if took > 1 && p.lapses == 0 {
		problem("%d pollers had the job at once", took)
	}
	for _, x := range words {
		// early tells whether a delivery was answered before it began.
		early := slices.ContainsFunc(calls, func(c storetest.Call) bool { return c.Op.Records() && !c.Unknown && c.To < x.from })
		began := slices.ContainsFunc(calls, func(c storetest.Call) bool { return c.Op.Records() && c.From < x.to })
		// ended tells whether it was cancelled before the call began, and nobody may have expected it after that.
		ended := slices.ContainsFunc(words, func(c word) bool {
			return c.call == "cancel" && c.said == "cancelled" && c.to < x.from &&
				!slices.ContainsFunc(words, func(e word) bool { return e.call == "expect" && e.to > c.from })
		})
		switch {
		case x.said == "recorded" && !began:
			problem("%s: recorded, before it was delivered", x.call)
		case x.call == "expect" && x.said == "kept" && early && !deleted:
			problem("expect: kept, after it was delivered")
		case x.call == "poll" && x.said == "took" && early && !deleted && w.kind == modeldb.Standalone: // a deposed primary may not know yet
			problem("poll: took it, after it was delivered")
		case (x.call == "report" && x.said == "kept" || x.call == "poll" && x.said == "took") && ended:
			problem("%s: %s, after it was cancelled", x.call, x.said)
		case x.call == "cancel" && x.said == "cancelled" && there:
			problem("cancelled, and still there")
		case x.call == "cancel" && x.said == "absent" && cancels == 0 && !deleted && !delivered:
			problem("cancel: absent, and nobody has removed it")
		case x.call == "report" && x.said == "lost" && !deleted && p.lapses == 0,
			x.call == "report" && x.said == "absent" && !deleted && !delivered && cancels == 0:
			problem("report: %s, and nobody had it besides", x.said)
		}
	}
	return fmt.Sprintf("expected %t, handed out %d, recorded %d; ", there, len(o.Jobs), o.Recorded), problems
}
