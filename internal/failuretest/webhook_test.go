package failuretest

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/client/webhook"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/providersim"
	"github.com/jobonce/jobonce/internal/testenv"
)

// adyen is what the simulator has not, since Adyen's id is no more than likely: the test gives it.
var adyen = &providersim.Provider{
	Name: "adyen", Secret: "DFB1EB5485895CFA84146406857104ABB4CBCABDC8AAF103A624C8F6A3EAAB00",
	Event: func(n int) providersim.Event {
		psp := fmt.Sprintf("psp%d", n)
		mac := hmac.New(sha256.New, []byte("\xDF\xB1\xEB\x54\x85\x89\x5C\xFA\x84\x14\x64\x06\x85\x71\x04\xAB\xB4\xCB\xCA\xBD\xC8\xAA\xF1\x03\xA6\x24\xC8\xF6\xA3\xEA\xAB\x00"))
		mac.Write([]byte(psp + "::Shop:order:1000:EUR:AUTHORISATION:true"))
		return providersim.Event{ID: "AUTHORISATION:" + psp, Header: http.Header{}, Body: fmt.Appendf(nil,
			`{"notificationItems":[{"NotificationRequestItem":{"pspReference":%q,"merchantAccountCode":"Shop","merchantReference":"order",`+
				`"amount":{"value":1000,"currency":"EUR"},"eventCode":"AUTHORISATION","success":"true","additionalData":{"hmacSignature":%q}}}]}`,
			psp, base64.StdEncoding.EncodeToString(mac.Sum(nil)))}
	},
	Sign: func(*providersim.Attempt) http.Header { return nil },
}

// How long the frontends try to record a delivery. That of the examples is their own.
const goWithin, exampleWithin = 2 * time.Second, 5 * time.Second

// frontends has an endpoint for each sender.
func frontends(t *testing.T, jobs *client.Client, senders []*providersim.Provider) http.Handler {
	t.Helper()
	mux := http.NewServeMux()
	for _, p := range senders {
		s := webhook.Source{Name: p.Name, Provider: p.Name, Secrets: webhook.Secrets(p.Secret), AnswerWithin: goWithin}
		if p == adyen {
			item := "notificationItems[].NotificationRequestItem"
			s.Items = webhook.Array(item)
			s.ID = webhook.Join(webhook.Field("eventCode"), webhook.Field("pspReference"))
		}
		h, err := webhook.NewHandler(jobs, s)
		must(t, err)
		mux.Handle("/"+p.Name, h)
	}
	return mux
}

// webhookFrontend is a webhook frontend of any language.
type webhookFrontend struct {
	senders []*providersim.Provider
	within  time.Duration // how long it tries to record a delivery
	// start starts it in front of the service at the address, and returns where it is and what stops it.
	start func(t *testing.T, service string) (base string, stop func())
	// at says where it hears of a sender's event, and as which job of which source it records it.
	at func(p *providersim.Provider, e providersim.Event) (path, source, jobID string)
}

// senders are those of the simulator that have the names.
func senders(names ...string) []*providersim.Provider {
	return slices.DeleteFunc(slices.Clone(providersim.Providers()), func(p *providersim.Provider) bool { return !slices.Contains(names, p.Name) })
}

// goFrontend is the handler of package webhook, with an endpoint for each sender.
func goFrontend(*testing.T) webhookFrontend {
	all := append(senders("stripe", "github", "shopify", "slack", "replicate"), adyen)
	return webhookFrontend{
		senders: all, within: goWithin,
		start: func(t *testing.T, service string) (string, func()) {
			s := httptest.NewServer(frontends(t, newClient(t, service), all))
			return s.URL, s.Close
		},
		at: func(p *providersim.Provider, e providersim.Event) (string, string, string) {
			return "/" + p.Name, p.Name, p.Name + ":" + e.ID
		},
	}
}

// exampleFrontend is that of an example, which takes what follows Standard Webhooks.
func exampleFrontend(example func(t testing.TB, program string) *exec.Cmd) func(t *testing.T) webhookFrontend {
	return func(t *testing.T) webhookFrontend {
		example(t, "frontend") // It is made now, and not while others run.
		all := senders("standard-webhooks", "openai", "replicate")
		return webhookFrontend{
			senders: all, within: exampleWithin,
			start: func(t *testing.T, service string) (string, func()) {
				e := testenv.StartExample(t, example(t, "frontend"), "JOBONCE_TARGET="+service, "PORT=0", "WEBHOOK_SECRET="+all[0].Secret)
				return "http://" + e.Address(t), e.Stop
			},
			at: func(_ *providersim.Provider, e providersim.Event) (string, string, string) {
				return "/webhooks/acme", "acme", "acme:" + e.Header.Get("webhook-id")
			},
		}
	}
}

var webhookFrontends = map[string]func(t *testing.T) webhookFrontend{
	"go": goFrontend, "node": exampleFrontend(testenv.NodeExample), "python": exampleFrontend(testenv.PythonExample),
}

// hook is an event on its way to a frontend.
type hook struct {
	p *providersim.Provider
	providersim.Event
	path, source, id string
	forged           bool
}

