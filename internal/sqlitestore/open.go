// Package sqlitestore is the embedded store: one SQLite file in a data directory, for development, tests and
// single-machine use. It keeps the promises of the MongoDB store: an answer is given only once the write is durable.
package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
	"modernc.org/sqlite" // also the driver "sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/jobonce/jobonce/internal/job"
)

const (
	// fileName is the database within the data directory, lockName the file whose OS lock says that the directory is in
	// use. The lock is the operating system's: it goes with the process, however that ends.
	fileName = "jobonce.db"
	lockName = "lock"

	// checkpoint lets the write-ahead log grow to 32 MiB before it is emptied into the file: a page that is written again
	// and again goes there once, and the writer is held up less often.
	checkpoint = "wal_autocheckpoint(8000)"
	// logLimit cuts a log back to 64 MiB that has grown while somebody read the file for long, as a backup does.
	logLimit = "journal_size_limit(67108864)"

	// readers bounds the connections that read beside the writer.
	readers = 4
)

// Errors that say why a data directory cannot be opened. They are wrapped with the path and what to do.
var (
	// ErrInUse: another process holds the directory.
	ErrInUse = errors.New("data directory is in use")
	// ErrForeign: the file is not one of ours, or it is damaged beyond recognition.
	ErrForeign = errors.New("not a JobOnce database")
	// ErrNewer: a newer JobOnce wrote the file.
	ErrNewer = errors.New("written by a newer JobOnce")
	// ErrDamaged: SQLite finds the file inconsistent.
	ErrDamaged = errors.New("database file is damaged")
	// ErrOtherLog: the write-ahead log beside the file is another file's.
	ErrOtherLog = errors.New("the write-ahead log beside it does not belong to it")

	// errInterrupted: the file is within a change that has a rollback journal. We write with one only when we make a file
	// and when we serve a backup for the first time.
	errInterrupted = errors.New("its first start was interrupted; serve it once, which takes back what is unfinished")
)

// Options adjust a store; the zero value is fine.
type Options struct {
	// Now is the clock. Default: the machine's clock when the store was opened, carried on by its monotonic one, which
	// follows when the machine's is set, but never by a jump under a running lease.
	Now func() time.Time
	// MaxAttempts is how many leases a job is granted before it counts as dead; 0 is no limit.
	MaxAttempts int
	// Watch is told of work that dies or whose leases lapse; nil for nobody.
	Watch job.Watch
	// Logger hears why the store went out of service. Default slog.Default().
	Logger *slog.Logger

	// readClock replaces the machine's clocks. Tests set it.
	readClock func() (wall time.Time, mono time.Duration)
	// pragmas are run on the writer, after those that it has anyway. Tests set them.
	pragmas []string
}

// Open opens the store in dir, which it makes (mode 0700) when it is missing. It changes nothing in a file that it
// refuses. The context bounds the opening alone.
func Open(ctx context.Context, dir string, opts Options) (*Store, error) {
	var own *clock
	if opts.Now == nil {
		if opts.readClock == nil {
			opts.readClock = machineClock()
		}
		own = newClock(opts.readClock)
		opts.Now = own.now
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if err := makeDir(dir); err != nil {
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{now: opts.Now, clock: own, maxAttempts: opts.MaxAttempts, watch: opts.Watch, log: opts.Logger, lock: lock,
		path: File(dir), leftAlone: make(map[string]bool), down: make(chan struct{})}
	defer s.tell()
	if err := s.open(ctx, opts.pragmas); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", s.path, err), s.release())
	}
	_ = s.anchor(ctx) // which is logged, and tried again
	ctx, s.stopUpkeep = context.WithCancel(context.WithoutCancel(ctx))
	s.upkeepEnds.Go(func() { s.upkeep(ctx) })
	return s, nil
}

// Free returns nil when no process serves the directory, which need not be there yet, and what [Open] would say otherwise. It may
// be served by the time that Open is called.
func Free(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := lockDir(dir)
	if err != nil {
		return err
	}
	return lock.Unlock()
}

// lockDir takes the directory for this process.
func lockDir(dir string) (*flock.Flock, error) {
	lock := flock.New(filepath.Join(dir, lockName), flock.SetPermissions(0o600))
	locked, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("data directory %s cannot be locked: %w", dir, err)
	}
	if !locked {
		return nil, fmt.Errorf("%w: another process serves %s; stop it, or choose another --data-dir", ErrInUse, dir)
	}
	return lock, nil
}

// makeDir makes dir, and what is missing above it, and sees to it that all of that survives a power cut: a new directory's
// name is kept once the one that it stands in was flushed.
func makeDir(dir string) error {
	var missing []string
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		if _, err := os.Stat(d); !errors.Is(err, os.ErrNotExist) {
			break // flock says if it is no directory
		}
		missing = append(missing, d)
	}
	if len(missing) == 0 {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, d := range missing {
		if err := syncFile(filepath.Dir(d)); err != nil {
			for _, d := range missing { // so that the next start makes, and flushes, them again
				_ = os.Remove(d)
			}
			return err
		}
	}
	return nil
}

