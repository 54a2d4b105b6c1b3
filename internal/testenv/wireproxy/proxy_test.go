package wireproxy_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.uber.org/goleak"

	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// setUp returns a proxy, a collection behind it, and the same collection without it.
func setUp(t *testing.T) (*wireproxy.Proxy, *mongo.Collection, *mongo.Collection) {
	t.Helper()
	uri, database := testenv.MongoURI(t), testenv.Database(t)
	p := wireproxy.Start(t, uri)
	return p, connect(t, p.URI()).Database(database).Collection("things"), connect(t, uri).Database(database).Collection("things")
}

// connect turns the driver's own retries off: the tests count what the database gets.
func connect(t *testing.T, uri string) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetRetryReads(false).SetRetryWrites(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) })
	return client
}

func limited(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func upsert(ctx context.Context, c *mongo.Collection, id string) (*mongo.UpdateResult, error) {
	return c.UpdateOne(ctx, bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}, options.UpdateOne().SetUpsert(true))
}

// landed is how often the thing was written.
func landed(t *testing.T, c *mongo.Collection, id string) int {
	t.Helper()
	var doc struct{ N int }
	if err := c.FindOne(t.Context(), bson.D{{Key: "_id", Value: id}}).Decode(&doc); err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		t.Fatal(err)
	}
	return doc.N
}

func code(err error) int32 {
	var ce mongo.CommandError
	if errors.As(err, &ce) {
		return ce.Code
	}
	return 0
}

func TestFaults(t *testing.T) {
	p, through, direct := setUp(t)
	every := func(bson.Raw) bool { return true }
	duplicate := wireproxy.ItemError{Code: 11000, KeyPattern: bson.D{{Key: "other", Value: 1}}}
	writeError := func(t *testing.T, err error) {
		var we mongo.WriteException
		if !errors.As(err, &we) || len(we.WriteErrors) != 1 || we.WriteErrors[0].Code != 11000 {
			t.Fatalf("got %v, want a write error 11000", err)
		}
		if _, ok := we.WriteErrors[0].Raw.Lookup("keyPattern", "other").Int32OK(); !ok {
			t.Errorf("no key pattern in %v", we.WriteErrors[0].Raw)
		}
	}
	for name, c := range map[string]struct {
		fault  wireproxy.Fault
		landed int
		check  func(*testing.T, error)
	}{
		"cut before": {wireproxy.CutBefore, 0, network},
		"cut after":  {wireproxy.CutAfter, 1, network},
		"not primary": {wireproxy.Fail(10107, "NotWritablePrimary"), 0, func(t *testing.T, err error) {
			if code(err) != 10107 {
				t.Errorf("got %v, want code 10107", err)
			}
		}},
		"write concern": {wireproxy.FailConcern(64, "WriteConcernTimeout"), 1, func(t *testing.T, err error) {
			var we mongo.WriteException
			if !errors.As(err, &we) || we.WriteConcernError == nil || we.WriteConcernError.Code != 64 {
				t.Errorf("got %v, want a write concern error", err)
			}
		}},
		"refused item":  {wireproxy.RefuseItems(duplicate, every), 0, writeError},
		"disowned item": {wireproxy.DisownItems(duplicate, every), 1, writeError},
		"delay":         {wireproxy.Delay(time.Millisecond), 1, none},
		"throttle":      {wireproxy.Throttle(1000), 1, none},
	} {
		t.Run(name, func(t *testing.T) {
			rule := p.Add(&wireproxy.Rule{Command: "update", Times: 1, Do: c.fault})
			defer p.Clear()
			_, err := upsert(t.Context(), through, name)
			c.check(t, err)
			if n := landed(t, direct, name); n != c.landed {
				t.Errorf("written %d times, want %d", n, c.landed)
			}
			if rule.Hits() != 1 {
				t.Errorf("%d hits", rule.Hits())
			}
			if res, err := upsert(t.Context(), through, name); err != nil || res.UpsertedCount != int64(1-c.landed) {
				t.Errorf("after the fault: %+v, %v", res, err)
			}
		})
	}
}

