package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofrs/flock"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/jobonce/jobonce/internal/job"
)

// Store is the embedded store. One connection writes, one transaction per call of Record; others read beside it.
type Store struct {
	now func() time.Time
	// clock is behind now; nil when somebody else's clock is.
	clock       *clock
	stopUpkeep  context.CancelFunc
	upkeepEnds  sync.WaitGroup
	maxAttempts int
	watch       job.Watch
	// changes are those of work in the transaction under way.
	changes []change
	log     *slog.Logger
	path    string
	lock    *flock.Flock

	writerDB, readerDB *sql.DB

	// mu guards the writer: SQLite has one at a time anyway, and waiting here is fair and needs no busy handler.
	mu     sync.Mutex
	writer *sql.Conn
	write  statements
	closed atomic.Bool

	read struct{ basic, full *sql.Stmt }

	// prepared has every statement, to be closed before the connections: one left open keeps its connection alive within
	// SQLite, and the write-ahead log is then not emptied into the file.
	prepared []*sql.Stmt

	// held are the files that the store has open.
	held []held

	// leftAlone are the jobs that claims pass over; only the writer uses it.
	leftAlone map[string]bool

	// broken is why the store is out of service; nil while it serves. down is closed after it is set.
	broken atomic.Pointer[error]
	down   chan struct{}
}

// statements are the writer's prepared statements.
type statements struct {
	begin, commit, rollback, probe         *sql.Stmt
	mark, backToMark, dropMark             *sql.Stmt
	upsert, addBody, addConflict           *sql.Stmt
	byID, body, saveWork, due, ofClaimCall *sql.Stmt
}

const recordColumns = `id, job_id, event, status, fingerprint, request_id, source, first_seen, last_seen, deliveries,
	body_kind, payload_dropped, conflicts, conflict_kind, conflict_event, conflict_status, conflict_time,
	work_state, work_mode, work_due, work_granted, work_token, work_generation, work_attempts, work_lapses,
	work_request_id, work_fingerprint, work_claim_id, work_result, work_error`

const (
	byIDQuery = "SELECT " + recordColumns + " FROM jobs WHERE job_id = ?"
	// dueQuery names the states that can be claimed, as the index does.
	dueQuery = "SELECT " + recordColumns + ` FROM jobs WHERE work_state IN ('queued', 'leased') AND work_due <= ?1
		AND (?2 IS NULL OR event IN (SELECT value FROM json_each(?2))) ORDER BY work_due`
	// dueTooFarQuery is given the time, and what counts as granted where that was not kept.
	dueTooFarQuery = `SELECT job_id FROM jobs WHERE work_state IN ('queued', 'leased') AND work_due > ?1
		AND work_due - coalesce(work_granted, ?2) > ?1 ORDER BY work_due DESC LIMIT ?3`
	ofClaimCallQuery = "SELECT " + recordColumns + ` FROM jobs WHERE work_claim_id = ?1 AND work_state = 'leased'
		AND work_due > ?2 ORDER BY work_due`
)

