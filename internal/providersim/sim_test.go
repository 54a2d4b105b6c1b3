package providersim_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/client/webhook"
	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/providersim"
	"github.com/jobonce/jobonce/internal/testenv"
)

// service is a JobOnce service that is away at times.
type service struct {
	away  func() bool
	jobs  map[string]int // deliveries by job id
	wrote int
}

func (s *service) RecordDelivery(
	_ context.Context, req *joboncev1.RecordDeliveryRequest,
) (*joboncev1.RecordDeliveryResponse, error) {
	if s.away() {
		return nil, client.ErrStoreUnavailable
	}
	s.wrote++
	s.jobs[req.GetJobId()]++
	return &joboncev1.RecordDeliveryResponse{FirstDelivery: s.jobs[req.GetJobId()] == 1}, nil
}

func (s *service) BatchRecordDeliveries(
	ctx context.Context, reqs []*joboncev1.RecordDeliveryRequest,
) ([]client.BatchResult, error) {
	results := make([]client.BatchResult, len(reqs))
	for i, req := range reqs {
		results[i].Response, results[i].Err = s.RecordDelivery(ctx, req)
	}
	return results, nil
}

// outage is 100 events during an outage of that length.
func outage(name string, length time.Duration) scenario {
	return scenario{
		Scenario:    providersim.Scenario{Name: name, Events: 100, Every: length / 100, Over: length},
		serviceAway: func(at time.Duration) bool { return at < length },
	}
}

type scenario struct {
	providersim.Scenario
	serviceAway func(time.Duration) bool
	stale       time.Duration // How long the frontend has a stale secret.
	want        func(providersim.Survivors) int
}

func never(time.Duration) bool { return false }

func scenarios() []scenario {
	minute, hour, day := outage("service away for a minute", time.Minute), outage("service away for an hour", time.Hour), outage("service away for a day", 24*time.Hour)
	minute.want = func(s providersim.Survivors) int { return s.Minute }
	hour.want = func(s providersim.Survivors) int { return s.Hour }
	day.want = func(s providersim.Survivors) int { return s.Day }
	restarts := scenario{
		Scenario: providersim.Scenario{
			Name: "frontend restarted three times", Events: 300, Every: time.Second,
			Away: func(at time.Duration) bool {
				return at >= time.Minute && at < 190*time.Second && at%time.Minute < 10*time.Second
			},
			// The answer to the last request before each restart is lost: it was recorded.
			Lost: func(at time.Duration) bool { return at < 3*time.Minute && at%time.Minute == 59*time.Second },
		},
		serviceAway: never, want: func(s providersim.Survivors) int { return s.Restarts },
	}
	storm := scenario{
		Scenario:    providersim.Scenario{Name: "each delivered five times", Events: 100, Every: time.Second, Copies: 5},
		serviceAway: never, want: func(s providersim.Survivors) int { return s.Storm },
	}
	stale := outage("stale secret for an hour", time.Hour)
	stale.serviceAway, stale.stale = never, time.Hour
	stale.want = func(s providersim.Survivors) int { return s.Stale }
	return []scenario{minute, hour, day, restarts, storm, stale}
}

