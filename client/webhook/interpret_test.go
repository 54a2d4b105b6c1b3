package webhook_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jobonce/jobonce/client/webhook"
)

// TestInterpret: what a source reads can be tested without a signature, and nothing is recorded.
func TestInterpret(t *testing.T) {
	for body, want := range map[string]struct {
		reason webhook.Reason
		status int
		id     string
	}{
		`{"id":"7","type":"paid"}`: {webhook.Accepted, 200, "shop:7"},
		`{"type":"paid"}`:          {webhook.Unreadable, 503, ""},
	} {
		j := &jobs{}
		r := httptest.NewRequest(http.MethodPost, "/hook", http.NoBody) // and no token
		e := handler(t, j, token()).Interpret(r, []byte(body))
		if e.Reason != want.reason || e.Status != want.status || e.Items[0].JobID != want.id || len(j.stored) > 0 {
			t.Errorf("%s: %+v, %d recorded", body, e, len(j.stored))
		}
	}
}

// TestContextOfARequest: it ends when the answer is due, and not when the sender hangs up.
func TestContextOfARequest(t *testing.T) {
	s := token()
	s.AnswerWithin = time.Hour
	asked := false
	s.When = func(i *webhook.Item) (bool, error) {
		ctx := i.Request.Context()
		deadline, ok := ctx.Deadline()
		if asked = true; !ok || time.Until(deadline) > time.Hour || ctx.Err() != nil {
			t.Errorf("deadline %v, %t, %v", deadline, ok, ctx.Err())
		}
		return true, nil
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	resp, _ := deliver(t, &jobs{}, s, post(`{"id":"7"}`).WithContext(gone))
	if !asked || resp.StatusCode != http.StatusOK {
		t.Errorf("asked %t, answered %d", asked, resp.StatusCode)
	}
	if ctx := webhook.NewRequest(httptest.NewRequest(http.MethodPost, "/", strings.NewReader("")), nil).Context(); ctx == nil {
		t.Error("no context")
	}
}
