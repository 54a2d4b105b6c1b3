package job

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestPagerPlaces goes through lists page by page, as a store reads them, with documents of others among them whose ids cannot
// be told, and jobs that the filter's prefix is not of: each job comes once, and there is an end.
func TestPagerPlaces(t *testing.T) {
	at := func(ms int64, id string) Record { return Record{JobID: id, FirstSeen: time.UnixMilli(ms).UTC()} }
	all := []Record{at(1, "a:1"), at(1, "b:1"), at(1, "c:1"), at(2, "a:2"), at(2, "b:"), at(2, "b:2"), at(2, "b;"), at(3, "c:2")}
	for _, order := range []Order{NewestFirst, ByID} {
		for _, prefix := range []string{"", "a:", "b:", "c:", "d:"} {
			for foreign := range len(all) + 1 {
				q := ListQuery{Order: order, Size: 1, Filter: Filter{Prefix: prefix}}
				less := func(a, b Place) int {
					if order == ByID || a.Seen == b.Seen {
						return strings.Compare(a.JobID, b.JobID)
					}
					return int(a.Seen - b.Seen)
				}
				sorted := slices.SortedFunc(slices.Values(all), func(a, b Record) int { return less(PlaceOf(&a), PlaceOf(&b)) })
				if order == NewestFirst {
					slices.Reverse(sorted)
				}
				var got, want []string
				for pages := 0; ; pages++ {
					if pages > 100 {
						t.Fatalf("order %d, prefix %q, after job %d: no end", order, prefix, foreign)
					}
					p := NewPager(&q)
					for i := range sorted {
						r, after := &sorted[i], true
						if q.After != (Place{}) {
							after = less(PlaceOf(r), q.After) > 0
							if order == NewestFirst {
								after = less(PlaceOf(r), q.After) < 0
							}
						}
						if !after || order == ByID && r.JobID < prefix {
							continue
						}
						if order == ByID && !strings.HasPrefix(r.JobID, prefix) || !p.Room() {
							break
						}
						if p.Add(PlaceOf(r), r); i == foreign {
							for range ExaminedPerJob - p.page.Examined {
								p.Add(Place{r.FirstSeen.UnixMilli(), ""}, nil)
							}
						}
					}
					page := p.Page()
					for i := range page.Jobs {
						got = append(got, page.Jobs[i].JobID)
					}
					if q.After = page.Next; q.After == (Place{}) {
						break
					}
				}
				for i := range sorted {
					if strings.HasPrefix(sorted[i].JobID, prefix) {
						want = append(want, sorted[i].JobID)
					}
				}
				if !slices.Equal(got, want) {
					t.Errorf("order %d, prefix %q, others behind job %d: got %v, want %v", order, prefix, foreign, got, want)
				}
			}
		}
	}
}
