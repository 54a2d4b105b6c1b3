package sqlitestore

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// applicationID marks the file as ours ("JOB1").
const applicationID = 0x4A4F4231

// scripts has the steps to the present schema: the first makes schema 1, each other one takes a file to the schema of its
// number. A step that was released is never changed; the tests have a file of every schema before the last.
var scripts = readScripts()

// schemaVersion is the schema that is served.
var schemaVersion = len(scripts)

//go:embed schema/*.sql
var scriptFiles embed.FS

func readScripts() (scripts []string) {
	for {
		script, err := scriptFiles.ReadFile(fmt.Sprintf("schema/%d.sql", len(scripts)+1))
		if err != nil {
			return scripts
		}
		scripts = append(scripts, string(script))
	}
}

// create makes the tables of a new file.
func (s *Store) create(ctx context.Context) error {
	return s.migrate(ctx, 0)
}

// migrate takes the file from a schema, 0 for none, to the present one: wholly or not at all.
func (s *Store) migrate(ctx context.Context, from int) (err error) {
	db, err := openDB(s.path, "rw", "journal_mode(WAL)", "synchronous(FULL)")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	_, err = db.ExecContext(ctx, fmt.Sprintf("BEGIN IMMEDIATE; %s; PRAGMA application_id = %d; PRAGMA user_version = %d; COMMIT",
		strings.Join(scripts[from:], ";"), applicationID, schemaVersion))
	return describe(err)
}

// upgrade takes a file of an older schema to the present one, once a copy of it as it is stands beside it.
func (s *Store) upgrade(ctx context.Context, from int) error {
	kept := fmt.Sprintf("%s.schema%d-%s", s.path, from, s.now().UTC().Format("20060102T150405.000Z"))
	s.log.Info("embedded store: the file is of an older version, and is copied before it is upgraded", "file", s.path,
		"schema", from, "copy", kept)
	if err := errors.Join(s.removeHalfCopies(), s.backupTo(ctx, kept, func(int64, int64) {})); err != nil {
		if full(err) {
			err = errors.New("the disk is full")
		}
		return fmt.Errorf("schema %d, and cannot be upgraded: a copy of it is to be kept as %s, which fails: %w", from, kept, err)
	}
	if err := s.migrate(ctx, from); err != nil {
		// The copy stays where it may be needed. Starts that fail again and again must not fill the disk with copies.
		if found, inspectErr := s.inspect(ctx); inspectErr == nil && found.schema == from {
			err = errors.Join(err, removeIfThere(kept))
		}
		return fmt.Errorf("schema %d, and cannot be upgraded: %w", from, err)
	}
	s.log.Warn("embedded store: the file was upgraded. Older versions of JobOnce refuse it. The copy is as it was before; "+
		"whoever goes back to that forgets every decision made since", "file", s.path, "schema", schemaVersion, "copy", kept)
	return nil
}

// removeHalfCopies removes what starts that were killed while they copied have left, so that the next ones do not fill the
// disk. This process has the directory alone.
func (s *Store) removeHalfCopies() (err error) {
	entries, err := os.ReadDir(filepath.Dir(s.path))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "."+fileName+".schema") {
			err = errors.Join(err, removeIfThere(filepath.Join(filepath.Dir(s.path), e.Name())))
		}
	}
	return err
}
