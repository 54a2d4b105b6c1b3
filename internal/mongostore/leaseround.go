package mongostore

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/jobonce/jobonce/internal/job"
)

// changing is one try of the changes of many holders.
type changing struct {
	round[*holder]
}

// changeRound tries the holders' changes until those left need more than a look: changes of a lease that come after one that
// was settled, and releases that were looked up, go on at once.
func (s *Store) changeRound(ctx context.Context, holders []*holder) *round[*holder] {
	r := &changing{round[*holder]{Store: s, ctx: ctx}}
	for len(holders) > 0 {
		holders = r.once(holders)
	}
	return &r.round
}

// once sends what is to be sent and reads what that leaves open, and returns who goes on at once.
func (r *changing) once(holders []*holder) (next []*holder) {
	now, known := r.time()
	var write, read []*holder
	for _, h := range holders {
		switch {
		case h.look:
			read = append(read, h)
		case h.change().Kind == job.Renewal && !known:
			h.tries.note(&failure{fateRetry, errNoClock})
			r.untimed = append(r.untimed, h)
		default:
			write = append(write, h)
		}
	}
	for part := range parts(write, func(h *holder) int { return len(h.jobID) + len(h.token) + h.change().Size() + 256 }) {
		made, open := r.send(part, now)
		for _, h := range made {
			if r.made(h, h.work, true) {
				next = append(next, h)
			}
		}
		read = append(read, open...)
	}
	if len(read) > 0 {
		next = append(next, r.read(read)...)
	}
	inOrder(next)
	return next
}

// send sends one bulk. It returns whose changes were made, and whose jobs must be read to tell.
func (r *changing) send(holders []*holder, now time.Time) (made, open []*holder) {
	models := make([]mongo.WriteModel, len(holders))
	for i, h := range holders {
		models[i] = mongo.NewUpdateOneModel().SetFilter(heldWith(h.jobID, h.token)).SetUpdate(h.update(now))
	}
	b := r.write(r.ctx, models)
	if b.whole != nil {
		if len(holders) > 1 || holders[0].tries.n == 0 {
			r.log.Warn("a bulk of changes of leases failed", "store", r.String(), "changes", len(holders), "error", r.explain(b.whole))
		}
		if b.whole.hopeless() || b.whole.fate == fateRetry {
			r.strike(holders, b.whole)
			return nil, nil
		}
		for _, h := range holders {
			h.failed = b.whole
		}
		return nil, holders
	}
	// An item that failed may have been applied. Nobody knows whether it counts among those that matched.
	confirm, every := b.confirm(r.Store), len(b.failed) == 0 && b.matched == len(holders)
	for i, h := range holders {
		e, bad := b.failed[i]
		h.tries.unknown = h.tries.unknown || bad && b.repeated
		switch f := (&failure{itemFate(e), e}); {
		case bad && (f.hopeless() || f.fate == fateRetry):
			r.stray(h, f)
			continue
		case bad:
			if f.fate == fateStrange {
				r.strangeCode(e, h.jobID)
			}
			h.failed, h.strays = f, true
		case confirm:
			h.failed = &failure{fateUnknown, cmp.Or(b.unsafe, errUnsafe)}
		case every:
			made = append(made, h)
			continue
		default:
			h.among = h.among || b.matched > 0
		}
		open = append(open, h)
	}
	return made, open
}

// read reads the jobs of holders, and settles those whose changes were made. Those that were not sent yet go on at once.
func (r *changing) read(holders []*holder) (next []*holder) {
	tracked, sent := track(r.ctx)
	records, unusable, err := r.find(tracked, idsOf(holders))
	if err != nil {
		f := readFailed(err, sent)
		r.log.Warn("a read of leased jobs failed", "store", r.String(), "jobs", len(holders), "error", r.explain(f))
		for _, h := range holders {
			h.look = true
			r.again(h, f)
		}
		return nil
	}
	now := r.now()
	for _, h := range holders {
		record, found := records[h.jobID]
		h.work = record.Work
		switch cause := unusable[h.jobID]; {
		case cause != nil:
			r.log.Error("a stored record cannot be used", "store", r.String(), "job_id", h.jobID, "error", cause)
			r.again(h, &failure{fateUnusable, cause})
		case found && h.isMade(record.Work, now):
			if r.made(h, record.Work, h.failed != nil || h.tries.unknown || h.among) {
				next = append(next, h)
			}
		case !found || !record.Work.Holds(h.token):
			if h.failed != nil {
				h.tries.note(h.failed)
			}
			h.suspect, h.failed = true, nil
			r.alone = append(r.alone, h)
		case h.look:
			h.look = false
			next = append(next, h)
		default:
			h.among = false
			h.strays = h.strays || h.failed == nil
			r.again(h, &failure{fateRetry, errChanged})
		}
	}
	return next
}

