package layout_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", name))
	testenv.Must(t, err)
	return string(text)
}

var goBlock = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")

// TestReadmeCode: each Go block of the README is a file under examples, where it is compiled and tested.
func TestReadmeCode(t *testing.T) {
	blocks := goBlock.FindAllStringSubmatch(read(t, "README.md"), -1)
	if len(blocks) == 0 {
		t.Fatal("the README has no Go code")
	}
	files, err := filepath.Glob("../../examples/*/*.go")
	testenv.Must(t, err)
	for _, block := range blocks {
		found := slices.ContainsFunc(files, func(name string) bool {
			code, err := os.ReadFile(name)
			return err == nil && string(code) == block[1]
		})
		if !found {
			t.Errorf("no file under examples is this code of the README:\n%s", block[1])
		}
	}
}

// conflict is what git leaves in a file that two sides have changed.
var conflict = regexp.MustCompile("(?m)^(<<<<<<<|>>>>>>>) .*$")

// TestNoConflictsLeft: code that has them does not compile; pages would be published with them.
func TestNoConflictsLeft(t *testing.T) {
	n := 0
	testenv.Must(t, filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		switch name := entry.Name(); {
		case err != nil:
			return err
		case entry.IsDir() && (name == "node_modules" || name == ".git" || name == ".venv"):
			return filepath.SkipDir
		case !slices.Contains([]string{".md", ".yaml", ".yml", ".sh", ".html", ".css"}, filepath.Ext(name)):
			return nil
		}
		n++
		text, err := os.ReadFile(path)
		if found := conflict.Find(text); found != nil {
			t.Errorf("%s has %s", path, found)
		}
		return err
	}))
	if n < 20 {
		t.Errorf("only %d files were read", n)
	}
}

// dependency is a row of the table in docs/dependencies.md that names a Go module.
var dependency = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (.+) \\|$")

func TestDependenciesHaveReasons(t *testing.T) {
	cmd := exec.Command("go", "mod", "edit", "-json")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	testenv.Must(t, err)
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
		Tool []struct{ Path string }
	}
	testenv.Must(t, json.Unmarshal(out, &mod))
	needed := make(map[string]bool)
	for _, r := range mod.Require {
		if !r.Indirect {
			needed[r.Path] = true
		}
	}
	for _, tool := range mod.Tool {
		needed[tool.Path] = true
	}
	if len(needed) == 0 {
		t.Fatal("go.mod has no direct requirement")
	}
	gone := make(map[string]bool)
	modules, _, _ := strings.Cut(read(t, "docs/dependencies.md"), "\n## Beside the Go modules")
	for _, row := range dependency.FindAllStringSubmatch(modules, -1) {
		if !needed[row[1]] {
			gone[row[1]] = true
		}
		delete(needed, row[1])
	}
	for path := range needed {
		t.Errorf("docs/dependencies.md does not say why go.mod has %s", path)
	}
	for path := range gone {
		t.Errorf("docs/dependencies.md gives a reason for %s, which go.mod does not have", path)
	}
}
