package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/jobonce/jobonce/internal/job"
)

// update runs f in a transaction. When it fails as a whole the error says what became of it; an error of the domain that f
// returns takes the transaction back and comes out as it is.
func (s *Store) update(ctx context.Context, f func(now time.Time) error) error {
	// Without the lock: whoever hears of it may take long, as a log that nobody reads does.
	defer s.tell()
	changes, err := s.updateAlone(ctx, f)
	for _, c := range changes {
		s.watch.Tell(c.jobID, &c.before, &c.after)
	}
	return err
}

func (s *Store) updateAlone(ctx context.Context, f func(now time.Time) error) ([]change, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", job.ErrUnavailable, err)
	}
	err := s.twice(func() error {
		s.changes, s.newPauses = s.changes[:0], nil
		return s.transact(func() error { return f(s.now()) })
	})
	if err != nil {
		s.passed = 0 // A claim may have looked past what it then gave nobody.
		return nil, err
	}
	if s.newPauses != nil {
		s.pauses, s.passed = *s.newPauses, 0
	}
	return slices.Clone(s.changes), nil
}

// twice calls f again when it finds the file damaged: a disk that cannot be read for a moment looks the same to SQLite. When
// it still is, the store serves no more. What is decided on a damaged file would be a guess.
func (s *Store) twice(f func() error) error {
	err := f()
	if errors.Is(err, ErrDamaged) {
		if err = f(); errors.Is(err, ErrDamaged) {
			s.breakDown(err)
		}
	}
	return err
}

// transact runs f between BEGIN and COMMIT. When f fails nothing is written.
func (s *Store) transact(f func() error) error {
	err := s.run(f)
	if err == nil {
		s.markLog()
	}
	return err
}

func (s *Store) run(f func() error) error {
	if _, err := s.write.begin.Exec(); err != nil {
		return s.failed("begin", err)
	}
	panicked := true // leaves the transaction open, in which nothing more can be done
	defer func() {
		if panicked {
			s.breakDown(errors.New("panic within a transaction"))
		}
	}()
	err := f()
	panicked = false
	if err != nil {
		if rerr := s.rollBack(); rerr != nil {
			s.breakDown(fmt.Errorf("roll back: %w, after: %w", rerr, err))
		}
		if !answer(err) {
			return s.failed("write", err)
		}
		if gone := s.inPlace(); gone != nil { // and so may be what was asked for
			s.breakDown(gone)
			return s.usable()
		}
		return err
	}
	if _, err := s.write.commit.Exec(); err != nil {
		return s.commitFailed(err)
	}
	if gone := s.inPlace(); gone != nil {
		s.breakDown(gone)
		return fmt.Errorf("%w: %v", job.ErrOutcomeUnknown, gone)
	}
	return nil
}

// failed says of an error after which nothing is written what the caller is to know: an outage passes, anything else is a
// fault of ours, or of the file.
func (s *Store) failed(what string, err error) error {
	s.note(slog.LevelError, "embedded store: a transaction failed and was taken back", "file", s.path, "at", what, "error", err)
	switch {
	case damage(err):
		return fmt.Errorf("%w: %w, or cannot be read; check it, and restore a backup: %v", job.ErrUnavailable, ErrDamaged, err)
	case outage(err):
		return fmt.Errorf("%w: %s: %v", job.ErrUnavailable, what, describe(err))
	}
	return fmt.Errorf("embedded store: %s: %w", what, err)
}

// rollBack takes the transaction back. After a full disk or an I/O error SQLite may have done so by itself: ROLLBACK then
// fails for want of a transaction. A deferred BEGIN tells, because it does not touch the disk and fails within a
// transaction only.
func (s *Store) rollBack() error {
	_, err := s.write.rollback.Exec()
	if err == nil {
		return nil
	}
	if _, open := s.write.probe.Exec(); open != nil {
		return err
	}
	_, err = s.write.rollback.Exec()
	return err
}

// commitFailed says what became of a transaction whose COMMIT failed. Nobody knows what the disk holds, and a later commit
// could report success for pages that this one lost: the store serves no more. A full disk is the exception. It refuses a
// write to the write-ahead log, and all of those come before the flush; without the last one, which marks the commit, none
// of them counts. SQLite says so of refused writes alone: a flush that fails for want of space is an I/O error.
//
// A constraint that is checked at the end, which somebody has added to the file, is refused before anything is written.
func (s *Store) commitFailed(err error) error {
	if c := code(err); (c == sqlite3.SQLITE_FULL || c == sqlite3.SQLITE_CONSTRAINT) && s.rollBack() == nil {
		return s.failed("commit", err)
	}
	err = fmt.Errorf("commit: %w", describe(err))
	s.breakDown(err)
	return fmt.Errorf("%w: %v", job.ErrOutcomeUnknown, err)
}

// note keeps a line for the log until [Store.tell] writes it: its caller may hold the lock.
func (s *Store) note(level slog.Level, msg string, args ...any) {
	s.notesMu.Lock()
	defer s.notesMu.Unlock()
	s.notes = append(s.notes, func() { s.log.Log(context.Background(), level, msg, args...) })
}

// tell writes what was noted. It must be called without the lock.
func (s *Store) tell() {
	s.notesMu.Lock()
	notes := s.notes
	s.notes = nil
	s.notesMu.Unlock()
	for _, write := range notes {
		write()
	}
}

// breakDown takes the store out of service, for the first reason that there is.
func (s *Store) breakDown(err error) {
	if s.broken.CompareAndSwap(nil, &err) {
		s.note(slog.LevelError, "embedded store: out of service until the process is restarted", "file", s.path, "error", err)
		if !errors.Is(err, errGone) {
			close(s.down)
		}
	}
}

// Broken is closed when the store is out of service and only another process can mend that. Check then says why. It is not
// closed when the file is gone: a supervisor's restart would make a new store, to which every known job is a first one.
func (s *Store) Broken() <-chan struct{} { return s.down }

// usable returns why the store cannot be used, an error that matches job.ErrUnavailable.
func (s *Store) usable() error {
	if s.closed.Load() {
		return fmt.Errorf("%w: closed", job.ErrUnavailable)
	}
	if err := s.broken.Load(); err != nil {
		return fmt.Errorf("%w: out of service: %v", job.ErrUnavailable, *err)
	}
	return nil
}