// run plays a scenario against the handler that make makes, and returns how many events survived and what is wrong.
func run(t *testing.T, p *providersim.Provider, sc scenario, wrap func(*service, http.Handler) http.Handler) (survived, removals int, wrong []string) {
	t.Helper()
	sim := &providersim.Sim{Provider: p, Scenario: sc.Scenario}
	svc := &service{jobs: make(map[string]int), away: func() bool { return sc.serviceAway(sim.Elapsed()) }}
	source := webhook.Source{Name: "sim", Provider: p.Name, SignatureHeader: "", PublicURL: providersim.URL, Secrets: func() []string {
		if sim.Elapsed() < sc.stale {
			return []string{p.Stale}
		}
		return []string{p.Secret}
	}}
	if p.Name == "assemblyai" {
		source.SignatureHeader = "X-Assembly"
	}
	real, err := webhook.NewHandler(svc, source, webhook.WithClock(sim.Now))
	if err != nil {
		t.Fatal(err)
	}
	handler := http.Handler(real)
	if wrap != nil {
		handler = wrap(svc, real)
	}
	complain := func(format string, args ...any) {
		if len(wrong) < 5 {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	sim.Answered = func(e providersim.Event, at time.Duration, status int) {
		recorded := svc.jobs["sim:"+e.ID] > 0
		switch {
		case status >= 200 && status < 300 && !recorded:
			complain("%v: %s is answered %d and not recorded", at, e.ID, status)
		case status >= 300 && recorded && at >= sc.Over:
			complain("%v: %s is recorded and answered %d", at, e.ID, status)
		case status == http.StatusConflict || status == http.StatusGone || status >= 300 && status < 400:
			complain("%v: %s is answered %d", at, e.ID, status)
		}
	}
	removals = sim.Run(handler)
	for n := range sc.Events {
		if svc.jobs["sim:"+p.Event(n).ID] > 0 {
			survived++
		}
	}
	if len(svc.jobs) > survived {
		complain("%d jobs of %d events", len(svc.jobs), survived)
	}
	if want := sc.want(p.Survives); survived != want {
		complain("%d of %d events survived, and %d should", survived, sc.Events, want)
	}
	return survived, removals, wrong
}

// TestProviders: what is said beforehand of each sender and scenario comes out, and nothing answered 2xx is missing.
func TestProviders(t *testing.T) {
	for _, p := range providersim.Providers() {
		for _, sc := range scenarios() {
			t.Run(p.Name+"/"+strings.ReplaceAll(sc.Name, " ", "-"), func(t *testing.T) {
				_, removals, wrong := run(t, p, sc, nil)
				if len(wrong) > 0 {
					t.Error(strings.Join(wrong, "\n"))
				}
				// What a right answer prevents: only an outage that outlasts every attempt costs a subscription.
				if removals > 0 && sc.Over <= 4*time.Hour {
					t.Errorf("the subscription was removed %d times", removals)
				}
			})
		}
	}
}

// TestDisabled: an outage that outlasts a sender's rule has the endpoint disabled, and a shorter one has not.
func TestDisabled(t *testing.T) {
	for days, want := range map[int][]string{
		4: {"shopify"}, 6: {"shopify", "svix", "clerk", "resend"}, 8: {"shopify", "svix", "clerk", "resend", "elevenlabs"},
		22: {"shopify", "svix", "clerk", "resend", "elevenlabs", "square"},
	} {
		long := outage("", time.Duration(days)*24*time.Hour)
		long.want = func(providersim.Survivors) int { return 0 }
		for _, p := range providersim.Providers() {
			if _, removals, _ := run(t, p, long, nil); (removals > 0) != slices.Contains(want, p.Name) {
				t.Errorf("%s after %d days: disabled %d times", p.Name, days, removals)
			}
		}
	}
}

// TestPromisedAreSimulated: a sender is promised exactly when it is played here, and answered before it hangs up.
func TestPromisedAreSimulated(t *testing.T) {
	played, hangsUp := make(map[string]bool), make(map[string]time.Duration)
	for _, p := range providersim.Providers() {
		played[p.Name], hangsUp[p.Name] = true, p.Timeout
	}
	for _, p := range webhook.Presets() {
		if played[p.Name] != (p.Tier == webhook.Promised) {
			t.Errorf("%s is %s, and played: %t", p.Name, p.Tier, played[p.Name])
		}
		within := cmp.Or(p.AnswerWithin, webhook.DefaultAnswerWithin)
		if after := hangsUp[p.Name]; after > 0 && within > after*8/10 {
			t.Errorf("%s hangs up after %v, and is answered within %v", p.Name, after, within)
		}
	}
}

// TestWrongHandlersFail: the simulation tells handlers that lose or repeat jobs from ours.
func TestWrongHandlersFail(t *testing.T) {
	for name, test := range map[string]struct {
		provider, scenario, says string
		wrap                     func(*service, http.Handler) http.Handler
	}{
		"500 to duplicates": {"stripe", "each delivered five times", "is recorded and answered 500", func(s *service, h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				before := len(s.jobs)
				if h.ServeHTTP(w2{w}, r); len(s.jobs) == before {
					w.WriteHeader(http.StatusInternalServerError)
				}
			})
		}},
		"answers before the write": {"stripe", "service away for an hour", "and not recorded", func(_ *service, h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusOK)
				h.ServeHTTP(w2{w}, r)
			})
		}},
		"id from a header that changes": {"slack", "each delivered five times", "jobs of", func(s *service, _ http.Handler) http.Handler {
			n := 0
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n++ // As a time or the id of a request does.
				body, _ := io.ReadAll(r.Body)
				event := strings.Split(string(body), `"`)[7]
				_, _ = s.RecordDelivery(r.Context(), &joboncev1.RecordDeliveryRequest{JobId: fmt.Sprintf("sim:%s:%d", event, n)})
				_, _ = s.RecordDelivery(r.Context(), &joboncev1.RecordDeliveryRequest{JobId: "sim:" + event})
			})
		}},
		"4xx to AssemblyAI": {"assemblyai", "service away for a minute", "survived", func(_ *service, h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(w4xx{w}, r) })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, p := range providersim.Providers() {
				for _, sc := range scenarios() {
					if p.Name != test.provider || sc.Name != test.scenario {
						continue
					}
					if _, _, wrong := run(t, p, sc, test.wrap); !strings.Contains(strings.Join(wrong, "\n"), test.says) {
						t.Errorf("nothing is found: %q", wrong)
					}
					return
				}
			}
			t.Error("there is no such provider or scenario")
		})
	}
}

