package chaostest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

// instancesOnMongoDB is how many services share the database.
const instancesOnMongoDB = 2

// newMongoDBWorld is two services on one database.
func newMongoDBWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := newWorld(t, seed)
	uri, own := database(t)
	admin := connect(t, uri)
	set, err := askReplicaSet(t.Context(), admin)
	testenv.Must(t, err)
	name := testenv.DatabaseAt(t, uri)
	uris := []string{uri, uri}
	w.faults = []fault{
		{"kill -9", killInstance}, {"kill -9", killInstance}, {"kill -9", killInstance},
		{"connections cut", cutClients}, {"connections cut", cutClients}, {"connections cut", cutClients},
	}
	if set.members() > 1 {
		// A proxy leads to one member, and the primary changes. Without one nobody counts what was written.
		w.most = func(string, *account) int64 { return 0 }
	} else {
		uris = w.stormyWeather(t, seed, uri)
	}
	if set.members() > 0 {
		w.faults = append(w.faults, fault{"step-down", func(r *round) error { return set.stepDown(r.ctx, admin) }})
	}
	if own != nil {
		w.faults = append(w.faults, fault{"database kill -9", func(*round) error { return own.Restart() }})
	}
	for n := range instancesOnMongoDB {
		env := []string{envURI + "=" + uris[n]}
		w.instances = append(w.instances, startService(t, env, "-database", name, "-clock", w.clock.path))
	}
	w.connect()
	return w
}

// database is the one that the environment names, where somebody has their own, else one that nobody else uses and that can
// be killed; then own is set.
func database(t *testing.T) (uri string, own *testenv.Mongo) {
	t.Helper()
	_, noMongod := exec.LookPath("mongod")
	if os.Getenv("JOBONCE_TEST_MONGODB_URI") != "" && os.Getenv("JOBONCE_TEST_DB_DIR") == "" || noMongod == nil {
		return testenv.MongoURI(t), nil
	}
	own = testenv.PrivateMongo(t)
	return own.URI, own
}

// connect makes a client of the database's own.
func connect(t *testing.T, uri string) *mongo.Database {
	t.Helper()
	c, err := mongo.Connect(options.Client().ApplyURI(uri))
	testenv.Must(t, err)
	t.Cleanup(func() { _ = c.Disconnect(context.WithoutCancel(t.Context())) })
	return c.Database("admin")
}

// gust is one kind of fault on the wire, for one command in so many.
type gust struct {
	name    string
	command string
	chance  float64
	do      wireproxy.Fault
}

func gusts() []gust {
	whole := func(bson.Raw) bool { return true }
	return []gust{
		{"cut before the write", "update", 0.005, wireproxy.CutBefore},
		{"cut after the write", "update", 0.005, wireproxy.CutAfter},
		{"NotWritablePrimary", "update", 0.005, wireproxy.Fail(10107, "NotWritablePrimary")},
		{"ShutdownInProgress", "update", 0.005, wireproxy.Fail(91, "ShutdownInProgress")},
		{"write concern not met", "update", 0.01, wireproxy.FailConcern(64, "WriteConcernTimeout")},
		{"MaxTimeMSExpired", "update", 0.01, wireproxy.Fail(50, "MaxTimeMSExpired")},
		{"writes refused", "update", 0.01, wireproxy.RefuseItems(wireproxy.ItemError{Code: 112}, whole)},
		{"writes disowned", "update", 0.01, wireproxy.DisownItems(wireproxy.ItemError{Code: 11602}, whole)},
		{"slow write", "update", 0.02, wireproxy.Delay(5 * time.Millisecond)},
		{"cut before a read", "find", 0.005, wireproxy.CutBefore},
		{"read interrupted", "find", 0.005, wireproxy.Fail(11602, "InterruptedDueToReplStateChange")},
	}
}

// stormyWeather puts a proxy before the database for each instance, and returns their URIs. While a round has its faults
// the wire has too; and what the services send is counted.
func (w *world) stormyWeather(t *testing.T, seed uint64, uri string) (uris []string) {
	t.Helper()
	sent := &sentDeliveries{jobs: make(map[string]int64)}
	var proxies []*wireproxy.Proxy
	for n := range instancesOnMongoDB {
		p := wireproxy.Start(t, uri)
		p.Random(t, seed+uint64(n))
		proxies, uris = append(proxies, p), append(uris, p.URI())
	}
	type rule struct {
		name string
		*wireproxy.Rule
	}
	var blowing []rule
	w.calm = func() {
		for _, p := range proxies {
			p.Clear()
			p.Add(sent.rule())
		}
		for _, r := range blowing {
			w.tally.fault("wire: "+r.name, r.Hits())
		}
		blowing = nil
	}
	w.storm = func() {
		sent.forget()
		for _, p := range proxies {
			for _, g := range gusts() {
				blowing = append(blowing, rule{g.name, p.Add(&wireproxy.Rule{Command: g.command, Chance: g.chance, Do: g.do})})
			}
		}
	}
	w.calm()
	w.most = func(jobID string, _ *account) int64 { return sent.of(jobID) }
	w.faults = append(w.faults, fault{"database cut off", func(r *round) error {
		p := proxies[r.rng.IntN(len(proxies))]
		p.Down()
		defer p.Up()
		r.untilRefused(refusals / 4) // each is waited for
		return nil
	}})
	return uris
}

// sentDeliveries counts the deliveries in the writes that the services send, by job.
type sentDeliveries struct {
	mu   sync.Mutex
	jobs map[string]int64
}

