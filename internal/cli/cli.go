// Package cli is the command line of jobonce: one file per command, and what they share.
package cli

import (
	"cmp"
	"context"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/jobonce/jobonce/internal/config"
)

// Main runs the command that args name, without the program's own name, and returns the exit code. The first SIGINT or SIGTERM
// ends the command in order, and then the process by that same signal, unless it was SIGTERM and the command has succeeded. A
// second one kills the process.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := watchSignals()
	defer stop()
	code, err := execute(ctx, args, stdin, stdout, stderr)
	dieAsAsked(ctx, err)
	return code
}

// execute runs the command, and says on stderr why it failed.
func execute(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) (code int, err error) {
	root := newRoot()
	// Cobra takes the process's own arguments for nil.
	root.SetArgs(append([]string{}, args...))
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	help := root.HelpFunc()
	var unknown error
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		// Cobra looks for --help before it looks at what may be a command.
		if cmd.HasSubCommands() {
			unknown = noCommand(cmd, cmd.Flags().Args())
		}
		if unknown == nil {
			help(cmd, args)
		}
	})
	cmd, err := root.ExecuteContextC(ctx)
	if err = cmp.Or(err, unknown); err != nil {
		reportFailure(stderr, cmd, args, err)
	}
	return exitCode(err), err
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "jobonce",
		Short: "Tells webhook frontends whether to start the work for a job now",
		Long: `JobOnce answers one question for webhook frontends: shall I start the work for this job now?

Try it. In one terminal:
  jobonce serve
In another, twice, to see FIRST and then DUPLICATE:
  jobonce record --job-id job_demo --payload '{"event":"job.completed"}'
  jobonce get job_demo

Any flag, --data-dir say, may also be set in the environment, as JOBONCE_DATA_DIR; --mongodb-uri
also as MONGODB_URI. Those of one call are for the command line alone: job and request ids, lease
tokens, events and bodies.

` + exitHelp,
		SilenceErrors:         true,
		SilenceUsage:          true,
		DisableFlagsInUseLine: true,
		Version:               readVersion().String(),
		Args:                  noCommand,
		RunE:                  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetHelpTemplate(root.HelpTemplate() + "{{if .HasParent}}\nFor what the exit codes mean: jobonce --help\n{{end}}")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		// What comes after a command that does not exist is taken for the flags of the one above.
		if cmd.HasSubCommands() {
			if unknown := noCommand(cmd, cmd.Flags().Args()); unknown != nil {
				return unknown
			}
		}
		return &usageError{err}
	})
	root.SetHelpCommand(newHelp())
	root.AddCommand(newServe(), newRecord(), newGet(), newList(), newRequeue(), newDelete(), newPause(), newResume(), newExpect(), newOverdue(), newPoll(), newWork(), newWebhook(), newWorker(), newInbox(), newToken(), newBench(), newHealth(), newCheck(), newBackup(), newCopy(), newVersion())
	return root
}

// newHelp replaces cobra's own help command, which is content with a command that does not exist.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Print the help of a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			of, rest, err := cmd.Root().Find(args)
			if err != nil {
				return &usageError{err}
			}
			if err := noCommand(of, rest); err != nil {
				return err
			}
			of.InitDefaultHelpFlag()
			return of.Help()
		},
	}
}

// noCommand refuses arguments where a command's name should be.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return usagef("unknown command %q, did you mean %q?", args[0], near[0])
	}
	return usagef("unknown command %q", args[0])
}

// configured declares keys and lets the environment set every flag of cmd, and the section of the configuration file
// those of keys.
func configured(cmd *cobra.Command, section string, keys *pflag.FlagSet) {
	cmd.Flags().SortFlags = false
	cmd.Flags().AddFlagSet(keys)
	cmd.Flags().String(config.FileFlag, "", "YAML `file` whose section \""+section+"\" sets flags by their names")
	fromEnvironment(cmd, section, keys)
}

// configuredLikeServe lets the environment set every flag of cmd, and the section "serve" of the configuration file those
// that serve has too. Its own flags are declared before. The section's other keys are checked, and are not for cmd.
func configuredLikeServe(cmd *cobra.Command) {
	flags, keys := cmd.Flags(), pflag.NewFlagSet("serve", pflag.ContinueOnError)
	_, all := newServeConfig()
	all.VisitAll(func(f *pflag.Flag) {
		if own := flags.Lookup(f.Name); own != nil {
			f = own
		}
		keys.AddFlag(f)
	})
	flags.String(config.FileFlag, "", "YAML `file` whose section \"serve\" sets flags by their names")
	fromEnvironment(cmd, "serve", keys)
}

// oneArg takes one argument, called name, which must not be empty.
func oneArg(name string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usagef("needs one argument, the %s, and got %d", name, len(args))
		}
		if args[0] == "" {
			return usagef("%s is empty", name)
		}
		return nil
	}
}

// noArgs refuses arguments that are no flags.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q", args[0])
	}
	return nil
}
