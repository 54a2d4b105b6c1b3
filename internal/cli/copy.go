package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/sqlitestore"
)

const (
	// copyJobs and copyBytes bound what is copied at a time.
	copyJobs  = 500
	copyBytes = 4 << 20

	// maxShown bounds the ids that an error spells out.
	maxShown = 10
)

func newCopy() *cobra.Command {
	var store storeConfig
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "copy",
		Short: "Copy the embedded store into MongoDB",
		Long: `Copies all jobs of the embedded store into MongoDB, as they are: payloads, deliveries, leases and results; and expected
webhooks and pauses of claims. It is the way to MongoDB for a service that began without: stop the service, copy, and serve
with MongoDB. While it copies, nothing else can serve the directory, which is left as it is.

A job that MongoDB has already is left alone. So copy may be interrupted and called again; it then goes on. Jobs of which
MongoDB has a different record are named, and the exit code is then 1: somebody else wrote them, or they went on there
after an earlier copy.

` + mongoHelp,
		Example: `  MONGODB_URI='mongodb://127.0.0.1:27017/?replicaSet=rs0' jobonce copy
  jobonce copy --data-dir /var/lib/jobonce --mongodb-uri-file /run/secrets/mongodb-uri`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if wait <= 0 {
				return usagef("--timeout must be above zero")
			}
			flag, from, err := highest(cmd.Flags(), "mongodb-uri", "mongodb-uri-file")
			if err != nil {
				return err
			}
			if flag == "" {
				return usagef("needs a MongoDB to copy to: set MONGODB_URI, or use --mongodb-uri-file or --mongodb-uri")
			}
			if err := store.readURI(flag, from); err != nil {
				return err
			}
			return copyStore(cmd, &store, wait)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	store.declareDataDir(flags)
	store.declareMongoDB(flags)
	flags.DurationVar(&wait, "timeout", 30*time.Second, "how long to wait for MongoDB to be ready")
	configuredLikeServe(cmd)
	return cmd
}

func copyStore(cmd *cobra.Command, store *storeConfig, wait time.Duration) (err error) {
	ctx := cmd.Context()
	logger := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	from, err := sqlitestore.OpenReader(ctx, store.dataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; is --data-dir right?", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	into, err := store.openMongoDB(nil, nil, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, into.Close()) }()
	if err := awaitReady(ctx, into, wait); err != nil {
		return err
	}
	progress, done := newProgress(cmd.ErrOrStderr(), "jobs")
	copied, err := copyAll(ctx, from, into, progress)
	done()
	expected, paused, besideErr := 0, 0, error(nil)
	if err == nil {
		expected, paused, besideErr = copyBeside(ctx, from, into)
	}
	if _, printErr := fmt.Fprintf(cmd.OutOrStdout(), "copied: %d\nalready there: %d\ndiffering: %d\n",
		copied.Written, copied.Present, len(copied.Differing)); printErr != nil {
		return printErr
	}
	if expected+paused > 0 {
		if _, printErr := fmt.Fprintf(cmd.OutOrStdout(), "expectations: %d\npauses: %d\n", expected, paused); printErr != nil {
			return printErr
		}
	}
	if err = errors.Join(err, besideErr); err != nil {
		return fmt.Errorf("copying ended early, and goes on when called again: %w", err)
	}
	if n := len(copied.Differing); n > 0 {
		return fmt.Errorf("MongoDB has different records of %d jobs, and keeps them: %q", n, copied.Differing[:min(n, maxShown)])
	}
	return nil
}

// copyBeside copies what stands beside the jobs, and tells how much that was. What MongoDB has already stays.
func copyBeside(ctx context.Context, from *sqlitestore.Reader, into *mongostore.Store) (expected, paused int, err error) {
	expectations, err := from.Expectations(ctx)
	if err != nil {
		return 0, 0, err
	}
	pauses, err := from.Pauses(ctx)
	if err != nil {
		return 0, 0, err
	}
	// The pauses first: nothing is to be claimed that was paused.
	if err := errors.Join(into.CopyPauses(ctx, pauses), into.CopyExpectations(ctx, expectations)); err != nil {
		return 0, 0, err
	}
	return len(expectations), len(pauses), nil
}

func awaitReady(ctx context.Context, store *mongostore.Store, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	select {
	case <-store.Ready():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s is not ready: %w", store, store.Check(context.WithoutCancel(ctx)))
	}
}

// copyAll returns what was copied until it was done or failed.
func copyAll(ctx context.Context, from *sqlitestore.Reader, into *mongostore.Store, progress sqlitestore.Progress) (mongostore.Copied, error) {
	var sum mongostore.Copied
	total, err := from.Count(ctx)
	if err != nil {
		return sum, err
	}
	var batch []job.Record
	bytes, done := 0, int64(0)
	flush := func() error {
		c, err := into.Copy(ctx, batch)
		sum.Written += c.Written
		sum.Present += c.Present
		sum.Differing = append(sum.Differing, c.Differing...)
		done += int64(len(batch))
		progress(done, total)
		batch, bytes = batch[:0], 0
		return err
	}
	for r, err := range from.All(ctx) {
		if err != nil {
			return sum, err
		}
		if len(batch) == copyJobs || bytes+len(r.Body.Data) > copyBytes && len(batch) > 0 {
			if err := flush(); err != nil {
				return sum, err
			}
		}
		batch, bytes = append(batch, r), bytes+len(r.Body.Data)
	}
	if len(batch) == 0 {
		return sum, nil
	}
	return sum, flush()
}
