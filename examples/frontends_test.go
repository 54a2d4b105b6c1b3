// Package examples_test runs the example frontends and workers of other languages against a service.
package examples_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/cli"
	"github.com/jobonce/jobonce/internal/testenv"
)

func TestMain(m *testing.M) {
	os.Exit(testenv.Main(m, testenv.Roles{
		"jobonce": func(args []string) int { return cli.Main(args, os.Stdin, os.Stdout, os.Stderr) },
	}))
}

// languages start a program of each language's example, "frontend" or "worker".
var languages = map[string]func(t *testing.T, program string) *exec.Cmd{"node": node, "python": python}

func node(t *testing.T, program string) *exec.Cmd {
	sdk := testenv.NodeSDK(t)
	packages := testenv.Cached(t, "example-node-"+filepath.Base(sdk), []string{"node/package.json", "node/package-lock.json"}, func(dir string) error {
		testenv.CopyFiles(t, dir, "node/package.json", "node/package-lock.json")
		return testenv.Script(t, dir, `
			npm ci --silent --ignore-scripts --no-audit --no-fund
			npm install --silent --no-save --ignore-scripts --no-audit --no-fund --prefer-offline `+sdk+`/jobonce-*.tgz`)
	})
	dir := t.TempDir()
	testenv.CopyFiles(t, dir, "node/package.json", "node/"+program+".mjs")
	testenv.Must(t, os.Symlink(filepath.Join(packages, "node_modules"), filepath.Join(dir, "node_modules")))
	return exec.Command("node", filepath.Join(dir, program+".mjs"))
}

func python(t *testing.T, program string) *exec.Cmd {
	sdk, _ := testenv.PythonSDK(t)
	root := filepath.Dir(filepath.Dir(filepath.Dir(sdk))) // of the client: venv/bin/python is below it
	packages := testenv.Cached(t, "example-python-"+filepath.Base(root), []string{"python/requirements.txt"}, func(dir string) error {
		testenv.CopyFiles(t, dir, "python/requirements.txt")
		return testenv.Script(t, dir, `
			python3 -m venv .
			bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: -r requirements.txt "$(ls `+root+`/wheel/*.whl)"`)
	})
	return exec.Command(filepath.Join(packages, "bin", "python"), filepath.Join("python", program+".py"))
}

// start starts a program, which the test's end stops, and returns its log.
func start(t *testing.T, cmd *exec.Cmd, env ...string) *testenv.Tail {
	t.Helper()
	log := new(testenv.Tail)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), log, log
	testenv.Must(t, cmd.Start())
	t.Cleanup(func() {
		testenv.OK(t, cmd.Process.Signal(syscall.SIGTERM))
		err := cmd.Wait()
		if err != nil && !stoppedBySignal(cmd) {
			t.Errorf("%v does not stop in order: %v", cmd.Args, err)
		}
		if t.Failed() {
			t.Logf("%v:\n%s", cmd.Args, log)
		}
	})
	return log
}

// stoppedBySignal: uvicorn stops in order, and then raises the signal that it was sent once more.
func stoppedBySignal(cmd *exec.Cmd) bool {
	s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && s.Signaled() && s.Signal() == syscall.SIGTERM
}

// await waits until there is something.
func await[T any](t *testing.T, what string, there func() (T, bool)) T {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if found, ok := there(); ok {
			return found
		}
	}
	t.Fatalf("%s did not come", what)
	panic("not reached")
}

// frontend is an example that runs.
type frontend struct {
	t      *testing.T
	url    string
	secret []byte
}

var listening = regexp.MustCompile(`(?:listening on |running on http://)(127\.0\.0\.1:\d+)`)

func startFrontend(t *testing.T, cmd *exec.Cmd, target string) *frontend {
	t.Helper()
	secret := []byte("a secret of the example's")
	log := start(t, cmd, "JOBONCE_TARGET="+target, "PORT=0", "WEBHOOK_SECRET=whsec_b2xk,whsec_"+base64.StdEncoding.EncodeToString(secret))
	address := await(t, "the frontend's address", func() (string, bool) {
		match := listening.FindStringSubmatch(log.String())
		if match == nil {
			return "", false
		}
		return match[1], true
	})
	return &frontend{t, "http://" + address + "/webhooks/acme", secret}
}