func network(t *testing.T, err error) {
	t.Helper()
	if !mongo.IsNetworkError(err) {
		t.Errorf("got %v, want a network error", err)
	}
}

func none(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// TestHeld: what is held lands when it is released, however long the client has been gone.
func TestHeld(t *testing.T) {
	p, through, direct := setUp(t)
	for name, c := range map[string]struct {
		fault         func(<-chan struct{}) wireproxy.Fault
		before, after int
	}{
		"command":    {wireproxy.Hold, 0, 1},
		"reply":      {wireproxy.HoldReply, 1, 1},
		"black hole": {func(<-chan struct{}) wireproxy.Fault { return wireproxy.BlackHole }, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			defer p.Clear()
			release := make(chan struct{})
			rule := p.Add(&wireproxy.Rule{Command: "update", Times: 1, Do: c.fault(release)})
			ctx, cancel := context.WithCancel(t.Context())
			result := make(chan error, 1)
			go func() {
				_, err := upsert(ctx, through, name)
				result <- err
			}()
			if err := rule.Begun(limited(t, time.Minute), 1); err != nil {
				t.Fatal(err)
			}
			cancel()
			if err := <-result; !errors.Is(err, context.Canceled) {
				t.Fatalf("got %v, want a cancelled context", err)
			}
			if name != "reply" { // whose forwarding may still be under way
				if n := landed(t, direct, name); n != c.before {
					t.Errorf("written %d times while held, want %d", n, c.before)
				}
			}
			close(release)
			if name == "black hole" {
				return
			}
			if err := rule.Ended(limited(t, time.Minute), 1); err != nil {
				t.Fatal(err)
			}
			if n := landed(t, direct, name); n != c.after {
				t.Errorf("written %d times after the release, want %d", n, c.after)
			}
		})
	}
}

// TestItems: in one command, some writes fail and the others land, each at its own place.
func TestItems(t *testing.T) {
	p, through, direct := setUp(t)
	odd := func(item bson.Raw) bool {
		id, _ := item.Lookup("q", "_id").StringValueOK()
		return strings.HasSuffix(id, "1") || strings.HasSuffix(id, "3")
	}
	for name, c := range map[string]struct {
		fault wireproxy.Fault
		odd   int // how often those that failed were written
	}{
		"refused":  {wireproxy.RefuseItems(wireproxy.ItemError{Code: 112}, odd), 0},
		"disowned": {wireproxy.DisownItems(wireproxy.ItemError{Code: 11600}, odd), 1},
	} {
		t.Run(name, func(t *testing.T) {
			defer p.Clear()
			p.Add(&wireproxy.Rule{Command: "update", Times: 1, Do: c.fault})
			var models []mongo.WriteModel
			for _, n := range []string{"0", "1", "2", "3", "4"} {
				models = append(models, mongo.NewUpdateOneModel().SetUpsert(true).SetFilter(bson.D{{Key: "_id", Value: name + n}}).
					SetUpdate(bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}))
			}
			res, err := through.BulkWrite(t.Context(), models, options.BulkWrite().SetOrdered(false))
			var bulk mongo.BulkWriteException
			if !errors.As(err, &bulk) || len(bulk.WriteErrors) != 2 || bulk.WriteErrors[0].Index != 1 || bulk.WriteErrors[1].Index != 3 {
				t.Fatalf("got %v, want write errors at 1 and 3", err)
			}
			for i, n := range []string{"0", "1", "2", "3", "4"} {
				id, failed := res.UpsertedIDs[int64(i)], n == "1" || n == "3"
				want := 1
				if failed {
					want = c.odd
				}
				if (id == nil) != failed || !failed && id != name+n {
					t.Errorf("place %d: upserted id %v", i, id)
				}
				if got := landed(t, direct, name+n); got != want {
					t.Errorf("place %d: written %d times, want %d", i, got, want)
				}
			}
		})
	}
}

