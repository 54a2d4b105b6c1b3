package sqlitestore_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// delivery is of a LEASED job with a large body, or a small one.
func delivery(t *testing.T, jobID, event string, large bool) job.Delivery {
	t.Helper()
	lease := time.Minute
	in := job.Input{JobID: jobID, Event: event, Mode: job.ModeLeased, Lease: &lease, Body: job.Body{Kind: job.BodyText, Data: "body of " + jobID}}
	if large {
		in.Body.Data += strings.Repeat(" ", 2000)
	}
	d, err := in.Delivery(1 << 20)
	testenv.Must(t, err)
	return d
}

// wantUnusable wants an error that is about one job: neither an outage nor an unknown outcome.
func wantUnusable(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, job.ErrRecordUnusable) || errors.Is(err, job.ErrUnavailable) || errors.Is(err, job.ErrOutcomeUnknown) {
		t.Errorf("%s: %v, want ErrRecordUnusable", what, err)
	}
	if err != nil && !strings.Contains(err.Error(), `"bad"`) {
		t.Errorf("%s: %q does not name the job", what, err)
	}
}

// TestRefusalIsOfOneJob: what the file refuses about one job, or holds of it and we never write, is that job's outcome. Its
// neighbours in the batch are written, each once.
func TestRefusalIsOfOneJob(t *testing.T) {
	for _, c := range []struct {
		name, spoil string
		// stored: the record is there, so that calls of its holder fail too; but a completion reads nothing, and is made.
		stored, completes bool
	}{
		{"a counter that cannot be counted", "UPDATE jobs SET deliveries = 9223372036854775807 WHERE job_id = 'bad'", false, false},
		{"a conflict that cannot be counted", "UPDATE jobs SET conflicts = 9223372036854775807, conflict_kind = 1 WHERE job_id = 'bad'", false, false},
		{"a number out of range", "UPDATE jobs SET work_attempts = 5000000000 WHERE job_id = 'bad'", true, true},
		{"a lost body", "DELETE FROM large_bodies; UPDATE jobs SET work_due = 1, event = 'other' WHERE job_id = 'bad'", false, false},
		{"a constraint of somebody's", `CREATE TRIGGER mine BEFORE UPDATE ON jobs WHEN OLD.job_id = 'bad' BEGIN SELECT RAISE(ABORT, 'no'); END`, true, false},
		{"a constraint on new jobs", `DELETE FROM jobs WHERE job_id = 'bad';
			CREATE TRIGGER mine BEFORE INSERT ON jobs WHEN NEW.job_id = 'bad' BEGIN SELECT RAISE(FAIL, 'no'); END`, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir, testenv.NewClock())
			first := s.Record(t.Context(), []job.Delivery{delivery(t, "bad", "e", true)})[0]
			if first.Err != nil {
				t.Fatal(first.Err)
			}
			execSQL(t, sqlitestore.File(dir), c.spoil)
			before := queryText(t, sqlitestore.File(dir), "SELECT coalesce(group_concat(concat_ws(' ', deliveries, conflicts, work_token)), '') FROM jobs")

			bad := delivery(t, "bad", "other", true)
			batch := []job.Delivery{delivery(t, "a", "e", true), bad, delivery(t, "b", "e", false), bad, delivery(t, "a", "e", true)}
			for i, o := range s.Record(t.Context(), batch) {
				if batch[i].JobID == "bad" {
					wantUnusable(t, "record in a batch", o.Err)
				} else if want := []int64{1, 0, 1, 0, 2}[i]; o.Err != nil || o.Record.Deliveries != want {
					t.Errorf("%d, %s: %d deliveries, %v; want %d", i, batch[i].JobID, o.Record.Deliveries, o.Err, want)
				}
			}
			wantUnusable(t, "record", s.Record(t.Context(), []job.Delivery{bad})[0].Err)
			if c.stored {
				_, err := job.Renew(t.Context(), s, "bad", first.Lease.Token, time.Hour)
				wantUnusable(t, "renew", err)
				wantUnusable(t, "release", job.GiveBack(t.Context(), s, "bad", first.Lease.Token, job.Release{}))
				if err := job.Complete(t.Context(), s, "bad", first.Lease.Token, ""); !c.completes || err != nil {
					wantUnusable(t, "complete", err)
				}
			}
			for id, want := range map[string]int64{"a": 2, "b": 1} {
				if r, err := s.Get(t.Context(), id, true); err != nil || r.Deliveries != want || !strings.HasPrefix(r.Body.Data, "body of "+id) {
					t.Errorf("%s: %d deliveries, %v; want %d", id, r.Deliveries, err, want)
				}
			}
			after := queryText(t, sqlitestore.File(dir), "SELECT coalesce(group_concat(concat_ws(' ', deliveries, conflicts, work_token)), '') FROM jobs WHERE job_id = 'bad'")
			if after != before {
				t.Errorf("of the refused deliveries is left %q, before it was %q", after, before)
			}
			if err := s.Check(t.Context()); err != nil {
				t.Errorf("the store is out of service: %v", err)
			}
		})
	}
}

