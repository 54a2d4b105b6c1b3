package mongostore

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/job"
)

// backlog is what is due: jobs that are claimed leave it, and others come.
type backlog struct {
	made, claimed int
	due           []string
}

func (b *backlog) window(n int) (due []candidate) {
	for len(b.due) < n {
		b.due = append(b.due, fmt.Sprint("job-", b.made))
		b.made++
	}
	for i, id := range b.due[:n] {
		due = append(due, candidate{stored{Record: job.Record{JobID: id}}, i, 1})
	}
	return due
}

// take claims those of the picked that are still due, and tells how many.
func (b *backlog) take(picked []candidate) (won int) {
	for _, c := range picked {
		if i := slices.Index(b.due, c.JobID); i >= 0 {
			b.due = slices.Delete(b.due, i, i+1)
			won++
		}
	}
	b.claimed += won
	return won
}

// TestClaimsDoNotCollide: instances that claim at the very same moments, each having seen what all saw, win most of what they
// try for.
func TestClaimsDoNotCollide(t *testing.T) {
	for _, instances := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(instances), func(t *testing.T) {
			var pickers []*picker
			for range instances {
				pickers = append(pickers, newPicker())
			}
			b, tried, read, now := &backlog{}, 0, 0, time.Now()
			for range 200 {
				picked := make([][]candidate, instances)
				for i, p := range pickers {
					n := p.room(16)
					picked[i] = p.pick(b.window(n), 16, 1<<20, now)
					read += n
				}
				for i, p := range pickers {
					won := b.take(picked[i])
					p.count(len(picked[i]), won)
					tried += len(picked[i])
				}
				now = now.Add(10 * time.Millisecond)
			}
			t.Logf("%d of %d, of %d read", b.claimed, tried, read)
			if least := map[int]float64{1: 1, 2: 0.9, 4: 0.85}[instances]; float64(b.claimed) < least*float64(tried) {
				t.Errorf("won %d of %d", b.claimed, tried)
			}
			if most := map[int]int{1: 3, 2: 16, 4: 16}[instances] * tried; read > most {
				t.Errorf("read %d to try for %d", read, tried)
			}
		})
	}
}

// TestNobodyIsPassedOverForLong: each job is claimed within the patience, and one claim, of when it was seen first, however
// many came after it, and however many of those other instances take.
func TestNobodyIsPassedOverForLong(t *testing.T) {
	for name, c := range map[string]struct {
		each   time.Duration
		others int // how many others take after each claim, the youngest of what is seen
	}{
		"alone":               {100 * time.Millisecond, 0},
		"with many instances": {20 * time.Millisecond, 40},
	} {
		t.Run(name, func(t *testing.T) {
			p, b, now := newPicker(), &backlog{}, time.Now()
			seen := map[string]time.Time{}
			for range 1500 { // 30 s and more
				due := b.window(64)
				for _, c := range due {
					if _, ok := seen[c.JobID]; !ok {
						seen[c.JobID] = now
					}
				}
				picked := p.pick(due, 16, 1<<20, now)
				b.take(picked)
				for _, one := range picked {
					if passed := now.Sub(seen[one.JobID]); passed > patience+c.each {
						t.Fatalf("%s was passed over for %v", one.JobID, passed)
					}
				}
				b.take(due[len(due)-c.others:])
				if len(p.passed) > maxPassed {
					t.Fatalf("%d jobs are remembered", len(p.passed))
				}
				now = now.Add(c.each)
			}
			for _, id := range b.due {
				if passed := now.Sub(seen[id]); passed > patience+c.each {
					t.Errorf("%s was passed over for %v", id, passed)
				}
			}
		})
	}
}

// TestPick: how much is picked, from any point.
func TestPick(t *testing.T) {
	due := (&backlog{}).window(5)
	due[4].size = 1 << 20
	for range 20 {
		p := newPicker()
		if picked := p.pick(due, 3, 1<<30, time.Now()); len(picked) != 3 {
			t.Errorf("picked %d, want 3", len(picked))
		}
		p = newPicker()
		picked := p.pick(due, 5, 4, time.Now())
		large := slices.ContainsFunc(picked, func(c candidate) bool { return c.size > 1 })
		if len(picked) == 0 || large && len(picked) > 1 || !large && len(picked) > 4 {
			t.Errorf("picked %d, a large one among them: %t", len(picked), large)
		}
	}
}

// TestCandidateFields: what a claim reads of the work is all that there may be, but for what it copies from the second read.
func TestCandidateFields(t *testing.T) {
	var all job.Work
	v := reflect.ValueOf(&all).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Struct:
			f.Set(reflect.ValueOf(time.UnixMilli(1)))
		case reflect.Int32, reflect.Int64:
			f.SetInt(1)
		case reflect.Uint8:
			f.SetUint(1)
		default:
			t.Fatalf("no value for %s", v.Type().Field(i).Name)
		}
	}
	elements, err := bson.Raw(workDocument(&all, true)).Elements()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range elements {
		read := slices.ContainsFunc(candidateFields, func(f bson.E) bool { return f.Key == inWork(e.Key()) })
		if copied := e.Key() == workError || e.Key() == workResult; read == copied {
			t.Errorf("%s is read with the candidates: %t, and is copied: %t", e.Key(), read, copied)
		}
	}
}
