package deploy_test

import (
	"debug/elf"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	must(t, err)
	return path
}

// image is what the last stage of the Dockerfile says.
type image struct {
	from, user string
	env        []string
	entrypoint []string
	cmd        []string
	health     []string
	copied     []string // paths in the image
}

func readImage(t *testing.T) (image, string) {
	t.Helper()
	text := strings.ReplaceAll(read(t, "Dockerfile"), "\\\n", " ")
	var im image
	list := func(text string) (list []string) {
		must(t, json.Unmarshal([]byte(text[strings.Index(text, "["):]), &list))
		return list
	}
	for line := range strings.Lines(text) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		fields := strings.Fields(rest)
		switch word {
		case "FROM":
			im = image{from: fields[0]}
		case "USER":
			im.user = rest
		case "ENV":
			im.env = append(im.env, rest)
		case "ENTRYPOINT":
			im.entrypoint = list(rest)
		case "CMD":
			im.cmd = list(rest)
		case "HEALTHCHECK":
			im.health = list(rest)
		case "COPY":
			im.copied = append(im.copied, fields[len(fields)-1])
		}
	}
	return im, text
}

// TestImage runs the image's process as the image has it: as its user, with no files but the image's, which it cannot write, and
// a volume. The health check that the image names says that it is ready.
func TestImage(t *testing.T) {
	im, text := readImage(t)
	outside := strings.Fields(read(t, "../.dockerignore"))
	for dir := range strings.FieldsSeq(run(t, os.Environ(), "go", "-C", "../..", "list", "-deps", "-f", "{{if not .Standard}}{{if .Module.Main}}{{.Dir}}{{end}}{{end}}", "./cmd/jobonce")) {
		within, err := filepath.Rel(absolute(t, "../.."), dir)
		must(t, err)
		if top, _, _ := strings.Cut(within, "/"); slices.Contains(outside, top) {
			t.Errorf("the image is built of %s, which .dockerignore leaves out", within)
		}
	}
	if im.from != "scratch" || im.user != "65532:65532" || !strings.Contains(text, "CGO_ENABLED=0") || !strings.Contains(text, "-trimpath") {
		t.Fatalf("the image is %+v", im)
	}
	f, err := elf.Open(binary(t))
	must(t, err)
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Error("the binary needs libraries")
		}
	}
	if os.Getuid() != 0 {
		skip(t, "only root can change to the image's files and user")
	}
	base := t.TempDir()
	for dir := base; strings.HasPrefix(dir, os.TempDir()+"/"); dir = filepath.Dir(dir) { // for the other user
		if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&1 == 0 {
			must(t, os.Chmod(dir, info.Mode().Perm()|0o111))
		}
	}
	root, data := filepath.Join(base, "root"), filepath.Join(base, "data")
	for _, path := range im.copied {
		switch path {
		case "/jobonce":
			content, err := os.ReadFile(binary(t))
			must(t, err)
			must(t, os.MkdirAll(root, 0o755))
			must(t, os.WriteFile(filepath.Join(root, path), content, 0o755))
		case "/data":
			must(t, os.MkdirAll(filepath.Join(root, path), 0o755))
		default: // certificates, which nothing here needs
			must(t, os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755))
		}
	}
	must(t, os.MkdirAll(data, 0o755))
	must(t, os.Chown(data, 65532, 65532))
	// The data are mounted after the root was made read-only, as a volume is.
	const enter = `mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && mount --bind "$2" "$1/data" && user=$3 && root=$1 && shift 3 && exec chroot --userspec="$user" "$root" "$@"`
	within := func(argv ...string) []string {
		return append([]string{"unshare", "--mount", "sh", "-ec", enter, "sh", root, data, im.user}, argv...)
	}
	// The ports are the system's here.
	env := append(im.env, "JOBONCE_LISTEN=127.0.0.1:0", "JOBONCE_OPS_LISTEN=unix:/data/ops", "JOBONCE_HTTP_LISTEN=127.0.0.1:0", "JOBONCE_UI_LISTEN=127.0.0.1:0")
	p := start(t, env, within(append(im.entrypoint, im.cmd...)...)...)
	if !strings.Contains(p.line, " and http://127.0.0.1:") || !strings.Contains(p.line, "embedded store /data") {
		t.Errorf("it says %q", p.line)
	}
	if said := run(t, env, within(im.health...)...); said != "ok\n" {
		t.Errorf("the health check says %q", said)
	}
	if said := run(t, nil, binary(t), "record", "--server", p.address(), "--job-id", "a"); !strings.HasPrefix(said, "FIRST ") {
		t.Errorf("a delivery was answered %q", said)
	}
	if err := os.WriteFile(filepath.Join(root, "here"), nil, 0o600); err != nil { // Only the process's view is read-only.
		t.Error(err)
	}
	entries, err := os.ReadDir(root)
	must(t, err)
	if len(entries) > 4 {
		t.Errorf("the process has left files in its root: %v", entries)
	}
}