// again has a holder tried again: f is why, unless it has failed before that.
func (r *changing) again(h *holder, f *failure) {
	if h.failed != nil && f.fate != fateUnusable {
		f = h.failed
	} else if h.failed != nil {
		h.tries.note(h.failed)
	}
	strays := h.strays
	h.failed, h.strays = nil, false
	if strays {
		r.stray(h, f)
	} else {
		r.strike([]*holder{h}, f)
	}
}

// made settles a change that was made, by this call or, unless ours is set, by an earlier one. It tells whether the lease has
// another one. w is the work as it was read, before the change or after it.
func (s *Store) made(h *holder, w job.Work, ours bool) (more bool) {
	o, c := job.LeaseOutcome{}, h.change()
	switch {
	case c.Kind == job.Renewal:
		if w.Due.Before(h.renewed.Due) {
			w = h.renewed
		}
		w = s.told(w)
		o.Lease = w.Lease(s.latest())
	case ours:
		held := running(c.Token)
		next, _ := held.Change(c.LeaseChange, s.now())
		s.opts.Watch.Tell(h.jobID, &held, &next)
	}
	return s.settled(h, o)
}

// changeAlone makes the changes of one holder.
func (s *Store) changeAlone(ctx context.Context, h *holder) {
	for {
		if h.suspect {
			if !s.confirmLost(ctx, h) {
				return
			}
			continue
		}
		if h.change().Kind == job.Renewal && whenTimed(ctx, s, []*holder{h}) == nil {
			return
		}
		r := s.changeRound(ctx, []*holder{h})
		if len(r.alone)+len(r.struck)+len(r.untimed) == 0 {
			return
		}
		if !h.suspect && !h.tries.wait() {
			h.giveUp()
			return
		}
	}
}

// confirmLost reads the job as it stands at this moment, and settles the change unless the token holds the lease after all.
// It tells whether to go on. A change that may have been made before is not called lost. Among others that were made a
// completion is, where the job is there and was never requeued: what a token has completed stays so until somebody does that, or deletes it.
// One that was first seen about when the call began, or later, may be another one than was completed.
func (s *Store) confirmLost(ctx context.Context, h *holder) bool {
	r, f := s.confirm(ctx, h.jobID, false)
	h.doubt = false
	switch {
	case f == nil && h.isMade(r.Work, s.now()):
		return s.made(h, r.Work, h.tries.unknown || h.among)
	case f == nil && r.Work.Holds(h.token):
		h.work, h.suspect, h.among, f = r.Work, false, false, &failure{fateRetry, errChanged}
	case f == nil || f.negative():
		cause := job.ErrLeaseLost
		if f != nil {
			cause = job.ErrNotFound
		}
		same := f == nil && !r.FirstSeen.IsZero() && r.FirstSeen.Add(s.allowance()).Before(job.Millis(h.began))
		stays := same && r.Work.Requeues == 0 && h.change().Kind == job.Completion
		if !h.tries.unknown && (!h.among || stays) {
			return s.settled(h, job.LeaseOutcome{Err: cause})
		}
		f = &failure{fateRefused, cause}
	default:
		h.doubt = f.fate != fateUnusable
	}
	if !h.tries.again(f) {
		h.giveUp()
		return false
	}
	return true
}

// negative tells whether the failure is an answer: that there is no such job.
func (f *failure) negative() bool { return errors.Is(f, job.ErrNotFound) }
