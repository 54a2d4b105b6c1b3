package cli

import (
	"runtime/debug"
	"testing"
)

func TestVersionFromBuildInfo(t *testing.T) {
	vcs := func(revision, modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.modified", Value: modified}, {Key: "vcs.revision", Value: revision}}
	}
	for _, tc := range []struct {
		name string
		set  versionInfo
		info debug.BuildInfo
		want versionInfo
	}{
		{name: "nothing known", info: debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}},
		{name: "installed by its version", info: debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}}, want: versionInfo{Version: "v1.2.3"}},
		{name: "built from a clone", info: debug.BuildInfo{Settings: vcs("abc", "false")}, want: versionInfo{Commit: "abc"}},
		{name: "changed since", info: debug.BuildInfo{Settings: vcs("abc", "true")}, want: versionInfo{Commit: "abc-dirty"}},
		{name: "the linker's values hold", set: versionInfo{Version: "v2", Commit: "def"},
			info: debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: vcs("abc", "true")},
			want: versionInfo{Version: "v2", Commit: "def"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := tc.set
			got.fill(&tc.info)
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}
