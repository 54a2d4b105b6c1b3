package failuretest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

const root = "../.."

func readDocs(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, "docs", "failures.md"))
	testenv.Must(t, err)
	return string(content)
}

// codeBlock is the one block of a language in docs/failures.md.
func codeBlock(t *testing.T, language string) string {
	t.Helper()
	blocks := regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(readDocs(t), -1)
	if len(blocks) != 1 {
		t.Fatalf("docs/failures.md has %d blocks of %s, want 1", len(blocks), language)
	}
	return blocks[0][1]
}

// TestDocumentedCodeIsTested: what readers copy is what TestFencingNumber runs.
func TestDocumentedCodeIsTested(t *testing.T) {
	source, err := os.ReadFile("fence_test.go")
	testenv.Must(t, err)
	if code := codeBlock(t, "go"); !strings.Contains(string(source), code) {
		t.Errorf("fence_test.go does not have this code:\n%s", code)
	}
}

// TestOperationsMessages: what docs/operations.md has the log and the commands say stands in the code.
func TestOperationsMessages(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "operations.md"))
	testenv.Must(t, err)
	_, table, _ := strings.Cut(string(page), "\n| it says | ")
	table, _, _ = strings.Cut(table, "\n\n")
	messages := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(table, -1)
	if len(messages) < 15 {
		t.Fatalf("the table has %d messages", len(messages))
	}
	var code strings.Builder
	for _, dir := range []string{"internal", "server", "client"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			content, err := os.ReadFile(path)
			code.Write(content)
			return err
		})
		testenv.Must(t, err)
	}
	text := regexp.MustCompile(`" ?\+\s*"`).ReplaceAllString(code.String(), "") // what is broken into lines
	for _, m := range messages {
		if !strings.Contains(text, m[1]) {
			t.Errorf("nothing says %q", m[1])
		}
	}
}

// TestDocumentedTestsExist: every test that docs/failures.md names exists, and each of the eight failures has its row.
func TestDocumentedTestsExist(t *testing.T) {
	docs := readDocs(t)
	tests := make(map[string]string) // name to package
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "node_modules") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				tests[f.Name.Name] = file.Name.Name
			}
		}
		return nil
	})
	testenv.Must(t, err)
	named := regexp.MustCompile(`\bTest[A-Z0-9]\w*`).FindAllString(docs, -1)
	for _, name := range named {
		if tests[name] == "" {
			t.Errorf("docs/failures.md names %s, which does not exist", name)
		}
	}
	for n := 1; n <= 8; n++ {
		row := regexp.MustCompile(fmt.Sprintf("(?m)^\\| %d \\|.*`TestFailure%d[A-Z]\\w*` \\|$", n, n))
		if got := len(row.FindAllString(docs, -1)); got != 1 {
			t.Errorf("docs/failures.md has %d rows for failure %d, want 1", got, n)
		}
	}
	for name, in := range tests {
		if in == "failuretest" && strings.HasPrefix(name, "TestFailure") && !strings.Contains(docs, name) {
			t.Errorf("%s is not in docs/failures.md", name)
		}
	}
}
