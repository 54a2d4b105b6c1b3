package mongostore

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/load"
	"github.com/jobonce/jobonce/internal/testenv"
)

// maxBytesOver is how many times as many bytes as the plain upsert's document ours may have, of a body of 1 KiB or more.
const maxBytesOver = 1.35

// TestBytesPerJob compares the size of our document ($bsonSize) with that of the plain upsert by JavaScript's driver, and holds
// docs/mongodb.md to it.
func TestBytesPerJob(t *testing.T) {
	var rows []string
	for _, size := range []int{1 << 10, 16 << 10} {
		body := load.NewBody("bytes", size).Of(load.Key("bytes", 0))
		d, err := job.Input{RequestID: "6ba7b810-9dad-11d1-80b4-00c04fd430c8", Body: job.Body{Kind: job.BodyText, Data: body}}.Delivery(job.MaxBodyBytes)
		testenv.Must(t, err)
		plain := sizeOf(t, plainUpsert(t, &d))
		for _, c := range []struct {
			state string
			mode  job.WorkMode
		}{{"untracked", job.ModeUntracked}, {"queued", job.ModeQueued}, {"leased", job.ModeLeased}, {"completed", job.ModeLeased}} {
			d.Mode, d.Lease = c.mode, time.Minute
			r := d.NewRecord(noon)
			if c.state == "completed" {
				r.Work, err = r.Work.Complete(r.Work.Token, "")
				testenv.Must(t, err)
			}
			once, twice := sizeOf(t, ourUpsert(t, &r, insteadOfText)), sizeOf(t, ourUpsert(t, &r, besideText))
			over := float64(once) / float64(plain)
			rows = append(rows, fmt.Sprintf("| %d bytes, %s | %d | %d (%.2f) | %d (%.2f) |", size, c.state, plain, once, over, twice, float64(twice)/float64(plain)))
			if over > maxBytesOver {
				t.Errorf("%.3f times as many bytes as the plain upsert, want at most %v", over, maxBytesOver)
			}
		}
	}
	page, err := os.ReadFile("../../docs/mongodb.md")
	testenv.Must(t, err)
	if table := strings.Join(rows, "\n"); !strings.Contains(string(page), table) {
		t.Errorf("docs/mongodb.md does not have the rows\n%s", table)
	}
}

func sizeOf(t *testing.T, doc any) int {
	t.Helper()
	raw, err := bson.Marshal(doc)
	testenv.Must(t, err)
	return len(raw)
}

// ourUpsert is the document that an upsert of ours makes.
func ourUpsert(t *testing.T, r *job.Record, embed embedding) bson.D {
	var doc bson.D
	testenv.Must(t, bson.Unmarshal(inserted(t, newUpdate(r, 1, true, embed)), &doc))
	return append(doc, bson.E{Key: "_id", Value: bson.NewObjectID()}, bson.E{Key: fieldJobID, Value: r.JobID},
		bson.E{Key: fieldDeliveries, Value: int32(1)}, bson.E{Key: fieldLastSeen, Value: noon})
}

// plainUpsert is the document that frontends without JobOnce make of a delivery.
func plainUpsert(t *testing.T, d *job.Delivery) bson.D {
	var body any
	testenv.Must(t, bson.UnmarshalExtJSON([]byte(d.Body.Data), false, &body))
	return bson.D{{Key: "_id", Value: bson.NewObjectID()}, {Key: fieldJobID, Value: d.JobID}, {Key: fieldEvent, Value: d.Event},
		{Key: fieldStatus, Value: d.Status}, {Key: fieldPayload, Value: body}, {Key: fieldFirstSeen, Value: noon},
		{Key: fieldDeliveries, Value: int32(1)}}
}