// w2 takes an answer and does not send it.
type w2 struct{ http.ResponseWriter }

func (w2) WriteHeader(int)             {}
func (w2) Write(p []byte) (int, error) { return len(p), nil }

// w4xx says 429 where 503 is meant.
type w4xx struct{ http.ResponseWriter }

func (w w4xx) WriteHeader(status int) {
	if status == http.StatusServiceUnavailable {
		status = http.StatusTooManyRequests
	}
	w.ResponseWriter.WriteHeader(status)
}

// TestTable holds the table in docs/webhooks.md to what comes out. JOBONCE_TEST_GOLDEN=1 writes it.
func TestTable(t *testing.T) {
	var b strings.Builder
	b.WriteString("| sender | 1 minute | 1 hour | 1 day | what is not recovered |\n|---|---|---|---|---|\n")
	titles := make(map[string]string)
	for _, p := range webhook.Presets() {
		titles[p.Name] = p.Title
	}
	assumed := ""
	for _, p := range providersim.Providers() {
		mark := ""
		if p.Assumed != "" {
			mark = " *"
			assumed += "- " + titles[p.Name] + ": " + p.Assumed + "\n"
		}
		fmt.Fprintf(&b, "| %s%s", titles[p.Name], mark)
		for _, sc := range scenarios()[:3] {
			survived, removals, _ := run(t, p, sc, nil)
			cell := fmt.Sprintf("%d %% recovered", survived)
			if survived == 100 {
				cell = "all recovered by retry"
			} else if survived == 0 {
				cell = "lost"
			}
			if removals > 0 {
				cell += ", subscription removed"
			}
			b.WriteString(" | " + cell)
		}
		b.WriteString(" | " + p.Redelivery + " |\n")
	}
	b.WriteString("\n\\* What is assumed, because it is not published:\n\n" + assumed)
	testenv.PartOfPage(t, "../../docs/webhooks.md", "internal/providersim", b.String())
}
