// Package layout_test holds the repository to what its documents say about it: which package may import which, the
// list of dependencies, and the Go code in the README.
package layout_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/internal/job"
)

const module = "github.com/jobonce/jobonce/"

// allowed says which of our packages each of our packages may import, tests aside. docs/architecture.md draws it.
var allowed = map[string][]string{
	"cmd/jobonce": {"internal/cli"},
	"internal/cli": {"server", "client", "client/webhook", "gen/jobonce/v1", "internal/auth", "internal/batch", "internal/config",
		"internal/frontend", "internal/httpdoor", "internal/job", "internal/load", "internal/mongostore", "internal/poll", "internal/retention", "internal/runner", "internal/sqlitestore",
		"internal/telemetry", "internal/ui"},
	"server":               {"gen/jobonce/v1", "internal/auth", "internal/job"},
	"client":               {"gen/jobonce/v1"},
	"client/webhook":       {"client", "gen/jobonce/v1"},
	"examples/frontend":    {"client", "gen/jobonce/v1"},
	"examples/webhook":     {"client", "client/webhook"},
	"sdk/conformance":      {"client", "gen/jobonce/v1"},
	"gen/http/jobonce/v1":  {"gen/jobonce/v1"},
	"gen/jobonce/v1":       {},
	"internal/auth":        {},
	"internal/batch":       {"internal/job"},
	"internal/config":      {},
	"internal/expr":        {},
	"internal/frontend":    {"client/webhook", "internal/auth", "internal/config", "internal/expr"},
	"internal/httpdoor":    {"gen/http/jobonce/v1", "gen/jobonce/v1", "internal/auth", "internal/job"},
	"internal/job":         {"internal/payload"},
	"internal/load":        {"client", "gen/jobonce/v1"},
	"internal/mongostore":  {"internal/job", "internal/payload"},
	"internal/payload":     {},
	"internal/runner":      {"client", "gen/jobonce/v1"},
	"internal/poll":        {"client", "client/webhook", "gen/jobonce/v1", "internal/config", "internal/expr"},
	"internal/retention":   {"internal/job"},
	"internal/sqlitestore": {"internal/job"},
	"internal/telemetry":   {"gen/jobonce/v1", "internal/job"},
	"internal/ui":          {"gen/jobonce/v1", "internal/auth"},

	// For tests alone, and for the benchmarks, which are a module of their own.
	"internal/modeldb":           {"internal/testenv/wire"},
	"internal/providersim":       {},
	"internal/storetest":         {"internal/job", "internal/testenv"},
	"internal/testenv":           {},
	"internal/testenv/embedded":  {"internal/batch", "internal/job", "internal/sqlitestore", "internal/testenv", "server"},
	"internal/testenv/wire":      {},
	"internal/testenv/wireproxy": {"internal/testenv/wire"},
}

// forTests are the packages that only tests import.
var forTests = []string{"internal/modeldb", "internal/providersim", "internal/storetest", "internal/testenv", "internal/testenv/embedded", "internal/testenv/wire", "internal/testenv/wireproxy"}

// drivers says where the driver of each store may be imported. Tests may talk to a database as they need.
var drivers = map[string][]string{
	"go.mongodb.org/mongo-driver/": {"internal/mongostore", "internal/modeldb", "internal/testenv", "internal/testenv/wire", "internal/testenv/wireproxy"},
	"modernc.org/sqlite":           {"internal/sqlitestore"},
}

// goPackage is what is read of a package that `go list -json` describes.
type goPackage struct {
	ImportPath string
	GoFiles    []string
	Imports    []string
	Deps       []string // with everything that those import
}

// name is the package's path within the module.
func (p goPackage) name() string { return strings.TrimPrefix(p.ImportPath, module) }

func list(t *testing.T, pattern string) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,GoFiles,Imports,Deps", pattern)
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		exit := new(exec.ExitError)
		errors.As(err, &exit)
		t.Fatalf("go list: %v\n%s", err, exit.Stderr)
	}
	var packages []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		if len(p.GoFiles) > 0 { // Else it has tests only.
			packages = append(packages, p)
		}
	}
}

