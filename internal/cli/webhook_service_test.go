package cli

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/jobonce/jobonce/client"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/config"
	"github.com/jobonce/jobonce/internal/frontend"
	"github.com/jobonce/jobonce/internal/testenv"
)

// secretOfAll is what every sender signs with; the Standard Webhooks form of it, and Adyen's, are encodings of it.
const secretOfAll = "0123456789abcdef0123456789abcdef"

// sendersConfig has six senders as users have them, but that they are answered soon.
const sendersConfig = `
webhook:
  sources:
    - {name: stripe, provider: stripe, secrets_env: [TEST_SECRET], answer_within: 700ms}
    - {name: github, provider: github, secrets_env: [TEST_SECRET], path: /hooks/github, answer_within: 700ms}
    - {name: shopify, provider: shopify, secrets_env: [TEST_SECRET], answer_within: 700ms}
    - {name: slack, provider: slack, secrets_env: [TEST_SECRET], answer_within: 700ms}
    - name: adyen
      provider: adyen
      secrets_env: [TEST_SECRET_HEX]
      items: body.notificationItems.map(i, i.NotificationRequestItem)
      job_id: item.eventCode + ":" + item.pspReference
      event: item.eventCode
      answer_within: 700ms
    - {name: replicate, provider: replicate, secrets_env: [TEST_SECRET_STANDARD], answer_within: 700ms}
`

// event is something that a sender delivers until it is answered 200.
type event struct {
	path string
	ids  []string // of the jobs that it makes
	body string
	// sign adds what proves the sender, with the key.
	sign func(h http.Header, body, key string)
	// stored is the body of the first job.
	stored string
}

func mac(key, text string) []byte {
	h := hmac.New(sha256.New, []byte(key))
	_, _ = io.WriteString(h, text)
	return h.Sum(nil)
}

// events makes what the senders deliver: n jobs of each of the six. They are signed as the senders' own documents say, by code
// that shares nothing with ours.
func events(n int) (all []*event) {
	now := func() string { return strconv.FormatInt(time.Now().Unix(), 10) }
	for i := range n {
		add := func(path, id, body string, sign func(h http.Header, body, key string)) {
			all = append(all, &event{path: path, ids: []string{id}, body: body, sign: sign, stored: body})
		}
		add("/stripe", fmt.Sprint("stripe:evt_", i), fmt.Sprintf(`{"id":"evt_%d","type":"invoice.paid","n":%d}`, i, i), func(h http.Header, body, key string) {
			t := now()
			h.Set("Stripe-Signature", "t="+t+",v1="+hex.EncodeToString(mac(key, t+"."+body)))
		})
		add("/hooks/github", fmt.Sprint("github:guid-", i), fmt.Sprintf(`{"action":"opened","number":%d}`, i), func(h http.Header, body, key string) {
			h.Set("X-GitHub-Delivery", fmt.Sprint("guid-", i))
			h.Set("X-GitHub-Event", "issues")
			h.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac(key, body)))
		})
		add("/shopify", fmt.Sprint("shopify:wh-", i), fmt.Sprintf(`{"order":%d}`, i), func(h http.Header, body, key string) {
			h.Set("X-Shopify-Webhook-Id", fmt.Sprint("wh-", i))
			h.Set("X-Shopify-Topic", "orders/paid")
			h.Set("X-Shopify-Hmac-SHA256", base64.StdEncoding.EncodeToString(mac(key, body)))
		})
		add("/slack", fmt.Sprint("slack:Ev", i), fmt.Sprintf(`{"type":"event_callback","event_id":"Ev%d","event":{"type":"message"}}`, i), func(h http.Header, body, key string) {
			t := now()
			h.Set("X-Slack-Request-Timestamp", t)
			h.Set("X-Slack-Signature", "v0="+hex.EncodeToString(mac(key, "v0:"+t+":"+body)))
		})
		add("/replicate", fmt.Sprintf("replicate:p%d:succeeded", i), fmt.Sprintf(`{"id":"p%d","status":"succeeded"}`, i), func(h http.Header, body, key string) {
			t, id := now(), fmt.Sprint("msg_", i)
			h.Set("Webhook-Id", id)
			h.Set("Webhook-Timestamp", t)
			h.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac(key, id+"."+t+"."+body)))
		})
		if i%2 == 0 { // Two in one.
			all = append(all, adyen(i, min(2, n-i)))
		}
	}
	return all
}

