package sqlitestore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// Where SQLite's file format has what takeBack looks at.
const (
	applicationIDAt = 68 // in the database
	sizeBeforeAt    = 16 // in the rollback journal: how many pages the database had
)

// takeBack takes back the change that the file is within, as SQLite does when it opens a file for writing. It does so for
// our files, and for one that was nothing before the change: that is how the making of ours begins. Others stay as they
// are.
func (s *Store) takeBack(ctx context.Context) (err error) {
	app, err := readUint32(s.path, applicationIDAt)
	if err != nil {
		return err
	}
	before, err := readUint32(s.path+"-journal", sizeBeforeAt)
	if err != nil {
		return err
	}
	if app != applicationID && before != 0 {
		return fmt.Errorf("%w; choose another --data-dir", ErrForeign)
	}
	db, err := openDB(s.path, "rw", "synchronous(FULL)")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var tables int
	return describe(db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables))
}

// readUint32 reads the number at an offset of a file; 0 when the file ends before.
func readUint32(path string, at int64) (n uint32, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	var b [4]byte
	if _, err := file.ReadAt(b[:], at); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	return binary.BigEndian.Uint32(b[:]), nil
}
