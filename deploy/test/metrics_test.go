package deploy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
	"sigs.k8s.io/yaml"
)

// query is an expression of the dashboard or of an alert, and the text that names labels of what it finds.
type query struct{ where, expr, text string }

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
		found = append(found, query{a.Alert, a.Expr, a.Annotations["summary"]})
	}
	var board struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	must(t, json.Unmarshal([]byte(read(t, "grafana/jobonce.json")), &board))
	variables := strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h", "$instance", ".+")
	ids := map[int]bool{}
	for _, p := range board.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			expr := variables.Replace(target.Expr)
			if strings.Contains(expr, "$") {
				t.Errorf("the panel %q has a variable that is not known: %s", p.Title, expr)
			}
			found = append(found, query{p.Title, expr, target.LegendFormat})
		}
	}
	if len(found) < 70 {
		t.Fatalf("there are %d queries", len(found))
	}
	return found
}

// Querier implements [storage.Queryable].
func (m *metrics) Querier(int64, int64) (storage.Querier, error) {
	return querier{storage.NoopQuerier(), m}, nil
}

type querier struct {
	storage.Querier
	of *metrics
}

// Select implements [storage.Querier].
func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	found := new(seriesSet)
	for _, s := range q.of.series {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Metric.Get(m.Name)) }) {
			found.next = append(found.next, promql.NewStorageSeries(s))
		}
	}
	return found
}

// seriesSet implements [storage.SeriesSet].
type seriesSet struct {
	next []storage.Series
	at   storage.Series
}

func (s *seriesSet) Next() bool {
	if len(s.next) == 0 {
		return false
	}
	s.at, s.next = s.next[0], s.next[1:]
	return true
}
func (s *seriesSet) At() storage.Series                { return s.at }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

// ask has Prometheus' own engine evaluate an expression at a time.
func (m *metrics) ask(expr string, at time.Time) (promql.Vector, error) {
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, Parser: parser.NewParser(parser.Options{})})
	q, err := engine.NewInstantQuery(context.Background(), m, nil, expr, at)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	return q.Exec(context.Background()).Vector()
}

// unbounded is what an expression holds against a bound, or finds absent: that has data also while all is well.
func unbounded(expr string) (string, error) {
	tree, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		return "", err
	}
	switch n := tree.(type) {
	case *parser.BinaryExpr:
		if n.Op.IsComparisonOperator() {
			tree = n.LHS
		}
	case *parser.Call:
		if n.Func.Name == "absent" {
			tree = n.Args[0]
		}
	}
	return tree.String(), nil
}

var named = regexp.MustCompile(`\{\{ ?(?:\$labels\.)?(\w+) ?\}\}`)

// problem is what is wrong with a query; nil when it has data, with the labels that its text names.
func (q query) problem(m *metrics, at time.Time) error {
	expr, err := unbounded(q.expr)
	if err != nil {
		return err
	}
	found, err := m.ask(expr, at)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fmt.Errorf("no data: %s", expr)
	}
	for _, label := range named.FindAllStringSubmatch(q.text, -1) {
		for _, s := range found {
			if !s.Metric.Has(label[1]) {
				return fmt.Errorf("%q names a label that %s has not", q.text, s.Metric)
			}
		}
	}
	return nil
}

