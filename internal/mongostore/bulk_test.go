package mongostore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/wireproxy"
)

// items are the writes of an update command.
func items(command bson.Raw) (out []bson.Raw) {
	list, _ := command.Lookup("updates").Array().Values()
	for _, v := range list {
		out = append(out, v.Document())
	}
	return out
}

// upserted is the answer of a server that inserted all the command's writes but those that failed with the code.
func upserted(command bson.Raw, code int32, failed ...string) bson.D {
	return upsertReply(command, code, func(item bson.Raw) bool { return slices.Contains(failed, jobIDOf(item)) })
}

// upsertReply is the answer of a server that inserted all the command's writes but those that fails chooses.
func upsertReply(command bson.Raw, code int32, fails func(item bson.Raw) bool) bson.D {
	var inserted, refused bson.A
	for i, item := range items(command) {
		if fails(item) {
			refused = append(refused, bson.D{{Key: "index", Value: int32(i)}, {Key: "code", Value: code}, {Key: "errmsg", Value: "no"}})
		} else {
			inserted = append(inserted, bson.D{{Key: "index", Value: int32(i)}, {Key: "_id", Value: bson.NewObjectID()}})
		}
	}
	reply := bson.D{{Key: "ok", Value: 1.0}, {Key: "n", Value: int32(len(inserted))}, {Key: "nModified", Value: int32(0)}}
	if len(inserted) > 0 {
		reply = append(reply, bson.E{Key: "upserted", Value: inserted})
	}
	if len(refused) > 0 {
		reply = append(reply, bson.E{Key: "writeErrors", Value: refused})
	}
	return reply
}

// scripted is a store on a scripted server of a kind.
func scripted(t *testing.T, hello bson.D) (*fakeServer, *mongostore.Store) {
	t.Helper()
	f := startFake(t, nil)
	f.answer("hello", append(bson.D{{Key: "logicalSessionTimeoutMinutes", Value: int64(30)}}, hello...))
	return f, open(t, mongostore.Options{URI: "mongodb://" + f.addr() + "/?directConnection=true"})
}

// TestLargeBulk: bodies of 1 MiB that become 9 MB each. No bulk is so large that the driver would split it: a failed item of
// the second part would replace the write concern error of the first. What that part said it had written is written again.
func TestLargeBulk(t *testing.T) {
	body := job.Body{Kind: job.BodyText, Data: `{"a":[0` + strings.Repeat(",0", 1<<19-10) + `]}`}
	var deliveries []job.Delivery
	var records []job.Record
	for i := range 6 {
		deliveries = append(deliveries, delivery(t, job.Input{JobID: fmt.Sprint("j", i), Body: body}))
		records = append(records, deliveries[i].NewRecord(time.Now()))
	}
	for name, write := range map[string]func(*mongostore.Store){
		"record": func(s *mongostore.Store) {
			for i, o := range s.Record(within(t), deliveries) {
				if o.Err != nil || o.Verdict.Disposition != job.First {
					t.Errorf("%d: %+v, %v", i, o.Verdict, o.Err)
				}
			}
		},
		"copy": func(s *mongostore.Store) { wantCopied(t, s, records, len(records), 0) },
	} {
		f, s := scripted(t, bson.D{{Key: "setName", Value: "rs0"}})
		var mu sync.Mutex
		tries, first, largest := map[string]int{}, []string{}, 0
		f.answerWith("update", func(command bson.Raw) bson.D {
			mu.Lock()
			defer mu.Unlock()
			largest = max(largest, len(command))
			reply := upserted(command, 0)
			for _, item := range items(command) {
				switch id := jobIDOf(item); {
				case tries[id] > 0:
				case id == "j0":
					reply = append(reply, bson.E{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: int32(64)}, {Key: "errmsg", Value: "timed out"}}})
					for _, item := range items(command) {
						first = append(first, jobIDOf(item))
					}
				case id == "j5":
					reply = upserted(command, 112, id)
				}
				tries[jobIDOf(item)]++
			}
			return reply
		})
		write(s)
		if largest > 48_000_000 || largest < 20_000_000 {
			t.Errorf("%s: the largest command has %d bytes", name, largest)
		}
		for _, id := range first {
			if tries[id] != 2 {
				t.Errorf("%s: %s was written %d times, want 2: its write concern error was lost", name, id, tries[id])
			}
		}
	}
}

