package deploy_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

// scrape is what Prometheus gets of services that have all that there is to measure, as series with their instance.
func scrape(t *testing.T) (series []labels.Labels, text [][]byte) {
	t.Helper()
	uri := os.Getenv("JOBONCE_TEST_MONGODB_URI")
	if uri == "" {
		skip(t, "there is no MongoDB: JOBONCE_TEST_MONGODB_URI is not set")
	}
	dir := t.TempDir()
	cert, key, auth := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "auth.yaml")
	selfSigned(t, cert, key)
	entry := run(t, nil, binary(t), "token", "new", "--name", "shop", "--allow", "record,work", "--expires", "2100-01-01T00:00:00Z")
	entry = entry[strings.Index(entry, "- name:"):]
	must(t, os.WriteFile(auth, []byte("callers:\n"+entry+"...\n"), 0o600))
	for i, args := range [][]string{
		{"--mongodb-database", fmt.Sprintf("deploy_%d", time.Now().UnixNano())},
		{"--data-dir", filepath.Join(dir, "data"), "--tls-cert", cert, "--tls-key", key, "--auth-file", auth},
	} {
		env := []string{}
		if i == 0 {
			env = append(env, "MONGODB_URI="+uri)
		}
		socket := filepath.Join(dir, fmt.Sprint("ops", i))
		p := start(t, env, append([]string{binary(t), "serve", "--listen", "127.0.0.1:0", "--ops-listen", "unix:" + socket}, args...)...)
		if i == 0 {
			run(t, nil, binary(t), "record", "--server", p.address(), "--job-id", "a", "--work-mode", "queued")
			run(t, nil, binary(t), "work", "claim", "--server", p.address())
		}
		body := onSocket(t, socket, "/metrics")
		text = append(text, body)
		decoder := expfmt.NewTextParser(model.LegacyValidation)
		families, err := decoder.TextToMetricFamilies(bytes.NewReader(body))
		must(t, err)
		for _, family := range families {
			samples, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, family)
			must(t, err)
			for _, sample := range samples {
				of := map[string]string{"instance": fmt.Sprint("instance-", i)}
				for k, v := range sample.Metric {
					of[string(k)] = string(v)
				}
				series = append(series, labels.FromMap(of))
			}
		}
	}
	return series, text
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

// query is an expression of the dashboard or of an alert.
type query struct{ where, expr string }

// alert is one of deploy/prometheus/alerts.yaml.
type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func alerts(t *testing.T) []alert {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string  `json:"name"`
			Rules []alert `json:"rules"`
		} `json:"groups"`
	}
	must(t, yaml.UnmarshalStrict([]byte(read(t, "prometheus/alerts.yaml")), &file))
	return file.Groups[0].Rules
}

func queries(t *testing.T) (found []query) {
	t.Helper()
	for _, a := range alerts(t) {
		found = append(found, query{a.Alert, a.Expr})
	}
	var board struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	must(t, json.Unmarshal([]byte(read(t, "grafana/jobonce.json")), &board))
	variables := strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h", "$instance", ".+")
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			expr := variables.Replace(target.Expr)
			if strings.Contains(expr, "$") {
				t.Errorf("the panel %q has a variable that is not known: %s", p.Title, expr)
			}
			found = append(found, query{p.Title, expr})
		}
	}
	if len(found) < 40 {
		t.Fatalf("there are %d queries", len(found))
	}
	return found
}

// problems are what a query asks for and no series has.
func problems(expr string, series []labels.Labels) (found []string) {
	tree, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		return []string{err.Error()}
	}
	matching := func(s *parser.VectorSelector) (matched []labels.Labels) {
		for _, of := range series {
			if !slices.ContainsFunc(s.LabelMatchers, func(m *labels.Matcher) bool { return !m.Matches(of.Get(m.Name)) }) {
				matched = append(matched, of)
			}
		}
		return matched
	}
	parser.Inspect(tree, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			if len(matching(n)) == 0 {
				found = append(found, fmt.Sprintf("nothing is %s", n))
			}
		case *parser.AggregateExpr:
			for _, label := range n.Grouping {
				there := false
				parser.Inspect(n.Expr, func(inner parser.Node, _ []parser.Node) error {
					if s, ok := inner.(*parser.VectorSelector); ok {
						there = there || slices.ContainsFunc(matching(s), func(of labels.Labels) bool { return of.Has(label) })
					}
					return nil
				})
				if !there {
					found = append(found, fmt.Sprintf("no series has the label %s of %s", label, n))
				}
			}
		}
		return nil
	})
	return found
}

// TestQueries: what the dashboard and the alerts ask for is what running services have. The metrics are clean, and all of the
// service's own are asked for by one of the two.
func TestQueries(t *testing.T) {
	series, texts := scrape(t)
	asked := ""
	for _, q := range queries(t) {
		asked += q.expr + "\n"
		for _, p := range problems(q.expr, series) {
			t.Errorf("%s: %s", q.where, p)
		}
	}
	for _, text := range texts {
		found, err := promlint.New(bytes.NewReader(text)).Lint()
		must(t, err)
		for _, p := range found {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
		for _, name := range regexp.MustCompile(`(?m)^# TYPE (jobonce_\w+)`).FindAllSubmatch(text, -1) {
			if !strings.Contains(asked, string(name[1])) {
				t.Errorf("neither the dashboard nor an alert looks at %s", name[1])
			}
		}
	}
}

// TestQueriesBite: a query of what is not there is found.
func TestQueriesBite(t *testing.T) {
	series := []labels.Labels{labels.FromStrings("__name__", "a_total", "kind", "x")}
	for expr, good := range map[string]bool{
		`sum by (kind) (rate(a_total{kind="x"}[5m]))`: true,
		`rate(b_total[5m])`:                           false,
		`rate(a_total{kind="y"}[5m])`:                 false,
		`sum by (reason) (rate(a_total[5m]))`:         false,
		`sum(rate(a_total[5m])`:                       false,
	} {
		if found := problems(expr, series); (len(found) == 0) != good {
			t.Errorf("%s: %v", expr, found)
		}
	}
}

// TestAlerts: each alert says what is wrong and how urgent that is, and docs/operations.md says under its name what to do.
func TestAlerts(t *testing.T) {
	operations := read(t, "../docs/operations.md")
	for _, a := range alerts(t) {
		if s := a.Labels["severity"]; s != "page" && s != "ticket" || a.Annotations["summary"] == "" {
			t.Errorf("%s: severity %q, summary %q", a.Alert, s, a.Annotations["summary"])
		}
		if !strings.HasSuffix(a.Annotations["runbook_url"], "/docs/operations.md#"+strings.ToLower(a.Alert)) {
			t.Errorf("%s leads to %s", a.Alert, a.Annotations["runbook_url"])
		}
		if !strings.Contains(operations, "\n### "+a.Alert+"\n") {
			t.Errorf("docs/operations.md does not say what to do about %s", a.Alert)
		}
	}
}
