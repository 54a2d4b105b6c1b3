package deploy_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
)

// commands are processes of every command that has metrics, with all that there is to measure.
type commands struct {
	t        *testing.T
	sockets  []string // of their ops listeners
	serve    string
	http     string // the socket of its HTTP door
	webhook  string
	provider *httptest.Server
	acts     int
}

func startCommands(t *testing.T) *commands {
	t.Helper()
	uri := os.Getenv("JOBONCE_TEST_MONGODB_URI")
	if uri == "" {
		skip(t, "there is no MongoDB: JOBONCE_TEST_MONGODB_URI is not set")
	}
	c := &commands{t: t}
	c.provider = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"over":true}`)) }))
	t.Cleanup(c.provider.Close)
	dir := t.TempDir()
	cert, key, auth, file := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "auth.yaml"), filepath.Join(dir, "f.yaml")
	selfSigned(t, cert, key)
	entry := run(t, nil, binary(t), "token", "new", "--name", "shop", "--allow", "record,work", "--expires", "2100-01-01T00:00:00Z")
	entry = entry[strings.Index(entry, "- name:"):]
	must(t, os.WriteFile(auth, []byte("callers:\n"+entry+"...\n"), 0o600))
	must(t, os.WriteFile(file, []byte(`
webhook:
  sources:
    - {name: shop, signature: {kind: hmac, header: X-Signature, template: "{body}", encoding: hex}, secrets_env: [SHOP_SECRET], job_id: item.id}
poll:
  hosts:
    - {host: '`+strings.TrimPrefix(c.provider.URL, "http://")+`', allow_private: true, over: body.over, rate: 1000}
`), 0o600))
	start := func(env []string, args ...string) string {
		socket := filepath.Join(dir, fmt.Sprint("ops", len(c.sockets)))
		c.sockets = append(c.sockets, socket)
		return start(t, env, append([]string{binary(t), args[0], "--ops-listen", "unix:" + socket}, args[1:]...)...).address()
	}
	c.http = filepath.Join(dir, "http")
	c.serve = start([]string{"MONGODB_URI=" + uri}, "serve", "--listen", "127.0.0.1:0", "--http-listen", "unix:"+c.http, "--mongodb-database", fmt.Sprintf("deploy_%d", time.Now().UnixNano()))
	start(nil, "serve", "--listen", "127.0.0.1:0", "--data-dir", filepath.Join(dir, "data"), "--tls-cert", cert, "--tls-key", key, "--auth-file", auth)
	c.webhook = start([]string{"SHOP_SECRET=secret"}, "webhook", "--listen", "127.0.0.1:0", "--config", file, "--server", c.serve)
	start(nil, "poll", "--config", file, "--server", c.serve, "--idle", "100ms")
	start(nil, "worker", "--server", c.serve, "--exec", "true")
	return c
}

// act has each of them do something, and returns when they have.
func (c *commands) act() {
	c.t.Helper()
	c.acts++
	hook, polled := fmt.Sprint("hook", c.acts), fmt.Sprint("polled", c.acts)
	c.post("/shop", hook, "secret", http.StatusOK)
	c.post("/shop", hook, "another", http.StatusUnauthorized)
	c.post("/nowhere", hook, "secret", http.StatusNotFound)
	onSocket(c.t, c.http, "/v1/jobs?job_id=shop:"+hook)
	run(c.t, nil, binary(c.t), "expect", polled, "--server", c.serve, "--status-url", c.provider.URL+"/"+polled, "--overdue-after", "0s")
	done := fmt.Sprintf(`jobonce_worker_jobs_total{outcome="done"} %d`, 2*c.acts) // the webhook's job, and the polled one
	for end := time.Now().Add(time.Minute); !slices.ContainsFunc(c.sockets, func(socket string) bool {
		return strings.Contains(string(onSocket(c.t, socket, "/metrics")), done+"\n")
	}); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("no command has %s", done)
		}
	}
}

// post sends a webhook.
func (c *commands) post(path, id, secret string, want int) {
	c.t.Helper()
	body := `{"id":"` + id + `"}`
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, "http://"+c.webhook+path, strings.NewReader(body))
	must(c.t, err)
	req.Header.Set("X-Signature", hex.EncodeToString(mac.Sum(nil)))
	resp, err := http.DefaultClient.Do(req)
	must(c.t, err)
	resp.Body.Close()
	if resp.StatusCode != want {
		c.t.Errorf("%s: %s, want %d", path, resp.Status, want)
	}
}

// metrics are series, and what the metrics are called that they are of.
type metrics struct {
	series   []promql.Series
	families map[string]*dto.MetricFamily
	texts    [][]byte
}

// scrape takes what all commands show, as of a time.
func (c *commands) scrape(at time.Time, into *metrics) {
	c.t.Helper()
	for i, socket := range c.sockets {
		text := onSocket(c.t, socket, "/metrics")
		into.texts = append(into.texts, text)
		decoder := expfmt.NewTextParser(model.LegacyValidation)
		families, err := decoder.TextToMetricFamilies(bytes.NewReader(text))
		must(c.t, err)
		for name, family := range families {
			into.families[name] = family
			samples, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, family)
			must(c.t, err)
			for _, sample := range samples {
				of := map[string]string{"instance": fmt.Sprint("instance-", i)}
				for k, v := range sample.Metric {
					of[string(k)] = string(v)
				}
				into.add(labels.FromMap(of), promql.FPoint{T: at.UnixMilli(), F: float64(sample.Value)})
			}
		}
	}
}

func (m *metrics) add(of labels.Labels, points ...promql.FPoint) {
	i := slices.IndexFunc(m.series, func(s promql.Series) bool { return labels.Equal(s.Metric, of) })
	if i < 0 {
		i = len(m.series)
		m.series = append(m.series, promql.Series{Metric: of})
	}
	m.series[i].Floats = append(m.series[i].Floats, points...)
}

// measured is what Prometheus has of all commands after two scrapes, the second one at a time.
func measured(t *testing.T, at time.Time) *metrics {
	t.Helper()
	c, m := startCommands(t), &metrics{families: make(map[string]*dto.MetricFamily)}
	c.act()
	c.scrape(at.Add(-time.Minute), m)
	c.act()
	c.scrape(at, m)
	return m
}

func selfSigned(t *testing.T, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	must(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600))
	must(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
}
