package cli

import (
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

// TestHealth asks a service, as a container does, and what is none.
func TestHealth(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte("not ready: no primary\n"))
	})
	away := httptest.NewServer(mux)
	t.Cleanup(away.Close)
	socket := filepath.Join(t.TempDir(), "ops")
	onSocket := httptest.NewUnstartedServer(mux)
	onSocket.Listener.Close()
	lis, err := net.Listen("unix", socket)
	testenv.Must(t, err)
	onSocket.Listener = lis
	onSocket.Start()
	t.Cleanup(onSocket.Close)

	p, err := startServe(t.TempDir(), nil, "--listen", "127.0.0.1:0", "--data-dir", "data", "--ops-listen", "unix:ops")
	testenv.Must(t, err)
	t.Cleanup(func() { testenv.OK(t, p.stop()) })
	good := "unix:" + filepath.Join(p.Cmd.Dir, "ops")
	_, port, err := net.SplitHostPort(away.Listener.Addr().String())
	testenv.Must(t, err)
	t.Setenv("http_proxy", "http://127.0.0.1:1")

	for _, tc := range []struct {
		args, env    string
		code         int
		said, failed string
	}{
		{"health --ops-listen " + good, "", exitOK, "ok\n", ""},
		{"health --live --ops-listen " + good, "", exitOK, "ok\n", ""},
		{"health", good, exitOK, "ok\n", ""},
		{"health --live --ops-listen 0.0.0.0:" + port, "", exitOK, "ok\n", ""},
		{"health --live --ops-listen unix:" + socket, "", exitOK, "ok\n", ""},
		{"health --ops-listen 127.0.0.1:" + port, "", exitRetry, "", "says 503: not ready: no primary"},
		{"health --ops-listen 127.0.0.1:1", "", exitRetry, "", "does not answer: "},
		{"health", "", exitUsage, "", "needs --ops-listen"},
		{"health --ops-listen 9090", "", exitUsage, "", "is not HOST:PORT"},
		{"health --ops-listen :9090", "", exitUsage, "", "is not HOST:PORT"},
		{"health --timeout 0s --ops-listen 127.0.0.1:1", "", exitUsage, "", "--timeout must be above zero"},
		{"health x", "", exitUsage, "", "unexpected argument"},
	} {
		t.Run(tc.args+" "+tc.env, func(t *testing.T) {
			if tc.env != "" {
				t.Setenv("JOBONCE_OPS_LISTEN", tc.env)
			}
			code, stdout, stderr := run(strings.Fields(tc.args)...)
			if code != tc.code || stdout != tc.said || !strings.Contains(stderr, tc.failed) {
				t.Errorf("got %d, %q, %q", code, stdout, stderr)
			}
		})
	}
}
