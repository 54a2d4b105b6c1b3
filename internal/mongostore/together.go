package mongostore

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"slices"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/jobonce/jobonce/internal/job"
)

// member is one of many writes that are tried together, in as few commands as there can be.
type member interface {
	// id is its job's.
	id() string
	// past are its tries.
	past() *tries
	// sent tells whether a write of it was sent, and answered well.
	sent() bool
	// giveUp settles it with the error that its tries came to, fail with another one.
	giveUp()
	fail(error)
	// detach has it keep nothing of its call but what is its own.
	detach()
}

// round is one try of many members, and how those came out of it that are not settled.
type round[M member] struct {
	*Store
	ctx context.Context
	// struck are those that the database failed all alike, and failed is how.
	struck []M
	failed *failure
	// alone are those that are to go on by themselves, untimed those that wait for the clock.
	alone, untimed []M
}

// strike notes a failure that is the same for all.
func (r *round[M]) strike(members []M, f *failure) {
	r.failed = f
	for _, m := range members {
		if m.past().note(f) {
			r.struck = append(r.struck, m)
		} else {
			m.giveUp()
		}
	}
}

// stray notes a failure of one member.
func (r *round[M]) stray(m M, f *failure) {
	if m.past().note(f) {
		r.alone = append(r.alone, m)
		return
	}
	r.log.Error("the database refuses a write", "store", r.String(), "job_id", m.id(), "error", r.explain(f))
	m.giveUp()
}

// together tries members until all are settled that the database fails alike. Those that fail by themselves go on alone.
func together[M member](ctx context.Context, s *Store, members []M, try func(context.Context, []M) *round[M], alone func(context.Context, M)) {
	for t := s.newTries(ctx); len(members) > 0; {
		r := try(ctx, members)
		for _, m := range r.alone {
			goOn(ctx, s, []M{m}, func(ctx context.Context) { alone(ctx, m) })
		}
		if later := r.untimed; len(later) > 0 {
			goOn(ctx, s, later, func(ctx context.Context) { together(ctx, s, whenTimed(ctx, s, later), try, alone) })
		}
		members = r.struck
		inOrder(members)
		if len(members) > 0 && !t.again(r.failed) {
			for _, m := range members {
				m.giveUp()
			}
			return
		}
	}
}

// inOrder sorts members by job, so that bulks which overlap lock in one order and cannot deadlock.
func inOrder[M member](members []M) {
	slices.SortFunc(members, func(a, b M) int { return cmp.Compare(a.id(), b.id()) })
}

func idsOf[M member](members []M) []string {
	ids := make([]string, len(members))
	for i, m := range members {
		ids[i] = m.id()
	}
	return ids
}

// goOn lets members go on without their call until they are settled.
func goOn[M member](ctx context.Context, s *Store, members []M, do func(context.Context)) {
	for _, m := range members {
		m.detach()
	}
	ctx, endSession := s.session(ctx) // of its own: sessions are not for two goroutines
	s.calls.Add(1)                    // within a call, so that Close waits already
	go func() {
		defer s.calls.Done()
		defer endSession()
		defer func() {
			if p := recover(); p != nil {
				s.log.Error("panic while writing", "panic", p, "stack", string(debug.Stack()))
				for _, m := range members {
					m.fail(fmt.Errorf("%w: panic", job.ErrOutcomeUnknown))
				}
			}
		}()
		do(ctx)
	}()
}

// whenTimed waits until leases may be granted, and returns the members then. When the context ends before, they are given
// up, and none is returned.
func whenTimed[M member](ctx context.Context, s *Store, members []M) []M {
	err := s.timed(ctx)
	if err == nil {
		return members
	}
	for _, m := range members {
		if m.past().unknown || m.sent() {
			m.fail(fmt.Errorf("%w: %w", job.ErrOutcomeUnknown, ctx.Err()))
		} else {
			m.fail(err)
		}
	}
	return nil
}

// session makes reads causally follow the writes of the same call, and of the call that it goes on for, where the database
// has sessions.
func (s *Store) session(ctx context.Context) (context.Context, func()) {
	none := mongo.NewSessionContext(ctx, nil) // nor that of the call that it goes on for, which may be another goroutine's
	if t := s.deployment.Load(); t == nil || !t.sessions {
		return none, func() {}
	}
	session, err := s.client.StartSession()
	if err != nil {
		return none, func() {}
	}
	if before := mongo.SessionFromContext(ctx); before != nil {
		// Neither fails on what another session says.
		_ = session.AdvanceClusterTime(before.ClusterTime())
		_ = session.AdvanceOperationTime(before.OperationTime())
	}
	return mongo.NewSessionContext(ctx, session), func() { session.EndSession(context.WithoutCancel(ctx)) }
}
