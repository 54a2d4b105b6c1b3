package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

// FuzzFile gives [Apply] any file. It must not panic, and must name the file in its error.
func FuzzFile(f *testing.F) {
	for _, seed := range []string{
		"", "serve:", "serve: {listen: x, max-wait: 3m}", "serve: {verbose: true, format: JSON}\nclient: {anything: goes}\n",
		"serve: [1]", "{}", "- a", "serve:\n  listen: 'a\n", "---\n---\n", "serve: &a {listen: *a}", "serve: {<<: {listen: x}}",
		"a: &a [x]\nb: &b [*a,*a]\nserve: *b", "serve: {listen: !!binary aGk=}", "\xff\xfe", "serve: {listen: a, listen: b}", "? [a]: b",
		"!!null serve: x", "serve: !!map x",
	} {
		f.Add(seed)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, file string) {
		path := filepath.Join(dir, "jobonce.yaml")
		testenv.Must(t, os.WriteFile(path, []byte(file), 0o600))
		c := newCommand()
		testenv.Must(t, c.flags.Parse([]string{"--config", path}))
		err := c.applyEnv(nil)
		if err != nil && !strings.Contains(err.Error(), path) {
			t.Errorf("the error does not name the file: %v", err)
		}
		if err == nil && c.format.Value != "text" && c.format.Value != "json" {
			t.Errorf("the format is %q", c.format.Value)
		}
	})
}
