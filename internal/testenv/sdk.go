package testenv

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Root is the repository's root.
func Root(t testing.TB) string {
	t.Helper()
	script, err := testdbPath()
	Must(t, err)
	return filepath.Dir(filepath.Dir(filepath.Dir(script)))
}

// NodeSDK returns a directory with the Node client as a user has it: its package, as npm packs it, installed in the project
// "project". Beside it stands "source", where it was built, with the compiler. It is made anew when the client changes.
func NodeSDK(t testing.TB) string {
	t.Helper()
	Need(t, "node", "npm")
	sdk := filepath.Join(Root(t), "sdk", "node")
	lock := []string{filepath.Join(sdk, "package.json"), filepath.Join(sdk, "package-lock.json")}
	tools := Cached(t, "sdk-node-tools", lock, func(dir string) error {
		CopyFiles(t, dir, lock...)
		return Run(t, dir, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	})
	return Cached(t, "sdk-node", sources(t, sdk), func(dir string) error {
		source, project := filepath.Join(dir, "source"), filepath.Join(dir, "project")
		Must(t, os.Mkdir(project, 0o755))
		Must(t, copyTree(sdk, source))
		Must(t, os.Symlink(filepath.Join(tools, "node_modules"), filepath.Join(source, "node_modules")))
		CopyFiles(t, project, filepath.Join(sdk, "test", "project", "package.json"))
		return Script(t, dir, `
			cd source && npm pack --silent --pack-destination .. >&2
			cd ../project && npm install --silent --ignore-scripts --no-audit --no-fund --prefer-offline ../jobonce-*.tgz`)
	})
}

// PythonSDK returns the Python of an environment that has the Python client as a user has it, built as a wheel. tools is one that has
// what checks it beside, but not the client.
func PythonSDK(t testing.TB) (python, tools string) {
	t.Helper()
	Need(t, "python3")
	version, err := exec.Command("python3", "-c", "import sys; print('.'.join(map(str, sys.version_info[:3])))").Output()
	Must(t, err)
	sdk, name := filepath.Join(Root(t), "sdk", "python"), "sdk-python-"+strings.TrimSpace(string(version))
	requirements := filepath.Join(sdk, "requirements-test.txt")
	tools = Cached(t, name+"-tools", []string{requirements}, func(dir string) error {
		CopyFiles(t, dir, requirements)
		return Script(t, dir, `
			python3 -m venv .
			bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: -r requirements-test.txt`)
	})
	tools = filepath.Join(tools, "bin", "python")
	dir := Cached(t, name, sources(t, sdk), func(dir string) error {
		Must(t, copyTree(sdk, filepath.Join(dir, "source")))
		return Script(t, dir, fmt.Sprintf(`
			%q -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir wheel ./source
			python3 -m venv venv
			venv/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: \
				-c source/requirements-test.txt "$(ls wheel/*.whl)[webhook]"`, tools))
	})
	return filepath.Join(dir, "venv", "bin", "python"), tools
}

// Script runs lines of a shell, for a fill function of [Cached], and stops at the first that fails.
func Script(t testing.TB, dir, lines string) error { return Run(t, dir, "sh", "-euc", lines) }

// CopyFiles copies files into a directory.
func CopyFiles(t testing.TB, dir string, files ...string) {
	t.Helper()
	for _, file := range files {
		content, err := os.ReadFile(file)
		Must(t, err)
		WriteFile(t, dir, filepath.Base(file), content)
	}
}

// made are directories that tools make beside sources.
var made = []string{"node_modules", "dist", "__pycache__", ".mypy_cache"}

// sources are the files of a client.
func sources(t testing.TB, dir string) (files []string) {
	t.Helper()
	Must(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains(made, entry.Name()):
			return fs.SkipDir
		case entry.Type().IsRegular():
			files = append(files, path)
		}
		return nil
	}))
	return files
}

func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if slices.Contains(made, entry.Name()) {
				return fs.SkipDir
			}
			return os.MkdirAll(filepath.Join(to, name), 0o755)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), content, 0o644)
	})
}