// deliver sends a webhook, signed with the secret or with another one, and returns the answer.
func (f *frontend) deliver(id string, body []byte, secret []byte) *http.Response {
	f.t.Helper()
	now := strconv.FormatInt(time.Now().Unix(), 10)
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "%s.%s.%s", id, now, body)
	req, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, f.url, bytes.NewReader(body))
	testenv.Must(f.t, err)
	for name, value := range map[string]string{
		"content-type": "application/json", "webhook-id": id, "webhook-timestamp": now,
		"webhook-signature": "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)),
	} {
		req.Header.Set(name, value)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	testenv.Must(f.t, err)
	testenv.OK(f.t, resp.Body.Close())
	return resp
}

// delivered fails the test unless the answer has the status.
func (f *frontend) delivered(id, body string, status int) *http.Response {
	f.t.Helper()
	resp := f.deliver(id, []byte(body), f.secret)
	if resp.StatusCode != status {
		f.t.Errorf("%s: %s, and not %d", id, resp.Status, status)
	}
	return resp
}

// TestFrontends has webhooks come to each frontend, and its worker do the work, on either store.
func TestFrontends(t *testing.T) {
	for _, command := range languages {
		command(t, "worker") // Made once, before they are needed at the same time.
	}
	for store, args := range testenv.StoreFlags {
		for language, command := range languages {
			t.Run(store+"/"+language, func(t *testing.T) {
				t.Parallel()
				s := testenv.StartService(t, testenv.Program{
					Role: "jobonce", Args: append([]string{"serve", "--listen", "127.0.0.1:0"}, args(t)...),
				}, testenv.Serving)
				c, err := client.New(s.Addr())
				testenv.Must(t, err)
				t.Cleanup(func() { testenv.OK(t, c.Close()) })
				comesAndIsDone(t, s, c, command)
			})
		}
	}
}

func comesAndIsDone(t *testing.T, s *testenv.Service, c *client.Client, command func(t *testing.T, program string) *exec.Cmd) {
	f := startFrontend(t, command(t, "frontend"), s.Addr())

	const body = `{"type":"parcel.ready",  "parcel":7}`
	f.delivered("m1", body, http.StatusOK)
	f.delivered("m1", body, http.StatusOK) // The provider does not trust the answer.
	job, err := c.GetJob(t.Context(), "acme:m1", joboncev1.JobView_JOB_VIEW_FULL)
	testenv.Must(t, err)
	if job.GetEvent() != "parcel.ready" || job.GetPayload() != body || job.GetDeliveries() != 2 || job.GetContentType() != "application/json" ||
		job.GetWork().GetState() != joboncev1.WorkState_WORK_STATE_QUEUED {
		t.Errorf("recorded: %v", job)
	}
	f.delivered("m2", "no JSON", http.StatusOK)

	for what, resp := range map[string]*http.Response{
		"another secret": f.deliver("m3", []byte(body), []byte("another secret")),
		"not UTF-8":      f.deliver("m3", []byte("\xff"), f.secret),
	} {
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %s", what, resp.Status)
		}
	}
	f.delivered("m3", strings.Repeat("x", 1<<20+1), http.StatusRequestEntityTooLarge)
	f.delivered(strings.Repeat("m", 300), body, http.StatusBadRequest) // The service takes no such id.
	if _, err := c.GetJob(t.Context(), "acme:m3", joboncev1.JobView_JOB_VIEW_BASIC); err == nil {
		t.Error("a delivery that was refused is recorded")
	}

	start(t, command(t, "worker"), "JOBONCE_TARGET="+s.Addr())
	for id, want := range map[string]joboncev1.WorkState{
		"acme:m1": joboncev1.WorkState_WORK_STATE_COMPLETED, "acme:m2": joboncev1.WorkState_WORK_STATE_DEAD,
	} {
		await(t, want.String()+" of "+id, func() (struct{}, bool) {
			job, err := c.GetJob(t.Context(), id, joboncev1.JobView_JOB_VIEW_BASIC)
			return struct{}{}, err == nil && job.GetWork().GetState() == want
		})
	}

	testenv.Must(t, s.Kill())
	if resp := f.delivered("m4", body, http.StatusServiceUnavailable); resp.Header.Get("Retry-After") == "" {
		t.Error("a 503 without Retry-After")
	}
	testenv.Must(t, s.Start())
	f.delivered("m4", body, http.StatusOK)
}