// TestRules: which commands a rule strikes.
func TestRules(t *testing.T) {
	p, through, direct := setUp(t)
	var kinds []string
	p.Add(&wireproxy.Rule{Do: wireproxy.CutBefore, If: func(c wireproxy.Command) bool {
		kinds = append(kinds, c.Name)
		if c.Name == "update" && len(c.Items()) != 1 {
			t.Errorf("an update with %d items", len(c.Items()))
		}
		return false
	}})
	named := func(id string) func(wireproxy.Command) bool {
		return func(c wireproxy.Command) bool {
			got, _ := c.Body.Lookup("updates", "0", "q", "_id").StringValueOK()
			return got == id
		}
	}
	rule := p.Add(&wireproxy.Rule{Command: "update", If: named("a"), Skip: 1, Times: 1, Do: wireproxy.Fail(50, "MaxTimeMSExpired")})
	other := p.Add(&wireproxy.Rule{Command: "update", If: named("b"), Do: wireproxy.Fail(50, "MaxTimeMSExpired")})
	for i, c := range []struct {
		id    string
		fails bool
	}{{"a", false}, {"c", false}, {"a", true}, {"a", false}, {"b", true}, {"b", true}} {
		if _, err := upsert(t.Context(), through, c.id); (code(err) == 50) != c.fails || !c.fails && err != nil {
			t.Errorf("write %d: %v", i, err)
		}
	}
	if n := landed(t, through, "a"); n != 2 {
		t.Errorf("written %d times", n)
	}
	if rule.Hits() != 1 || other.Hits() != 2 {
		t.Errorf("hits %d and %d", rule.Hits(), other.Hits())
	}
	p.Clear()
	if strings.Join(kinds, " ") != "update update update update update update find" {
		t.Errorf("the first rule was asked about %v", kinds)
	}
	if _, err := upsert(t.Context(), through, "b"); err != nil || landed(t, direct, "b") != 1 {
		t.Errorf("without rules: %v", err)
	}
}

// TestClose: whatever is under way, nothing is left afterwards.
func TestClose(t *testing.T) {
	uri, database := testenv.MongoURI(t), testenv.Database(t)
	before := goleak.IgnoreCurrent()
	p := wireproxy.Start(t, uri)
	client, err := mongo.Connect(options.Client().ApplyURI(p.URI()))
	if err != nil {
		t.Fatal(err)
	}
	things := client.Database(database).Collection("things")
	rules := []*wireproxy.Rule{
		p.Add(&wireproxy.Rule{Command: "update", Times: 1, Do: wireproxy.BlackHole}),
		p.Add(&wireproxy.Rule{Command: "update", Times: 1, Do: wireproxy.Hold(nil)}),
		p.Add(&wireproxy.Rule{Command: "update", Times: 1, Do: wireproxy.HoldReply(nil)}),
		p.Add(&wireproxy.Rule{Command: "update", Times: 1, Do: wireproxy.Delay(time.Hour)}),
		p.Add(&wireproxy.Rule{Command: "update", Times: 1, Do: wireproxy.Throttle(1)}),
	}
	errs := make(chan error, len(rules))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range rules {
		go func() {
			_, err := upsert(ctx, things, "x")
			errs <- err
		}()
	}
	for _, r := range rules {
		if err := r.Begun(limited(t, time.Minute), 1); err != nil {
			t.Fatal(err)
		}
	}
	p.Close()
	p.Close()
	cancel() // the driver may be looking for another server
	for range rules {
		if err := <-errs; err == nil || errors.Is(err, driver.ErrUnacknowledgedWrite) {
			t.Errorf("a command that was held: %v", err)
		}
	}
	_ = client.Disconnect(context.WithoutCancel(t.Context()))
	goleak.VerifyNone(t, before)
}
