package httpdoor

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/testenv"
)

// wrong are values that no field of the kind has.
var wrong = map[protoreflect.Kind]string{
	protoreflect.StringKind: `7`, protoreflect.BytesKind: `"%"`, protoreflect.BoolKind: `"yes"`, protoreflect.EnumKind: `"leased"`,
	protoreflect.Int32Kind: `"ten"`, protoreflect.Int64Kind: `1.5`, protoreflect.MessageKind: `"1m"`,
}

// TestFaults: whatever field of whatever request is wrong, the error names it, and says what it must be.
func TestFaults(t *testing.T) {
	services := []protoreflect.ServiceDescriptor{
		joboncev1.File_jobonce_v1_idempotency_service_proto.Services().Get(0), joboncev1.File_jobonce_v1_work_service_proto.Services().Get(0),
		joboncev1.File_jobonce_v1_expectation_service_proto.Services().Get(0),
	}
	tried := 0
	for _, service := range services {
		for i := range service.Methods().Len() {
			method := service.Methods().Get(i)
			tried += tryFaults(t, method.Input(), method.Input(), "", "", "")
		}
	}
	if tried < 60 {
		t.Errorf("%d fields were tried", tried)
	}
}

// tryFaults tries every field of a message that stands within a request, between the texts, at a path.
func tryFaults(t *testing.T, request, message protoreflect.MessageDescriptor, before, after, path string) (tried int) {
	for i := range message.Fields().Len() {
		f := message.Fields().Get(i)
		name, value, at := string(f.Name()), wrong[f.Kind()], path+string(f.Name())
		own := f.Kind() == protoreflect.MessageKind && strings.HasPrefix(string(f.Message().FullName()), "jobonce.")
		if f.IsList() {
			value, at = "["+value+"]", at+"[0]"
		}
		open, end := before+`{"`+name+`":`, "}"+after
		into, err := protoregistry.GlobalTypes.FindMessageByName(request.FullName())
		testenv.Must(t, err)
		if bad := findFault([]byte(open+value+end), into.New()); bad == nil || bad.field != at || !strings.HasPrefix(bad.problem, "must be ") {
			t.Errorf("%s: %s: %+v, want one of %s", request.Name(), open+value+end, bad, at)
		}
		tried++
		switch {
		case own && f.IsList():
			tried += tryFaults(t, request, f.Message(), open+"[", "]"+end, at+".")
		case own:
			tried += tryFaults(t, request, f.Message(), open, end, at+".")
		}
	}
	return tried
}

// TestFaultsOverHTTP: the field stands in the details, and what was sent in no log.
func TestFaultsOverHTTP(t *testing.T) {
	var log testenv.Tail
	w := start(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	const record, batch = "/v1/jobs:record", "/v1/jobs:batchRecord"
	for _, tc := range []struct{ path, body, field, message string }{
		{record, `{"job_id":"j","lease_duration":"1m"}`, "lease_duration", `lease_duration must be seconds with an s, such as "60s" or "0.5s"`},
		{record, `{"jobId":"j","workMode":"s3cret"}`, "work_mode", "work_mode must be one of WORK_MODE_UNTRACKED, WORK_MODE_LEASED, WORK_MODE_QUEUED"},
		{record, `{"job_id":"j","payload":{"a":"s3cret"}}`, "payload", "payload must be a string of valid UTF-8"},
		{record, `{"job_id":"j","s3cret":1}`, "s3cret", `the request has a field that is not known here: s3cret`},
		{batch, `{"deliveries":[{"job_id":"j"},{"s3cret":1}]}`, "deliveries[1].s3cret", `the request has a field that is not known here: deliveries[1].s3cret`},
		{record, `{"job_id":"j","payload":"s3cret","payload_bytes":"Yg=="}`, "", "the request is not what the API takes: "},
		{record, `{"job_id":"j","wait":"s3cret","payload":"` + strings.Repeat("x", smallBody) + `"}`, "", "the request is not what the API takes: "},
	} {
		r := w.does(http.MethodPost, tc.path, []byte(tc.body))
		field := ""
		for _, d := range r.Details {
			for _, violation := range d.FieldViolations {
				field = violation.Field
			}
		}
		if r.StatusCode != http.StatusBadRequest || field != tc.field || !strings.HasPrefix(r.Message, tc.message) || tc.field != "" && r.Message != tc.message {
			t.Errorf("%.60s: %s", tc.body, r.text)
		}
	}
	if strings.Contains(log.String(), "s3cret") || !strings.Contains(log.String(), "lease_duration") {
		t.Errorf("logged %s", &log)
	}
}
