package failuretest

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// TestCasesOnBothStores sends every body and every request of the cases through the service, and reads the bodies back:
// byte for byte the same from either store.
func TestCasesOnBothStores(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *world) {
		c := w.client()
		eachCase(t, "payloads.jsonl", func(t *testing.T, line []byte) {
			var in struct {
				Want, Payload string
				Base64        string   `json:"payload_base64"`
				Parts         [][2]any `json:"payload_parts"`
				JobID         string   `json:"request_job_id"`
			}
			if err := json.Unmarshal(line, &in); err != nil {
				t.Fatal(err)
			}
			body := in.Payload
			for _, part := range in.Parts {
				body += strings.Repeat(part[0].(string), int(part[1].(float64)))
			}
			req := &joboncev1.RecordDeliveryRequest{JobId: in.JobID, Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: body}}
			if in.Want == "invalid" { // not UTF-8: it goes as bytes
				raw, err := base64.StdEncoding.DecodeString(in.Base64)
				if err != nil {
					t.Fatal(err)
				}
				body = string(raw)
				req.Body = &joboncev1.RecordDeliveryRequest_PayloadBytes{PayloadBytes: raw}
			}
			resp, err := c.RecordDelivery(t.Context(), req)
			if err != nil || !resp.GetStartWork() {
				t.Fatalf("%v, %v", resp, err)
			}
			job, err := c.GetJob(t.Context(), resp.GetJob().GetJobId(), joboncev1.JobView_JOB_VIEW_FULL)
			if err != nil || job.GetPayload()+string(job.GetPayloadBytes()) != body {
				t.Errorf("the body came back changed: %.200q, %v", job.GetPayload(), err)
			}
		})
		eachCase(t, "requests.jsonl", func(t *testing.T, line []byte) {
			var in struct {
				Request     json.RawMessage
				Want, Field string
			}
			if err := json.Unmarshal(line, &in); err != nil {
				t.Fatal(err)
			}
			req := &joboncev1.RecordDeliveryRequest{}
			if err := protojson.Unmarshal(in.Request, req); err != nil {
				t.Fatal(err)
			}
			resp, err := c.RecordDelivery(t.Context(), req)
			if in.Want == "OK" {
				if err != nil || !resp.GetFirstDelivery() {
					t.Errorf("%v, %v", resp, err)
				}
				return
			}
			var e *client.Error
			if !errors.As(err, &e) || !errors.Is(err, client.ErrInvalidField) || e.Field != in.Field {
				t.Errorf("got %v, want the field %s", err, in.Field)
			}
			if id := req.GetJobId(); id != "" && !strings.ContainsAny(id, "\x00\n") && len(id) <= 255 {
				if _, err := c.GetJob(t.Context(), id, joboncev1.JobView_JOB_VIEW_BASIC); !errors.Is(err, client.ErrJobNotFound) {
					t.Errorf("something is stored: %v", err)
				}
			}
		})
	})
}

func eachCase(t *testing.T, file string, f func(t *testing.T, line []byte)) {
	t.Helper()
	cases, err := os.Open("../../server/testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	defer cases.Close()
	lines := bufio.NewScanner(cases)
	lines.Buffer(nil, 1<<20)
	n := 0
	for ; lines.Scan(); n++ {
		var name struct{ Name string }
		if err := json.Unmarshal(lines.Bytes(), &name); err != nil {
			t.Fatal(err)
		}
		t.Run(name.Name, func(t *testing.T) { f(t, lines.Bytes()) })
	}
	if lines.Err() != nil || n < 20 {
		t.Fatalf("%d cases in %s, %v", n, file, lines.Err())
	}
}