func TestImports(t *testing.T) {
	found, imported := make(map[string]bool), make(map[[2]string]bool)
	for _, p := range list(t, "./...") {
		found[p.name()] = true
		may, ok := allowed[p.name()]
		if !ok {
			t.Errorf("%s is new: say in this test, and in docs/architecture.md, what it may import", p.name())
		}
		for _, path := range p.Imports {
			ours, ok := strings.CutPrefix(path, module)
			if ok && !slices.Contains(may, ours) {
				t.Errorf("%s must not import %s", p.name(), ours)
			}
			imported[[2]string{p.name(), ours}] = true
			for driver, users := range drivers {
				if strings.HasPrefix(path, driver) && !slices.Contains(users, p.name()) {
					t.Errorf("%s must not import %s, which is for %v", p.name(), path, users)
				}
			}
		}
	}
	for name, may := range allowed {
		for _, unused := range may {
			if !imported[[2]string{name, unused}] {
				t.Errorf("%s does not import %s: take it out of this test, and of docs/architecture.md", name, unused)
			}
		}
		if !found[name] {
			t.Errorf("there is no package %s any more: take it out of this test", name)
		}
	}
}

// arrow is a line of the drawing in docs/architecture.md.
var arrow = regexp.MustCompile(`(?m)^ {18}(\S+) +--> +(.+)$`)

// TestDrawing holds the drawing to the table. It draws neither the command, which puts everything together, nor test packages.
func TestDrawing(t *testing.T) {
	drawn := make(map[string]bool)
	for _, line := range arrow.FindAllStringSubmatch(read(t, "docs/architecture.md"), -1) {
		drawn[line[1]] = true
		if got := strings.Split(line[2], ", "); !slices.Equal(got, allowed[line[1]]) {
			t.Errorf("docs/architecture.md has %s import %v, and not %v", line[1], got, allowed[line[1]])
		}
	}
	for name, may := range allowed {
		command := strings.HasPrefix(name, "cmd/") || name == "internal/cli"
		if len(may) > 0 && !command && !slices.Contains(forTests, name) && !drawn[name] {
			t.Errorf("docs/architecture.md does not draw what %s imports", name)
		}
	}
}

// TestTestPackagesStayOut reads the table itself: a package of the service that is allowed a test package is a mistake.
func TestTestPackagesStayOut(t *testing.T) {
	for name, may := range allowed {
		for _, path := range may {
			if slices.Contains(forTests, path) && !slices.Contains(forTests, name) {
				t.Errorf("%s must not be allowed to import %s", name, path)
			}
		}
	}
}

// TestPublicPackagesAreLight keeps what our servers need out of the programs of those who only call them.
func TestPublicPackagesAreLight(t *testing.T) {
	for _, pattern := range []string{"./client/...", "./gen/..."} {
		for _, p := range list(t, pattern) {
			for _, dep := range p.Deps {
				for _, heavy := range []string{"modernc.org/", "go.mongodb.org/", "github.com/prometheus/", "github.com/spf13/", module + "internal/"} {
					if strings.HasPrefix(dep, heavy) {
						t.Errorf("%s pulls in %s", p.name(), dep)
					}
				}
			}
		}
	}
}

func TestPackageNamesSayWhatIsInside(t *testing.T) {
	for _, p := range list(t, "./...") {
		for element := range strings.SplitSeq(p.name(), "/") {
			if slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "misc", "pkg", "shared"}, element) {
				t.Errorf("%s: %q says nothing about what is inside", p.name(), element)
			}
		}
	}
}

// TestWorkIsTriedForADay holds the service's number of leases and the client's pauses together: work whose downstream is
// away for a night or a day is not given up, and work that cannot be done is before the week is over.
func TestWorkIsTriedForADay(t *testing.T) {
	tried := time.Duration(0)
	for attempts := 1; attempts < job.DefaultMaxAttempts; attempts++ { // After the last there is no pause.
		tried += client.DefaultBackoff(attempts)
	}
	if tried < 24*time.Hour || tried > 48*time.Hour {
		t.Errorf("work that always fails is given up after %v and %d leases", tried, job.DefaultMaxAttempts)
	}
}
