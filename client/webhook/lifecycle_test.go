package webhook_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/client/webhook"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// TestOnlyWhatIsOver: of senders that tell a job's whole life, what it begins with is left out, and does not take the record
// from how it ends.
func TestOnlyWhatIsOver(t *testing.T) {
	for preset, bodies := range map[string]struct{ over, notOver, unreadable []string }{
		"replicate": {
			over:       []string{`{"id":"p","status":"succeeded"}`, `{"id":"p","status":"failed"}`, `{"id":"p","status":"canceled"}`},
			notOver:    []string{`{"id":"p","status":"starting"}`, `{"id":"p","status":"processing"}`},
			unreadable: []string{`{"id":"p"}`, `{"status":"succeeded"}`, `x`},
		},
		"openai": {
			over:       []string{`{"type":"response.completed"}`, `{"type":"batch.expired"}`, `{"type":"fine_tuning.job.failed"}`, `{"type":"response.incomplete"}`},
			notOver:    []string{`{"type":"response.started"}`, `{"type":"realtime.call.incoming"}`},
			unreadable: []string{`{}`, `x`},
		},
		"fal":        {over: []string{`{"request_id":"r","status":"OK"}`, `{"request_id":"r","status":"ERROR"}`}, notOver: []string{`{"request_id":"r","status":"IN_PROGRESS"}`}, unreadable: []string{`{}`}},
		"assemblyai": {over: []string{`{"transcript_id":"t","status":"completed"}`, `{"transcript_id":"t","status":"error"}`}, notOver: []string{`{"transcript_id":"t","status":"processing"}`}, unreadable: []string{`{}`}},
		"elevenlabs": {over: []string{`{"type":"post_call_audio","data":{"conversation_id":"c"}}`}, notOver: []string{`{"type":"call_started"}`}, unreadable: []string{`{}`, `{"type":"post_call_audio"}`}},
		"github":     {over: []string{`{}`}},
	} {
		s := webhook.Source{Name: "test", Provider: preset, Secrets: webhook.Secrets(secretOf(t, preset)), SignatureHeader: "X"}
		h := handler(t, &jobs{}, s)
		for reason, list := range map[string][]string{"over": bodies.over, "not over": bodies.notOver, "unreadable": bodies.unreadable} {
			for _, body := range list {
				r := post("")
				r.Header.Set("webhook-id", "w")
				r.Header.Set("X-GitHub-Delivery", "d")
				e := h.Interpret(r, []byte(body))
				got := "over"
				if e.Reason == webhook.Unreadable {
					got = "unreadable"
				} else if e.Items[0].Filtered {
					got = "not over"
				}
				if got != reason {
					t.Errorf("%s: %s is %s, want %s: %v", preset, body, got, reason, e.Err)
				}
			}
		}
		s.AllEvents = true
		for _, body := range bodies.notOver {
			r := post("")
			r.Header.Set("webhook-id", "w")
			e := handler(t, &jobs{}, s).Interpret(r, []byte(body))
			if len(e.Items) == 0 || e.Items[0].Filtered {
				t.Errorf("%s with AllEvents: %s is left out", preset, body)
			}
		}
	}
}

// TestManyEvents: 10,000 of one body go out in batches that the service takes, and the answer is good only when all are durable.
func TestManyEvents(t *testing.T) {
	var list []string
	for n := range webhook.MaxItems {
		list = append(list, fmt.Sprintf(`{"id":"%d","x":12345678901234567890,"f":1.50}`, n))
	}
	body := "[" + strings.Join(list, ",") + "]"
	for name, test := range map[string]struct {
		fails  string // the id that cannot be recorded
		err    error
		status int
		calls  int
	}{
		"all":          {status: 200, calls: 40},
		"one is lost":  {fails: "test:600", err: client.ErrOutcomeUnknown, status: 503, calls: 3},
		"one is wrong": {fails: "test:600", err: client.ErrInvalidField, status: 400, calls: 40},
	} {
		t.Run(name, func(t *testing.T) {
			j := &jobs{answer: func(req *joboncev1.RecordDeliveryRequest) (*joboncev1.RecordDeliveryResponse, error) {
				if req.GetJobId() == test.fails {
					return nil, test.err
				}
				return nil, nil
			}}
			s := token()
			s.Name, s.Items = "test", webhook.Array("[]")
			resp, report := deliver(t, j, s, post(body))
			if resp.StatusCode != test.status || len(j.calls) != test.calls || slices.Max(j.calls) > 256 {
				t.Errorf("answered %d after calls of %v", resp.StatusCode, j.calls)
			}
			if test.err == nil && (report.Recorded != webhook.MaxItems || j.ids()["test:9999"] != list[9999]) {
				t.Errorf("%d recorded, the last as %s", report.Recorded, j.ids()["test:9999"])
			}
		})
	}
}

// TestSignedIDs: where the id is signed, a header beside it makes no other job of a delivery that is replayed.
func TestSignedIDs(t *testing.T) {
	var standard vector
	for _, v := range vectors(t) {
		if v.Preset == "standard-webhooks" && strings.HasPrefix(v.Secret, "whsec_") {
			standard = v
		}
	}
	for preset, beside := range map[string][]string{
		"standard-webhooks": {"svix-id"}, "openai": {"svix-id"}, "gitlab": {"Idempotency-Key", "svix-id"},
		"svix": {"svix-id", "svix-timestamp"}, "clerk": {"svix-id"}, "resend": {"svix-id"},
	} {
		v := standard
		v.Preset = preset
		s, r := v.source(), v.request()
		s.AllEvents = true
		for _, name := range beside {
			r.Header.Set(name, "another")
		}
		if e := explain(t, v, s, r, v.time()); !e.Verified || e.Items[0].JobID != "test:"+v.Headers["webhook-id"] {
			t.Errorf("%s: %+v", preset, e)
		}
	}
}
