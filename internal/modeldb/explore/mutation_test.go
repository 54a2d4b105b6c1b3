package explore_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/modeldb"
	"github.com/jobonce/jobonce/internal/testenv"
)

// mutation is a mistake put into the source of the store: from is replaced by to in one file.
type mutation struct {
	name           string
	file, from, to string
	// scenario, deployment and faults are where the exploration finds it, and of what faults.
	scenario   string
	deployment modeldb.Deployment
	faults     int
	of         string
}

const inStore = "internal/mongostore/"

// mutations are of two kinds: those about replication, and the others. The first two have happened.
var mutations = []mutation{
	{
		name: "a claim does not look again for its own lease, which was renewed between its two reads",
		file: inStore + "claim.go", from: "		held, err := c.confirm(ctx)\n		if f == nil",
		to:       "		var held []job.Claimed\n		var err error\n		if due || f != nil {\n			held, err = c.confirm(ctx)\n		}\n		if f == nil",
		scenario: "lapse × renew, of the same claim",
	},
	{
		name: "a claim is answered while what marks its lease as told again could still land",
		file: inStore + "claim.go", from: "f := c.swap(ctx, &r, &next); f != nil {\n				return nil, f", to: "f := c.swap(ctx, &r, &next); f != nil {\n				continue",
		scenario: "lapse × renew, of the same claim", faults: 1,
	},
	{
		name: "a release counts as not made though an earlier try of it may have been",
		file: inStore + "leaseround.go", from: "if !h.tries.unknown && (!h.among", to: "if (!h.among",
		scenario: "release × claim", faults: 1,
	},
	{
		name: "an interrupted command counts as not executed",
		file: inStore + "errors.go", from: "case codeUnauthorized, codeAuthenticationFailed,", to: "case 11601, codeUnauthorized, codeAuthenticationFailed,",
		scenario: "record × record, untracked", faults: 1,
	},
	{
		name: "a renewal that lands late makes the lease shorter",
		file: inStore + "lease.go", from: `bson.D{{Key: "$max", Value: bson.A{theirs, ours}}}`, to: "ours",
		scenario: "renew × renew", faults: 1,
	},
	{
		name: "what a later try failed of says that nothing was written",
		file: inStore + "tries.go", from: "	case fateUnknown:\n		t.unknown = true\n", to: "	case fateUnknown:\n		t.unknown = f.fate == fateStrange\n",
		scenario: "record × record, leased", faults: 1,
	},
	{
		name: "work is taken that was changed since it was read",
		file: inStore + "decode.go", from: "[]string{workState, workGeneration, workDue, workGranted}", to: "[]string{workState, workGranted}",
		scenario: "claim × claim, of a lapsed lease",
	},
	{
		name: "a delivery is told of the lease that it marked as it is when it is read again",
		file: inStore + "reclaim.go", from: "r.Work.Due, r.Work.Granted = ours.Due, ours.Granted", to: "_ = ours.Due",
		scenario: "record again × renew, of a reclaimed lease",
	},
	{
		name: "a lease is marked again when others have marked it since",
		file: inStore + "reclaim.go", from: "work.Token != retold.Token", to: "!work.Due.Equal(retold.Due)",
		scenario: "record again × record again, of a reclaimed lease",
	},

	{
		name: "a deletion that is tried again compares no request id",
		file: inStore + "admin.go", from: "meant != nil && r.RequestID != meant.RequestID", to: "meant != nil && false",
		scenario: "delete × record, in one millisecond", faults: 1,
	},
	{
		name: "a release among others that were made counts as not made",
		file: inStore + "leaseround.go", from: "h.among = h.among || b.matched > 0", to: "_ = b.matched",
		scenario: "release both × requeue by force and record",
	},
	{
		name: "an expectation is removed by the id of its job alone",
		file: inStore + "expectation.go", from: "s.expected.DeleteOne(tracked, thatVery(e))", to: `s.expected.DeleteOne(tracked, thatVery(e)[:1])`,
		scenario: "expect × delete, then expect",
	},
	{
		name: "an upsert names no index",
		file: inStore + "round.go", from: "m.SetHint(hint)", to: "_ = hint",
		scenario: "record × record, in one store, the index lost", faults: 1,
	},
	{
		name: "a server that takes no hint any more is taken for one that never does",
		file: inStore + "indexes.go", from: "case p.hint.Load() != nil && !hidden && aboutHint(refusal):", to: "case false:",
		scenario: "record × record, in one store, the index lost", faults: 2, of: "index",
	},

	{
		name: "a delivery is first though its write concern failed",
		file: inStore + "bulk.go", from: "b.unsafe = err", to: "_ = b.unsafe",
		scenario: "record × record, leased", deployment: modeldb.ReplicaSet, faults: 1,
	},
	{
		name: "a lease is over though the write concern failed",
		file: inStore + "leaseround.go", from: "case confirm:", to: "case confirm && false:",
		scenario: "lapse × complete", deployment: modeldb.ReplicaSet, faults: 1,
	},
	{
		name: "writes wait for the primary alone",
		file: inStore + "options.go", from: "co.SetWriteConcern(wc)", to: "wc = writeconcern.W1()\n	co.SetWriteConcern(wc)",
		scenario: "record × record, leased", deployment: modeldb.ReplicaSet,
	},
	{
		name: "reads take what may yet be undone",
		file: inStore + "store.go", from: "SetReadConcern(readconcern.Majority())", to: "SetReadConcern(readconcern.Local())",
		scenario: "claim × claim", deployment: modeldb.ReplicaSet, faults: 1,
	},
	{
		name: "a write that matched nothing and an old read confirm that a lease is lost",
		file: inStore + "leaseround.go", from: "r, f := s.confirm(ctx, h.jobID, false)", to: "r, f := s.read(ctx, h.jobID, false)",
		scenario: "record, and complete elsewhere", deployment: modeldb.ReplicaSet, faults: 1,
	},
	{
		name: "a requeue believes an old read that there is nothing to do",
		file: inStore + "admin.go", from: "return nil, errNothing\n		}\n		f := s.swap", to: "return nil, nil\n		}\n		f := s.swap",
		scenario: "requeue, after claim and give up elsewhere", deployment: modeldb.ReplicaSet, faults: 1,
	},
	{
		name: "a renewal that asks for no more than there is changes nothing",
		file: inStore + "lease.go", from: "return renewal(h.renewed.Due, h.renewed.Granted)",
		to: "return bson.D{{Key: \"$max\", Value: bson.D{{Key: inWork(workDue), Value: job.Millis(now.Add(c.Duration))}}}, " +
			"{Key: \"$set\", Value: bson.D{{Key: inWork(workGranted), Value: c.Duration.Milliseconds()}}}}",
		scenario: "renew, after requeue by force and claim elsewhere", deployment: modeldb.ReplicaSet, faults: 1,
	},
	{
		name: "what confirms is not linearizable",
		file: inStore + "read.go", from: "readconcern.Linearizable()", to: "readconcern.Majority()",
		scenario: "record, and complete elsewhere", deployment: modeldb.ReplicaSet, faults: 1,
	},
}

