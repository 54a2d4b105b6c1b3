package httpdoor

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

// TestOpenAPI has schemathesis make requests of docs/openapi.swagger.yaml, right ones and wrong ones: no answer may be a failure of
// ours, nor one that the file does not have. The long mode tries every bound of every field too, and other requests each time.
func TestOpenAPI(t *testing.T) {
	testenv.Need(t, "python3")
	version, err := exec.Command("python3", "-c", "import sys; print('.'.join(map(str, sys.version_info[:3])))").Output()
	testenv.Must(t, err)
	requirements := filepath.Join("testdata", "requirements.txt")
	tools := testenv.Cached(t, "schemathesis-python-"+strings.TrimSpace(string(version)), []string{requirements}, func(dir string) error {
		testenv.CopyFiles(t, dir, requirements)
		return testenv.Script(t, dir, `
			python3 -m venv .
			bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: -r requirements.txt`)
	})
	file, err := filepath.Abs("../../docs/openapi.swagger.yaml")
	testenv.Must(t, err)
	w := start(t, Config{})
	w.posts("/v1/jobs:record", object{"job_id": "0"})
	// The deadline cuts the waits that are asked for.
	args := []string{
		"-m", "schemathesis.cli", "run", file, "--url", "http://" + w.address, "--header", "Grpc-Timeout: 4S", "--request-timeout", "30", "--continue-on-failure", "--no-color",
		"--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,response_headers_conformance,unsupported_method",
	}
	if testenv.Long() {
		args = append(args, "--phases", "examples,coverage,fuzzing", "--max-examples", "300", "--generation-database", "none",
			"--seed", strconv.FormatUint(testenv.Seed(t)>>32, 10))
	} else {
		args = append(args, "--phases", "examples,fuzzing", "--max-examples", "10", "--generation-deterministic")
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(tools, "bin", "python"), args...)
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Tested: 12") {
		t.Errorf("%v\n%s", err, out)
	}
}
