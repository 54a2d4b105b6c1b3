package server

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// readCases reads a file of one JSON object a line.
func readCases[T any](t *testing.T, file string) []T {
	t.Helper()
	f, err := os.Open(file)
	testenv.Must(t, err)
	defer f.Close()
	var cases []T
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c T
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
		cases = append(cases, c)
	}
	if lines.Err() != nil || len(cases) == 0 {
		t.Fatalf("%d cases in %s, %v", len(cases), file, lines.Err())
	}
	return cases
}

type payloadCase struct {
	Name          string
	Want          string
	Payload       string
	PayloadBase64 string   `json:"payload_base64"`
	PayloadParts  [][2]any `json:"payload_parts"`
	RequestJobID  string   `json:"request_job_id"`
}

func (c payloadCase) body(t *testing.T) string {
	if c.PayloadBase64 != "" {
		b, err := base64.StdEncoding.DecodeString(c.PayloadBase64)
		testenv.Must(t, err)
		return string(b)
	}
	body := c.Payload
	for _, part := range c.PayloadParts {
		body += strings.Repeat(part[0].(string), int(part[1].(float64)))
	}
	return body
}

func TestPayloadCases(t *testing.T) {
	s := start(t, Config{}, new(memoryJobs))
	for _, c := range readCases[payloadCase](t, "testdata/payloads.jsonl") {
		t.Run(c.Name, func(t *testing.T) {
			body := c.body(t)
			if c.Want == "invalid" {
				wire := field(1, []byte(c.RequestJobID))
				wire = append(wire, field(4, []byte(body))...)
				err := s.invokeRaw(t, joboncev1.IdempotencyService_RecordDelivery_FullMethodName, wire)
				if got := details(t, err); status.Code(err) != codes.InvalidArgument || got != (told{reason: "INVALID_FIELD", field: "payload"}) {
					t.Errorf("got %v %+v", err, got)
				}
				_, err = s.GetJob(t.Context(), &joboncev1.GetJobRequest{JobId: c.RequestJobID})
				if status.Code(err) != codes.NotFound {
					t.Errorf("got %v, want nothing to be stored", err)
				}
				// As bytes it is taken.
				if _, err := s.RecordDelivery(t.Context(), raw(c.RequestJobID, []byte(body))); err != nil {
					t.Fatal(err)
				}
				got, err := s.GetJob(t.Context(), &joboncev1.GetJobRequest{JobId: c.RequestJobID, View: joboncev1.JobView_JOB_VIEW_FULL})
				if err != nil || string(got.GetJob().GetPayloadBytes()) != body {
					t.Errorf("got %v %v", got, err)
				}
				return
			}
			resp, err := s.RecordDelivery(t.Context(), text(c.RequestJobID, body))
			testenv.Must(t, err)
			if resp.GetDisposition() != joboncev1.Disposition_DISPOSITION_FIRST || !resp.GetStartWork() {
				t.Errorf("got %v", resp)
			}
			got, err := s.GetJob(t.Context(), &joboncev1.GetJobRequest{
				JobId: resp.GetJob().GetJobId(), View: joboncev1.JobView_JOB_VIEW_FULL,
			})
			testenv.Must(t, err)
			if got.GetJob().GetPayload() != body {
				t.Error("the body came back changed")
			}
		})
	}
}

type requestCase struct {
	Name    string
	Request json.RawMessage
	Want    string
	Field   string
}

func TestRequestCases(t *testing.T) {
	for _, c := range readCases[requestCase](t, "testdata/requests.jsonl") {
		t.Run(c.Name, func(t *testing.T) {
			jobs := new(memoryJobs)
			s := start(t, Config{}, jobs)
			req := new(joboncev1.RecordDeliveryRequest)
			testenv.Must(t, protojson.Unmarshal(c.Request, req))
			resp, err := s.RecordDelivery(t.Context(), req)
			records, _ := jobs.size()
			if c.Want == "OK" {
				if err != nil || resp.GetDisposition() != joboncev1.Disposition_DISPOSITION_FIRST || records != 1 {
					t.Errorf("got %v %v, %d records", resp, err, records)
				}
				if id := req.GetJobId(); id != "" && resp.GetJob().GetJobId() != id {
					t.Errorf("stored as %q, want %q", resp.GetJob().GetJobId(), id)
				}
				return
			}
			if status.Code(err) != codes.InvalidArgument || details(t, err) != (told{reason: "INVALID_FIELD", field: c.Field}) {
				t.Errorf("got %v %+v, want field %s", err, details(t, err), c.Field)
			}
			if records != 0 {
				t.Error("it was stored")
			}

			// In a batch the item fails in the same way.
			batch, err := s.BatchRecordDeliveries(t.Context(), &joboncev1.BatchRecordDeliveriesRequest{
				Deliveries: []*joboncev1.RecordDeliveryRequest{req},
			})
			testenv.Must(t, err)
			if e := batch.GetResults()[0].GetError(); codes.Code(e.GetCode()) != codes.InvalidArgument ||
				e.GetReason() != joboncev1.ErrorReason_ERROR_REASON_INVALID_FIELD || e.GetField() != c.Field {
				t.Errorf("in a batch: got %v", e)
			}
		})
	}
}

// A work mode that only its low byte makes a known one.
func TestWideWorkMode(t *testing.T) {
	s := start(t, Config{}, new(memoryJobs))
	wire := append(field(1, []byte("wide")), protowire.AppendVarint(protowire.AppendTag(nil, 8, protowire.VarintType), 257)...)
	err := s.invokeRaw(t, joboncev1.IdempotencyService_RecordDelivery_FullMethodName, wire)
	if status.Code(err) != codes.InvalidArgument || details(t, err).field != "work_mode" {
		t.Errorf("got %v", err)
	}
}
