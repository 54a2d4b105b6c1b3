package auth

import (
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/jobonce/jobonce/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// file is an auth file with these entries.
func file(entries string) []byte { return []byte("callers:\n" + entries + "\n...\n") }

// open makes an authority that knows the entries, and what it logs.
func open(t *testing.T, cfg Config, entries string) (*Authority, *testenv.Tail) {
	t.Helper()
	log := new(testenv.Tail)
	cfg.File = testenv.WriteFile(t, t.TempDir(), "auth.yaml", file(entries))
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	a, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a, log
}

func TestParse(t *testing.T) {
	_, sum := NewToken()
	_, other := NewToken()
	for _, tc := range []struct{ name, entries, want string }{
		{"token", "- {name: a, token_sha256: " + sum + ", allow: [record]}", ""},
		{"everything", "- {name: a, token_sha256: " + sum + ", allow: [{record: [queued, untracked]}, work, read], job_id_prefix: 'pay:', expires: 2030-01-01T00:00:00Z, rate: 2.5}", ""},
		{"two credentials", "- {name: a, token_sha256: " + sum + ", allow: [record]}\n- {name: a, token_sha256: " + other + ", allow: [record], expires: 2030-01-01}", ""},
		{"certificate", "- {name: a, certificate: a.example.org, allow: [work]}", ""},
		{"claims", "- {name: a, oidc: {sub: x}, allow: [work]}", ""},
		{"none", "", "no callers"},
		{"no name", "- {token_sha256: " + sum + ", allow: [record]}", "name must be"},
		{"line break in a name", "- {name: \"a\\nb\", token_sha256: " + sum + ", allow: [record]}", "name must be"},
		{"no credential", "- {name: a, allow: [record]}", "one of token_sha256"},
		{"two in one", "- {name: a, token_sha256: " + sum + ", certificate: x, allow: [record]}", "one of token_sha256"},
		{"a secret instead of its hash", "- {name: a, token_sha256: hunter2, allow: [record]}", "64 hexadecimal"},
		{"no right", "- {name: a, token_sha256: " + sum + "}", "allow is missing"},
		{"unknown right", "- {name: a, token_sha256: " + sum + ", allow: [write]}", `no right "write"`},
		{"unknown mode", "- {name: a, token_sha256: " + sum + ", allow: [{record: [later]}]}", `no work mode "later"`},
		{"modes of another right", "- {name: a, token_sha256: " + sum + ", allow: [{work: [queued]}]}", "a right is a word"},
		{"prefix without a colon", "- {name: a, token_sha256: " + sum + ", allow: [record], job_id_prefix: pay}", "end in a colon"},
		{"no rate at all", "- {name: a, token_sha256: " + sum + ", allow: [record], rate: 0}", "rate must be above 0"},
		{"negative rate", "- {name: a, token_sha256: " + sum + ", allow: [record], rate: -1}", "rate must be"},
		{"rate that is no number", "- {name: a, token_sha256: " + sum + ", allow: [record], rate: .nan}", "rate must be"},
		{"unknown key", "- {name: a, token_sha256: " + sum + ", allow: [record], perfix: 'x:'}", "line 2: field perfix not found in a caller"},
		{"same token", "- {name: a, token_sha256: " + sum + ", allow: [record]}\n- {name: b, token_sha256: " + sum + ", allow: [work]}", "twice"},
		{"same certificate", "- {name: a, certificate: A.example.org, allow: [work]}\n- {name: b, certificate: a.example.org, allow: [work]}", "twice"},
		{"same claims", "- {name: a, oidc: {sub: x}, allow: [work]}\n- {name: b, oidc: {sub: x}, allow: [work]}", "twice"},
		{"claims of a group", "- {name: a, oidc: {iss: x, groups: y}, allow: [work]}", "must name one of sub"},
		{"one name, two rights", "- {name: a, token_sha256: " + sum + ", allow: [record]}\n- {name: a, token_sha256: " + other + ", allow: [admin]}", "differ"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parse(file(tc.entries), nil)
			if got := ""; tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v %s, want %q", err, got, tc.want)
			}
		})
	}
	for _, half := range []string{"", "callers:\n", "callers:\n- {name: a, token_sha256: " + sum + ", allow: [record]}\n"} {
		if _, err := parse([]byte(half), nil); err == nil || !strings.Contains(err.Error(), "closing line") {
			t.Errorf("half a file %q: %v", half, err)
		}
	}
}

