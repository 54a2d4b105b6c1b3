package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	sqlite3 "modernc.org/sqlite/lib"
)

// Each write-ahead log goes on from the file as the log before has left it, and SQLite takes any log that lies beside a file.
// So each log has a mark, a random number that its first transaction, or its second, writes through it into the table
// "file", beside the mark before: the file itself has one of the two, whatever of the log has been moved into it.
// It gets a mark at every start, too, so that a copy from before is another file even when nothing else was moved into it.
//
// The mark also writes page 1, so that the log has what is needed to read it over any other file.

// saltsAt is where SQLite's write-ahead log has the numbers that change with each new log in it.
const saltsAt = 16

type salts [8]byte

// readSalts tells which log is in the file of the write-ahead log; zeros when none is.
func readSalts(log io.ReaderAt) (s salts, err error) {
	if _, err := log.ReadAt(s[:], saltsAt); err != nil && !errors.Is(err, io.EOF) {
		return salts{}, err
	}
	return s, nil
}

// markLog marks the log if it has begun since the last call. It is for after a transaction, which is durable by now, so
// nothing is told of its failure: the next transaction tries again, or finds the store out of service.
func (s *Store) markLog() {
	now, err := readSalts(s.logFile)
	if err == nil && now != s.marked {
		err = s.markNow()
	}
	if err != nil {
		s.note(slog.LevelWarn, "embedded store: the write-ahead log could not be marked", "file", s.path, "error", err)
	}
}

func (s *Store) markNow() error {
	err := s.run(func() error {
		for _, statement := range []string{
			"UPDATE file SET before = log, log = randomblob(16)",
			fmt.Sprintf("PRAGMA user_version = %d", schemaVersion), // which is what it was
		} {
			if _, err := s.writer.ExecContext(context.Background(), statement); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.marked, err = readSalts(s.logFile) // the log may have begun with the mark
	return err
}

// mark is what the table "file" says.
type mark struct{ log, before string }

// readMark reads what the table "file" says: through the write-ahead log, or of the file alone.
func readMark(ctx context.Context, path string, alone bool) (m mark, err error) {
	var db *sql.DB
	if alone {
		db, err = openAlone(path)
	} else {
		db, err = openDB(path, "ro")
	}
	if err != nil {
		return m, err
	}
	err = db.QueryRowContext(ctx, "SELECT log, before FROM file").Scan(&m.log, &m.before)
	return m, errors.Join(err, db.Close())
}

// first tells whether no log was marked yet.
func (m mark) first() bool { return strings.Trim(m.before, "\x00") == "" }

// checkLog refuses a file beside which there is the log of another one. A service may be using both: the file is read
// first, so that what is read of it is not the later, and both again if they do not fit.
func (s *Store) checkLog(ctx context.Context) error {
	if info, err := os.Stat(s.logPath()); err != nil || info.Size() == 0 {
		return nil // also when it cannot be seen: SQLite will say why
	}
	for range 3 {
		own, ownErr := readMark(ctx, s.path, true)
		through, throughErr := readMark(ctx, s.path, false)
		if err := ctx.Err(); err != nil {
			return err
		}
		fits := true
		switch {
		case throughErr == nil && ownErr == nil:
			fits = own.log == through.log || own.log == through.before
		case throughErr == nil:
			fits = through.first() // the table is in the log alone
		case damage(throughErr):
			fits = damage(ownErr) // then the file is what is damaged
		case code(throughErr) == sqlite3.SQLITE_ERROR: // no such table, as in schema 1
			fits = ownErr != nil
		}
		if fits {
			return nil
		}
	}
	return fmt.Errorf("%w: the file was replaced, perhaps by a backup, while the log of the one before was left beside it. "+
		"To go on with the file as it is, move %s-wal and %s-shm away; to have the one before again, put its file back",
		ErrOtherLog, s.path, s.path)
}
