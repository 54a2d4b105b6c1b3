package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/jobonce/jobonce/internal/config"
)

// others are the variables with our prefix that are not ours: those of the tests, and those that Kubernetes sets in every
// container for a Service whose name begins with jobonce.
var others = regexp.MustCompile(`^JOBONCE_(?:TEST_.*|(?:\w+_)?SERVICE_(?:HOST|PORT)(?:_\w+)?|(?:\w+_)?PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)$`)

// fromEnvironment lets the environment set every flag of cmd, and the file too if cmd has the flag that names it.
func fromEnvironment(cmd *cobra.Command, section string, keys *pflag.FlagSet) {
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		err := config.Apply(cmd.Flags(), keys, section, os.LookupEnv)
		for _, text := range unreadVariables(cmd, os.Environ()) {
			warn(cmd, text)
		}
		if err != nil {
			return &usageError{err}
		}
		return nil
	}
}

// unreadVariables says for each variable with our prefix that sets no flag why it does not.
func unreadVariables(cmd *cobra.Command, environ []string) []string {
	read, alone := make(map[string]bool), make(map[string]string)
	note := func(f *pflag.Flag) {
		if config.IsCommandLineAlone(f) {
			alone[config.EnvName(f.Name)] = f.Name
			return
		}
		for _, name := range config.EnvNames(f.Name) {
			read[name] = true
		}
	}
	allFlags(cmd.Root(), note)
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if config.IsCommandLineAlone(f) { // whatever a flag of the same name is to others
			delete(read, config.EnvName(f.Name))
		}
	})
	var said []string
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, "JOBONCE_") || read[name] || others.MatchString(name) {
			continue
		}
		text := name + " is set, and is not read"
		if flag := alone[name]; flag != "" {
			text = fmt.Sprintf("%s is not read: --%s is of one call, and is for the command line alone", name, flag)
		} else if near := nearest(name, read); near != "" {
			text += fmt.Sprintf("; did you mean %s?", near)
		}
		said = append(said, text)
	}
	slices.Sort(said)
	return said
}

// allFlags visits the flags of cmd and of the commands below it.
func allFlags(cmd *cobra.Command, visit func(*pflag.Flag)) {
	cmd.Flags().VisitAll(visit)
	for _, sub := range cmd.Commands() {
		allFlags(sub, visit)
	}
}

// nearest is the one of the names that somebody who wrote name may have meant, judged as for the names of commands.
func nearest(name string, names map[string]bool) string {
	judge := &cobra.Command{SuggestionsMinimumDistance: 2}
	for n := range names {
		judge.AddCommand(&cobra.Command{Use: n, Run: func(*cobra.Command, []string) {}})
	}
	near := judge.SuggestionsFor(name)
	if len(near) == 0 || name == "JOBONCE_" { // which is the beginning of all
		return ""
	}
	return slices.Min(near)
}

// warn says something on standard error, in the form of what else is said there.
func warn(cmd *cobra.Command, text string) {
	out := cmd.ErrOrStderr()
	if format := cmd.Flags().Lookup("log-format"); format != nil {
		newLogger(format.Value.String(), "warn", out).Warn(text)
		return
	}
	if output := cmd.Flags().Lookup("output"); output != nil && output.Value.String() == outputJSON {
		_ = json.NewEncoder(out).Encode(map[string]string{"warning": text})
		return
	}
	fmt.Fprintf(out, "warning: %s\n", text)
}
