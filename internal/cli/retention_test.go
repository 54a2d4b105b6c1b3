package cli

import (
	"strings"
	"testing"
)

func TestRetentionFlags(t *testing.T) {
	for name, c := range map[string]struct{ flags, want string }{
		"short":    {"--job-retention=24h", "--job-retention 24h0m0s is under 30 days"},
		"negative": {"--payload-retention=-1h", "--payload-retention must not be negative"},
		"no time":  {"--dead-retention=soon", "dead-retention"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := run("serve", "--data-dir", t.TempDir(), "--listen", "127.0.0.1:0", c.flags)
			if code != exitUsage || !strings.Contains(stderr, c.want) {
				t.Errorf("exit code %d, %q; want %q", code, stderr, c.want)
			}
		})
	}
	cfg, _ := newServeConfig()
	cfg.retention.Job, cfg.force = 1, true
	if err := cfg.checkRetention(); err != nil {
		t.Errorf("with --force: %v", err)
	}
}
