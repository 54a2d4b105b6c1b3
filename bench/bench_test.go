package main

import (
	"bytes"
	"context"
	"flag"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/jobonce/jobonce/internal/load"
)

// smoke names what TestSmoke measures: what needs nothing but this module, unless more is asked for.
var smoke = flag.String("smoke", `^(embedded\.64\.vs_echo|embedded\.64\.vs_without_lists|embedded\.64\.secure_cpu_vs_plain|webhook\.64\.vs_bare_http|work\.embedded\.64\.drained_vs_recorded)$`, "measure the figures that this `regexp` matches, for a moment")

// TestMain makes the test binary the child that bench starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == childCommand {
		os.Exit(childMain(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

func TestSmoke(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil { // PostgreSQL has a user of its own
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(dir, "plot.svg")
	var stdout, stderr bytes.Buffer
	code := mainCode(t.Context(), []string{
		"-run", *smoke, "-repeat", "1", "-cell", "100ms", "-seed", "300", "-large", "1000", "-dir", dir, "-plot", image,
	}, &stdout, &stderr)
	t.Logf("%s%s", &stdout, &stderr)
	if code != 0 || stdout.Len() == 0 {
		t.Errorf("exit code %d", code)
	}
	for line := range strings.Lines(stdout.String()) {
		fields := strings.Fields(line)
		if fields[0] == "aim" {
			continue
		}
		if len(fields) != 2 {
			t.Fatalf("%q has not two fields", line)
		}
		if v, err := strconv.ParseFloat(fields[1], 64); err != nil || v <= 0 && !strings.Contains(line, "cpu") {
			t.Errorf("%q: %v", line, err)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "jobonce-bench-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if svg, err := os.ReadFile(image); err != nil || !bytes.Contains(svg, []byte("<svg")) {
		t.Errorf("no plot: %v", err)
	}
}

// TestPromisedFigures holds the plan to the names that docs/performance.md gives.
func TestPromisedFigures(t *testing.T) {
	cfg := config{run: regexp.MustCompile("")}
	groups, figures := plan(cfg)
	seen := map[string]bool{}
	for _, f := range figures {
		if seen[f.name] {
			t.Errorf("%s is there twice", f.name)
		}
		seen[f.name] = true
		for _, cell := range f.cells {
			if !slices.ContainsFunc(groups, func(g group) bool {
				return slices.ContainsFunc(g.kinds, func(kind string) bool { return g.cell(kind) == cell })
			}) {
				t.Errorf("%s needs %s, which is not measured", f.name, cell)
			}
		}
	}
	page, err := os.ReadFile("../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	promised := regexp.MustCompile("(?m)^\\| `([a-z0-9_.]+)` \\|").FindAllSubmatch(page, -1)
	if len(promised) < 12 {
		t.Fatalf("docs/performance.md names %d figures", len(promised))
	}
	for _, name := range promised {
		if !seen[string(name[1])] {
			t.Errorf("there is no figure %s", name[1])
		}
	}
	cfg.short = true
	if _, figures := plan(cfg); slices.ContainsFunc(figures, func(f figure) bool { return strings.Contains(f.name, "growth") }) {
		t.Error("-short measures growth")
	}
}

func TestRunMeasuresWhatItNeeds(t *testing.T) {
	groups, figures := plan(config{run: regexp.MustCompile(`^embedded\.64\.vs_echo$`)})
	if len(figures) != 1 || len(groups) != 1 || !slices.Equal(groups[0].kinds, []string{kindService, kindEcho}) {
		t.Errorf("%v, %v", groups, figures)
	}
}

// TestBefore: an older JobOnce is measured where a figure has an aim, and nowhere else.
func TestBefore(t *testing.T) {
	groups, figures := plan(config{run: regexp.MustCompile(`vs_one|mongo\..*instances\.rate|^mongo\.16\.vs_direct$`), before: "x"})
	var got []string
	for _, f := range figures {
		got = append(got, f.name)
	}
	for _, g := range groups {
		for _, kind := range g.kinds {
			got = append(got, g.cell(kind))
		}
	}
	want := []string{
		"mongo.16.vs_direct",
		"work.mongo.10.two_instances_vs_one", "work.mongo.10.two_instances.rate",
		"work.mongo.64.two_instances_vs_one", "work.mongo.64.four_instances_vs_one", "work.mongo.64.two_instances_vs_one.before",
		"work.mongo.64.two_instances.rate", "work.mongo.64.two_instances.before.rate", "work.mongo.64.four_instances.rate",

		"mongo.16.direct", "mongo.16.service",
		"work.mongo.10.service", "work.mongo.10.two_instances",
		"work.mongo.64.service", "work.mongo.64.service.before", "work.mongo.64.two_instances",
		"work.mongo.64.two_instances.before", "work.mongo.64.four_instances",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"x":                 "unexpected argument",
		"-repeat 0":         "-repeat",
		"-cell -1s":         "-cell",
		"-run (":            "-run",
		"-run nothing":      "-run matches no figure",
		"-seed 10 -large 9": "-large",
		"-nonsense":         "-nonsense",
	} {
		var stdout, stderr bytes.Buffer
		if code := mainCode(t.Context(), strings.Fields(args), &stdout, &stderr); code != 2 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit code %d, %s", args, code, &stderr)
		}
	}
}

func TestResults(t *testing.T) {
	r := newResults()
	for _, ops := range []int64{300, 100, 200} {
		r.add("a.service", sample{Result: load.Result{Ops: ops, Elapsed: time.Second}, CPU: time.Duration(ops) * time.Millisecond})
		r.add("a.direct", sample{Result: load.Result{Ops: 2 * ops, Elapsed: time.Second}, CPU: -1})
	}
	r.add("a.direct", sample{Result: load.Result{Ops: 100, Elapsed: time.Second}, CPU: -1})
	if least, median, most := r.spread("a.service", rate); least != 100 || median != 200 || most != 300 {
		t.Errorf("%v %v %v", least, median, most)
	}
	if got := r.median("a.direct", rate); got != 300 { // of 100, 200, 400 and 600
		t.Errorf("the median of four is %v", got)
	}
	if got := r.median("a.service", cpu); got != 1000 {
		t.Errorf("%v µs a delivery", got)
	}
	g := group{name: "a", kinds: []string{kindDirect, kindService}}
	figures := append(ratiosOf(g, asNow), append(unitsOf(g, kindService), unitsOf(g, kindDirect)...)...)
	var out bytes.Buffer
	if err := r.print(&out, figures); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a.vs_direct 0.667\n", "a.service.rate 200\n", "a.service.cpu_us 1000\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "a.direct.cpu_us") || strings.Contains(out.String(), "NaN") {
		t.Errorf("what is not known was printed:\n%s", &out)
	}
	if err := r.print(&out, figures); err != nil || strings.Count(out.String(), "a.vs_direct ") != 1 {
		t.Errorf("printed again:\n%s", &out)
	}
	if !math.IsNaN(r.median("nowhere", rate)) {
		t.Error("a cell that was not measured has a median")
	}
}

func TestParseStat(t *testing.T) {
	const stat = "42 (a (odd) name) S 7 42 42 0 -1 4194560 100 200 0 0 150 50 30 20 20 0 1 0 12345 1000 10"
	pid, got, err := parseStat(stat)
	if want := (procTimes{parent: 7, own: 2 * time.Second, reaped: time.Second / 2}); err != nil || pid != 42 || got != want {
		t.Errorf("%d, %+v, %v", pid, got, err)
	}
	for _, bad := range []string{"", "42 name S", "42 (name) S 7"} {
		if _, _, err := parseStat(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestCPUTime(t *testing.T) {
	before, err := cpuTime([]int{os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	// A loop bounded by what is measured: it ends when two ticks were counted.
	for after := before; after < before+2*tick; {
		for range 1_000_000 {
			_ = math.Sqrt(float64(after))
		}
		if after, err = cpuTime([]int{os.Getpid()}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := cpuTime([]int{math.MaxInt32}); err == nil {
		t.Error("the CPU time of no process")
	}
}

func TestDecodersAgree(t *testing.T) {
	body := load.NewBody("r", 1024).Of(load.Key("r", 1))
	raw, err := decodeRaw(body)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := decodeTokens(body)
	if err != nil {
		t.Fatal(err)
	}
	fromTokens, err := bson.Marshal(tokens.payload)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(fromTokens, raw.payload.(bson.Raw)) {
		t.Errorf("one pass:\n%v\ntokens:\n%v", raw.payload, bson.Raw(fromTokens))
	}
	if raw.jobID != "bench-r-000000001" || raw.event != "job.completed" || raw.status != "OK" {
		t.Errorf("%+v", raw)
	}
	raw.payload, tokens.payload = nil, nil
	if raw != tokens {
		t.Errorf("%+v, %+v", raw, tokens)
	}
	for _, bad := range []string{"", "[]", "{", `{"a":1}{`} {
		if _, err := decodeRaw(bad); err == nil {
			t.Errorf("one pass read %q", bad)
		}
		if _, err := decodeTokens(bad); err == nil {
			t.Errorf("tokens read %q", bad)
		}
	}
}

func TestChildEndsWithItsInput(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	bench, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server, address, err := startEcho(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer server.stop()
	c, err := startCaller(ctx, dir, bench, spec{Kind: kindEcho, Address: address})
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.run(ctx, order{Workload: load.Workload{Run: "r", Callers: 2, Count: 20, BodyBytes: 512}})
	if err != nil || r.Ops != 20 || r.Firsts != 20 {
		t.Errorf("%+v, %v", r, err)
	}
	// In the middle of an hour's run.
	if err := c.in.Encode(order{Workload: load.Workload{Run: "r2", Callers: 2, Duration: time.Hour, BodyBytes: 512}}); err != nil {
		t.Fatal(err)
	}
	c.stop()
	if state := c.process.cmd.ProcessState; state == nil || !state.Exited() {
		t.Errorf("it had to be killed: %v", state)
	}
	if _, err := startCaller(ctx, dir, bench, spec{Kind: "nonsense"}); err == nil || !strings.Contains(err.Error(), `no kind "nonsense"`) {
		t.Errorf("a spec that cannot be: %v", err)
	}
}

func TestWholeTicks(t *testing.T) {
	for most, want := range map[float64]string{
		11_700: "0 2000 4000 6000 8000 10000", 27_500: "0 5000 10000 15000 20000 25000", 100: "0 20 40 60 80 100", 45: "0 10 20 30 40",
	} {
		var labels []string
		for _, tick := range wholeTicks(0, most) {
			labels = append(labels, tick.Label)
		}
		if got := strings.Join(labels, " "); got != want {
			t.Errorf("up to %v: %s, want %s", most, got, want)
		}
	}
}