func TestWho(t *testing.T) {
	token, sum := NewToken()
	expired, expiredSum := NewToken()
	unknown, _ := NewToken()
	ca := testenv.NewCA(t, "clients")
	certificate := func(until time.Time, names ...string) *x509.Certificate {
		return ca.IssueUntil(until, names...).TLS(t).Leaf
	}
	soon := time.Now().Add(time.Hour)
	human := "correct-horse-battery-staple"
	humanSum := sha256.Sum256([]byte(human))
	a, _ := open(t, Config{Certificates: true}, `
- {name: tokens, token_sha256: `+sum+`, allow: [record]}
- {name: late, token_sha256: `+expiredSum+`, allow: [record], expires: 2020-01-01}
- {name: human, token_sha256: `+hexOf(humanSum)+`, allow: [record]}
- {name: dns, certificate: Worker.example.org, allow: [work]}
- {name: uri, certificate: spiffe://example.org/worker, allow: [work]}
- {name: wild, certificate: '*.example.org', allow: [work]}`)
	for _, tc := range []struct {
		name, caller, problem string
		shown                 Shown
	}{
		{"token", "tokens", "", Shown{Authorization: []string{"Bearer " + token}}},
		{"scheme in lower case", "tokens", "", Shown{Authorization: []string{"bearer " + token}}},
		{"nothing", "", "no credential", Shown{}},
		{"expired token", "", "expired", Shown{Authorization: []string{"Bearer " + expired}}},
		{"unknown token", "", "no caller has this token", Shown{Authorization: []string{"Bearer " + unknown}}},
		{"cut token", "", "not one that", Shown{Authorization: []string{"Bearer " + token[:50]}}},
		{"secret of a human", "", "not one that", Shown{Authorization: []string{"Bearer " + human}}},
		{"the hash", "", "not one that", Shown{Authorization: []string{"Bearer " + sum}}},
		{"other scheme", "", "not `Bearer`", Shown{Authorization: []string{"Basic " + token}}},
		{"two tokens", "", "two identities", Shown{Authorization: []string{"Bearer " + token, "Bearer " + token}}},
		{"token and certificate", "", "two identities", Shown{Authorization: []string{"Bearer " + token}, Certificate: certificate(soon, "worker.example.org")}},
		{"DNS name", "dns", "", Shown{Certificate: certificate(soon, "x.example.org", "worker.EXAMPLE.org")}},
		{"URI", "uri", "", Shown{Certificate: certificate(soon, "spiffe://example.org/worker")}},
		{"other name", "", "no caller has the client certificate", Shown{Certificate: certificate(soon, "other.example.org")}},
		{"two callers' names", "", "two callers", Shown{Certificate: certificate(soon, "worker.example.org", "spiffe://example.org/worker")}},
		{"expired certificate", "", "expired", Shown{Certificate: certificate(time.Now().Add(-time.Second), "worker.example.org")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := a.Who(t.Context(), tc.shown)
			switch {
			case tc.problem == "" && (err != nil || c.Name != tc.caller):
				t.Errorf("got %v, %v, want %s", c, err, tc.caller)
			case tc.problem != "" && (err == nil || !strings.Contains(err.Error(), tc.problem)):
				t.Errorf("got %v, %v, want %q", c, err, tc.problem)
			}
		})
	}
	if _, err := a.Who(t.Context(), Shown{}); !errors.Is(err, ErrNobody) {
		t.Errorf("nobody: %v", err)
	}
}

// TestCredentialsThatCannotBeShown: an entry that no call can match is a mistake.
func TestCredentialsThatCannotBeShown(t *testing.T) {
	for entry, want := range map[string]string{
		"- {name: a, certificate: a.example.org, allow: [work]}": "--tls-client-ca",
		"- {name: a, oidc: {sub: x}, allow: [work]}":             "--oidc-issuer",
	} {
		path := testenv.WriteFile(t, t.TempDir(), "auth.yaml", file(entry))
		if _, err := Open(Config{File: path}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", entry, err)
		}
	}
}