// rule never strikes: it counts, and has to be the first.
func (s *sentDeliveries) rule() *wireproxy.Rule {
	return &wireproxy.Rule{Command: "update", If: s.count, Do: wireproxy.CutBefore}
}

func (s *sentDeliveries) count(c wireproxy.Command) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, item := range c.Items() {
		if n, ok := item.Lookup("u", "$inc", "deliveries").AsInt64OK(); ok {
			id, _ := item.Lookup("q", "job_id").StringValueOK()
			s.jobs[id] += n
		}
	}
	return false
}

func (s *sentDeliveries) of(jobID string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.jobs[jobID]
}

func (s *sentDeliveries) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.jobs)
}

// TestMongoDB is the chaos on two services that share a database.
func TestMongoDB(t *testing.T) {
	chaos(t, newMongoDBWorld(t, testenv.Seed(t)), shortMongoDB)
}

// commander runs a command on the primary of a database. [mongo.Database] is one.
type commander interface {
	RunCommand(ctx context.Context, command any, opts ...options.Lister[options.RunCmdOptions]) *mongo.SingleResult
}

// replicaSet is what a database says of itself.
type replicaSet struct {
	SetName string   `bson:"setName"`
	Hosts   []string `bson:"hosts"`
	Primary string   `bson:"primary"`
}

func askReplicaSet(ctx context.Context, db commander) (s replicaSet, err error) {
	err = db.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&s)
	return s, err
}

// members is how many can become primary; 0 for a database that is no replica set.
func (s replicaSet) members() int {
	if s.SetName == "" {
		return 0
	}
	return max(1, len(s.Hosts))
}

const (
	// stepDownSeconds is for how long a primary that stepped down does not become one again.
	stepDownSeconds = 5
	// electionPause is between two questions whether there is a primary again.
	electionPause = 100 * time.Millisecond
)

// command is the one that makes the primary step down. The only member of a set has nobody to hand over to.
func (s replicaSet) command() bson.D {
	if s.members() == 1 {
		return bson.D{{Key: "replSetStepDown", Value: 1}, {Key: "force", Value: true}}
	}
	return bson.D{{Key: "replSetStepDown", Value: stepDownSeconds}, {Key: "secondaryCatchUpPeriodSecs", Value: stepDownSeconds - 1}}
}

// stepDown makes the primary step down and returns when there is one again, until ctx ends.
func (s replicaSet) stepDown(ctx context.Context, db commander) error {
	err := db.RunCommand(ctx, s.command()).Err()
	// A primary may cut its connections as it steps down.
	if err != nil && !mongo.IsNetworkError(err) && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("replSetStepDown: %w", err)
	}
	for {
		now, err := askReplicaSet(ctx, db)
		if err == nil && now.Primary != "" {
			return nil
		}
		timer := time.NewTimer(electionPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("there is no primary again: %w", errors.Join(ctx.Err(), err))
		}
	}
}

// scripted is a database that gives one answer after the other.
type scripted struct {
	answers []any // documents, or errors
	asked   []string
}

func (s *scripted) RunCommand(_ context.Context, command any, _ ...options.Lister[options.RunCmdOptions]) *mongo.SingleResult {
	s.asked = append(s.asked, command.(bson.D)[0].Key)
	answer := s.answers[0]
	s.answers = s.answers[1:]
	if err, is := answer.(error); is {
		return mongo.NewSingleResultFromDocument(bson.D{}, err, nil)
	}
	return mongo.NewSingleResultFromDocument(answer, nil, nil)
}

func TestStepDown(t *testing.T) {
	cut := mongo.CommandError{Code: 6, Labels: []string{"NetworkError"}, Message: "connection cut"}
	ok := bson.D{{Key: "ok", Value: 1}}
	set := bson.D{{Key: "setName", Value: "rs0"}, {Key: "hosts", Value: bson.A{"a:1", "b:1", "c:1"}}}
	led := append(slices.Clone(set), bson.E{Key: "primary", Value: "b:1"})
	for name, c := range map[string]struct {
		answers []any
		want    []string
		failed  bool
	}{
		"answered":               {[]any{ok, led}, []string{"replSetStepDown", "hello"}, false},
		"cut":                    {[]any{cut, led}, []string{"replSetStepDown", "hello"}, false},
		"election takes a while": {[]any{ok, cut, set, led}, []string{"replSetStepDown", "hello", "hello", "hello"}, false},
		"refused":                {[]any{mongo.CommandError{Code: 13, Message: "not authorized"}}, []string{"replSetStepDown"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			db := &scripted{answers: append([]any{led}, c.answers...)}
			s, err := askReplicaSet(t.Context(), db)
			if err != nil || s.members() != 3 {
				t.Fatalf("%+v, %v", s, err)
			}
			if err := s.stepDown(t.Context(), db); (err != nil) != c.failed {
				t.Error(err)
			}
			if !slices.Equal(db.asked[1:], c.want) {
				t.Errorf("asked %v, want %v", db.asked[1:], c.want)
			}
		})
	}
	t.Run("no primary again", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := (replicaSet{SetName: "rs0"}).stepDown(ctx, &scripted{answers: []any{ok, set}}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	if n := (replicaSet{}).members(); n != 0 {
		t.Errorf("a database that is no replica set has %d members", n)
	}
	if c := (replicaSet{SetName: "rs0", Hosts: []string{"a:1"}}).command(); c[1].Key != "force" {
		t.Errorf("the only member is asked %v", c)
	}
}
