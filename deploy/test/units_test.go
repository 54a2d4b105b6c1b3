package deploy_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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
	if len(units) != 4 {
		t.Fatalf("the units are %v", units)
	}
	for _, unit := range units {
		text := read(t, "systemd/"+filepath.Base(unit))
		_, command, _ := strings.Cut(text, "\nExecStart=/usr/local/bin/jobonce ")
		name, _, _ := strings.Cut(command, " ")
		help := run(t, nil, binary(t), name, "--help")
		if !strings.Contains(help, "--config") {
			t.Errorf("jobonce %s has no --config", name)
		}
		stop := 15 * time.Second // of serve, which has no flag for it
		if given := regexp.MustCompile(`(?s)--shutdown-timeout .*?\(default (\w+)\)`).FindStringSubmatch(help); given != nil {
			stop, err = time.ParseDuration(given[1])
			must(t, err)
		}
		seconds := regexp.MustCompile(`(?m)^TimeoutStopSec=(\d+)$`).FindStringSubmatch(text)
		if n, _ := strconv.Atoi(seconds[1]); time.Duration(n)*time.Second < stop+15*time.Second {
			t.Errorf("%s is killed after %d s, and may take %v for what is under way", unit, n, stop)
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

// TestUnitsFile starts each of the units' commands with the file that they read. What it opens is reached from this machine alone.
func TestUnitsFile(t *testing.T) {
	text := read(t, "systemd/jobonce.yaml")
	var sections map[string]map[string]any
	must(t, yaml.UnmarshalStrict([]byte(text), &sections))
	for section, keys := range sections {
		for key, value := range keys {
			if strings.HasSuffix(key, "listen") && !strings.HasPrefix(value.(string), "127.0.0.1:") {
				t.Errorf("%s.%s is %s", section, key, value)
			}
		}
	}
	dir := t.TempDir()
	secret := "/run/credentials/jobonce-webhook.service/shop"
	if unit := read(t, "systemd/jobonce-webhook.service"); !strings.Contains(text, secret) || !strings.Contains(unit, "\nLoadCredential=shop:") {
		t.Errorf("the unit does not load %s", secret)
	}
	must(t, os.WriteFile(filepath.Join(dir, "shop"), []byte("a secret of the shop"), 0o600))
	file := filepath.Join(dir, "jobonce.yaml")
	must(t, os.WriteFile(file, []byte(strings.ReplaceAll(text, secret, filepath.Join(dir, "shop"))), 0o600))
	env := []string{"JOBONCE_DATA_DIR=" + filepath.Join(dir, "data")}
	for _, name := range []string{"LISTEN", "HTTP_LISTEN", "UI_LISTEN", "OPS_LISTEN"} { // The ports are the system's here.
		env = append(env, "JOBONCE_"+name+"=127.0.0.1:0")
	}
	p := start(t, env, binary(t), "serve", "--config", file)
	if !strings.Contains(p.line, " and http://127.0.0.1:") {
		t.Errorf("it says %q", p.line)
	}
	for _, command := range []string{"webhook", "poll", "worker"} {
		start(t, env, binary(t), command, "--config", file, "--server", p.address())
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
		case "JOBONCE_LISTEN", "JOBONCE_HTTP_LISTEN", "JOBONCE_UI_LISTEN", "JOBONCE_OPS_LISTEN":
			env = append(env, name+"=127.0.0.1:0")
		default:
			env = append(env, name+"="+*value)
		}
	}
	for name, s := range project.Services {
		for _, port := range s.Ports {
			if listen := service.Environment; port.HostIP != "127.0.0.1" || !slices.ContainsFunc([]string{"", "HTTP_", "UI_", "OPS_"}, func(which string) bool {
				return *listen["JOBONCE_"+which+"LISTEN"] == fmt.Sprint("0.0.0.0:", port.Target)
			}) {
				t.Errorf("%s publishes %s:%s, which leads to port %d", name, port.HostIP, port.Published, port.Target)
			}
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
