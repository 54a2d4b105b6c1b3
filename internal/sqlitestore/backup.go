package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// backupPages is how many pages are copied between two looks at the context.
const backupPages = 1024

// Backup copies the store in dir into a new file, as it is at the beginning, while a service may be using it; that is
// not held up. The file is complete and on the disk when Backup returns without an error, and not there otherwise. An
// existing file is never overwritten. Served from a directory where it is called jobonce.db, it is that store again.
func Backup(ctx context.Context, dir, file string, progress Progress) (err error) {
	s := &Store{path: File(dir)}
	if _, err := os.Stat(s.path); err != nil {
		return err
	}
	switch state, err := s.inspect(ctx); {
	case err != nil:
		return fmt.Errorf("%s: %w", s.path, err)
	case state.fresh:
		return fmt.Errorf("%s: %w: it is empty", s.path, ErrForeign)
	}
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = fmt.Errorf("%s: %w", file, fs.ErrExist)
		}
		return err
	}
	if err := s.backupTo(ctx, file, progress); err != nil {
		if full(err) { // the text would name a file that is gone
			return fmt.Errorf("%s: the disk is full", file)
		}
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// full tells whether it was for want of space. What the store's own file lacks, describe has said in words.
func full(err error) bool {
	var se *sqlite.Error
	return errors.Is(err, syscall.ENOSPC) ||
		errors.As(err, &se) && (se.Code()&0xff == sqlite3.SQLITE_FULL || se.Code() == sqlite3.SQLITE_IOERR_SHMSIZE)
}

// backupTo makes the file under another name first.
func (s *Store) backupTo(ctx context.Context, file string, progress Progress) (err error) {
	part, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*.part") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		for _, suffix := range []string{"", "-journal", "-wal", "-shm"} { // SQLite leaves its own when it fails
			err = errors.Join(err, removeIfThere(part.Name()+suffix))
		}
	}()
	if err := errors.Join(part.Close(), s.backup(ctx, part.Name(), progress)); err != nil {
		return err
	}
	if err := makeOwn(ctx, part.Name()); err != nil {
		return err
	}
	return publish(part.Name(), file)
}

// backup copies the pages. A transaction held open the while keeps a busy service from making it begin again and again.
func (s *Store) backup(ctx context.Context, into string, progress Progress) (err error) {
	db, err := openDB(s.path, "ro", "busy_timeout(5000)")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	conn, err := snapshot(ctx, db)
	if err != nil {
		return fmt.Errorf("%s: %w", s.path, describe(err))
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return conn.Raw(func(driverConn any) (err error) {
		from, ok := driverConn.(interface {
			NewBackup(uri string) (*sqlite.Backup, error)
		})
		if !ok {
			return errors.New("the SQLite driver cannot make backups")
		}
		b, err := from.NewBackup(fileURI(into))
		if err != nil {
			return err
		}
		defer func() {
			if finishErr := b.Finish(); err == nil { // it repeats what a step said
				err = finishErr
			}
		}()
		for more := true; more; {
			if err := ctx.Err(); err != nil {
				return err
			}
			if more, err = b.Step(backupPages); err != nil {
				return err
			}
			progress(int64(b.PageCount()-b.Remaining()), int64(b.PageCount()))
		}
		return nil
	})
}

// makeOwn makes a file of its own of a copy: out of WAL mode, in which even a reader would leave files beside it, and with a
// mark of its own, so that no log of the copied file is taken for its.
func makeOwn(ctx context.Context, file string) (err error) {
	db, err := openDB(file, "rw")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var schema int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&schema); err != nil {
		return err
	}
	statement := "PRAGMA journal_mode = DELETE"
	if schema >= 2 {
		statement += "; UPDATE file SET log = randomblob(16), before = zeroblob(16)"
	}
	_, err = db.ExecContext(ctx, statement)
	return err
}

// publish gives a finished file its name, and sees to it that both survive a power cut.
func publish(part, file string) error {
	if err := syncFile(part); err != nil {
		return err
	}
	// Unlike a renaming, a link does not replace what somebody else has put there meanwhile.
	if err := os.Link(part, file); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := os.Rename(part, file); err != nil { // a file system without links
			return err
		}
	}
	return syncFile(filepath.Dir(file))
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