func (s *Store) open(ctx context.Context, pragmas []string) error {
	found, err := s.inspect(ctx)
	interrupted := errors.Is(err, errInterrupted)
	if err != nil && !interrupted {
		return err
	}
	// SQLite would open a file that may not be written all the same, and refuse every delivery.
	file, err := os.OpenFile(s.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := s.hold(file); err != nil {
		return err
	}
	if interrupted {
		if err := s.takeBack(ctx); err != nil {
			return err
		}
		if found, err = s.inspect(ctx); err != nil {
			return err
		}
	}
	if err := s.rewriteLog(); err != nil {
		return fmt.Errorf("the write-ahead log of the last run cannot be taken over: %w", err)
	}
	switch {
	case found.fresh:
		err = s.create(ctx)
	case found.schema < schemaVersion:
		err = s.upgrade(ctx, found.schema)
	}
	if err != nil {
		return err
	}
	// FULL makes every commit wait for the disk. The page cache stays at SQLite's default of 2 MB a connection: the
	// operating system's cache does as well, and the process stays small. A backup is not in WAL mode until it is served.
	if s.writerDB, err = openDB(s.path, "rw", "journal_mode(WAL)", "synchronous(FULL)", "busy_timeout(5000)", checkpoint, logLimit); err != nil {
		return err
	}
	s.writerDB.SetMaxOpenConns(1)
	if s.readerDB, err = openDB(s.path, "rw", "query_only(true)", "busy_timeout(5000)"); err != nil {
		return err
	}
	s.readerDB.SetMaxOpenConns(readers)
	s.readerDB.SetMaxIdleConns(readers)
	if err := s.prepare(ctx, pragmas); err != nil {
		return err
	}
	if s.pauses, err = readPauses(ctx, s.writer); err != nil {
		return describe(err)
	}
	if err := s.writer.QueryRowContext(ctx, "SELECT deleted FROM file").Scan(&s.deleted); err != nil {
		return describe(err)
	}
	log, err := os.Open(s.logPath())
	if err != nil {
		return err
	}
	if err := s.hold(log); err != nil {
		return err
	}
	s.logFile = log
	if err := s.freshLog(ctx); err != nil {
		return err
	}
	return s.lookBack(ctx)
}

// lookBack says when the clock is behind what the file holds: it was ahead then, or it is wrong now.
func (s *Store) lookBack(ctx context.Context) error {
	var newest sql.NullInt64
	err := s.readerDB.QueryRowContext(ctx, "SELECT first_seen FROM jobs ORDER BY id DESC LIMIT 1").Scan(&newest)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if behind := fromMillis(newest.Int64).Sub(s.now()); err == nil && behind > anchorAllowance {
		s.log.Warn("embedded store: the machine's clock is behind the newest job; check it. Leases and delays that lie further "+
			"ahead than granted run anew", "file", s.path, "behind", behind)
	}
	return describe(err)
}

// fileState is what a file turned out to be.
type fileState struct {
	// fresh: the file has yet to be made.
	fresh  bool
	schema int
}

// inspect looks at the file without writing to it.
func (s *Store) inspect(ctx context.Context) (f fileState, err error) {
	info, err := os.Stat(s.path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		// SQLite would delete the log that lies beside nothing. A file that we make is on the disk before its log begins.
		if log, err := os.Stat(s.logPath()); err == nil && log.Size() > 0 {
			return f, fmt.Errorf("%w: it is missing or empty, and its write-ahead log %s is there; restore a backup and move the log away, "+
				"or put the file back", ErrDamaged, s.logPath())
		}
		return fileState{fresh: true}, nil
	}
	if err != nil {
		return f, err
	}
	if !info.Mode().IsRegular() {
		return f, fmt.Errorf("%w: not a regular file", ErrForeign)
	}
	if err := s.checkLog(ctx); err != nil {
		return f, err
	}
	db, err := openDB(s.path, "ro")
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var app, tables int
	for _, q := range []struct {
		query string
		into  *int
	}{
		{"SELECT count(*) FROM sqlite_schema", &tables},
		{"PRAGMA application_id", &app},
		{"PRAGMA user_version", &f.schema},
	} {
		if err := db.QueryRowContext(ctx, q.query).Scan(q.into); err != nil {
			return f, describe(err)
		}
	}
	switch {
	case tables == 0 && (app == 0 || app == applicationID):
		return fileState{fresh: true}, nil // a first start that did not get as far as the tables
	case app != applicationID:
		return f, fmt.Errorf("%w; choose another --data-dir", ErrForeign)
	case f.schema > schemaVersion:
		return f, fmt.Errorf("%w (schema %d, this one knows %d); use that version, or serve the copy that its upgrade has left beside the file, "+
			"which knows nothing that was recorded since", ErrNewer, f.schema, schemaVersion)
	case f.schema < 1:
		return f, fmt.Errorf("%w: it has no schema; restore a backup", ErrDamaged)
	}
	// The newest entry of every tree: a file that was cut short lacks them. Reading all of it is not for start-up.
	var newest sql.NullString
	err = db.QueryRowContext(ctx, "SELECT (SELECT max(id) FROM jobs) || (SELECT max(id) FROM large_bodies) || (SELECT max(job_id) FROM jobs)").
		Scan(&newest)
	var se *sqlite.Error
	if errors.As(err, &se) && se.Code() == sqlite3.SQLITE_ERROR { // no such table
		return f, fmt.Errorf("%w; restore a backup: %v", ErrDamaged, err)
	}
	return f, describe(err)
}

func openDB(path, mode string, pragmas ...string) (*sql.DB, error) {
	q := url.Values{"mode": {mode}, "_pragma": pragmas}
	return sql.Open("sqlite", fileURI(path)+"?"+q.Encode())
}

// openAlone opens a file without what lies beside it, as if nobody wrote to it. With writable_schema SQLite lets it be shorter
// than it says, as it is while a log is moved into it.
func openAlone(path string) (*sql.DB, error) {
	return sql.Open("sqlite", fileURI(path)+"?mode=ro&immutable=1&_pragma=writable_schema(true)")
}

// fileURI names a file to SQLite. The path is escaped by hand: a data directory may hold any character.
func fileURI(path string) string { return "file:" + (&url.URL{Path: path}).EscapedPath() }
