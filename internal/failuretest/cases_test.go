package failuretest

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestCasesOnBothStores sends every body and every request of the cases through the service, and reads the bodies back:
// byte for byte the same from either store.
func TestCasesOnBothStores(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *world) {
		c := w.client()
		eachCase(t, "payloads.jsonl", 32, func(t *testing.T, line []byte) {
			var in struct {
				Want, Payload string
				Base64        string   `json:"payload_base64"`
				Parts         [][2]any `json:"payload_parts"`
				JobID         string   `json:"request_job_id"`
			}
			testenv.Must(t, json.Unmarshal(line, &in))
			body := in.Payload
			for _, part := range in.Parts {
				body += strings.Repeat(part[0].(string), int(part[1].(float64)))
			}
			req := &joboncev1.RecordDeliveryRequest{JobId: in.JobID, Body: &joboncev1.RecordDeliveryRequest_Payload{Payload: body}}
			if in.Want == "invalid" { // not UTF-8: it goes as bytes
				raw, err := base64.StdEncoding.DecodeString(in.Base64)
				testenv.Must(t, err)
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
		eachCase(t, "requests.jsonl", 25, func(t *testing.T, line []byte) {
			var in struct {
				Request     json.RawMessage
				Want, Field string
			}
			testenv.Must(t, json.Unmarshal(line, &in))
			req := &joboncev1.RecordDeliveryRequest{}
			testenv.Must(t, protojson.Unmarshal(in.Request, req))
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

// sent is a delivery of a sequence. Its job is called k, and so in its body.
type sent struct {
	JobID   string `json:"job_id"`
	Payload *string
	Base64  []byte `json:"payload_base64"`
	Opaque  bool   `json:"opaque_payload"`
	Event   string
	Source  string
	Mode    string `json:"work_mode"`
	Lease   string
}

// request is the delivery, of a job of its own.
func (d sent) request(t *testing.T, jobID string) *joboncev1.RecordDeliveryRequest {
	t.Helper()
	run, err := time.ParseDuration(d.Lease)
	if err != nil || d.JobID != "k" || d.Mode != "LEASED" {
		t.Fatalf("%v in %+v", err, d)
	}
	req := &joboncev1.RecordDeliveryRequest{
		JobId: jobID, Event: d.Event, Source: d.Source, OpaquePayload: d.Opaque,
		WorkMode: leasedMode, LeaseDuration: durationpb.New(run),
	}
	switch {
	case d.Base64 != nil:
		body := bytes.ReplaceAll(d.Base64, []byte(`"k"`), []byte(strconv.Quote(jobID)))
		req.Body = &joboncev1.RecordDeliveryRequest_PayloadBytes{PayloadBytes: body}
	case d.Payload != nil:
		body := strings.ReplaceAll(*d.Payload, `"k"`, strconv.Quote(jobID))
		req.Body = &joboncev1.RecordDeliveryRequest_Payload{Payload: body}
	}
	return req
}

// TestSequencesOnBothStores: the second delivery comes when the first one's lease has lapsed. What it is told, and that a
// repetition of the call is told the same; what was recorded stays.
func TestSequencesOnBothStores(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *world) {
		c, n := w.client(), 0
		eachCase(t, "sequences.jsonl", 29, func(t *testing.T, line []byte) {
			var in struct {
				First, Second sent
				Want          struct {
					Disposition, Conflict string
					Start                 *bool `json:"start_work"`
				}
			}
			if err := json.Unmarshal(line, &in); err != nil || in.Want.Start == nil {
				t.Fatalf("%v, want %+v", err, in.Want)
			}
			n++
			jobID := fmt.Sprint("sequence-", n)
			want(t, record(t, c, in.First.request(t, jobID)), "FIRST start first lease")
			w.clock.Advance(time.Second)
			second := in.Second.request(t, jobID)
			second.RequestId = "second-" + jobID
			for range 2 {
				resp := record(t, c, second)
				disposition := strings.TrimPrefix(resp.GetDisposition().String(), "DISPOSITION_")
				conflict := ""
				if k := resp.GetConflict(); k != nil {
					conflict = strings.TrimPrefix(k.GetKind().String(), "CONFLICT_KIND_")
				}
				start := resp.GetStartWork()
				if start != *in.Want.Start || (resp.GetLease() != nil) != start {
					t.Errorf("start_work %t, lease %v", start, resp.GetLease())
				}
				if in.Want.Disposition != "" && (disposition != in.Want.Disposition || conflict != in.Want.Conflict) {
					t.Errorf("%s, conflict %q; want %+v", disposition, conflict, in.Want)
				}
			}
			first := in.First.request(t, jobID)
			if j := stored(t, c, jobID); j.GetPayload() != first.GetPayload() || !bytes.Equal(j.GetPayloadBytes(), first.GetPayloadBytes()) {
				t.Errorf("what was recorded changed: %v", j)
			}
		})
	})
}

// eachCase runs f for each line of a file that has at least atLeast.
func eachCase(t *testing.T, file string, atLeast int, f func(t *testing.T, line []byte)) {
	t.Helper()
	cases, err := os.Open("../../server/testdata/" + file)
	testenv.Must(t, err)
	defer cases.Close()
	lines := bufio.NewScanner(cases)
	lines.Buffer(nil, 1<<20)
	n := 0
	for ; lines.Scan(); n++ {
		var name struct{ Name string }
		testenv.Must(t, json.Unmarshal(lines.Bytes(), &name))
		t.Run(name.Name, func(t *testing.T) { f(t, lines.Bytes()) })
	}
	if lines.Err() != nil || n < atLeast {
		t.Fatalf("%d cases in %s, %v", n, file, lines.Err())
	}
}