// adyen is a body with notifications, each of which is signed by itself.
func adyen(first, n int) *event {
	e := &event{path: "/adyen"}
	item := func(i int, key string) string {
		signed := fmt.Sprintf("psp%d::Shop:order-%d:%d:EUR:AUTHORISATION:true", i, i, 100+i)
		return fmt.Sprintf(`{"additionalData":{"hmacSignature":%q},"amount":{"currency":"EUR","value":%d},"eventCode":"AUTHORISATION",`+
			`"merchantAccountCode":"Shop","merchantReference":"order-%d","pspReference":"psp%d","success":"true"}`,
			base64.StdEncoding.EncodeToString(mac(key, signed)), 100+i, i, i)
	}
	make := func(key string) string {
		var items []string
		for i := first; i < first+n; i++ {
			items = append(items, `{"NotificationRequestItem":`+item(i, key)+`}`)
		}
		return `{"live":"false","notificationItems":[` + strings.Join(items, ",") + `]}`
	}
	for i := first; i < first+n; i++ {
		e.ids = append(e.ids, fmt.Sprint("adyen:AUTHORISATION:psp", i))
	}
	e.body, e.stored = make(secretOfAll), item(first, secretOfAll)
	return e
}

// deliver delivers the event, signed with the key, and returns the status; 0 when nobody answers.
func (e *event) deliver(c *http.Client, addr, key string) int {
	body := e.body
	if e.sign == nil && key != secretOfAll {
		body = strings.Replace(body, `"hmacSignature":"`, `"hmacSignature":"A`, 1)
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+addr+e.path, strings.NewReader(body))
	if err != nil {
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	if e.sign != nil {
		e.sign(req.Header, body, key)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// hooks is a webhook in the test's own process.
type hooks struct {
	addr  string
	stop  func() error
	log   *testenv.Tail
	http  *http.Client
	count map[int]int // answers, by status
	mu    sync.Mutex
}

// startHooks starts webhook with the configuration and returns once it listens.
func startHooks(t *testing.T, path, server string) *hooks {
	t.Helper()
	node, err := config.Structure(path, "webhook", "sources")
	testenv.Must(t, err)
	sources, err := frontend.Parse(path, node)
	testenv.Must(t, err)
	cfg, _ := newWebhookConfig()
	conn, _ := newConnection()
	cfg.listen, conn.server = "127.0.0.1:0", server
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	stdout, toStdout := io.Pipe()
	h := &hooks{log: new(testenv.Tail), http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, count: map[int]int{}}
	ended := make(chan error, 1)
	go func() {
		err := runWebhook(ctx, cfg, sources, conn, toStdout, h.log)
		_ = toStdout.CloseWithError(io.EOF)
		ended <- err
	}()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("%v; %v; logged %s", err, <-ended, h.log)
	}
	h.addr = strings.TrimSuffix(strings.Fields(line)[3], ",")
	h.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() { testenv.OK(t, h.stop()) })
	return h
}

// deliver delivers events, some of them twice and some with a forged copy before them, in any order and eight at a time. It
// returns those that are to be delivered again.
func (h *hooks) deliver(t *testing.T, r *rand.Rand, events []*event) (again []*event) {
	t.Helper()
	type delivery struct {
		*event
		forged bool
	}
	var all []delivery
	for _, e := range events {
		all = append(all, delivery{e, false})
		switch r.IntN(5) {
		case 0:
			all = append(all, delivery{e, false})
		case 1:
			all = append(all, delivery{e, true})
		}
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	todo := make(chan delivery)
	var workers sync.WaitGroup
	missing := map[*event]bool{}
	for range 8 {
		workers.Go(func() {
			for d := range todo {
				key := secretOfAll
				if d.forged {
					key = "fedcba9876543210fedcba9876543210"
				}
				status := d.deliver(h.http, h.addr, key)
				h.mu.Lock()
				h.count[status]++
				switch {
				case d.forged && status != http.StatusUnauthorized && status != 0:
					t.Errorf("%s: a forged delivery was answered %d", d.path, status)
				case !d.forged && status != http.StatusOK:
					missing[d.event] = true
					if status != http.StatusServiceUnavailable && status != 0 {
						t.Errorf("%s: answered %d", d.path, status)
					}
				}
				h.mu.Unlock()
			}
		})
	}
	for _, d := range all {
		todo <- d
	}
	close(todo)
	workers.Wait()
	for e := range missing {
		again = append(again, e)
	}
	return again
}

// TestWebhooksOfSixSenders: 204 jobs come through duplicates, reordering, forged copies, an outage of the database, and
// restarts of the frontend and of the service. Every one is there once, and nothing else.
func TestWebhooksOfSixSenders(t *testing.T) {
	t.Setenv("TEST_SECRET", secretOfAll)
	t.Setenv("TEST_SECRET_HEX", hex.EncodeToString([]byte(secretOfAll)))
	t.Setenv("TEST_SECRET_STANDARD", "whsec_"+base64.StdEncoding.EncodeToString([]byte(secretOfAll)))
	path := filepath.Join(t.TempDir(), "jobonce.yaml")
	testenv.Must(t, os.WriteFile(path, []byte(sendersConfig), 0o600))
	t.Run("embedded", func(t *testing.T) { webhooksOfSixSenders(t, path, testServeConfig(t), nil) })
	t.Run("MongoDB", func(t *testing.T) {
		u, err := url.Parse(testenv.MongoURI(t))
		testenv.Must(t, err)
		db := testenv.StartRelay(t, u.Host)
		outage := func(on bool) {
			if on {
				db.To("127.0.0.1:1")
			} else {
				db.To(u.Host)
			}
			db.Cut()
		}
		cfg := testServeConfig(t)
		through := *u
		through.Host = db.Addr()
		cfg.store.mongo, cfg.store.uri, cfg.store.database = true, through.String(), testenv.Database(t)
		webhooksOfSixSenders(t, path, cfg, outage)
	})
}

func webhooksOfSixSenders(t *testing.T, path string, cfg *serveConfig, outage func(on bool)) {
	r := rand.New(rand.NewPCG(testenv.Seed(t), 0))
	service := serveHere(t, cfg)
	awaitReadyLine(t, service)
	relay := testenv.StartRelay(t, service.addr)
	if outage == nil { // An embedded store has no database that could be away: the service is.
		outage = func(on bool) {
			if on {
				relay.To("127.0.0.1:1")
			} else {
				relay.To(service.addr)
			}
			relay.Cut()
		}
	}
	all := events(34)
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	part := len(all) / 4

	h := startHooks(t, path, relay.Addr())
	if again := h.deliver(t, r, all[:part]); len(again) > 0 {
		t.Errorf("%d were not recorded while all was well; logged %s", len(again), h.log)
	}
	outage(true)
	again := h.deliver(t, r, all[part:2*part])
	if len(again) != part || h.count[http.StatusServiceUnavailable] < part {
		t.Errorf("during the outage %d of %d are to be delivered again; answers %v", len(again), part, h.count)
	}
	outage(false)

	restarted := make(chan error, 1)
	go func() { restarted <- h.stop() }() // while it is in use
	again = append(again, h.deliver(t, r, all[2*part:3*part])...)
	testenv.OK(t, <-restarted)
	h = startHooks(t, path, relay.Addr())

	relay.To("127.0.0.1:1")
	relay.Cut()
	service.stop()
	service = serveHere(t, cfg)
	defer service.stop()
	awaitReadyLine(t, service)
	relay.To(service.addr)
	again = append(again, all[3*part:]...)
	for round := 0; len(again) > 0; round++ {
		if round == 100 {
			t.Fatalf("%d are never recorded; logged %s", len(again), h.log)
		}
		again = h.deliver(t, r, again)
	}
	checkJobs(t, service.addr, all)
}

func awaitReadyLine(t *testing.T, h *here) {
	t.Helper()
	if line, err := h.stdout.ReadString('\n'); err != nil || !readyLine.MatchString(line) {
		t.Fatalf("got %q, %v; logged\n%s", line, err, h.logged())
	}
}

// checkJobs wants each job of the events once, as it was sent, and no others.
func checkJobs(t *testing.T, addr string, all []*event) {
	t.Helper()
	c, err := client.New(addr)
	testenv.Must(t, err)
	defer c.Close()
	want := map[string]*event{}
	for _, e := range all {
		for _, id := range e.ids {
			want[id] = e
		}
	}
	claimed := map[string]bool{}
	for {
		jobs, err := c.ClaimWork(t.Context(), &joboncev1.ClaimWorkRequest{MaxJobs: 100, LeaseDuration: durationpb.New(time.Hour)})
		testenv.Must(t, err)
		if len(jobs.GetJobs()) == 0 {
			break
		}
		for _, j := range jobs.GetJobs() {
			id := j.GetJob().GetJobId()
			e := want[id]
			if e == nil || claimed[id] {
				t.Errorf("%s is claimed; it was sent: %t, claimed before: %t", id, e != nil, claimed[id])
				continue
			}
			claimed[id] = true
			if id == e.ids[0] && !bytes.Equal([]byte(j.GetJob().GetPayload()), []byte(e.stored)) && e.sign != nil {
				t.Errorf("%s has the body %s, want %s", id, j.GetJob().GetPayload(), e.stored)
			}
			if source, _, _ := strings.Cut(id, ":"); j.GetJob().GetSource() != source || j.GetJob().GetDeliveries() < 1 {
				t.Errorf("%s: source %q, %d deliveries", id, j.GetJob().GetSource(), j.GetJob().GetDeliveries())
			}
		}
	}
	if len(claimed) != len(want) || len(want) != 204 {
		t.Errorf("%d jobs are there, want %d", len(claimed), len(want))
	}
}
