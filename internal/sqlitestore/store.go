package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofrs/flock"

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
	// notes are lines for the log, which [Store.tell] writes.
	notesMu sync.Mutex
	notes   []func()
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

	// held are the files that the store has open. logFile, one of them, is the write-ahead log, and marked the log in it that
	// has its mark.
	held    []held
	logFile *os.File
	marked  salts

	// pauses are those in force; only the writer uses them. newPauses are those that the transaction under way makes, and
	// passed is what work that is due before then, in milliseconds, is paused.
	pauses    []job.Pause
	newPauses *[]job.Pause
	passed    int64

	// deleted is the highest generation of a job that was deleted, or was about to be; only the writer uses it.
	deleted int64

	// leftAlone are the jobs that claims have passed over; only the writer uses it. unclaimable was counted last.
	leftAlone   map[string]bool
	unclaimable atomic.Int64

	// broken is why the store is out of service; nil while it serves. down is closed after it is set, if a restart may mend it.
	broken atomic.Pointer[error]
	down   chan struct{}
}

// statements are the writer's prepared statements.
type statements struct {
	begin, commit, rollback, probe      *sql.Stmt
	mark, backToMark, dropMark          *sql.Stmt
	insert, count, addBody, addConflict *sql.Stmt
	workOf, body, saveWork, complete    *sql.Stmt
	record                              *sql.Stmt
	due, dueUnder, ofClaimCall          *sql.Stmt
	duePassing, dueUnderPassing         *sql.Stmt
	remove, dropExpectation             *sql.Stmt
	dropConflict, dropBody              *sql.Stmt
	dropLargeBody                       *sql.Stmt
}

const recordColumns = `id, job_id, event, status, fingerprint, request_id, caller, source, content_type, traceparent, payload_omitted,
	first_seen, last_seen, deliveries, body_kind, payload_dropped, conflicts, conflict_kind, conflict_event, conflict_status, conflict_time, ` + workOnly

const workOnly = `work_state, work_mode, work_due, work_granted, work_token, work_generation, work_attempts, work_lapses,
	work_requeues, work_request_id, work_fingerprint, work_claim_id, work_caller, work_result, work_error`

const (
	byIDQuery = "SELECT " + recordColumns + " FROM jobs WHERE job_id = ?"
	// dueQuery names the states that can be claimed, as the index does.
	dueQuery = "SELECT " + recordColumns + `, text, bytes FROM jobs WHERE work_state IN ('queued', 'leased') AND work_due <= ?1
		AND (?2 IS NULL OR event IN (SELECT value FROM json_each(?2))) ORDER BY work_due`
	// longestDueQuery has more than one row for the sake of those that claims leave alone.
	longestDueQuery = `SELECT job_id, work_due FROM jobs WHERE work_state IN ('queued', 'leased') AND work_due <= ?1 ORDER BY work_due LIMIT ?2`
	// dueUnderQuery is dueQuery for jobs under a prefix, and is given their group too, as the index has it.
	dueUnderQuery = "SELECT " + recordColumns + `, text, bytes FROM jobs WHERE work_state IN ('queued', 'leased') AND work_due <= ?1
		AND (?2 IS NULL OR event IN (SELECT value FROM json_each(?2)))
		AND substr(job_id, 1, max(instr(job_id, ':') - 1, 0)) = ?3 AND substr(job_id, 1, length(?4)) = ?4 ORDER BY work_due`
	// dueTooFarQuery is given the time, and what counts as granted where that was not kept.
	dueTooFarQuery = `SELECT job_id FROM jobs WHERE work_state IN ('queued', 'leased') AND work_due > ?1
		AND work_due - coalesce(work_granted, ?2) > ?1 ORDER BY work_due DESC LIMIT ?3`
	unclaimableQuery = `SELECT count(*) FROM (SELECT 1 FROM jobs WHERE work_due <= ?1 AND work_state NOT IN ('queued', 'leased') LIMIT ?2)`
	// ofClaimCallQuery is given the call's prefix and caller, both empty for any.
	ofClaimCallQuery = "SELECT " + recordColumns + `, text, bytes FROM jobs WHERE work_claim_id = ?1 AND work_state = 'leased'
		AND work_due > ?2 AND substr(job_id, 1, length(?3)) = ?3 AND (?4 = '' OR work_caller IS NULL OR work_caller = ?4)
		ORDER BY work_due`
)