// sender makes a connection for each request: a POST over one that the frontend closes just then fails, and is not repeated.
var sender = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// delivered is deliver, again for as long as the frontend had no time to record it. On a machine that has much else to do that is no
// fault, and is what senders do; one that gives up sooner has one.
func (h hook) delivered(t *testing.T, base string, within time.Duration) (status int) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		began := time.Now()
		status = h.deliver(t, base)
		if status != http.StatusServiceUnavailable || time.Since(began) < within || time.Now().After(end) {
			return status
		}
	}
}

// deliver makes one attempt and returns the status.
func (h hook) deliver(t *testing.T, base string) int {
	t.Helper()
	a := &providersim.Attempt{Event: h.Event, URL: base + h.path, Secret: h.p.Secret, At: time.Now()}
	body := h.Body
	if h.forged {
		a.Secret, body = h.p.Stale, bytes.Replace(body, []byte("1000"), []byte("9999"), 1)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.URL, bytes.NewReader(body))
	must(t, err)
	for _, header := range []http.Header{h.Header, h.p.Sign(a)} {
		for name, values := range header {
			req.Header[name] = values
		}
	}
	resp, err := sender.Do(req)
	must(t, err)
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	must(t, err)
	if (resp.Header.Get("Retry-After") != "") != (resp.StatusCode == http.StatusServiceUnavailable) {
		t.Errorf("%s is answered %d, with Retry-After %q", h.id, resp.StatusCode, resp.Header.Get("Retry-After"))
	}
	return resp.StatusCode
}

// TestWebhooks: 200 events of several senders reach the service by webhook frontends, in each language, with duplicates, out of order,
// forged ones in between, the service away, and the frontend restarted. Each is a job, and is worked on once.
func TestWebhooks(t *testing.T) {
	for language, frontend := range webhookFrontends {
		t.Run(language, func(t *testing.T) {
			f := frontend(t)
			t.Parallel()
			onBothStores(t, func(t *testing.T, w *world) { webhooksArrive(t, w, f) })
		})
	}
}

func webhooksArrive(t *testing.T, w *world, f webhookFrontend) {
	const events, forgedOnes, during = 200, 20, 6
	var hooks, forged []hook
	for n := range events + forgedOnes {
		p := f.senders[n%len(f.senders)]
		h := hook{p: p, Event: p.Event(n), forged: n >= events}
		h.path, h.source, h.id = f.at(p, h.Event)
		if h.forged {
			forged = append(forged, h)
		} else {
			hooks = append(hooks, h)
		}
	}
	random := rand.New(rand.NewPCG(testenv.Seed(t), 0))
	shuffle := func(hooks []hook) {
		random.Shuffle(len(hooks), func(i, k int) { hooks[i], hooks[k] = hooks[k], hooks[i] })
	}
	shuffle(hooks)
	between := testenv.StartRelay(t, w.Addr())

	// all delivers every one of them, some at once.
	all := func(base string, hooks []hook) {
		t.Helper()
		together(8, func(i int) {
			for n := i; n < len(hooks); n += 8 {
				want := http.StatusOK
				if hooks[n].forged {
					want = http.StatusUnauthorized
				}
				if got := hooks[n].delivered(t, base, f.within); got != want {
					t.Errorf("%s is answered %d, want %d", hooks[n].id, got, want)
				}
			}
		})
	}
	base, stop := f.start(t, between.Addr())
	all(base, append(forged, hooks[:events/2]...))

	between.To("")
	between.Cut()
	together(during, func(i int) {
		if got := hooks[events/2+i].deliver(t, base); got != http.StatusServiceUnavailable {
			t.Errorf("while the service is away, %s is answered %d", hooks[events/2+i].id, got)
		}
	})
	between.To(w.Addr())
	stop() // The frontend is restarted, and its client with it.

	base, stop = f.start(t, between.Addr())
	defer stop()
	again := append(append([]hook(nil), hooks[events/2:]...), hooks[:events*2/3]...)
	shuffle(again)
	all(base, again)

	c := w.client()
	for _, h := range hooks {
		j := stored(t, c, h.id)
		item := h.p == adyen // Whose item is stored, and not the body around it.
		if j.GetWork().GetState() != joboncev1.WorkState_WORK_STATE_QUEUED || j.GetSource() != h.source || !item && j.GetPayload() != string(h.Body) {
			t.Errorf("%s is stored as %v", h.id, j)
		}
	}
	worked := make(map[string]int)
	for {
		resp, err := c.ClaimWork(t.Context(), &joboncev1.ClaimWorkRequest{MaxJobs: 100, LeaseDuration: in(leasedMode, completed("")).LeaseDuration})
		must(t, err)
		if len(resp.GetJobs()) == 0 {
			break
		}
		for _, claimed := range resp.GetJobs() {
			worked[claimed.GetJob().GetJobId()]++
			must(t, complete(t, c, claimed.GetJob().GetJobId(), claimed.GetLease(), ""))
		}
	}
	for _, h := range hooks {
		if worked[h.id] != 1 {
			t.Errorf("%s was worked on %d times", h.id, worked[h.id])
		}
	}
	if len(worked) != events {
		t.Errorf("%d jobs of %d events", len(worked), events)
	}
}
