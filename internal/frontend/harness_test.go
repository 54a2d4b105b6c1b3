package frontend_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/internal/frontend"
	"github.com/jobonce/jobonce/internal/testenv"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// jobs is a service that keeps what it is told. before, where it is set, is called first.
type jobs struct {
	mu     sync.Mutex
	all    []*joboncev1.RecordDeliveryRequest
	stored map[string]*joboncev1.RecordDeliveryRequest // the first of each
	before func(context.Context) error
}

func (j *jobs) RecordDelivery(ctx context.Context, req *joboncev1.RecordDeliveryRequest) (*joboncev1.RecordDeliveryResponse, error) {
	if j.before != nil {
		if err := j.before(ctx); err != nil {
			return nil, err
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.all = append(j.all, req)
	if j.stored == nil {
		j.stored = make(map[string]*joboncev1.RecordDeliveryRequest)
	}
	_, known := j.stored[req.GetJobId()]
	if !known {
		j.stored[req.GetJobId()] = req
	}
	return &joboncev1.RecordDeliveryResponse{FirstDelivery: !known}, nil
}

func (j *jobs) BatchRecordDeliveries(ctx context.Context, reqs []*joboncev1.RecordDeliveryRequest) ([]client.BatchResult, error) {
	results := make([]client.BatchResult, len(reqs))
	for i, req := range reqs {
		results[i].Response, results[i].Err = j.RecordDelivery(ctx, req)
	}
	return results, nil
}

// parse reads sources. The secret of the shop is in the environment.
func parse(t *testing.T, text string) ([]frontend.Source, error) {
	t.Helper()
	t.Setenv("SHOP_SECRET", "secret")
	var doc yaml.Node
	testenv.Must(t, yaml.Unmarshal([]byte(text), &doc))
	return frontend.Parse("FILE", doc.Content[0])
}

// shop is a source that is told who sends by a token, with more keys.
func shop(more string) string {
	text := "- name: shop\n  signature: {kind: token, header: X-Token}\n  secrets_env: [SHOP_SECRET]\n"
	for line := range strings.Lines(more) {
		text += "  " + line
	}
	return text + "\n"
}

// open makes a frontend.
func open(t *testing.T, j *jobs, text string, change ...func(*frontend.Config)) (*frontend.Frontend, error) {
	t.Helper()
	sources, err := parse(t, text)
	if err != nil {
		return nil, err
	}
	cfg := frontend.Config{Sources: sources, Logger: testenv.Logger(t)}
	for _, f := range change {
		f(&cfg)
	}
	return frontend.New(j, cfg)
}

func must(t *testing.T, f *frontend.Frontend, err error) *frontend.Frontend {
	t.Helper()
	testenv.Must(t, err)
	return f
}

// post is a delivery to the shop.
func post(body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/shop", strings.NewReader(body))
	r.Header.Set("X-Token", "secret")
	r.Header.Set("Content-Type", "application/json")
	return r
}

// answer is what a frontend answers to a request.
func answer(f http.Handler, r *http.Request) (status int, body string) {
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	return w.Code, strings.TrimSpace(w.Body.String())
}

// file writes a file of the test's own.
func file(t *testing.T, name, content string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	testenv.Must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// logTo has a frontend log to a buffer.
func logTo(b *testenv.Tail) func(*frontend.Config) {
	return func(cfg *frontend.Config) {
		cfg.Logger = slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
}

var errAway = errors.New("away")

// gathered are the metrics in Prometheus' text format.
func gathered(t *testing.T, m *frontend.Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(m.Gatherer(), promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return "\n" + w.Body.String()
}

func mac(key, text string) []byte {
	h := hmac.New(sha256.New, []byte(key))
	_, _ = io.WriteString(h, text)
	return h.Sum(nil)
}
