package job_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/jobonce/jobonce/internal/job"
)

// TestAnyHistory runs random histories of one job through the pure functions, as a store that does one thing after the
// other would, with a clock that jumps both ways.
func TestAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &history{now: noon, max: rapid.IntRange(0, 4).Draw(t, "max attempts"), starters: make(map[string]bool)}
		t.Repeat(map[string]func(*rapid.T){
			"deliver":  h.deliver,
			"claim":    h.claim,
			"renew":    h.renew,
			"complete": h.complete,
			"release":  h.release,
			"unclaim":  h.unclaim,
			"clock": func(t *rapid.T) {
				h.now = h.now.Add(time.Duration(rapid.IntRange(-90, 120).Draw(t, "seconds")) * time.Second)
			},
			"": h.check,
		})
	})
}

// history is the one job and what was ever answered about it.
type history struct {
	now    time.Time
	max    int
	record *job.Record

	deliveries []job.Delivery
	tokens     []string // of every lease granted, the oldest first
	claims     []string // those that ClaimWork got
	written    int      // how many tokens were made
	generation int64    // of the latest lease
	// starters are the calls that were told to start untracked work.
	starters map[string]bool
	// settled is the work as it was when it was first seen completed or dead.
	settled *job.Work
}

// newToken makes tokens that are the same whenever a history is run again.
func (h *history) newToken() string {
	h.written++
	return fmt.Sprint("token ", h.written)
}

// granted notes a new lease, before which the work was as in before.
func (h *history) granted(t *rapid.T, before *job.Work) {
	w := &h.record.Work
	if before != nil && !before.Free(h.now) {
		t.Fatalf("leased while it was not free: %+v", before)
	}
	if w.Generation <= h.generation {
		t.Fatalf("generation %d after %d", w.Generation, h.generation)
	}
	if w.Token == "" || slices.Contains(h.tokens, w.Token) {
		t.Fatalf("token %q is not new", w.Token)
	}
	h.generation = w.Generation
	h.tokens = append(h.tokens, w.Token)
}

// deliver makes a call, an old one again or a new one, and then repeats it at once.
func (h *history) deliver(t *rapid.T) {
	var d job.Delivery
	if n := len(h.deliveries); n > 0 && rapid.Bool().Draw(t, "again") {
		d = h.deliveries[rapid.IntRange(0, n-1).Draw(t, "which")]
	} else {
		mode := rapid.SampledFrom([]job.WorkMode{job.ModeUntracked, job.ModeLeased, job.ModeQueued}).Draw(t, "mode")
		d = job.Delivery{
			JobID: "j", RequestID: fmt.Sprint("request ", n), Mode: mode, Lease: time.Minute, Source: "webhook",
			Status:      rapid.SampledFrom([]string{"OK", "OK", "OK", "ERROR", ""}).Draw(t, "status"),
			Fingerprint: rapid.SampledFrom([]string{"a", "a", "b", ""}).Draw(t, "body"),
		}
		if d.Status == "" && d.Fingerprint != "" && rapid.Bool().Draw(t, "unread") {
			d.StatusUnread = job.UnreadBody
		}
		h.deliveries = append(h.deliveries, d)
	}
	first := h.write(t, d)
	work := h.record.Work
	again := h.write(t, d)
	if verdictText(first.Verdict) != verdictText(again.Verdict) || h.record.Work != work {
		t.Fatalf("%+v got %q and, repeated, %q\n%+v\n%+v", d, verdictText(first.Verdict), verdictText(again.Verdict), work, h.record.Work)
	}
	if (first.Lease == nil) != (again.Lease == nil) || first.Lease != nil && *first.Lease != *again.Lease {
		t.Fatalf("%+v got the lease %+v and, repeated, %+v", d, first.Lease, again.Lease)
	}
}

// write records a delivery as a store does. Each write comes with a token of its own.
func (h *history) write(t *rapid.T, d job.Delivery) job.Outcome {
	if h.record == nil {
		r := d.NewRecord(h.now)
		h.record = &r
		if d.Mode == job.ModeLeased {
			h.granted(t, nil)
		}
	}
	h.record.Deliveries++
	v := job.Decide(h.record, &d, h.now)
	if v.Claim {
		if d.StatusUnread != job.UnreadNothing && h.record.Status != "" && d.Fingerprint != h.record.Fingerprint {
			t.Fatalf("what may be another event claims: %+v", d)
		}
		before := h.record.Work
		if h.record.Work = before.Claim(d.Grant(h.max), h.now); h.record.Work.State == job.StateLeased {
			h.granted(t, &before)
		}
		v = job.Decide(h.record, &d, h.now)
	}
	if v.Claim {
		t.Fatalf("a claim that came through is to be made again: %+v", h.record)
	}
	if v.StartWork != v.Leased {
		if v.Leased || v.Disposition != job.First || h.record.Work.State != job.StateUntracked {
			t.Fatalf("start %t, leased %t: %q", v.StartWork, v.Leased, verdictText(v))
		}
		h.starters[d.RequestID] = true
	}
	if v.StartWork && v.Conflict != nil && v.Conflict.Kind == job.ConflictEvent {
		t.Fatalf("another event starts work: %+v", d)
	}
	return job.Answer(*h.record, v, h.now)
}

