package mongostore_test

import (
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestListsBesideForeignIDs: a document whose id is no text, such as a list with a text in it that a filter finds, neither ends a list nor
// is in one.
func TestListsBesideForeignIDs(t *testing.T) {
	b := newBench(t, "")
	want := []string{"shop:a", "shop:b", "shop:c"}
	for _, id := range want {
		b.must(newDelivery(t, id, "r", job.ModeUntracked))
	}
	for _, id := range []any{bson.A{"shop:aa", "b"}, bson.A{"shop:bb"}, 7, nil} {
		_, err := b.direct.InsertOne(t.Context(), bson.D{{Key: "job_id", Value: id}, {Key: "deliveries", Value: 1},
			{Key: "first_seen", Value: b.clock.Now().Add(-time.Minute)}})
		testenv.Must(t, err)
	}
	for _, order := range []job.Order{job.ByID, job.NewestFirst, job.OldestFirst} {
		for _, prefix := range []string{"shop:", ""} {
			for _, size := range []int{1, 10} {
				q := job.ListQuery{Filter: job.Filter{Prefix: prefix}, Order: order, Size: size}
				var got []string
				for range 10 {
					page, err := b.store.List(within(t), q)
					testenv.Must(t, err)
					for _, r := range page.Jobs {
						got = append(got, r.JobID)
					}
					if q.After = page.Next; q.After == (job.Place{}) {
						break
					}
				}
				if slices.Sort(got); !slices.Equal(got, want) {
					t.Errorf("order %d, prefix %q, %d a page: %q, want %q", order, prefix, size, got, want)
				}
			}
		}
	}
	for _, prefix := range []string{"shop:", ""} {
		counts, err := b.store.Count(within(t), prefix)
		if n := counts.States[job.StateUntracked]; err != nil || n != (job.Count{N: 3}) {
			t.Errorf("prefix %q: %+v are counted, %v", prefix, n, err)
		}
	}
}
