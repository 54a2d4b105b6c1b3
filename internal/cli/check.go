package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/jobonce/jobonce/internal/config"
	"github.com/jobonce/jobonce/internal/sqlitestore"
)

func newCheck() *cobra.Command {
	var store storeConfig
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check the file of the embedded store, or a backup of it",
		Long: `Reads all of the embedded store's file, or of a backup named as FILE: its structure, its indexes, and whether each job is
one that JobOnce wrote, payloads against their SHA-256 included. It changes nothing in it. The service may be
running meanwhile; what is checked is the state at the beginning.

A file that was put beside the jobonce.db-wal of another one is refused, with what to do. jobonce backup --help says how to
restore a backup.

A file that an older version of JobOnce wrote is checked as it is. It is upgraded when it is served, and not before.

The directory of the file must be writable for whoever calls this: SQLite needs files of its own beside it, and may leave
them there, as jobonce.db-wal and jobonce.db-shm.

What is wrong is printed a line each, and the exit code is then 1.`,
		Example: `  jobonce check
  jobonce check --data-dir /var/lib/jobonce
  jobonce check /backup/jobonce-2026-01-02.db`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return oneArg("FILE")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			file := sqlitestore.File(store.dataDir)
			if len(args) > 0 {
				if config.OriginOf(cmd.Flags().Lookup("data-dir")).Layer == config.FromCommandLine {
					return usagef("FILE and --data-dir both say what to check; leave one out")
				}
				file = args[0]
			}
			progress, done := newProgress(cmd.ErrOrStderr(), "jobs")
			v, err := sqlitestore.Verify(cmd.Context(), file, progress)
			done()
			if err != nil {
				return err
			}
			return printVerification(cmd, file, v)
		},
	}
	store.declareDataDir(cmd.Flags())
	configuredLikeServe(cmd)
	return cmd
}

func printVerification(cmd *cobra.Command, file string, v sqlitestore.Verification) error {
	out := cmd.OutOrStdout()
	for _, f := range v.Findings {
		if _, err := fmt.Fprintln(out, printable(f)); err != nil {
			return err
		}
	}
	if v.Omitted > 0 {
		if _, err := fmt.Fprintf(out, "and %d more\n", v.Omitted); err != nil {
			return err
		}
	}
	if n := len(v.Findings) + v.Omitted; n > 0 {
		return fmt.Errorf("%s: %d findings; restore a backup (jobonce backup --help says how), or keep a copy of the file before anything is tried", file, n)
	}
	old := ""
	if v.Old {
		old = "; an older version of JobOnce wrote it, and serve upgrades it"
	}
	_, err := fmt.Fprintf(out, "%s: %d jobs, all in order%s\n", printable(file), v.Jobs, old)
	return err
}
