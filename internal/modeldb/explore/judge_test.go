package explore_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/modeldb"
	"github.com/jobonce/jobonce/internal/storetest"
)

// judge asks whether what the callers were told, and what is stored in the end, can be explained.
func (w *world) judge(p *play) (outcome string, err error) {
	w.db.Hold(false)
	if w.worn {
		ready(w.stores[0])
	}
	w.heal(0)
	if p.world == nil {
		w.rest()
		time.Sleep(5 * pause) // a store bounds how often it reads jobs that are not there
		w.db.Restore(p.db.Snapshot())
		w.setClocks(p.clocks)
	}
	h := p.history()
	problems := slices.Concat(h.problems, p.db.Strange(), w.db.Strange())
	stored := ""
	for _, id := range w.jobs {
		var end *job.Record
		r, err := w.stores[0].Get(context.Background(), id, false)
		switch {
		case err == nil:
			end = &r
			stored += fmt.Sprintf("%s: %v, %v by %q, attempts %d, token %s, requeues %d; ", id, r.Work.State, r.Work.Mode, r.RequestID, r.Work.Attempts, r.Work.Token, r.Work.Requeues)
		case errors.Is(err, job.ErrNotFound):
			stored += id + ": none; "
		default:
			problems = append(problems, fmt.Sprintf("reading %s in the end: %v", id, err))
			continue
		}
		calls := h.calls[id]
		if err := p.explain(calls, end); err != nil && !p.echoed(calls, h.earlier[id], end) {
			problems = append(problems, fmt.Sprintf("%s: %v", id, err))
		}
		if problems = append(problems, firsts(calls)...); w.awaits {
			became, wrong := w.awaited(p, h.words, calls, end != nil)
			stored, problems = stored+became, append(problems, wrong...)
		}
	}
	if p.pauses {
		problems = append(problems, w.paused(h.calls[w.jobs[0]])...)
	}
	if ids := w.ids(); len(ids) != len(slices.Compact(slices.Clone(ids))) {
		problems = append(problems, fmt.Sprintf("there are records of the jobs %q", ids))
	}
	if !w.awaits && (w.expected || h.kept != "") {
		switch page, _, err := w.stores[0].ListExpectations(context.Background(), job.AllExpectations, "", "", 10); {
		case err != nil:
			problems = append(problems, fmt.Sprintf("listing expectations in the end: %v", err))
		case h.kept != "" && (len(page) != 1 || page[0].StatusURL != h.kept):
			problems = append(problems, fmt.Sprintf("the expectation %s was kept, and in the end there is %+v", h.kept, page))
		default:
			stored += fmt.Sprintf("%d expected", len(page))
		}
	}
	if len(problems) > 0 {
		err = errors.New(strings.Join(problems, "\n"))
	}
	return strings.Join(append(h.outcome, stored), "\n"), err
}

// paused asks whether it can be explained that the work is paused in the end, or is not.
func (w *world) paused(calls []storetest.Call) (problems []string) {
	pauses, err := w.stores[0].Pauses(context.Background())
	if err != nil {
		return []string{fmt.Sprintf("reading the pauses in the end: %v", err)}
	}
	paused, resumed, sure := false, false, false
	for _, c := range calls {
		paused, resumed = paused || c.Op.Pauses(), resumed || c.Op.Resumes()
		sure = sure || c.Op.Pauses() && !c.Unknown
	}
	switch is := len(pauses) > 0; {
	case is && !paused:
		problems = append(problems, "nothing was written, and the work is paused")
	case !is && sure && !resumed:
		problems = append(problems, "the work was paused, and is not")
	}
	return problems
}

func (p *play) explain(calls []storetest.Call, end *job.Record) error {
	return storetest.Explain(calls, end, storetest.Clocks{Skew: p.skew, SetBack: p.drift > p.skew})
}

// ids are those of the records that there are, in order.
func (w *world) ids() (ids []string) {
	for _, d := range w.db.Documents(jobs) {
		ids = append(ids, d.Lookup("job_id").StringValue())
	}
	slices.Sort(ids)
	return ids
}

// echoed tells whether the history is explained by a delivery that was made again after a deletion: a standalone server does not
// know a write again that its client has repeated, and one whose connection was cut may come after both. docs/operations.md says
// so.
func (p *play) echoed(calls []storetest.Call, earlier int, end *job.Record) bool {
	if p.kind != modeldb.Standalone || !slices.ContainsFunc(calls, func(c storetest.Call) bool { return c.Op.Deletes() }) {
		return false
	}
	again := slices.Clone(calls)
	for _, c := range calls[earlier:] {
		if c.Op.Records() && !c.Unknown {
			c.Unknown, c.Nows = true, slices.Concat(p.nows...)
			again = append(again, c)
		}
	}
	return p.explain(again, end) == nil
}

// firsts finds calls that were both told to be the first, of a job that nobody has deleted.
func firsts(calls []storetest.Call) (problems []string) {
	if slices.ContainsFunc(calls, func(c storetest.Call) bool { return c.Op.Deletes() }) {
		return nil
	}
	var first []string
	for _, c := range calls {
		if o := c.Op.String(); c.Answer.First() && !slices.Contains(first, o) {
			first = append(first, o)
		}
	}
	if len(first) > 1 {
		problems = append(problems, fmt.Sprintf("%q were all told to be first", first))
	}
	return problems
}

var tokenText = regexp.MustCompile(`\b[A-Z2-7]{26}\b`)

// plain is an outcome with the tokens numbered in the order in which they stand there, and without times.
func plain(outcome string) string {
	var tokens []string
	outcome = tokenText.ReplaceAllStringFunc(outcome, func(token string) string {
		if !slices.Contains(tokens, token) {
			tokens = append(tokens, token)
		}
		return fmt.Sprintf("token-%d", slices.Index(tokens, token))
	})
	return timeText.ReplaceAllString(outcome, "time")
}

var timeText = regexp.MustCompile(`\b17[0-9]{11}\b`)
