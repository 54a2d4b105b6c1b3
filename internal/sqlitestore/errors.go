package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/jobonce/jobonce/internal/job"
)

// unusable is a refusal that is about one job alone: a constraint, or a column that holds what we never write.
type unusable struct {
	jobID string
	cause error
}

func (e *unusable) Error() string { return fmt.Sprintf("job %q: %v", e.jobID, e.cause) }

// Is makes it an answer: only a person can mend the record, and repeating the call is no use.
func (e *unusable) Is(target error) bool { return target == job.ErrRecordUnusable }

// code is SQLite's code for err without its details; 0 when it has none.
func code(err error) int {
	var se *sqlite.Error
	if !errors.As(err, &se) {
		return 0
	}
	return se.Code() & 0xff
}

// ofJob says that err, which a statement about one job returned, is about that job, if it is. What is about the file, the
// disk or the connection stays as it is.
func ofJob(jobID string, err error) error {
	switch {
	case err == nil, errors.Is(err, sql.ErrNoRows), errors.Is(err, job.ErrRecordUnusable):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, sql.ErrConnDone):
		return err
	}
	switch code(err) {
	case 0, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG: // 0: it was read, and cannot be used
		return &unusable{jobID, err}
	}
	return err
}

// answer tells whether err is one that the domain gives: it comes out as it is.
func answer(err error) bool {
	return errors.Is(err, job.ErrNotFound) || errors.Is(err, job.ErrLeaseLost) || errors.Is(err, job.ErrRecordUnusable) ||
		errors.Is(err, job.ErrWrongState) || errors.Is(err, job.ErrNoExpectation)
}

// outage tells whether err, of a transaction that was taken back, may be gone when the call is repeated: the disk, the
// memory or another process was in the way.
func outage(err error) bool {
	switch code(err) {
	case sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED,
		sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_SCHEMA, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_CANTOPEN,
		sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		return true
	}
	return false
}

// damage tells whether err says that the file is damaged. What is decided on such a file would be a guess.
func damage(err error) bool {
	return code(err) == sqlite3.SQLITE_CORRUPT || code(err) == sqlite3.SQLITE_NOTADB
}

// describe says in our own terms what SQLite finds wrong with a file or its disk.
func describe(err error) error {
	var se *sqlite.Error
	if !errors.As(err, &se) {
		return err
	}
	switch se.Code() {
	case sqlite3.SQLITE_READONLY_ROLLBACK:
		return errInterrupted
	case sqlite3.SQLITE_IOERR_SHMSIZE:
		return fmt.Errorf("the disk is full, or fails: %v", err)
	}
	switch code(err) {
	case sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("%w (it is no SQLite file, or its header is damaged); choose another --data-dir, or restore a backup", ErrForeign)
	case sqlite3.SQLITE_CORRUPT:
		return fmt.Errorf("%w; restore a backup, or move the file away to begin anew: %v", ErrDamaged, err)
	case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		return fmt.Errorf("cannot be opened or written; check its owner and permissions, and how many files may be open: %v", err)
	case sqlite3.SQLITE_FULL:
		return fmt.Errorf("the disk is full: %v", err)
	case sqlite3.SQLITE_IOERR:
		return fmt.Errorf("the disk fails: %v", err)
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return fmt.Errorf("another program holds the file: %v", err)
	case sqlite3.SQLITE_NOMEM:
		return fmt.Errorf("out of memory: %v", err)
	}
	return err
}