// unpaused is the condition that claims of a job are not paused.
const unpaused = "NOT EXISTS (SELECT 1 FROM claim_pauses WHERE substr(jobs.job_id, 1, length(prefix)) = prefix)"

// passing is the query for due work that passes over what is paused, and over what is due before its n-th argument.
func passing(dueQuery string, n int) string {
	return strings.Replace(dueQuery, " ORDER BY", fmt.Sprintf(" AND work_due >= ?%d AND %s ORDER BY", n, unpaused), 1)
}

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
		{s.writer, &s.write.insert, `INSERT INTO jobs (job_id, event, status, fingerprint, request_id, caller, source, content_type,
				traceparent, payload_omitted, first_seen, last_seen, deliveries, body_kind, work_mode, work_state, work_due, work_granted,
				work_token, work_generation, work_attempts, work_lapses, work_requeues, work_request_id, work_fingerprint, work_claim_id,
				work_caller, work_result, work_error, text, bytes)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (job_id) DO NOTHING`},
		{s.writer, &s.write.count, `UPDATE jobs SET deliveries = deliveries + 1, last_seen = max(last_seen, ?) WHERE job_id = ?
			RETURNING ` + recordColumns},
		{s.writer, &s.write.addBody, "INSERT OR REPLACE INTO large_bodies (id, text, bytes) VALUES (?, ?, ?)"},
		{s.writer, &s.write.addConflict, `UPDATE jobs SET conflicts = conflicts + 1, conflict_kind = ?, conflict_event = ?,
			conflict_status = ?, conflict_time = ? WHERE id = ?`},
		{s.writer, &s.write.record, byIDQuery},
		{s.writer, &s.write.workOf, "SELECT id, " + workOnly + " FROM jobs WHERE job_id = ?"},
		{s.writer, &s.write.body, "SELECT text, bytes FROM bodies WHERE id = ?"},
		{s.writer, &s.write.saveWork, `UPDATE jobs SET work_state = ?, work_due = ?, work_granted = ?, work_token = ?,
			work_generation = ?, work_attempts = ?, work_lapses = ?, work_requeues = ?, work_request_id = ?, work_fingerprint = ?,
			work_claim_id = ?, work_caller = ?, work_result = ?, work_error = ? WHERE id = ?`},
		{s.writer, &s.write.complete, `UPDATE jobs SET work_state = 'completed', work_due = NULL, work_granted = NULL, work_lapses = 0,
			work_request_id = NULL, work_fingerprint = NULL, work_claim_id = NULL, work_caller = NULL, work_result = ?, work_error = NULL
			WHERE job_id = ? AND work_state = 'leased' AND work_token = ?`},
		{s.writer, &s.write.due, dueQuery},
		{s.writer, &s.write.dueUnder, dueUnderQuery},
		{s.writer, &s.write.duePassing, passing(dueQuery, 3)},
		{s.writer, &s.write.dueUnderPassing, passing(dueUnderQuery, 5)},
		{s.writer, &s.write.ofClaimCall, ofClaimCallQuery},
		{s.writer, &s.write.remove, "DELETE FROM jobs WHERE job_id = ?"},
		{s.writer, &s.write.dropExpectation, "DELETE FROM expectations WHERE job_id = ?"},
		{s.writer, &s.write.dropConflict, "UPDATE jobs SET conflict_kind = NULL, conflict_event = NULL, conflict_status = NULL, conflict_time = NULL WHERE id = ?"},
		{s.writer, &s.write.dropBody, "UPDATE jobs SET payload_dropped = ?, text = NULL, bytes = NULL WHERE id = ?"},
		{s.writer, &s.write.dropLargeBody, "DELETE FROM large_bodies WHERE id = ?"},
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

// Get implements [job.Store].
func (s *Store) Get(ctx context.Context, jobID string, withBody bool) (r job.Record, err error) {
	if err := s.usable(); err != nil {
		return job.Record{}, err
	}
	defer s.tell()
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
	case s.closed.Load(): // meanwhile, and the statements with it
		return job.Record{}, s.usable()
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

// CheckWork implements [job.Store]: whoever can record can claim.
func (s *Store) CheckWork(context.Context) error { return nil }

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
