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
func (s *Store) rewriteLog() (err error) {
	log, err := os.OpenFile(s.logPath(), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	part := make([]byte, 1<<20)
	for at := int64(0); ; {
		n, err := log.ReadAt(part, at)
		if _, err := log.WriteAt(part[:n], at); err != nil {
			return err
		}
		at += int64(n)
		switch {
		case errors.Is(err, io.EOF) && at == 0:
			return nil // somebody has looked at a file that was closed in order
		case errors.Is(err, io.EOF):
			return log.Sync()
		case err != nil:
			return err
		}
	}
}

// freshLog empties the write-ahead log, if there was one, into the file, so that a new one begins. The log's name is on the
// disk afterwards. Where another process reads the file meanwhile, the log goes on as rewriteLog left it.
func (s *Store) freshLog(ctx context.Context) error {
	empty, err := s.emptyLog(ctx)
	if err == nil && empty {
		if err = s.markNow(); err == nil {
			empty, err = s.emptyLog(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("the write-ahead log of the last run cannot be taken over: %w", err)
	}
	if !empty {
		s.log.Info("embedded store: another process reads the file; the write-ahead log stays", "file", s.path)
	}
	return errors.Join(syncFile(s.logPath()), syncFile(filepath.Dir(s.path)))
}

func (s *Store) emptyLog(ctx context.Context) (empty bool, err error) {
	var busy, frames, moved int
	err = s.writer.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &frames, &moved)
	if err != nil {
		return false, describe(err)
	}
	s.marked, err = readSalts(s.logFile)
	return busy == 0, err
}