// TestReload changes the file in each way, whole and broken.
func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		token, sum := NewToken()
		second, secondSum := NewToken()
		one := "- {name: a, token_sha256: " + sum + ", allow: [record], rate: 5}"
		a, log := open(t, Config{}, one)
		go a.Run(t.Context())
		who := func(token string) *Caller {
			t.Helper()
			c, err := a.Who(t.Context(), Shown{Authorization: []string{"Bearer " + token}})
			if err != nil {
				return nil
			}
			return c
		}
		change := func(content []byte) {
			t.Helper()
			if err := os.WriteFile(a.cfg.File, content, 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Second) // of the bubble
			synctest.Wait()
		}
		first := who(token)
		change(file(one + "\n- {name: b, token_sha256: " + secondSum + ", allow: [work]}"))
		if b := who(second); b == nil || b.Name != "b" {
			t.Fatal("the new caller is not known")
		}
		if who(token) != first {
			t.Error("who has not changed is another now")
		}
		for name, broken := range map[string][]byte{
			"empty": nil, "no callers": file(""), "half": []byte("callers:\n" + one), "not YAML": []byte("{{{\n...\n"),
		} {
			log.Take()
			change(broken)
			if said := log.Take(); who(second) == nil || !strings.Contains(said, "level=ERROR") {
				t.Errorf("%s: the callers changed, or nobody hears of it: %s", name, said)
			}
		}
		if err := os.Remove(a.cfg.File); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if who(second) == nil || !strings.Contains(log.Take(), "level=ERROR") {
			t.Error("no file: the callers changed, or nobody hears of it")
		}
		change(file("- {name: b, token_sha256: " + secondSum + ", allow: [work]}"))
		if said := log.Take(); who(token) != nil || !strings.Contains(said, "added=[] removed=[a]") {
			t.Errorf("the removed caller is still known, or nobody hears of it: %s", said)
		}
		ctx, cancel := first.Bound(t.Context())
		defer cancel()
		time.Sleep(graceTime - 5*time.Second)
		synctest.Wait()
		if ctx.Err() != nil {
			t.Error("calls under way end too soon")
		}
		<-ctx.Done()
	})
}

// TestFileThatIsBeingWritten is not taken before it has stood still.
func TestFileThatIsBeingWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	w := watcher{paths: []string{path}}
	if _, err := w.start(); err == nil {
		t.Fatal("there is no file")
	}
	for i, step := range []struct {
		write   string
		changed bool
	}{{"a", false}, {"ab", false}, {"", true}, {"", false}, {"abc", false}, {"ab", false}, {"", false}, {"abc", false}, {"", true}} {
		if step.write != "" {
			if err := os.WriteFile(path, []byte(step.write), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, changed, err := w.look(); changed != step.changed || err != nil {
			t.Errorf("step %d: changed %v, %v", i, changed, err)
		}
	}
}

func TestRate(t *testing.T) {
	_, sum := NewToken()
	_, other := NewToken()
	entries := "- {name: a, token_sha256: " + sum + ", allow: [record], rate: 2}\n- {name: a, token_sha256: " + other + ", allow: [record], rate: 2}"
	table, err := parse(file(entries), nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	used := 0
	for i := range 3 {
		// The credentials share the rate, also over a reload.
		for _, c := range table.callers {
			if c.Wait(now) == 0 {
				used++
			}
		}
		if i == 1 {
			if table, err = parse(file(entries), table); err != nil {
				t.Fatal(err)
			}
		}
	}
	if used != 2 {
		t.Errorf("%d calls at once, want 2", used)
	}
	for _, c := range table.callers {
		if wait := c.Wait(now); wait != 500*time.Millisecond {
			t.Errorf("the next call is to wait %v", wait)
		}
		if c.Wait(now.Add(500*time.Millisecond)) != 0 {
			t.Error("the refused call counted")
		}
		break
	}
}

func TestRights(t *testing.T) {
	for word, want := range map[string][]Rights{
		"record": {RecordUntracked, RecordLeased, RecordQueued}, "{record: [queued]}": {RecordQueued}, "work": {Work}, "read": {Read},
		"read_bodies": {Read, ReadBodies}, "expect": {Expect}, "admin": {Admin, Read, ReadBodies},
	} {
		_, sum := NewToken()
		table, err := parse(file("- {name: a, token_sha256: "+sum+", allow: ["+word+"]}"), nil)
		if err != nil {
			t.Fatal(err)
		}
		var all Rights
		for _, r := range want {
			all |= r
		}
		if got := table.names["a"].Rights; got != all {
			t.Errorf("%s: %b, want %b", word, got, all)
		}
	}
}

func TestExpiries(t *testing.T) {
	sums := make([]string, 4)
	for i := range sums {
		_, sums[i] = NewToken()
	}
	a, _ := open(t, Config{}, `
- {name: a, token_sha256: `+sums[0]+`, allow: [record], expires: 2030-01-01}
- {name: a, token_sha256: `+sums[1]+`, allow: [record], expires: 2031-01-01}
- {name: b, token_sha256: `+sums[2]+`, allow: [record], expires: 2030-01-01}
- {name: b, token_sha256: `+sums[3]+`, allow: [record]}`)
	got := a.Expiries()
	if len(got) != 1 || got["a"].Year() != 2031 {
		t.Errorf("got %v", got)
	}
}
