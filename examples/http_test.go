package examples_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

var (
	console = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")
	// httpReady is the line that serve prints.
	httpReady = regexp.MustCompile(`serving on \S+ and http://(\S+),`)
	curl      = regexp.MustCompile(`(?m)^\$ ((?:.*\\\n)*.*)\n([^$].*)$`)
)

// TestHTTPDocs runs the commands of docs/http.md against a service, and holds what they print to what stands there.
func TestHTTPDocs(t *testing.T) {
	testenv.Need(t, "curl")
	doc, err := os.ReadFile("../docs/http.md")
	testenv.Must(t, err)
	address := testenv.StartService(t, testenv.Program{
		Role: "jobonce", Args: []string{"serve", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--data-dir", t.TempDir()},
	}, httpReady).Direct
	token, commands := "", 0
	for _, block := range console.FindAllStringSubmatch(string(doc), -1) {
		for _, match := range curl.FindAllStringSubmatch(block[1], -1) {
			commands++
			cmd := exec.Command("sh", "-euc", strings.ReplaceAll(match[1], "127.0.0.1:8080", address))
			cmd.Env = append(os.Environ(), "TOKEN="+token)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%s\n%v: %s", match[1], err, out)
			}
			var got, want any
			testenv.Must(t, json.Unmarshal(out, &got))
			testenv.Must(t, json.Unmarshal([]byte(match[2]), &want))
			if !shows(got, want) {
				t.Errorf("%s\ngives %s", match[1], out)
			}
			var answer struct{ Lease struct{ Token string } }
			if json.NewDecoder(bytes.NewReader(out)).Decode(&answer) == nil && answer.Lease.Token != "" {
				token = answer.Lease.Token
			}
		}
	}
	if n := strings.Count(string(doc), "$ curl"); commands != n || n == 0 {
		t.Errorf("%d of %d commands were run", commands, n)
	}
}

// shows tells whether an answer has what the document shows of it.
func shows(got, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		got, ok := got.(map[string]any)
		for name := range want {
			ok = ok && shows(got[name], want[name])
		}
		return ok
	case []any:
		got, ok := got.([]any)
		ok = ok && len(got) == len(want)
		for i := range want {
			ok = ok && shows(got[i], want[i])
		}
		return ok
	case string:
		text, ok := got.(string)
		return ok && (want == "…" && text != "" || text == want)
	}
	return got == want
}
