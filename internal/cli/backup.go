package cli

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/jobonce/jobonce/internal/sqlitestore"
)

func newBackup() *cobra.Command {
	var store storeConfig
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy the embedded store into a file, also while it is served",
		Long: `Copies the embedded store into a new file, as it is at the beginning. The service may be running, and goes on meanwhile.
The file appears when it is complete and on the disk; an existing one is not overwritten. The data directory must be
writable for whoever calls this: SQLite needs files of its own there. The backup of a file that an older version of JobOnce
wrote is a file of that version.

To restore it, stop the service, put the file into a new directory under the name jobonce.db, and serve that directory. In the
old directory a killed service leaves jobonce.db-wal, which belongs to the file that was there: serve and check refuse a
restored jobonce.db beside it, until jobonce.db-wal and jobonce.db-shm were moved away. A delivery that was recorded after
the backup is unknown once it is restored, and its next repetition is a first one.`,
		Example: `  jobonce backup /backup/jobonce-2026-01-02.db
  jobonce backup --data-dir /var/lib/jobonce /backup/jobonce-2026-01-02.db`,
		Args: oneArg("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "-" {
				return usagef("FILE is %q, and must name a new file", args[0])
			}
			progress, done := newProgress(cmd.ErrOrStderr(), "pages")
			err := sqlitestore.Backup(cmd.Context(), store.dataDir, args[0], progress)
			done()
			switch {
			case errors.Is(err, fs.ErrExist):
				return fmt.Errorf("%s exists, and is not overwritten", args[0])
			case errors.Is(err, fs.ErrNotExist):
				return fmt.Errorf("%w; is --data-dir right, and the directory of %s there?", err, args[0])
			case err != nil:
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: backup of %s\n", printable(args[0]), printable(store.dataDir))
			return err
		},
	}
	store.declareDataDir(cmd.Flags())
	configuredLikeServe(cmd)
	return cmd
}
