package cli

import (
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

// TestWrongTracingEnvironment: what is wrong in OpenTelemetry's variables keeps no service from starting, nor holds it up, and is told
// in the log alone, without the secrets in them.
func TestWrongTracingEnvironment(t *testing.T) {
	const url = "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"
	for _, env := range [][]string{
		{"OTEL_EXPORTER_OTLP_ENDPOINT=://swordfish"}, {url, "OTEL_EXPORTER_OTLP_HEADERS=Bearer swordfish"},
		{url, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_HEADERS=Authorization=%swordfish"},
		{url, "OTEL_TRACES_SAMPLER=often"}, {"OTEL_TRACES_EXPORTER=console"},
	} {
		p, err := startServe(t.TempDir(), env, "--listen", "127.0.0.1:0", "--data-dir", "data", "--log-format", "json")
		testenv.Must(t, err)
		if _, stdout, stderr := run("record", "--server", p.addr, "--job-id", "a"); !strings.HasPrefix(stdout, "FIRST ") {
			t.Errorf("%q: %s%s", env, stdout, stderr)
		}
		testenv.OK(t, p.stop())
		warned := false
		for line := range strings.Lines(p.Log.String()) {
			if !strings.HasPrefix(line, "{") {
				t.Errorf("%q: written beside the log: %s", env, line)
			}
			warned = warned || strings.Contains(line, `"level":"WARN"`)
		}
		if !warned || strings.Contains(p.Log.String(), "swordfish") {
			t.Errorf("%q: the log has no warning, or a secret: %s", env, &p.Log)
		}
	}
}