func (s *Store) prepare(ctx context.Context, pragmas []string) (err error) {
	// The writer must not be cut short by the end of a context: its statements run without one.
	if s.writer, err = s.writerDB.Conn(ctx); err != nil {
		return describe(err)
	}
	for _, pragma := range pragmas {
		if _, err := s.writer.ExecContext(ctx, "PRAGMA "+pragma); err != nil {
			return describe(err)
		}
	}
	for _, p := range []struct {
		on    preparer
		stmt  **sql.Stmt
		query string
	}{
		{s.writer, &s.write.begin, "BEGIN IMMEDIATE"},
		{s.writer, &s.write.commit, "COMMIT"},
		{s.writer, &s.write.rollback, "ROLLBACK"},
		{s.writer, &s.write.probe, "BEGIN DEFERRED"},
		{s.writer, &s.write.mark, "SAVEPOINT delivery"},
		{s.writer, &s.write.backToMark, "ROLLBACK TO delivery"},
		{s.writer, &s.write.dropMark, "RELEASE delivery"},
		{s.writer, &s.write.upsert, `INSERT INTO jobs (job_id, event, status, fingerprint, request_id, source, first_seen,
				last_seen, deliveries, body_kind, work_mode, work_state, work_due, work_granted, work_token, work_generation,
				work_attempts, work_lapses, work_request_id, work_fingerprint, work_claim_id, work_result, work_error, text, bytes)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (job_id) DO UPDATE SET deliveries = deliveries + 1, last_seen = max(last_seen, excluded.last_seen)
			RETURNING id, deliveries`},
		{s.writer, &s.write.addBody, "INSERT OR REPLACE INTO large_bodies (id, text, bytes) VALUES (?, ?, ?)"},
		{s.writer, &s.write.addConflict, `UPDATE jobs SET conflicts = conflicts + 1, conflict_kind = ?, conflict_event = ?,
			conflict_status = ?, conflict_time = ? WHERE id = ?`},
		{s.writer, &s.write.byID, byIDQuery},
		{s.writer, &s.write.body, "SELECT text, bytes FROM bodies WHERE id = ?"},
		{s.writer, &s.write.saveWork, `UPDATE jobs SET work_state = ?, work_due = ?, work_granted = ?, work_token = ?,
			work_generation = ?, work_attempts = ?, work_lapses = ?, work_request_id = ?, work_fingerprint = ?, work_claim_id = ?, work_result = ?, work_error = ?
			WHERE id = ?`},
		{s.writer, &s.write.due, dueQuery},
		{s.writer, &s.write.ofClaimCall, ofClaimCallQuery},
		{s.readerDB, &s.read.basic, byIDQuery},
		{s.readerDB, &s.read.full, "SELECT " + recordColumns + `,
			coalesce(jobs.text, large_bodies.text), coalesce(jobs.bytes, large_bodies.bytes)
			FROM jobs LEFT JOIN large_bodies USING (id) WHERE job_id = ?`},
	} {
		if err := s.prepareOn(ctx, p.on, p.stmt, p.query); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) prepareOn(ctx context.Context, on preparer, into **sql.Stmt, query string) error {
	stmt, err := on.PrepareContext(ctx, query)
	if err != nil {
		return describe(err)
	}
	*into = stmt
	s.prepared = append(s.prepared, stmt)
	return nil
}

// preparer is a connection or a pool of them.
type preparer interface {
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

// update runs f in a transaction. When it fails as a whole the error says what became of it; an error of the domain that f
// returns takes the transaction back and comes out as it is.
func (s *Store) update(ctx context.Context, f func(now time.Time) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", job.ErrUnavailable, err)
	}
	err := s.twice(func() error {
		s.changes = s.changes[:0]
		return s.transact(func() error { return f(s.now()) })
	})
	if err == nil {
		for _, c := range s.changes {
			s.watch.Tell(c.jobID, &c.before, &c.after)
		}
	}
	return err
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
	s.log.Error("embedded store: a transaction failed and was taken back", "file", s.path, "at", what, "error", err)
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

// breakDown takes the store out of service, for the first reason that there is.
func (s *Store) breakDown(err error) {
	if s.broken.CompareAndSwap(nil, &err) {
		s.log.Error("embedded store: out of service until the process is restarted", "file", s.path, "error", err)
		close(s.down)
	}
}

// Broken is closed when the store is out of service and only another process can mend that. Check then says why.
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

// Get implements [job.Store].
func (s *Store) Get(ctx context.Context, jobID string, withBody bool) (r job.Record, err error) {
	if err := s.usable(); err != nil {
		return job.Record{}, err
	}
	err = s.twice(func() error {
		r, err = s.get(ctx, jobID, withBody)
		return err
	})
	return r, err
}

func (s *Store) get(ctx context.Context, jobID string, withBody bool) (job.Record, error) {
	stmt := s.read.basic
	if withBody {
		stmt = s.read.full
	}
	r, err := scanRecord(stmt.QueryRowContext(ctx, jobID), withBody)
	if err == nil && withBody {
		err = r.lostBody()
	}
	err = ofJob(jobID, err)
	switch {
	case err == nil:
		return r.Record, nil
	case errors.Is(err, sql.ErrNoRows):
		if gone := s.inPlace(); gone != nil {
			s.breakDown(gone)
			return job.Record{}, s.usable()
		}
		return job.Record{}, job.ErrNotFound
	case errors.Is(err, job.ErrRecordUnusable):
		return job.Record{}, err
	case ctx.Err() != nil:
		return job.Record{}, fmt.Errorf("%w: %w", job.ErrUnavailable, ctx.Err())
	}
	return job.Record{}, s.failed("read", err)
}

// CountTo is how many jobs there are, and limit when there are more: it takes little time however many there are.
func (s *Store) CountTo(ctx context.Context, limit int64) (n int64, err error) {
	if err := s.usable(); err != nil {
		return 0, err
	}
	err = s.readerDB.QueryRowContext(ctx, "SELECT count(*) FROM (SELECT 1 FROM jobs LIMIT ?)", limit).Scan(&n)
	return n, describe(err)
}

// Check implements [job.Store].
func (s *Store) Check(context.Context) error { return s.usable() }

// Close implements [job.Store]. It lets another process have the directory.
func (s *Store) Close() error {
	s.stopUpkeep()
	s.upkeepEnds.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed.CompareAndSwap(false, true) {
		return nil
	}
	return s.release()
}

// release gives up whatever was opened. The readers go first, so that the writer is the last connection: SQLite then
// empties the write-ahead log into the file.
func (s *Store) release() error {
	var errs []error
	for _, stmt := range s.prepared {
		errs = append(errs, stmt.Close())
	}
	if s.readerDB != nil {
		errs = append(errs, s.readerDB.Close())
	}
	if s.writer != nil {
		errs = append(errs, s.writer.Close())
	}
	if s.writerDB != nil {
		errs = append(errs, s.writerDB.Close())
	}
	for _, h := range s.held {
		errs = append(errs, h.file.Close())
	}
	return errors.Join(append(errs, s.lock.Unlock())...)
}
