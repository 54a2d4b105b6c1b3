package config

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
)

// FileFlag is the name of the flag that names the file. [Apply] reads the file only where the command has this flag.
const FileFlag = "config"

// sections are the sections that a file may have. A section that no command reads is a mistake, so one joins the list
// together with its command.
var sections = []string{"serve", "webhook", "worker", "poll", "client"}

// general are variables without our prefix that set a flag, because other programs read them too. The one with our
// prefix beats it.
var general = map[string]string{"mongodb-uri": "MONGODB_URI"}

// EnvName is the environment variable that sets the flag of the given name: JOBONCE_DATA_DIR for data-dir.
func EnvName(flag string) string {
	return "JOBONCE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// EnvNames are all the environment variables that set the flag of the given name; an earlier one beats a later one.
func EnvNames(flag string) []string {
	if name := general[flag]; name != "" {
		return []string{EnvName(flag), name}
	}
	return []string{EnvName(flag)}
}

// Annotations of flags.
const (
	emptyKey = "jobonce_may_be_empty"
	aloneKey = "jobonce_command_line_alone"
)

// MayBeEmpty marks flags for which an empty value means something, which their help says. For all others [Apply] refuses
// it: mostly it is a variable of a script that was never set.
func MayBeEmpty(flags *pflag.FlagSet, names ...string) { annotate(flags, emptyKey, names) }

// CommandLineAlone marks flags of one call, such as its request id: in the environment they would make every call the
// same one, so that [Apply] does not look there, nor in the file.
func CommandLineAlone(flags *pflag.FlagSet, names ...string) { annotate(flags, aloneKey, names) }

// IsCommandLineAlone tells whether [CommandLineAlone] has marked the flag.
func IsCommandLineAlone(f *pflag.Flag) bool { return annotated(f, aloneKey) }

func annotate(flags *pflag.FlagSet, key string, names []string) {
	for _, name := range names {
		f := flags.Lookup(name)
		if f.Annotations == nil {
			f.Annotations = make(map[string][]string)
		}
		f.Annotations[key] = nil
	}
}

func annotated(f *pflag.Flag, key string) bool {
	_, ok := f.Annotations[key]
	return ok
}

// Apply gives each flag of flags that the command line did not set its value from the environment or else, for those
// that are in keys too, from the given section of the file. lookup is [os.LookupEnv]. A value that is empty is an error
// wherever it stands; see [MayBeEmpty]. An error names the flag, the variable, or the file's line and key.
func Apply(flags, keys *pflag.FlagSet, section string, lookup func(string) (string, bool)) error {
	if err := applyEnvironments(flags, lookup); err != nil {
		return err
	}
	if f := flags.Lookup(FileFlag); f != nil && f.Value.String() != "" {
		return applyFile(f.Value.String(), section, keys)
	}
	return nil
}

// Environment is [Apply] without the file, for a command that reads its file by itself.
func Environment(flags *pflag.FlagSet) error { return applyEnvironments(flags, os.LookupEnv) }

func applyEnvironments(flags *pflag.FlagSet, lookup func(string) (string, bool)) (failed error) {
	flags.VisitAll(func(f *pflag.Flag) {
		if failed == nil && f.Name != "help" {
			failed = applyEnvironment(f, lookup)
		}
	})
	return failed
}

// applyEnvironment sets the flag from the environment, unless the command line did.
func applyEnvironment(f *pflag.Flag, lookup func(string) (string, bool)) error {
	if f.Changed {
		for _, value := range values(f) {
			if empty(f, value) {
				return fmt.Errorf("--%s is empty; give it a value, or leave it out", f.Name)
			}
		}
		return nil
	}
	if IsCommandLineAlone(f) {
		return nil
	}
	for _, name := range EnvNames(f.Name) {
		value, ok := lookup(name)
		if !ok {
			continue
		}
		if empty(f, value) {
			return fmt.Errorf("%s is set, and empty; give it a value, or unset it", name)
		}
		if err := set(f, value, Origin{FromEnvironment, name}); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
	return nil
}

// values are those of a flag that may be given several times, or the one of another.
func values(f *pflag.Flag) []string {
	list, ok := f.Value.(pflag.SliceValue)
	if !ok {
		return []string{f.Value.String()}
	}
	if given := list.GetSlice(); len(given) > 0 {
		return given
	}
	return []string{""} // a list with commas between takes an empty value as none
}

// empty tells whether the flag must not have this value because it is empty.
func empty(f *pflag.Flag, value string) bool {
	return strings.TrimSpace(value) == "" && !annotated(f, emptyKey)
}

func set(f *pflag.Flag, value string, from Origin) error {
	if err := f.Value.Set(value); err != nil {
		return fmt.Errorf("invalid value %q: %w", value, err)
	}
	f.Changed = true
	from.note(f)
	return nil
}
