package sqlitestore_test

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
)

// BenchmarkRecord records new jobs with 1 KiB bodies from 64 callers, through the lane.
func BenchmarkRecord(b *testing.B) {
	s, err := sqlitestore.Open(b.Context(), b.TempDir(), sqlitestore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	jobs := batch.New(s, batch.Config{})
	defer func() { _ = jobs.Close() }()
	body := job.Body{Kind: job.BodyText, Data: `{"s":"` + strings.Repeat("x", 1010) + `"}`}
	b.SetParallelism(64)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		run := rand.Text()
		for n := 0; pb.Next(); n++ {
			d, err := job.Input{JobID: fmt.Sprintf("%s-%d", run, n), Body: body}.Delivery(1 << 20)
			if err != nil {
				b.Fatal(err)
			}
			if o := jobs.RecordOne(b.Context(), d); o.Err != nil || !o.Verdict.StartWork {
				b.Fatalf("%+v", o)
			}
		}
	})
}
