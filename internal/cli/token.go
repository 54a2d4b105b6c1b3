package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/config"
)

func newToken() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make the tokens that callers show",
		Args:  noCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTokenNew())
	return cmd
}

func newTokenNew() *cobra.Command {
	var e auth.Entry
	var out, expires, allow string
	cmd := &cobra.Command{
		Use:   "new",
		Short: "Make a token, and the entry of the auth file that lets its owner in",
		Long: `Makes a token of 256 random bits. Standard output gets the entry for the file of serve's --auth-file, which has only the
token's SHA-256; the token is shown once, on standard error, or goes to the file of --out, which only this user can read.`,
		Example: `  jobonce token new --name shop --allow record,read --job-id-prefix shop:
  jobonce token new --name packer --allow work --expires 2027-06-30 --out packer.token`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if expires != "" {
				var err error
				if e.Expires, err = parseTime(expires); err != nil {
					return usagef("--expires %s is neither a day, such as 2027-06-30, nor a time in RFC 3339", expires)
				}
			}
			if allow != "" {
				e.Allow = strings.Split(allow, ",")
			}
			token, entry, err := auth.NewEntry(e)
			if err != nil {
				return &usageError{err}
			}
			if out == "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "The token of %s, which is not shown again: %s\n", e.Name, token)
				_, err := io.WriteString(cmd.OutOrStdout(), entry)
				return err
			}
			f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return fmt.Errorf("cannot write the token: %w", err)
			}
			if _, err = fmt.Fprintln(f, token); err == nil {
				err = f.Sync()
			}
			if closeErr := f.Close(); err == nil {
				err = closeErr
			}
			if err != nil {
				return fmt.Errorf("cannot write the token: %w", err)
			}
			_, err = io.WriteString(cmd.OutOrStdout(), entry)
			return err
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&e.Name, "name", "", "`name` of the caller")
	flags.StringVar(&allow, "allow", "", "`rights` of the caller, with commas between them: record, work, read, read_bodies, expect, metrics, admin")
	flags.StringVar(&e.JobIDPrefix, "job-id-prefix", "", "`prefix`, with a colon at its end, of the ids of the jobs that it may touch; any when left out")
	flags.StringVar(&expires, "expires", "", "`time` when the token ends, in RFC 3339, or a day; never when left out")
	flags.Float64Var(&e.Rate, "rate", 0, "most calls a second to each instance of the service; any number when left out")
	flags.StringVar(&out, "out", "", "`file` to write the token to, which must not exist")
	config.CommandLineAlone(flags, "name", "allow", "job-id-prefix", "expires", "rate", "out")
	fromEnvironment(cmd, "", nil)
	return cmd
}

// parseTime reads a time, or a day, which begins in UTC.
func parseTime(s string) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	return time.Parse(time.DateOnly, s)
}
