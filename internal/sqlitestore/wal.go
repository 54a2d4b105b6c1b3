package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// logPath is that of the write-ahead log.
func (s *Store) logPath() string { return s.path + "-wal" }

// rewriteLog writes the write-ahead log that an unclean end left over itself, and flushes it. A flush that failed may have
// lost pages that can still be read, until the power goes, and no later flush covers them. Nobody has the file open.
//
// It comes before the log is emptied into the file: a power cut in between would find the file newer than what is left
// of the log, and the two do not go together.
func (s *Store) rewriteLog() (was bool, err error) {
	log, err := os.OpenFile(s.logPath(), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	part := make([]byte, 1<<20)
	for at := int64(0); ; {
		n, err := log.ReadAt(part, at)
		if _, err := log.WriteAt(part[:n], at); err != nil {
			return false, err
		}
		at += int64(n)
		switch {
		case errors.Is(err, io.EOF) && at == 0:
			return false, nil // somebody has looked at a file that was closed in order
		case errors.Is(err, io.EOF):
			return true, log.Sync()
		case err != nil:
			return false, err
		}
	}
}

// freshLog empties the write-ahead log, if there was one, into the file, so that a new one begins. The log's name is on the
// disk afterwards. Where another process reads the file meanwhile, the log goes on as rewriteLog left it.
func (s *Store) freshLog(ctx context.Context, was bool) error {
	var busy, frames, moved int
	if err := s.writerDB.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &frames, &moved); err != nil {
		return fmt.Errorf("the write-ahead log of the last run cannot be taken over: %w", describe(err))
	}
	if was {
		if err := syncFile(s.logPath()); err != nil {
			return err
		}
	}
	return syncFile(filepath.Dir(s.path))
}
