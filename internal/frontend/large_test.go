package frontend_test

import (
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/frontend"
)

// TestLargeBodies: where the id stands in a header, a body over the limit is recorded by its size; elsewhere it is refused.
func TestLargeBodies(t *testing.T) {
	own := "- {name: shop, signature: {kind: hmac, header: X-Hub-Signature-256, prefix: 'sha256=', template: '{body}', encoding: hex}, secrets_env: [SHOP_SECRET]"
	github := "- {name: shop, provider: github, secrets_env: [SHOP_SECRET]"
	for source, want := range map[string]int{
		github + "}": 200,
		github + `, when: 'header["x-github-event"] == "push"'}`:              200,
		github + `, when: 'body.a == "x"'}`:                                   413,
		github + `, event: 'body.a'}`:                                         200, // which it then is without
		github + `, job_id: 'header["x-github-delivery"]', all_events: true}`: 200,
		github + `, job_id: 'body.a'}`:                                        413,
		own + `, job_id: 'header["x-github-delivery"]'}`:                      200,
		own + `, job_id: 'header["x-github-delivery"]', status: 'item.a'}`:    413,
		own + `, job_id: 'body.a'}`:                                           413,
	} {
		j := &jobs{}
		opened, err := open(t, j, source, func(c *frontend.Config) { c.MaxBody = 100 })
		f := must(t, opened, err)
		body := `{"a":"` + strings.Repeat("x", 200) + `"}`
		r := httptest.NewRequest(http.MethodPost, "/shop", strings.NewReader(body))
		r.Header.Set("X-GitHub-Delivery", "1")
		r.Header.Set("X-GitHub-Event", "push")
		r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac("secret", body)))
		status, _ := answer(f, r)
		if status != want || (len(j.all) == 1) != (want == 200) {
			t.Errorf("%s\nanswered %d, want %d; %d recorded", source, status, want, len(j.all))
		}
		if len(j.all) == 1 && (j.all[0].GetPayloadOmittedBytes() != int64(len(body)) || j.all[0].GetJobId() != "shop:1") {
			t.Errorf("recorded %v", j.all[0])
		}
	}
}
