package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/embedded"
	"github.com/jobonce/jobonce/server"
)

// start serves JobOnce in memory and returns a client of it.
func start(t *testing.T) *client.Client {
	t.Helper()
	lis := bufconn.Listen(64 << 10)
	embedded.Start(t, lis, server.Config{Logger: testenv.Logger(t)}, sqlitestore.Options{Logger: testenv.Logger(t)})
	c, err := client.New("passthrough:///memory", client.WithInsecure(), client.WithDialOptions(
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) })))
	testenv.Must(t, err)
	t.Cleanup(func() { testenv.OK(t, c.Close()) })
	return c
}

func sign(text string) string {
	mac := hmac.New(sha256.New, []byte("secret"))
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))
}

// TestFrontend: each sender's delivery is recorded once, as queued work, with its body and its content type.
func TestFrontend(t *testing.T) {
	jobs := start(t)
	h, err := frontend(jobs, func(string) string { return "secret" })
	testenv.Must(t, err)
	at := strconv.FormatInt(time.Now().Unix(), 10)
	for sender, test := range map[string]struct {
		body, id, event string
		header          map[string]string
	}{
		"stripe": {`{"id":"evt_1","type":"charge.succeeded"}`, "stripe:evt_1", "charge.succeeded", map[string]string{
			"Stripe-Signature": "t=" + at + ",v1=" + sign(at+`.{"id":"evt_1","type":"charge.succeeded"}`)}},
		"github": {`{"action":"opened"}`, "github:g-1", "issues", map[string]string{
			"X-Hub-Signature-256": "sha256=" + sign(`{"action":"opened"}`), "X-GitHub-Delivery": "g-1", "X-GitHub-Event": "issues"}},
		"sume": {`{"job_id":"job_1","event":"job.completed","status":"OK"}`, "sume:job_1", "job.completed", map[string]string{
			"X-Sume-Timestamp": at, "X-Sume-Signature": "v1=" + sign(at+`.{"job_id":"job_1","event":"job.completed","status":"OK"}`)}},
	} {
		for range 2 {
			r := httptest.NewRequest(http.MethodPost, "/"+sender, strings.NewReader(test.body))
			r.Header.Set("Content-Type", "application/json")
			for name, value := range test.header {
				r.Header.Set(name, value)
			}
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != http.StatusOK {
				t.Fatalf("%s is answered %d: %s", sender, w.Code, w.Body)
			}
		}
		job, err := jobs.GetJob(t.Context(), test.id, joboncev1.JobView_JOB_VIEW_FULL)
		testenv.Must(t, err)
		if job.GetDeliveries() != 2 || job.GetPayload() != test.body || job.GetEvent() != test.event || job.GetSource() != sender ||
			job.GetContentType() != "application/json" || job.GetWork().GetState() != joboncev1.WorkState_WORK_STATE_QUEUED {
			t.Errorf("%s is recorded as %v", sender, job)
		}
		r := httptest.NewRequest(http.MethodPost, "/"+sender, strings.NewReader(test.body))
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != http.StatusUnauthorized {
			t.Errorf("unsigned: %s is answered %d", sender, w.Code)
		}
	}
}