// overlay writes the mutated file, and what tells the go command to take it.
func (m mutation) overlay(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), m.from); n != 1 {
		t.Fatalf("%s: %q is in %s %d times", m.name, m.from, m.file, n)
	}
	mutated := filepath.Join(t.TempDir(), filepath.Base(m.file))
	if err := os.WriteFile(mutated, []byte(strings.Replace(string(source), m.from, m.to, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, m.file): mutated}})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(overlay, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}

// TestMutations: the exploration finds each mistake, and prints the shortest schedule that shows it.
func TestMutations(t *testing.T) {
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			overlay := m.overlay(t)
			j := task{Scenario: m.scenario, Deployment: m.deployment, Faults: m.faults, Of: m.of}
			var found result
			exploreAll(t, buildWorker(t, overlay), []task{j}, func(j task, results []result) bool {
				if found = results[len(results)-1]; found.Found != nil {
					t.Logf("%v: %v\n%s", named(j, len(results)-1), found.Found, found.Problem)
				}
				return true
			})
			if found.Found == nil {
				t.Errorf("not found within %d faults", m.faults)
			}
		})
	}
}

// TestMutationsPass: the mistakes are such that the store's conformance suite and the tests of failures do not find them.
func TestMutationsPass(t *testing.T) {
	if !testenv.Long() {
		t.Skip("in the long form alone")
	}
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			overlay := m.overlay(t)
			for _, args := range [][]string{
				{"-run", "^TestConformance", "./internal/mongostore"},
				{"-skip", "^TestAnnouncedBodies$", "./internal/failuretest"}, // which is about memory, and depends on the machine
			} {
				cmd := exec.Command("go", append([]string{"test", "-overlay", overlay, "-timeout", "30m"}, args...)...)
				cmd.Dir = "../../.."
				for _, v := range os.Environ() {
					if !strings.HasPrefix(v, "JOBONCE_TEST_LONG=") {
						cmd.Env = append(cmd.Env, v)
					}
				}
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("found without the exploration by go test %v: %v\n%.3000s", args, err, out)
				}
			}
		})
	}
}
