package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// programs are what a version of JobOnce is measured with: the service, and bench with that version's Go client for the
// callers.
type programs struct{ jobonce, bench string }

// build makes the programs of this tree, and those of the older one that the flags name.
func (l *lab) build(ctx context.Context) error {
	if _, err := os.Stat("../cmd/jobonce"); err != nil {
		return errors.New("the working directory must be bench: go run -C bench")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	l.now = programs{jobonce: filepath.Join(l.dir, "jobonce"), bench: self}
	if err := command(ctx, "..", "go", "build", "-o", l.now.jobonce, "./cmd/jobonce"); err != nil {
		return err
	}
	if l.cfg.before == "" {
		return nil
	}
	source := l.cfg.before
	if _, err := os.Stat(filepath.Join(source, "go.mod")); err != nil {
		source = filepath.Join(l.dir, "before")
		if err := l.checkOut(ctx, l.cfg.before, source); err != nil {
			return err
		}
	}
	if source, err = filepath.Abs(source); err != nil {
		return err
	}
	l.old = programs{jobonce: filepath.Join(l.dir, "jobonce-before"), bench: filepath.Join(l.dir, "bench-before")}
	if err := command(ctx, source, "go", "build", "-o", l.old.jobonce, "./cmd/jobonce"); err != nil {
		return err
	}
	return l.buildBench(ctx, source)
}

// checkOut writes the files of a commit to a directory.
func (l *lab) checkOut(ctx context.Context, commit, dir string) error {
	archive := dir + ".tar"
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := command(ctx, "..", "git", "archive", "-o", archive, commit); err != nil {
		return fmt.Errorf("-before is neither a directory with JobOnce nor a commit: %w", err)
	}
	return command(ctx, dir, "tar", "-xf", archive)
}

// buildBench builds the bench of this tree with the packages of another, for its Go client and no more: see the build tag.
func (l *lab) buildBench(ctx context.Context, source string) error {
	for _, name := range []string{"mod", "sum"} {
		text, err := os.ReadFile("go." + name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(l.dir, "before."+name), text, 0o600); err != nil {
			return err
		}
	}
	mod := filepath.Join(l.dir, "before.mod")
	if err := command(ctx, ".", "go", "mod", "edit", "-replace", "github.com/jobonce/jobonce="+source, mod); err != nil {
		return err
	}
	return command(ctx, ".", "go", "build", "-tags=older", "-mod=mod", "-modfile="+mod, "-o", l.old.bench, ".")
}

// command runs a command in a directory; the error has what it printed.
func command(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w\n%s", name, args, err, out)
	}
	return nil
}
