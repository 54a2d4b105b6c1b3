package job

import (
	"errors"
	"testing"
	"time"
	"unicode/utf8"
)

// FuzzDelivery gives the check of a delivery anything. What passes it is what the stores may rely on.
func FuzzDelivery(f *testing.F) {
	f.Add("j", "e", "s", "r", "webhook", `{"job_id":"j","event":"e"}`, byte(BodyText), false, byte(0), int64(-1))
	f.Add("", "", "", "", "", `{"job_id":"j","\u006aob_id":"k"}`, byte(BodyText), false, byte(1), int64(-1))
	f.Add("", "", "", "", "", `{"job_id":"\ud800"}`, byte(BodyText), false, byte(2), int64(time.Minute))
	f.Add("j\x00", "e", "s", "j", "", "\xff", byte(BodyBytes), true, byte(3), int64(0))
	f.Add("j", "", "", "", "", `{"job_id":"k"}`, byte(BodyText), true, byte(2), int64(1))
	f.Add("", "e", "", "", "", "\ufeff"+`{"job_id":"j","event":"f","event":"e","status":1}`, byte(BodyText), false, byte(2), int64(time.Second))
	f.Fuzz(func(t *testing.T, id, event, status, requestID, source, body string, kind byte, opaque bool, mode byte, lease int64) {
		const maxBody = 200
		in := Input{
			JobID: id, Event: event, Status: status, RequestID: requestID, Source: source, Opaque: opaque,
			Body: Body{Kind: BodyKind(kind % 3), Data: body}, Mode: WorkMode(mode),
		}
		if in.Body.Kind == BodyNone {
			in.Body.Data = ""
		}
		if lease >= 0 {
			d := time.Duration(lease)
			in.Lease = &d
		}
		d, err := in.Delivery(maxBody)
		if err != nil {
			if invalid := (*InvalidError)(nil); !errors.As(err, &invalid) || invalid.Field == "" {
				t.Errorf("the error names no field: %v", err)
			}
			return
		}
		if CheckJobID(d.JobID) != nil || id != "" && d.JobID != id {
			t.Errorf("job_id %q becomes %q", id, d.JobID)
		}
		for _, text := range []string{d.Event, d.Status, d.Source, d.RequestID} {
			if !utf8.ValidString(text) {
				t.Errorf("%q passes", text)
			}
		}
		switch {
		case len(d.Body.Data) > maxBody, d.Body != in.Body, d.Body.Kind == BodyText && !utf8.ValidString(body):
			t.Errorf("the body %q becomes %+v", body, d.Body)
		case d.RequestID == "" || d.RequestID == d.JobID:
			t.Errorf("the request id %q passes", d.RequestID)
		case (d.Fingerprint == "") != (body == "" || in.Body.Kind == BodyNone):
			t.Errorf("the fingerprint of %q is %q", body, d.Fingerprint)
		case d.EventUnread != UnreadNothing && (d.Event != "" || body == ""), d.StatusUnread != UnreadNothing && (d.Status != "" || body == ""):
			t.Errorf("unread %d, %d beside what is said, or without a body: %+v", d.EventUnread, d.StatusUnread, d)
		case (opaque || in.Body.Kind == BodyBytes) && in.Body.Data != "" && (event == "") != (d.EventUnread == UnreadBody):
			t.Errorf("event %q, unread %d, of a body that is not read", event, d.EventUnread)
		case (d.Mode == ModeLeased) != (d.Lease > 0):
			t.Errorf("mode %v with a lease of %v", d.Mode, d.Lease)
		}
		// The same delivery again, as it stands now, says the same.
		again, err := Input{
			JobID: d.JobID, Event: d.Event, Status: d.Status, RequestID: d.RequestID, Source: d.Source, Opaque: opaque,
			Body: d.Body, Mode: d.Mode, Lease: in.Lease,
		}.Delivery(maxBody)
		if err != nil || again != d {
			t.Errorf("given back it becomes %+v, %v\nfrom %+v", again, err, d)
		}
	})
}
