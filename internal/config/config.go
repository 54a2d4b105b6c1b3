package config

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// FileFlag is the name of the flag that names the file. [Apply] reads the file only where the command has this flag.
const FileFlag = "config"

// sections are the sections that a file may have. A section that no command reads is a mistake, so one joins the list
// together with its command.
var sections = []string{"serve", "client"}

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

// Apply gives each flag of flags that the command line did not set its value from the environment or else, for those
// that are in keys too, from the given section of the file. An empty environment variable counts as absent. An error
// names the variable, or the file's line and key.
func Apply(flags, keys *pflag.FlagSet, section string, getenv func(string) string) error {
	var failed error
	flags.VisitAll(func(f *pflag.Flag) {
		if failed != nil || f.Changed || f.Name == "help" {
			return
		}
		for _, name := range EnvNames(f.Name) {
			value := getenv(name)
			if value == "" {
				continue
			}
			if err := set(f, value, Origin{FromEnvironment, name}); err != nil {
				failed = fmt.Errorf("%s: %w", name, err)
			}
			return
		}
	})
	if failed != nil {
		return failed
	}
	if f := flags.Lookup(FileFlag); f != nil && f.Value.String() != "" {
		return applyFile(f.Value.String(), section, keys)
	}
	return nil
}

func set(f *pflag.Flag, value string, from Origin) error {
	if err := f.Value.Set(value); err != nil {
		return fmt.Errorf("invalid value %q: %w", value, err)
	}
	f.Changed = true
	from.note(f)
	return nil
}
