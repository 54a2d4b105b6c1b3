package cli

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/auth"
	"github.com/jobonce/jobonce/internal/config"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestOpsListenByItsOldName sets the address of the ops listener by either name, in each place.
func TestOpsListenByItsOldName(t *testing.T) {
	for _, tc := range []struct {
		name, args, env, file string
		want, refused         string
	}{
		{name: "none"},
		{name: "new", args: "--ops-listen a:1", want: "a:1"},
		{name: "old flag", args: "--admin-listen a:1", want: "a:1"},
		{name: "old variable", env: "a:1", want: "a:1"},
		{name: "old key", file: "serve: {admin-listen: 'a:1'}", want: "a:1"},
		{name: "both alike", args: "--ops-listen a:1", env: "a:1", want: "a:1"},
		{name: "two flags", args: "--ops-listen a:1 --admin-listen b:1",
			refused: "--ops-listen is a:1, but --admin-listen, its old name, is b:1; leave the old one out"},
		{name: "flag and variable", args: "--ops-listen a:1", env: "b:1",
			refused: "--ops-listen is a:1, but JOBONCE_ADMIN_LISTEN, its old name, is b:1; leave the old one out"},
		{name: "one file", file: "serve: {ops-listen: 'a:1', admin-listen: 'b:1'}", refused: "serve.ops-listen of "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg, keys := newServeConfig()
			keys.String(config.FileFlag, "", "")
			path := filepath.Join(t.TempDir(), "f.yaml")
			testenv.Must(t, os.WriteFile(path, []byte(tc.file), 0o600))
			testenv.Must(t, keys.Parse(append(strings.Fields(tc.args), "--config", path)))
			err := config.Apply(keys, keys, "serve", func(name string) (string, bool) {
				return tc.env, tc.env != "" && name == "JOBONCE_ADMIN_LISTEN"
			})
			testenv.Must(t, err)
			switch err := cfg.chooseOps(keys); {
			case tc.refused != "":
				if err == nil || !strings.Contains(err.Error(), tc.refused) {
					t.Errorf("got %v, want %s", err, tc.refused)
				}
			case err != nil || cfg.opsListen != tc.want:
				t.Errorf("got %q, %v, want %q", cfg.opsListen, err, tc.want)
			}
		})
	}
}

// TestMetricsAuth: the metrics are for callers with the right to them.
func TestMetricsAuth(t *testing.T) {
	var entries strings.Builder
	tokens := map[string]string{}
	for name, allow := range map[string]string{
		"prometheus": "allow: [metrics]", "shop": "allow: [record]", "late": "allow: [metrics], expires: 2020-01-01",
	} {
		token, sum := auth.NewToken()
		tokens[name] = "Bearer " + token
		entries.WriteString("- {name: " + name + ", token_sha256: " + sum + ", " + allow + "}\n")
	}
	callers, err := auth.Open(auth.Config{Logger: testenv.Logger(t),
		File: testenv.WriteFile(t, t.TempDir(), "auth.yaml", []byte("callers:\n"+entries.String()+"...\n"))})
	testenv.Must(t, err)
	var o ops
	o.protect(callers)
	for _, c := range []struct {
		shown []string
		want  int
	}{
		{nil, http.StatusUnauthorized}, {[]string{"Bearer hunter2"}, http.StatusUnauthorized}, {[]string{tokens["late"]}, http.StatusUnauthorized},
		{[]string{tokens["shop"]}, http.StatusForbidden}, {[]string{tokens["prometheus"]}, http.StatusOK},
		{[]string{tokens["prometheus"], tokens["prometheus"]}, http.StatusUnauthorized},
	} {
		status, err := o.admit(t.Context(), c.shown)
		if status != c.want || (err == nil) != (c.want == http.StatusOK) {
			t.Errorf("%q: %d, %v; want %d", c.shown, status, err, c.want)
		}
	}
}