// TestMeasured: what the dashboard and the alerts ask for is what running commands have. The metrics are clean, all of the commands'
// own are asked for by one of the two, and docs/metrics.md has them, with their types and labels, and no others.
func TestMeasured(t *testing.T) {
	at := time.Now()
	m := measured(t, at)
	asked := ""
	for _, q := range queries(t) {
		asked += q.expr + "\n"
		if err := q.problem(m, at); err != nil {
			t.Errorf("%s: %v", q.where, err)
		}
	}
	for _, text := range m.texts {
		found, err := promlint.New(bytes.NewReader(text)).Lint()
		must(t, err)
		for _, p := range found {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	page := read(t, "../docs/metrics.md")
	for name, family := range m.families {
		if !strings.HasPrefix(name, "jobonce_") {
			continue
		}
		if !regexp.MustCompile(name + `\b|` + name + `_(bucket|sum|count)\b`).MatchString(asked) {
			t.Errorf("neither the dashboard nor an alert looks at %s", name)
		}
		if !slices.ContainsFunc(rows(name, family), func(row string) bool { return strings.Contains(page, "\n"+row) }) {
			t.Errorf("docs/metrics.md does not have %s", rows(name, family)[0])
		}
	}
	docs, err := filepath.Glob("../../docs/*.md")
	must(t, err)
	for _, doc := range append(docs, "../../README.md") {
		text, err := os.ReadFile(doc)
		must(t, err)
		for _, name := range regexp.MustCompile(`\bjobonce_(?:[a-z]+_)*[a-z]+\b`).FindAllString(string(text), -1) {
			if m.families[name] == nil {
				t.Errorf("%s names %s, which no command has", doc, name)
			}
		}
	}
}

// rows are how docs/metrics.md may begin the line of a metric: its labels stand in any order.
func rows(name string, family *dto.MetricFamily) (rows []string) {
	names := map[string]bool{}
	for _, m := range family.GetMetric() {
		for _, l := range m.GetLabel() {
			names["`"+l.GetName()+"`"] = true
		}
	}
	for _, order := range orders(slices.Sorted(maps.Keys(names))) {
		list := " "
		if len(order) > 0 {
			list = " " + strings.Join(order, ", ") + " "
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s |%s| ", name, strings.ToLower(family.GetType().String()), list))
	}
	return rows
}

func orders(words []string) (all [][]string) {
	if len(words) == 0 {
		return [][]string{nil}
	}
	for i, first := range words {
		for _, rest := range orders(slices.Delete(slices.Clone(words), i, i+1)) {
			all = append(all, append([]string{first}, rest...))
		}
	}
	return all
}

// given are series that a test makes up: a line each, with the values of a minute ago and of now.
func given(t *testing.T, at time.Time, lines ...string) *metrics {
	t.Helper()
	m := new(metrics)
	for _, line := range lines {
		fields := strings.Fields(line)
		of, err := parser.NewParser(parser.Options{}).ParseMetric(fields[0])
		must(t, err)
		for i, back := range []time.Duration{time.Minute, 0} {
			value, err := strconv.ParseFloat(fields[1+i], 64)
			must(t, err)
			m.add(of, promql.FPoint{T: at.Add(-back).UnixMilli(), F: value})
		}
	}
	return m
}

// TestQueriesBite: a query of what is not there is found.
func TestQueriesBite(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	m := given(t, at, `a_total{kind="x"} 1 2`)
	for q, good := range map[query]bool{
		{"", `sum by (kind) (rate(a_total{kind="x"}[5m]))`, "{{kind}}"}:        true,
		{"", `rate(a_total[5m]) > 1e9`, "{{ $labels.kind }}"}:                  true,
		{"", `rate(b_total[5m])`, ""}:                                          false,
		{"", `rate(a_total{kind="y"}[5m])`, ""}:                                false,
		{"", `rate(a_total[5m]) + on (kind) rate(b_total[5m])`, ""}:            false,
		{"", `absent(b_total)`, ""}:                                            false,
		{"", `sum by (reason) (rate(a_total[5m]))`, "{{reason}}"}:              false,
		{"", `histogram_quantile(0.5, sum by (kind) (rate(a_total[5m])))`, ""}: false,
		{"", `sum(rate(a_total[5m])`, ""}:                                      false,
	} {
		if err := q.problem(m, at); (err == nil) != good {
			t.Errorf("%s: %v", q.expr, err)
		}
	}
}

// TestAlerts: each alert comes when its case is there, and not when all is well; a webhook frontend and a worker, whose metrics are
// there throughout, neither raise nor hide one. It says what is wrong and how urgent that is, and docs/operations.md says under its
// name what to do, and has no other.
func TestAlerts(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	cases := map[string]string{ // a series, and its value a minute ago, now when all is well, and now when it is not
		"JobOnceStoreNotReady":       `jobonce_store_ready 1 1 0`,
		"JobOnceNoInstance":          `jobonce_store_ready 1 1 -`,
		"JobOnceWorkNotDone":         `jobonce_longest_due_seconds 0 300 301`,
		"JobOnceJobsDied":            `jobonce_dead_jobs_total 0 0 1`,
		"JobOnceOutcomeUnknown":      `jobonce_delivery_failures_total{reason="OUTCOME_UNKNOWN"} 0 0 1`,
		"JobOnceOverloaded":          `jobonce_refused_calls_total{reason="OVERLOADED"} 0 0 1`,
		"JobOnceQueueFills":          `jobonce_queue_deliveries 0 4096 4097`,
		"JobOnceFault":               `jobonce_work_failures_total{reason="INTERNAL"} 0 0 1`,
		"JobOnceRecordUnusable":      `jobonce_delivery_failures_total{reason="RECORD_UNUSABLE"} 0 0 1`,
		"JobOnceUnclaimableWork":     `jobonce_unclaimable_jobs 0 0 1`,
		"JobOnceEventConflicts":      `jobonce_conflicts_total{kind="EVENT"} 0 0 1`,
		"JobOnceUnreadFields":        `jobonce_unread_fields_total{field="event"} 0 0 1`,
		"JobOnceCertificateExpires":  `jobonce_tls_certificate_expiry_timestamp_seconds 1800604801 1800604801 1800604799`,
		"JobOnceCallerExpires":       `jobonce_caller_expiry_timestamp_seconds{caller="shop"} 1800604801 1800604801 1800604799`,
		"JobOnceCallersRefused":      `jobonce_refused_calls_total{reason="UNAUTHENTICATED"} 0 1 100`,
		"JobOnceClockWrong":          `jobonce_store_clock_offset_seconds 0 1 -1.1`,
		"JobOnceExpectationsOverdue": `jobonce_expectations_overdue 0 0 1`,
		"JobOnceExpectationsGivenUp": `jobonce_expectations_given_up_total 0 0 1`,
		"JobOnceWebhooksNotRecorded": `jobonce_webhook_requests_total{source="shop",reason="not_recorded"} 0 0 1`,
		"JobOnceWebhooksRefused":     `jobonce_webhook_requests_total{source="shop",reason="signature_wrong"} 0 0 1`,
		"JobOnceWebhooksUnreadable":  `jobonce_webhook_requests_total{source="shop",reason="unreadable"} 0 0 1`,
		"JobOnceWebhooksBusy":        `jobonce_webhook_refused_requests_total{reason="busy"} 0 0 1`,
		"JobOncePollsFail":           `jobonce_poll_requests_total{host="p.example",outcome="failed"} 0 0 1`,
		"JobOncePollsRefused":        `jobonce_poll_unsent_requests_total{host="other",reason="refused"} 0 0 1`,
		"JobOnceWebhooksLost":        `jobonce_poll_recovered_jobs_total{host="p.example"} 0 0 1`,
		"JobOnceWorkFails":           `jobonce_worker_jobs_total{outcome="failed"} 0 1 10`,
		"JobOnceWorkIsAway":          `jobonce_worker_jobs_total{outcome="given_back"} 0 0 1`,
	}
	rest := []string{ // of what is counted elsewhere, or was before
		`jobonce_build_info{instance="webhook"} 1 1`, `jobonce_worker_jobs_total{outcome="done"} 0 9`,
		`jobonce_delivery_failures_total{reason="OVERLOADED"} 7 7`, `jobonce_work_failures_total{reason="OVERLOADED"} 7 7`,
		`jobonce_refused_calls_total{reason="OVERLOADED",instance="b"} 7 7`, `jobonce_delivery_failures_total{reason="INTERNAL"} 7 7`,
		`jobonce_webhook_requests_total{source="shop",reason="accepted"} 0 9`, `jobonce_poll_requests_total{host="p.example",outcome="over"} 0 9`,
		`jobonce_poll_unsent_requests_total{host="p.example",reason="put_off"} 0 9`,
	}
	operations := read(t, "../docs/operations.md")
	listed := map[string]bool{}
	for _, a := range alerts(t) {
		listed[a.Alert] = true
		values := strings.Fields(cases[a.Alert])
		if len(values) != 4 {
			t.Errorf("%s has no case here", a.Alert)
			continue
		}
		for i, there := range []bool{false, true} {
			lines := rest
			if now := values[2+i]; now != "-" {
				lines = append(slices.Clone(rest), values[0]+" "+values[1]+" "+now)
			}
			found, err := given(t, at, lines...).ask(a.Expr, at)
			if err != nil || (len(found) > 0) != there {
				t.Errorf("%s when it is there: %t: %v, %v", a.Alert, there, found, err)
			}
		}
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
	for _, heading := range regexp.MustCompile(`(?m)^### (JobOnce\w+)$`).FindAllStringSubmatch(operations, -1) {
		if !listed[heading[1]] {
			t.Errorf("docs/operations.md has the alert %s, which there is not", heading[1])
		}
	}
}
