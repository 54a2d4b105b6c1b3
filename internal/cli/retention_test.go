package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/config"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestServeRefuses gives serve, in each place where it may stand, and an inbox what cannot be meant. The error names flags as they
// were written.
func TestServeRefuses(t *testing.T) {
	// Who takes it would serve for ever otherwise.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	refused := func(t *testing.T, want []string, args ...string) {
		t.Helper()
		var stderr bytes.Buffer
		code, _ := execute(ctx, args, strings.NewReader(""), &bytes.Buffer{}, &stderr)
		for _, w := range want {
			if code != exitUsage || !strings.Contains(stderr.String(), w) {
				t.Errorf("%q: exit code %d, %q; want %q", args, code, stderr.String(), w)
			}
		}
	}
	type values [][2]string
	for name, c := range map[string]struct {
		set  values // the first is named
		want string
		also string // is named too
	}{
		"short":          {set: values{{"job-retention", "24h"}}, want: " 24h0m0s is under 30 days"},
		"negative":       {set: values{{"payload-retention", "-1h"}}, want: " must not be negative"},
		"no time":        {set: values{{"dead-retention", "soon"}}, want: `"soon"`},
		"jobs first":     {set: values{{"job-retention", "720h"}, {"payload-retention", "721h"}}, want: " 720h0m0s is shorter than ", also: "payload-retention"},
		"first by force": {set: values{{"job-retention", "1h"}, {"payload-retention", "2h"}, {"force", "true"}}, want: " 1h0m0s is shorter than ", also: "payload-retention"},
		"alert":          {set: values{{"due-alert", "-1s"}}, want: " must not be negative"},
		"connections":    {set: values{{"max-connection-age", "1ms"}}, want: " must be at least 1s"},
	} {
		want := func(named func(flag string) string) []string {
			return []string{named(c.set[0][0]), c.want, named(c.also)}
		}
		serve := []string{"serve", "--listen=127.0.0.1:0", "--data-dir=" + t.TempDir()}
		flags, file := serve, "webhook: {sources: [{name: a, provider: stripe, secrets_env: [SECRET]}]}\n"+
			"worker: {forward: 'http://127.0.0.1:1'}\nserve:\n  data-dir: "+t.TempDir()+"\n"
		for _, v := range c.set {
			flags = append(flags, "--"+v[0]+"="+v[1])
			file += "  " + v[0] + ": " + v[1] + "\n"
		}
		path := testenv.WriteFile(t, t.TempDir(), "f.yaml", []byte(file))
		inFile := want(func(flag string) string { return "serve." + flag })
		t.Run(name+", flags", func(t *testing.T) { refused(t, want(func(flag string) string { return "--" + flag }), flags...) })
		t.Run(name+", file", func(t *testing.T) { refused(t, inFile, "serve", "--listen=127.0.0.1:0", "--config="+path) })
		t.Run(name+", inbox", func(t *testing.T) { refused(t, inFile, "inbox", "--config="+path) })
		t.Run(name+", environment", func(t *testing.T) {
			for _, v := range c.set {
				t.Setenv(config.EnvName(v[0]), v[1])
			}
			refused(t, want(config.EnvName), serve...)
		})
	}
}

// TestRetentionTaken: what is sensible is.
func TestRetentionTaken(t *testing.T) {
	for name, flags := range map[string]string{
		"alike":                   "--payload-retention=720h --job-retention=720h",
		"payloads first":          "--payload-retention=1h --job-retention=720h",
		"payloads alone":          "--payload-retention=2000h",
		"jobs alone":              "--job-retention=720h",
		"short, forced":           "--job-retention=1ns --force",
		"the dead longer":         "--job-retention=720h --dead-retention=1000h",
		"the dead shorter, alone": "--dead-retention=1h",
	} {
		cfg, keys := newServeConfig()
		testenv.Must(t, keys.Parse(strings.Fields(flags)))
		if err := cfg.check(keys); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