func TestGetOfAnUnusableRecord(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, nil)
	if o := s.Record(t.Context(), []job.Delivery{delivery(t, "bad", "e", true)})[0]; o.Err != nil {
		t.Fatal(o.Err)
	}
	execSQL(t, sqlitestore.File(dir), "DELETE FROM large_bodies")
	_, err := s.Get(t.Context(), "bad", true)
	wantUnusable(t, "with its body, which is lost", err)
	if _, err := s.Get(t.Context(), "bad", false); err != nil {
		t.Errorf("without its body: %v", err)
	}
	execSQL(t, sqlitestore.File(dir), "UPDATE jobs SET work_attempts = -5000000000")
	_, err = s.Get(t.Context(), "bad", false)
	wantUnusable(t, "out of range", err)
}

// TestRefusalOfTheFile: what the file refuses of every job is a fault of the service, which no retry mends. It is never told
// as an outage, nor as an unknown outcome.
func TestRefusalOfTheFile(t *testing.T) {
	for name, spoil := range map[string]string{
		"a table is gone": "DROP TABLE large_bodies",
		"a constraint that is checked at the end": `CREATE TABLE other (x REFERENCES jobs (job_id) DEFERRABLE INITIALLY DEFERRED);
			CREATE TRIGGER mine AFTER INSERT ON jobs BEGIN INSERT INTO other VALUES ('nobody'); END`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			opts := sqlitestore.Options{Logger: testenv.Logger(t)}.WithPragmas("foreign_keys(true)")
			s, err := sqlitestore.Open(t.Context(), dir, opts)
			testenv.Must(t, err)
			defer s.Close()
			execSQL(t, sqlitestore.File(dir), spoil)
			err = s.Record(t.Context(), []job.Delivery{delivery(t, "j", "e", true)})[0].Err
			sentinels := []error{nil, job.ErrUnavailable, job.ErrOutcomeUnknown, job.ErrRecordUnusable, job.ErrNotFound}
			if slices.ContainsFunc(sentinels, func(s error) bool { return errors.Is(err, s) }) {
				t.Errorf("got %v, want an error of no kind", err)
			}
			if err := s.Check(t.Context()); err != nil {
				t.Errorf("the store is out of service: %v", err)
			}
		})
	}
}

// TestClaimTakenBackHidesNothing: what a claim was about to lease, beside paused work, is found by the next one when the first could
// not be committed.
func TestClaimTakenBackHidesNothing(t *testing.T) {
	dir, clock := t.TempDir(), testenv.NewClock()
	opts := sqlitestore.Options{Logger: testenv.Logger(t), Now: clock.Now, MaxAttempts: 1}.WithPragmas("foreign_keys(true)")
	s, err := sqlitestore.Open(t.Context(), dir, opts)
	testenv.Must(t, err)
	defer s.Close()
	record := func(id string) {
		in := job.Input{JobID: id, Mode: job.ModeQueued}
		d, err := in.Delivery(1)
		testenv.Must(t, err)
		testenv.Must(t, s.Record(t.Context(), []job.Delivery{d})[0].Err)
	}
	claim := func(id string) ([]job.Claimed, error) {
		return s.Claim(t.Context(), job.ClaimRequest{RequestID: id, Max: 3, Lease: time.Second, MaxBytes: 1 << 20})
	}
	record("used up")
	_, err = claim("first")
	testenv.Must(t, err)
	clock.Advance(time.Minute)
	_, err = s.Pause(t.Context(), "paused", "")
	testenv.Must(t, err)
	record("ours")
	execSQL(t, sqlitestore.File(dir), `CREATE TABLE other (x REFERENCES jobs (job_id) DEFERRABLE INITIALLY DEFERRED);
		CREATE TRIGGER mine AFTER UPDATE ON jobs WHEN NEW.job_id = 'ours' BEGIN INSERT INTO other VALUES ('nobody'); END`)
	clock.Advance(time.Millisecond)
	if got, err := claim("second"); err == nil {
		t.Fatalf("claimed %v, want a refused commit", got)
	}
	execSQL(t, sqlitestore.File(dir), "DROP TRIGGER mine")
	if got, err := claim("third"); err != nil || len(got) != 1 || got[0].Record.JobID != "ours" {
		t.Errorf("claimed %v, %v", got, err)
	}
}

