package webhook_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/client/webhook"
)

// TestLargeBodies: what is over the limit is verified as it comes and recorded by its size, where the id is in a header.
func TestLargeBodies(t *testing.T) {
	large := strings.Repeat("x", 3<<20)
	sign := func(body string) string {
		mac := hmac.New(sha256.New, []byte("secret"))
		mac.Write([]byte(body))
		return "sha256=" + hex.EncodeToString(mac.Sum(nil))
	}
	for name, test := range map[string]struct {
		preset, body, signed string
		id                   string
		reason               webhook.Reason
		status               int
	}{
		"recorded":      {"github", large, sign(large), "d1", webhook.Accepted, 200},
		"wrong":         {"github", large + "y", sign(large), "d1", webhook.SignatureWrong, 401},
		"no id":         {"github", large, sign(large), "", webhook.Unreadable, 503},
		"over 32 MiB":   {"github", strings.Repeat("x", 32<<20+1), "sha256=00", "d1", webhook.TooLarge, 413},
		"an id in body": {"meta", large, sign(large), "d1", webhook.TooLarge, 413},
	} {
		for _, announced := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				v := vector{Preset: test.preset, Secret: "secret", Body: test.body, Headers: map[string]string{
					"X-Hub-Signature-256": test.signed, "X-GitHub-Event": "push", "Content-Type": "application/json",
				}}
				if test.id != "" {
					v.Headers["X-GitHub-Delivery"] = test.id
				}
				r, j := v.request(), &jobs{}
				if !announced {
					r.ContentLength = -1
				}
				resp, report := deliver(t, j, v.source(), r)
				if resp.StatusCode != test.status || report.Reason != test.reason {
					t.Fatalf("answered %d for %s: %v", resp.StatusCode, report.Reason, report.Err)
				}
				if test.status == http.StatusOK || test.reason == webhook.Unreadable {
					if req := j.all[0]; req.GetPayloadOmittedBytes() != int64(len(large)) || req.GetBody() != nil || req.GetContentType() != "application/json" {
						t.Errorf("recorded as %v", req)
					}
				} else if len(j.all) > 0 {
					t.Error("something was recorded")
				}
			})
		}
	}
}

// TestLargeBodiesByPublicKey: they cannot be verified as they come.
func TestLargeBodiesByPublicKey(t *testing.T) {
	for _, v := range vectors(t) {
		if !strings.HasPrefix(v.Secret, "whpk_") {
			continue
		}
		v.Body = strings.Repeat("x", 3<<20)
		if e := explain(t, v, v.source(), v.request(), v.time()); e.Reason != webhook.TooLarge {
			t.Errorf("%s: %s %v", v.Preset, e.Reason, e.Err)
		}
		return
	}
	t.Error("no value has a public key")
}