func (h *history) claim(t *rapid.T) {
	if h.record == nil || !h.record.Work.Free(h.now) {
		t.Skip("nothing is due")
	}
	before := h.record.Work
	g := job.Grant{Token: h.newToken(), Duration: time.Minute, ClaimID: "claim", MaxAttempts: h.max}
	if h.record.Work = before.Claim(g, h.now); h.record.Work.State == job.StateLeased {
		h.granted(t, &before)
		h.claims = append(h.claims, g.Token)
	}
}

// change applies an operation of a token that was granted at some time, and then once more, which changes nothing but by how little
// a renewal makes a lease longer.
func (h *history) change(t *rapid.T, operation func(w job.Work, token string) (job.Work, error)) {
	if len(h.tokens) == 0 {
		t.Skip("no lease was ever granted")
	}
	token := rapid.SampledFrom(append(h.tokens, "", h.tokens[len(h.tokens)-1])).Draw(t, "token")
	before := h.record.Work
	after, err := operation(before, token)
	switch {
	case err != nil && (!errors.Is(err, job.ErrLeaseLost) || after != before):
		t.Fatalf("%v, %+v to %+v", err, before, after)
	case err == nil && token != h.tokens[len(h.tokens)-1]:
		t.Fatalf("a token that is not the latest changes %+v", before)
	}
	again, repeated := operation(after, token)
	if again != after && again != after.Retell() || (err == nil) != (repeated == nil) {
		t.Fatalf("%+v, %v; repeated: %+v, %v", after, err, again, repeated)
	}
	h.record.Work = after
}

func (h *history) renew(t *rapid.T) {
	h.change(t, func(w job.Work, token string) (job.Work, error) { return w.Renew(token, time.Minute, h.now) })
}

func (h *history) complete(t *rapid.T) {
	h.change(t, func(w job.Work, token string) (job.Work, error) { return w.Complete(token, "result") })
}

func (h *history) release(t *rapid.T) {
	r := job.Release{
		Delay: time.Duration(rapid.IntRange(0, 60).Draw(t, "delay")) * time.Second,
		Dead:  rapid.IntRange(0, 9).Draw(t, "dead") == 0,
	}
	h.change(t, func(w job.Work, token string) (job.Work, error) { return w.Release(token, r, h.now) })
}

// unclaim gives a claim back. Only ClaimWork does that, with the tokens of its own leases.
func (h *history) unclaim(t *rapid.T) {
	if len(h.claims) == 0 {
		t.Skip("nothing was claimed")
	}
	token := rapid.SampledFrom(h.claims).Draw(t, "token")
	before := h.record.Work
	after, err := before.Unclaim(token, before.Due, h.now)
	if lost := token != before.Token || before.State != job.StateLeased; lost != errors.Is(err, job.ErrLeaseLost) {
		t.Fatalf("%v, for %+v", err, before)
	}
	if err != nil {
		return
	}
	if _, err := after.Unclaim(token, after.Due, h.now); !errors.Is(err, job.ErrLeaseLost) {
		t.Fatalf("%v for what was given back already", err)
	}
	h.record.Work = after
}

// check holds what is true at any time.
func (h *history) check(t *rapid.T) {
	if h.record == nil {
		return
	}
	w := h.record.Work
	for i, token := range h.tokens {
		if _, err := w.Renew(token, time.Minute, h.now); err == nil && i != len(h.tokens)-1 {
			t.Fatalf("lease %d of %d still holds: %+v", i+1, len(h.tokens), w)
		}
	}
	if len(h.starters) > 1 {
		t.Fatalf("untracked work was started by %v", h.starters)
	}
	if w.Generation < h.generation {
		t.Fatalf("generation %d, and %d was granted", w.Generation, h.generation)
	}
	if w.Attempts < 0 || h.max > 0 && int(w.Attempts) > h.max {
		t.Fatalf("%d attempts of %d", w.Attempts, h.max)
	}
	if w.State == job.StateCompleted || w.State == job.StateDead {
		if h.settled == nil {
			h.settled = &w
		}
	}
	if h.settled != nil && w != *h.settled {
		t.Fatalf("settled work changed from %+v to %+v", *h.settled, w)
	}
}