// TestSplitBulk: of a bulk that the driver has split all the same nothing counts as written.
func TestSplitBulk(t *testing.T) {
	f := startFake(t, nil)
	f.answer("hello", bson.D{{Key: "maxWriteBatchSize", Value: int32(2)}})
	f.answerWith("update", func(command bson.Raw) bson.D { return upserted(command, 112, "j4") })
	s := open(t, mongostore.Options{URI: "mongodb://" + f.addr() + "/?directConnection=true",
		NewPause: func() backoff.BackOff { return &backoff.ZeroBackOff{} }})
	for i, o := range s.Record(within(t), five(t, "j")) {
		if !errors.Is(o.Err, job.ErrOutcomeUnknown) {
			t.Errorf("%d: %+v, %v; want job.ErrOutcomeUnknown", i, o.Verdict, o.Err)
		}
	}
	if got, err := s.Copy(within(t), copiedRecords(t)[:5]); err == nil || got.Written != 0 {
		t.Errorf("copied %+v, %v", got, err)
	}
}

// TestMongosLosesConcern: a mongos in whose bulk an item failed is not believed that the others are durable before they
// were read: here they were rolled back.
func TestMongosLosesConcern(t *testing.T) {
	f, s := scripted(t, bson.D{{Key: "msg", Value: "isdbgrid"}})
	var mu sync.Mutex
	tries := map[string]int{}
	f.answerWith("update", func(command bson.Raw) bson.D {
		mu.Lock()
		defer mu.Unlock()
		for _, item := range items(command) {
			tries[jobIDOf(item)]++
		}
		if len(items(command)) > 1 {
			return upserted(command, 112, "j0")
		}
		return upserted(command, 0)
	})
	f.answer("find", cursorOf())
	deliveries := five(t, "j")
	for _, o := range s.Record(within(t), deliveries) {
		firstOnce(t, o)
	}
	for id, n := range tries {
		if n != 2 {
			t.Errorf("%s was written %d times, want 2", id, n)
		}
	}
}

// strangeCodes are in no list of ours: 133 and 202 are what mongos makes of a shard that it cannot reach.
var strangeCodes = []int32{82, 133, 202, 365, 371, 14031, 987654}

// TestStrangeCode: of an item's error code that we do not know nobody can say that nothing was applied. It is tried three
// times, and costs its neighbours nothing.
func TestStrangeCode(t *testing.T) {
	b := newBench(t, "")
	for _, code := range strangeCodes {
		prefix := fmt.Sprint(code, "-")
		rule := b.proxy.Add(&wireproxy.Rule{Command: "update", If: func(c wireproxy.Command) bool {
			return slices.ContainsFunc(c.Items(), ofJob(prefix+"2"))
		}, Do: wireproxy.RefuseItems(wireproxy.ItemError{Code: code}, ofJob(prefix+"2"))})
		for i, o := range b.store.Record(within(t), five(t, prefix)) {
			if i != 2 {
				firstOnce(t, o)
			} else if !errors.Is(o.Err, job.ErrOutcomeUnknown) || errors.Is(o.Err, job.ErrUnavailable) {
				t.Errorf("code %d: %v, want job.ErrOutcomeUnknown", code, o.Err)
			}
		}
		if rule.Hits() != 3 {
			t.Errorf("code %d: tried %d times", code, rule.Hits())
		}
		b.calm()
		firstOnce(t, b.store.Record(within(t), five(t, prefix)[2:3])[0])
	}
}

