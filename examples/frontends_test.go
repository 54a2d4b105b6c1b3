// Package examples_test runs the example frontends and workers of other languages against a service.
package examples_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
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
var languages = map[string]func(t testing.TB, program string) *exec.Cmd{"node": testenv.NodeExample, "python": testenv.PythonExample}

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
	*testenv.Example
	t           *testing.T
	url         string
	secret      []byte
	contentType string
}

func startFrontend(t *testing.T, cmd *exec.Cmd, target string) *frontend {
	t.Helper()
	secret := []byte("a secret of the example's")
	e := testenv.StartExample(t, cmd, "JOBONCE_TARGET="+target, "PORT=0", "WEBHOOK_SECRET=whsec_b2xk,whsec_"+base64.StdEncoding.EncodeToString(secret))
	return &frontend{e, t, "http://" + e.Address(t) + "/webhooks/acme", secret, "application/json"}
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
		"content-type": f.contentType, "webhook-id": id, "webhook-timestamp": now,
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

// TestFrontendStops: a connection over which nothing was asked, as load balancers keep them, does not keep a frontend from its end.
func TestFrontendStops(t *testing.T) {
	for language, command := range languages {
		t.Run(language, func(t *testing.T) {
			f := startFrontend(t, command(t, "frontend"), "127.0.0.1:1")
			at, err := url.Parse(f.url)
			testenv.Must(t, err)
			conn, err := net.Dial("tcp", at.Host)
			testenv.Must(t, err)
			defer conn.Close()
			f.deliver("m", nil, []byte("another secret")) // It comes later, so that the connection was accepted once this is answered.
			late := time.AfterFunc(time.Minute, func() {
				t.Error("it does not end while the connection is open")
				_ = conn.Close()
			})
			f.Stop()
			late.Stop()
		})
	}
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

func comesAndIsDone(t *testing.T, s *testenv.Service, c *client.Client, command func(t testing.TB, program string) *exec.Cmd) {
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

	// What the service does not take of a delivery's trimmings costs no delivery.
	f.delivered("m5", `{"type":"\ud800"}`, http.StatusOK)
	f.delivered("m6", strings.Repeat("[", 100_000), http.StatusOK)
	f.contentType = "application/json; " + strings.Repeat("x", 128)
	f.delivered("m7", body, http.StatusOK)
	f.contentType = "application/json"

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

	testenv.StartExample(t, command(t, "worker"), "JOBONCE_TARGET="+s.Addr())
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
