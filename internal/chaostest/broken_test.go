package chaostest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// spoil is a way to break a store on purpose, and the finding that it must lead to.
type spoil struct {
	finds kind
	wrap  func(job.Store) job.Store
}

// brokenStores are faults that a real store could have. The service wraps its store in the one that it is told.
var brokenStores = map[string]spoil{
	"dropped": {missing, func(s job.Store) job.Store { // deliveries of some jobs are answered and never written
		return spoiled{Store: s, record: func(ctx context.Context, s job.Store, d job.Delivery) job.Outcome {
			if !every(5, d.JobID) || d.Mode != job.ModeUntracked {
				return s.Record(ctx, []job.Delivery{d})[0]
			}
			r := d.NewRecord(time.Now())
			r.Deliveries = 1
			return job.Answer(r, job.Decide(&r, &d, time.Now()), time.Now())
		}}
	}},
	"body": {otherBody, func(s job.Store) job.Store { // some bodies are stored otherwise
		return spoiled{Store: s, record: func(ctx context.Context, s job.Store, d job.Delivery) job.Outcome {
			if every(5, d.JobID) {
				d.Body.Data += " "
			}
			return s.Record(ctx, []job.Delivery{d})[0]
		}}
	}},
	"two-first": {twoFirst, func(s job.Store) job.Store { // a duplicate is told that it is first
		return spoiled{Store: s, record: func(ctx context.Context, s job.Store, d job.Delivery) job.Outcome {
			o := s.Record(ctx, []job.Delivery{d})[0]
			if o.Verdict.Disposition == job.Duplicate && o.Verdict.Conflict == nil && every(5, d.RequestID) {
				o.Verdict.Disposition, o.Verdict.FirstDelivery, o.Verdict.StartWork = job.First, true, true
			}
			return o
		}}
	}},
	"two-leases": {twoLeases, func(s job.Store) job.Store { // work is given away while somebody does it
		return spoiled{Store: s, record: func(ctx context.Context, s job.Store, d job.Delivery) job.Outcome {
			o := s.Record(ctx, []job.Delivery{d})[0]
			if o.Verdict.Disposition == job.InProgress && d.Mode == job.ModeLeased && every(3, d.RequestID) {
				o.Verdict.Disposition, o.Verdict.StartWork, o.Verdict.Leased = job.Reclaimed, true, true
				o.Lease = &job.Lease{Token: job.NewToken(), Generation: o.Record.Work.Generation + 1, Expires: o.Record.Work.Due}
			}
			return o
		}}
	}},
	"refused-but-written": {noOrder, func(s job.Store) job.Store { // STORE_UNAVAILABLE after the write
		return &refusing{Store: s}
	}},
	"refused-but-counted": {miscount, func(s job.Store) job.Store { // the same, of deliveries alone
		return spoiled{Store: s, record: func(ctx context.Context, s job.Store, d job.Delivery) job.Outcome {
			o := s.Record(ctx, []job.Delivery{d})[0]
			if every(20, d.RequestID) && o.Err == nil && o.Record.Deliveries > 1 && o.Record.Deliveries%2 == 0 {
				return job.Outcome{Err: job.ErrUnavailable}
			}
			return o
		}}
	}},
	"counted-twice": {miscount, func(s job.Store) job.Store { // a delivery is written twice
		return spoiled{Store: s, record: func(ctx context.Context, s job.Store, d job.Delivery) job.Outcome {
			if every(50, d.RequestID) {
				s.Record(ctx, []job.Delivery{d})
			}
			return s.Record(ctx, []job.Delivery{d})[0]
		}}
	}},
	"internal": {badError, func(s job.Store) job.Store { // an error that says nothing
		return spoiled{Store: s, record: func(ctx context.Context, s job.Store, d job.Delivery) job.Outcome {
			if every(50, d.RequestID) {
				return job.Outcome{Err: errors.New("broken on purpose")}
			}
			return s.Record(ctx, []job.Delivery{d})[0]
		}}
	}},
	"stuck": {stuck, func(s job.Store) job.Store { return withholding{s} }},
}

// every is true for one word in n, always the same ones.
func every(n uint32, word string) bool { return crc32.ChecksumIEEE([]byte(word))%n == 0 }

// spoiled records deliveries otherwise.
type spoiled struct {
	job.Store
	record func(context.Context, job.Store, job.Delivery) job.Outcome
}

func (s spoiled) Record(ctx context.Context, ds []job.Delivery) []job.Outcome {
	out := make([]job.Outcome, len(ds))
	for i, d := range ds {
		out[i] = s.record(ctx, s.Store, d)
	}
	return out
}

// refusing releases work, and says now and then that it did not.
type refusing struct {
	job.Store
	calls atomic.Int64
}

func (s *refusing) ChangeLeases(ctx context.Context, changes []job.LeaseChange) []job.LeaseOutcome {
	out := s.Store.ChangeLeases(ctx, changes)
	for i := range out {
		if changes[i].Kind == job.Releasing && out[i].Err == nil && s.calls.Add(1)%2 == 0 {
			out[i].Err = job.ErrUnavailable
		}
	}
	return out
}

// withholding keeps some jobs from those who claim work.
type withholding struct{ job.Store }

func (s withholding) Claim(ctx context.Context, r job.ClaimRequest) ([]job.Claimed, error) {
	claimed, err := s.Store.Claim(ctx, r)
	return slices.DeleteFunc(claimed, func(c job.Claimed) bool { return every(10, c.Record.JobID) }), err
}

// TestBites runs services whose stores are broken on purpose, without any other fault, and sees that the check which is for
// it finds each.
func TestBites(t *testing.T) {
	for _, name := range sortedKeys(brokenStores) {
		t.Run(name, func(t *testing.T) {
			w := newEmbeddedWorld(t, 1, name)
			found := w.run(10, 0, 0)
			if !slices.ContainsFunc(found, func(f finding) bool { return f.kind == brokenStores[name].finds }) {
				t.Errorf("not found: %s\nbut: %v", brokenStores[name].finds, found)
			}
		})
	}
	t.Run("damaged file", func(t *testing.T) {
		w := newEmbeddedWorld(t, 1, "")
		if found := w.run(1, 0, 0); len(found) > 0 {
			t.Fatal(found)
		}
		// Opening and closing it puts everything into the one file.
		s, err := sqlitestore.Open(t.Context(), filepath.Dir(w.file), sqlitestore.Options{})
		if err == nil {
			err = s.Close()
		}
		if err == nil {
			err = flipByte(w.file)
		}
		testenv.Must(t, err)
		if found := w.final(); len(found) == 0 || found[0].kind != damaged {
			t.Errorf("not found: %s\nbut: %v", damaged, found)
		}
	})
}

// flipByte changes one byte of each body in the file. Some of what looks like a body is what pages that were split have left
// behind, and nobody reads that.
func flipByte(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	body := []byte(`{"of":`)
	if !bytes.Contains(content, body) {
		return fmt.Errorf("%s has no body", file)
	}
	return os.WriteFile(file, bytes.ReplaceAll(content, body, []byte(`{"oF":`)), 0o600)
}
