package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/jobonce/jobonce/internal/config"
)

// eachCommand visits all commands, with arguments that fit.
func eachCommand(visit func(cmd *cobra.Command, line []string)) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		if cmd.HasSubCommands() {
			return
		}
		line := strings.Fields(cmd.CommandPath())[1:]
		for _, word := range strings.Fields(cmd.Use)[1:] {
			if !strings.HasPrefix(word, "[") {
				line = append(line, "x")
			}
		}
		visit(cmd, line)
	}
	walk(newRoot())
}

// TestEmptyValuesAreRefused gives each flag of each command an empty value, on the command line and in the environment.
// An empty one means something only where the help says what.
func TestEmptyValuesAreRefused(t *testing.T) {
	flags := 0
	eachCommand(func(cmd *cobra.Command, line []string) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			flags++
			if strings.Contains(strings.ReplaceAll(f.Usage, "\n", " "), "empty is ") {
				return
			}
			code, stdout, stderr := run(append(line, "--"+f.Name+"=")...)
			if code != exitUsage || stdout != "" || !strings.Contains(stderr, "--"+f.Name) {
				t.Errorf("%v --%s=: exit code %d, standard output %q, standard error %q", line, f.Name, code, stdout, stderr)
			}
			if config.IsCommandLineAlone(f) {
				return
			}
			for _, name := range config.EnvNames(f.Name) {
				t.Run(name, func(t *testing.T) {
					t.Setenv(name, "")
					code, stdout, stderr := run(line...)
					if code != exitUsage || stdout != "" || !strings.HasPrefix(stderr, name+" is set, and empty; ") {
						t.Errorf("%s= %v: exit code %d, standard output %q, standard error %q", name, line, code, stdout, stderr)
					}
				})
			}
		})
	})
	if flags < 50 {
		t.Errorf("only %d flags were tried", flags)
	}
}

// TestEmptyArgumentsAreRefused is the same for arguments that are no flags.
func TestEmptyArgumentsAreRefused(t *testing.T) {
	for _, line := range []string{"get", "work renew", "work complete", "work release", "backup", "check"} {
		code, stdout, stderr := run(append(strings.Fields(line), "")...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, " is empty; see 'jobonce "+line) {
			t.Errorf("jobonce %s '': exit code %d, standard output %q, standard error %q", line, code, stdout, stderr)
		}
	}
}
