package deploy_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"sigs.k8s.io/yaml"
)

// TestSystemd has systemd check the units, with the program where they look for it.
func TestSystemd(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is not here")
	}
	units, err := filepath.Glob("../systemd/*.service")
	must(t, err)
	if len(units) != 3 {
		t.Fatalf("the units are %v", units)
	}
	for _, unit := range units {
		text := read(t, "systemd/"+filepath.Base(unit))
		_, command, _ := strings.Cut(text, "\nExecStart=/usr/local/bin/jobonce ")
		name, _, _ := strings.Cut(command, " ")
		if help := run(t, nil, binary(t), name, "--help"); !strings.Contains(help, "--config") {
			t.Errorf("jobonce %s has no --config", name)
		}
		copied := filepath.Join(t.TempDir(), filepath.Base(unit))
		must(t, os.WriteFile(copied, []byte(strings.ReplaceAll(text, "/usr/local/bin/jobonce", binary(t))), 0o600))
		// It exits with 0 for what it would ignore, such as a key that it does not know.
		out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", copied).CombinedOutput()
		if about := string(out); err != nil || strings.Contains(about, filepath.Base(unit)) {
			t.Errorf("%s: %v: %s", unit, err, about)
		}
	}
}

// TestCompose reads the file as compose does, by its schema, and starts an instance with what it is given.
func TestCompose(t *testing.T) {
	options, err := cli.NewProjectOptions([]string{"../compose.yaml"}, cli.WithoutEnvironmentResolution)
	must(t, err)
	project, err := options.LoadProject(context.Background())
	must(t, err)
	service, err := project.GetService("jobonce")
	must(t, err)
	if !service.ReadOnly || service.DependsOn["mongo"].Condition != "service_healthy" {
		t.Errorf("the service is %+v", service)
	}
	var env []string
	for name, value := range service.Environment {
		switch name {
		case "MONGODB_URI": // The store here is the embedded one.
		case "JOBONCE_LISTEN", "JOBONCE_OPS_LISTEN":
			env = append(env, name+"=127.0.0.1:0")
		default:
			env = append(env, name+"="+*value)
		}
	}
	p := start(t, append(env, "JOBONCE_DATA_DIR="+t.TempDir()), binary(t), "serve")
	// The commands find the instances by the same environment.
	for i, pair := range env {
		if strings.HasPrefix(pair, "JOBONCE_SERVER=") {
			env[i] = "JOBONCE_SERVER=" + p.address()
		}
	}
	if said := run(t, env, binary(t), "record", "--job-id", "a"); !strings.HasPrefix(said, "FIRST ") {
		t.Errorf("a variable is not the program's, or it says %q", said)
	}
}

// TestCI: the workflow is what it says, and runs what everybody can run.
func TestCI(t *testing.T) {
	var workflow struct {
		Jobs map[string]struct {
			Steps []struct {
				Run string `json:"run"`
			} `json:"steps"`
		} `json:"jobs"`
	}
	must(t, yaml.Unmarshal([]byte(read(t, "../.github/workflows/ci.yaml")), &workflow))
	steps := workflow.Jobs["test"].Steps
	if last := steps[len(steps)-1].Run; last != ".ci/run" {
		t.Errorf("the last step runs %q", last)
	}
}