// TestOrphans: a body whose job is gone, however that came, neither stays for the next job nor keeps it out.
func TestOrphans(t *testing.T) {
	for name, spoil := range map[string]string{
		"a job deleted by hand": "DELETE FROM jobs WHERE job_id = 'gone'",
		"by an older version":   "DROP TRIGGER jobs_deleted; DELETE FROM jobs WHERE job_id = 'gone'",
		"a body put in by hand": "INSERT INTO large_bodies SELECT max(id) + n, 'x', NULL FROM jobs, (SELECT 1 AS n UNION SELECT 2 UNION SELECT 3) GROUP BY n",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir, nil)
			for _, id := range []string{"kept", "gone"} {
				if o := s.Record(t.Context(), []job.Delivery{delivery(t, id, "e", true)})[0]; o.Err != nil {
					t.Fatal(o.Err)
				}
			}
			execSQL(t, sqlitestore.File(dir), spoil)
			none, err := job.Input{JobID: "without"}.Delivery(1 << 20)
			testenv.Must(t, err)
			for _, d := range []job.Delivery{delivery(t, "large", "e", true), delivery(t, "small", "e", false), none} {
				if o := s.Record(t.Context(), []job.Delivery{d})[0]; o.Err != nil {
					t.Errorf("%s: %v", d.JobID, o.Err)
				}
				if r, err := s.Get(t.Context(), d.JobID, true); err != nil || r.Body != d.Body {
					t.Errorf("%s: has the body %.20q, %v", d.JobID, r.Body.Data, err)
				}
			}
		})
	}
}

// TestDamagedFileServesNoMore: when SQLite finds the file damaged, twice, nothing more is decided on it.
func TestDamagedFileServesNoMore(t *testing.T) {
	for _, call := range []string{"get", "record"} {
		t.Run(call, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir, nil)
			fill(t, s, 60)
			testenv.Must(t, s.Close())
			path := sqlitestore.File(dir)
			leaf, err := strconv.Atoi(queryText(t, path, "SELECT pageno FROM dbstat WHERE name = 'jobs' AND pagetype = 'leaf' ORDER BY pageno LIMIT 1"))
			testenv.Must(t, err)
			overwrite(t, path, (leaf-1)*4096, 4096)
			s = open(t, dir, nil)
			for i := range 60 {
				id := fmt.Sprint("job ", i)
				if call == "record" {
					err = s.Record(t.Context(), []job.Delivery{delivery(t, id, "e", false)})[0].Err
				} else {
					_, err = s.Get(t.Context(), id, false)
				}
				if err != nil {
					break
				}
			}
			if !errors.Is(err, job.ErrUnavailable) || !errors.Is(err, sqlitestore.ErrDamaged) {
				t.Errorf("got %v, want ErrDamaged", err)
			}
			if err := s.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "damaged") {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// TestClaimRepeatedBesideALostBody: a repeated claim gets what it holds and nothing new, also when the body of the first of it
// is lost.
func TestClaimRepeatedBesideALostBody(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, nil)
	claim := func() []job.Claimed {
		t.Helper()
		claimed, err := s.Claim(t.Context(), job.ClaimRequest{RequestID: "r", Max: 2, Lease: time.Minute, MaxBytes: 5000})
		testenv.Must(t, err)
		return claimed
	}
	queue := func(id string, size int) {
		t.Helper()
		d, err := job.Input{JobID: id, Mode: job.ModeQueued, Body: job.Body{Kind: job.BodyText, Data: strings.Repeat("x", size)}}.Delivery(1 << 20)
		testenv.Must(t, err)
		if o := s.Record(t.Context(), []job.Delivery{d})[0]; o.Err != nil {
			t.Fatal(o.Err)
		}
	}
	queue("a", 10)
	queue("b", 4000)
	if claimed := claim(); len(claimed) != 2 {
		t.Fatalf("claimed %d", len(claimed))
	}
	queue("c", 10)
	execSQL(t, sqlitestore.File(dir), "UPDATE jobs SET text = NULL WHERE job_id = 'a'; UPDATE large_bodies SET text = text || text WHERE id = 2")
	claimed := claim()
	if len(claimed) != 1 || claimed[0].Record.JobID != "b" || claimed[0].Granted {
		for _, c := range claimed {
			t.Errorf("claimed %s, granted %t; want b alone", c.Record.JobID, c.Granted)
		}
	}
}
