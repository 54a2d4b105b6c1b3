package cli

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version and commit may be set by the linker (-ldflags "-X ...cli.version=v1.2.3"). Left empty, the build information
// that the Go command leaves in the binary says what it knows.
var version, commit string

// versionInfo is what the version command prints.
type versionInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
}

func (v versionInfo) String() string {
	return fmt.Sprintf("jobonce %s, commit %s, %s", v.Version, v.Commit, v.Go)
}

func readVersion() versionInfo {
	v := versionInfo{Version: version, Commit: commit, Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		v.fill(info)
	}
	if v.Version == "" {
		v.Version = "unknown"
	}
	if v.Commit == "" {
		v.Commit = "unknown"
	}
	return v
}

func (v *versionInfo) fill(info *debug.BuildInfo) {
	if v.Version == "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
	}
	if v.Commit != "" {
		return
	}
	dirty := ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "-dirty"
			}
		}
	}
	if v.Commit != "" {
		v.Commit += dirty
	}
}

func newVersion() *cobra.Command {
	output := newOutput()
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print version, commit and Go version",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := readVersion()
			if output.Value == outputJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(v)
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), v)
			return err
		},
	}
	cmd.Flags().VarP(output, "output", "o", "output format")
	fromEnvironment(cmd, "", nil)
	return cmd
}
