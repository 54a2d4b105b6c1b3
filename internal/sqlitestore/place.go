package sqlitestore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// held is a file that the store has open, and the path that it found it under. It is held open so that no other file can get
// its inode.
//
// POSIX takes all locks off a file when any of a process's descriptors of it is closed. So this one is closed last.
type held struct {
	path string
	file *os.File
	info os.FileInfo
}

// hold takes hold of an open file.
func (s *Store) hold(file *os.File) error {
	info, err := file.Stat()
	s.held = append(s.held, held{file.Name(), file, info})
	return err
}

// errGone: what is served is not what its path names.
var errGone = errors.New("somebody has to look: a start would find another file, or none, and take known jobs for first ones")

// inPlace tells whether the files that the store has open are still those that the next start would find. What is written to
// others is durable, and gone.
func (s *Store) inPlace() error {
	for _, h := range s.held {
		info, err := os.Stat(h.path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%s was removed or moved while it was served; %w", h.path, errGone)
		case err != nil:
			return fmt.Errorf("cannot see whether the served file is still there: %w", err)
		case !os.SameFile(info, h.info):
			return fmt.Errorf("%s was replaced by another file while it was served; %w", h.path, errGone)
		}
	}
	return nil
}