// TestStrangeCodeOnce: such a code costs the record nothing either, and whether the write was applied is found out.
func TestStrangeCodeOnce(t *testing.T) {
	b := newBench(t, "")
	for _, code := range strangeCodes {
		for name, fault := range map[string]func(wireproxy.ItemError, func(bson.Raw) bool) wireproxy.Fault{
			"applied": wireproxy.DisownItems, "not applied": wireproxy.RefuseItems,
		} {
			object, text := newDelivery(t, fmt.Sprint(code, name), "r", job.ModeUntracked), newDelivery(t, fmt.Sprint(code, name, " text"), "r", job.ModeUntracked)
			text.Body.Data, text.Object = "no JSON", false
			for _, d := range []job.Delivery{object, text} {
				b.proxy.Add(&wireproxy.Rule{Command: "update", If: isUpsert, Times: 1, Do: fault(wireproxy.ItemError{Code: code}, anyItem)})
				if o := b.store.Record(within(t), []job.Delivery{d})[0]; o.Err != nil || o.Verdict.Disposition != job.First {
					t.Errorf("%s: %+v, %v; want the first", d.JobID, o.Verdict, o.Err)
				}
				b.calm()
			}
			if doc, _ := b.stored(object.JobID); doc.Lookup("payload").Type == 0 {
				t.Errorf("%s: the document was dropped", object.JobID)
			}
		}
	}
}

// TestStrangeCodeThenGone: a write that was answered with such a code was sent, although the next try gets no connection.
func TestStrangeCodeThenGone(t *testing.T) {
	b := newBench(t, "&maxPoolSize=1")
	ctx, leave := context.WithCancel(within(t))
	release := make(chan struct{})
	rule := b.proxy.Add(&wireproxy.Rule{Command: "update", If: isUpsert, Do: wireproxy.DisownItems(wireproxy.ItemError{Code: 133}, anyItem)})
	var s *mongostore.Store
	occupy := sync.OnceFunc(func() {
		held := b.proxy.Add(&wireproxy.Rule{Command: "find", Do: wireproxy.Hold(release)})
		go func() { _, _ = s.Get(within(t), "j", false) }()
		testenv.OK(t, held.Begun(within(t), 1))
		leave()
	})
	opts := b.opts
	opts.Now = func() time.Time { // asked before each try
		if rule.Hits() > 0 {
			occupy()
		}
		return b.clock.Now()
	}
	s = open(t, opts)
	o := s.Record(ctx, []job.Delivery{newDelivery(t, "j", "r", job.ModeUntracked)})[0]
	if !errors.Is(o.Err, job.ErrOutcomeUnknown) || errors.Is(o.Err, job.ErrUnavailable) {
		t.Errorf("%+v, %v; want job.ErrOutcomeUnknown", o.Verdict, o.Err)
	}
	close(release)
	if rule.Hits() != 1 || b.deliveries("j") != 1 {
		t.Errorf("sent %d times, %d deliveries stored", rule.Hits(), b.deliveries("j"))
	}
}

// leaving is a pause during which the caller leaves.
type leaving struct {
	*backoff.StopBackOff
	leave func()
}

func (l leaving) NextBackOff() time.Duration {
	l.leave()
	return time.Hour
}

// TestRefusedDocumentAtTheEnd: the caller leaves after the database refused the embedded document of a delivery that goes
// alone, and before the text alone was sent.
func TestRefusedDocumentAtTheEnd(t *testing.T) {
	f := startFake(t, nil)
	f.answer("hello", bson.D{{Key: "setName", Value: "rs0"}, {Key: "logicalSessionTimeoutMinutes", Value: int64(30)}})
	ctx, leave := context.WithCancel(within(t))
	s := open(t, mongostore.Options{URI: "mongodb://" + f.addr() + "/?directConnection=true",
		NewPause: func() backoff.BackOff { return leaving{leave: leave} }})
	var updates atomic.Int64
	f.answerWith("update", func(command bson.Raw) bson.D {
		if updates.Add(1) == 1 {
			return upserted(command, 112, "j") // so that it goes alone
		}
		return upserted(command, 57, "j")
	})
	out := make(chan job.Outcome, 1)
	d := delivery(t, job.Input{JobID: "j", RequestID: "r", Mode: job.ModeLeased, Lease: new(time.Minute), Body: bodyOf(`{"a":1}`)})
	s.RecordEach(ctx, []job.Delivery{d}, func(_ int, o job.Outcome) { out <- o })
	wantUnavailable(t, (<-out).Err)
}
