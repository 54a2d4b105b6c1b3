package webhook_test

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/client/webhook"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// jobs is a service in memory. answer, where it is set, is asked first for each delivery.
type jobs struct {
	mu     sync.Mutex
	stored map[string]*joboncev1.RecordDeliveryRequest // by job id, the first
	calls  []int                                       // how many deliveries each call had
	all    []*joboncev1.RecordDeliveryRequest
	answer func(*joboncev1.RecordDeliveryRequest) (*joboncev1.RecordDeliveryResponse, error)
}

func (j *jobs) record(req *joboncev1.RecordDeliveryRequest) (*joboncev1.RecordDeliveryResponse, error) {
	j.all = append(j.all, req)
	if j.answer != nil {
		if resp, err := j.answer(req); resp != nil || err != nil {
			return resp, err
		}
	}
	if j.stored == nil {
		j.stored = make(map[string]*joboncev1.RecordDeliveryRequest)
	}
	_, known := j.stored[req.GetJobId()]
	if !known {
		j.stored[req.GetJobId()] = req
	}
	return &joboncev1.RecordDeliveryResponse{Disposition: joboncev1.Disposition_DISPOSITION_FIRST, FirstDelivery: !known}, nil
}

func (j *jobs) RecordDelivery(_ context.Context, req *joboncev1.RecordDeliveryRequest) (*joboncev1.RecordDeliveryResponse, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.calls = append(j.calls, 1)
	return j.record(req)
}

func (j *jobs) BatchRecordDeliveries(_ context.Context, reqs []*joboncev1.RecordDeliveryRequest) ([]client.BatchResult, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.calls = append(j.calls, len(reqs))
	results := make([]client.BatchResult, len(reqs))
	for i, req := range reqs {
		results[i].Response, results[i].Err = j.record(req)
	}
	return results, nil
}

// ids are what is stored, by id.
func (j *jobs) ids() map[string]string {
	ids := make(map[string]string)
	for id, req := range j.stored {
		ids[id] = req.GetPayload() + string(req.GetPayloadBytes())
	}
	return ids
}

// vector is a delivery whose signature is known to be good.
type vector struct {
	Preset, Secret, URL, Method, Body, Source string
	Now                                       int64
	Headers                                   map[string]string
}

func vectors(t testing.TB) []vector {
	t.Helper()
	data, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []vector
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// request is the delivery as HTTP has it.
func (v vector) request() *http.Request {
	r := httptest.NewRequest(cmp.Or(v.Method, http.MethodPost), cmp.Or(v.URL, "https://example.com/hook"), strings.NewReader(v.Body))
	for name, value := range v.Headers {
		r.Header.Set(name, value)
	}
	return r
}

func (v vector) time() time.Time { return time.Unix(cmp.Or(v.Now, 1_600_000_000), 0) }

// source is a source for the delivery. The id of a preset that has none is fixed.
func (v vector) source() webhook.Source {
	s := webhook.Source{Name: "test", Provider: v.Preset, Secrets: webhook.Secrets(v.Secret)}
	for _, p := range webhook.Presets() {
		if p.Name == v.Preset && !p.HasID {
			s.ID = fixed
		}
	}
	return s
}

func fixed(*webhook.Item) (string, error) { return "fixed", nil }

func handler(t testing.TB, j webhook.Jobs, s webhook.Source, opts ...webhook.Option) *webhook.Handler {
	t.Helper()
	h, err := webhook.NewHandler(j, s, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func recorder() *httptest.ResponseRecorder { return httptest.NewRecorder() }
