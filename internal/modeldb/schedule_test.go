package modeldb_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/modeldb"
)

// TestCopy: what happens in a copy of the database does not happen in it, nor the other way round, and its clients go on with it alone.
func TestCopy(t *testing.T) {
	onDesk(t, func(d *desk) {
		before := d.db.Copy()
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, err = d.coll.BulkWrite(d.t.Context(), upsert("a"))
		}()
		<-d.db.Arrived()
		came := d.db.Since([]int{0})
		with := d.db.Copy()
		before.Arrive(came, func(*modeldb.Call) bool { return false })
		for name, db := range map[string]*modeldb.Server{"where it waited": with, "where it came": before} {
			db.Answer(db.Calls()[0], modeldb.Fault{}, func(bson.Raw) {})
			if docs := db.Documents("app.jobs"); len(docs) != 1 || len(db.Calls()) != 0 {
				t.Errorf("the copy %s has %v", name, docs)
			}
		}
		if string(before.Digest()) != string(with.Digest()) {
			t.Error("the copies are not the same after the same")
		}
		if d.count("a") != -1 {
			t.Error("what was done in a copy was done here")
		}
		d.db.Answer(d.db.Calls()[0], modeldb.Fault{Kind: modeldb.ConcernFailed}, func(bson.Raw) {})
		if <-done; err == nil || d.count("a") != 1 {
			t.Errorf("%v, %d", err, d.count("a"))
		}
		if d.db.Elect(false); d.count("a") != -1 || len(with.Documents("app.jobs")) != 1 {
			t.Error("what was undone here was undone in a copy, or not here")
		}
	})
}

// TestCopyLosesAnswers: of what nobody waits for in a copy, reads are gone and writes may be executed yet.
func TestCopyLosesAnswers(t *testing.T) {
	onDesk(t, func(d *desk) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = d.coll.BulkWrite(d.t.Context(), upsert("a"))
			_ = d.coll.FindOne(d.t.Context(), bson.D{}).Err()
		}()
		left := func(*modeldb.Call) bool { return true }
		for _, writes := range []bool{true, false} {
			<-d.db.Arrived()
			db := d.db.Copy()
			db.Arrive(nil, left)
			if calls := db.Calls(); (len(calls) == 1 && calls[0].Gone) != writes || d.db.Calls()[0].Gone {
				t.Errorf("%v waits, %v", calls, d.db.Calls())
			}
			d.db.Answer(d.db.Calls()[0], modeldb.Fault{}, func(bson.Raw) {})
		}
		<-done
	})
}
