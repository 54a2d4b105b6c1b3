package sqlitestore

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"modernc.org/sqlite"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/testenv"
)

// TestClaimsUseTheDueIndex shows the query plans of claims: finished jobs are in neither index, so however many there are,
// they are not looked at.
func TestClaimsUseTheDueIndex(t *testing.T) {
	s, err := Open(t.Context(), t.TempDir(), Options{})
	testenv.Must(t, err)
	defer func() { testenv.OK(t, s.Close()) }()
	for query, want := range map[string]string{
		dueQuery:         "SEARCH jobs USING INDEX jobs_due",
		dueUnderQuery:    "SEARCH jobs USING INDEX jobs_due_under (<expr>=? AND work_due<?)",
		dueTooFarQuery:   "SEARCH jobs USING INDEX jobs_due",
		unclaimableQuery: "CO-ROUTINE (subquery-1)\nSEARCH jobs USING INDEX jobs_unclaimable",
		ofClaimCallQuery: "SEARCH jobs USING INDEX jobs_claim",
		byIDQuery:        "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1",
	} {
		args := []any{1, 1, "1", "1"}[:map[string]int{dueQuery: 2, dueUnderQuery: 4, dueTooFarQuery: 3, unclaimableQuery: 2,
			ofClaimCallQuery: 4, byIDQuery: 1}[query]]
		got := planOf(t, s, query, args)
		if !strings.HasPrefix(got, want) || strings.Contains(got, "SCAN jobs") || strings.Contains(got, "TEMP B-TREE FOR ORDER BY") && query != ofClaimCallQuery {
			t.Errorf("%s\nis planned as\n%s\nwant %s", query, got, want)
		}
	}
}

// examined counts the rows that a query with the function examined in it looks at.
var examined atomic.Int64

func init() {
	sqlite.MustRegisterScalarFunction("examined", 1, func(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) {
		examined.Add(1)
		return int64(1), nil
	})
}

// TestClaimUnderAPrefixLooksAtItsGroup: however much of other groups is due, and for longer, a claim looks at its own.
func TestClaimUnderAPrefixLooksAtItsGroup(t *testing.T) {
	others := 2000
	if testenv.Long() {
		others = 1_000_000
	}
	s, err := Open(t.Context(), t.TempDir(), Options{})
	testenv.Must(t, err)
	defer func() { testenv.OK(t, s.Close()) }()
	_, err = s.writer.ExecContext(t.Context(), `INSERT INTO jobs (job_id, event, status, fingerprint, request_id, source, first_seen, last_seen,
			deliveries, body_kind, work_mode, work_state, work_due, work_granted)
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		SELECT iif(i % 2, 'bank:' || i, 'shopping:' || i), '', '', x'', '', '', i, i, 1, 0, 'queued', 'queued', i, 0 FROM n`, others)
	testenv.Must(t, err)
	for i := range 20 {
		in := job.Input{JobID: fmt.Sprint([]string{"shop:", "shop:eu:"}[i%2], i), Mode: job.ModeQueued}
		d, err := in.Delivery(1)
		testenv.Must(t, err)
		testenv.Must(t, s.Record(t.Context(), []job.Delivery{d})[0].Err)
	}
	counted := strings.Replace(dueUnderQuery, "WHERE", "WHERE examined(id) AND", 1)
	testenv.Must(t, s.prepareOn(context.Background(), s.writer, &s.write.dueUnder, counted))
	for _, c := range []struct {
		prefix     string
		most, want int
	}{{"shop:eu:", 3, 3}, {"shop:", 5, 5}, {"shop:", 1, 1}, {"nobody:", 5, 0}, {"shop:", 100, 11}, {"shop:", 1, 0}} {
		examined.Store(0)
		got, err := s.Claim(t.Context(), job.ClaimRequest{RequestID: job.NewToken(), Prefix: c.prefix, Max: c.most, Lease: time.Minute, MaxBytes: 1})
		if n := examined.Load(); err != nil || len(got) != c.want || n > int64(10*c.most) || c.want > 0 && n == 0 {
			t.Errorf("a claim of %d under %q got %d, %v, and looked at %d rows", c.most, c.prefix, len(got), err, n)
		}
	}
}

// TestPagesOfAPrefixLookAtIt: however many jobs and expectations of others come before, a page by id looks at its own.
func TestPagesOfAPrefixLookAtIt(t *testing.T) {
	s, err := Open(t.Context(), t.TempDir(), Options{})
	testenv.Must(t, err)
	defer func() { testenv.OK(t, s.Close()) }()
	for i := range 300 {
		in := job.Input{JobID: fmt.Sprint([]string{"bank:", "shop:", "zoo:"}[i/100], i)}
		d, err := in.Delivery(1)
		testenv.Must(t, err)
		testenv.Must(t, s.Record(t.Context(), []job.Delivery{d})[0].Err)
	}
	query, args := listQuery(&job.ListQuery{Order: job.ByID, Filter: job.Filter{Prefix: "shop:"}, Size: 1}, nil)
	for _, q := range []string{query, strings.Replace(countUnderQuery, "job_id LIMIT ?3", "job_id LIMIT 1000", 1)} {
		if q != query {
			args = []any{"shop:", "shop;"}
		}
		examined.Store(0)
		rows, err := s.readerDB.QueryContext(t.Context(), strings.Replace(q, "WHERE", "WHERE examined(id) AND", 1), args...)
		testenv.Must(t, err)
		for rows.Next() {
		}
		testenv.Must(t, errors.Join(rows.Err(), rows.Close()))
		if n := examined.Load(); n == 0 || n > 100 {
			t.Errorf("%s\nlooks at %d rows", q, n)
		}
	}
}

// TestListsUseTheIndexes shows that each list and count goes along one index, and sorts nothing.
func TestListsUseTheIndexes(t *testing.T) {
	s, err := Open(t.Context(), t.TempDir(), Options{})
	testenv.Must(t, err)
	defer func() { testenv.OK(t, s.Close()) }()
	after, at := job.Place{Seen: 1, JobID: "a"}, time.UnixMilli(1)
	type plan struct {
		query string
		args  []any
		want  string
	}
	plans := []plan{
		{passing(dueQuery, 3), []any{1, 1, 1}, "jobs_due (work_due>? AND work_due<?)"},
		{passing(longestDueQuery, 3), []any{1, 1, 1}, "jobs_due (work_due>? AND work_due<?)"},
		{passing(dueUnderQuery, 5), []any{1, 1, "a", "a", 1}, "jobs_due_under (<expr>=? AND work_due>? AND work_due<?)"},
		{countStateQuery, []any{"dead", 1}, "jobs_state (work_state=?)"},
		{countConflictsQuery, []any{1}, "INDEX jobs_conflict"},
		{statesQuery, nil, "jobs_state (work_state>?)"},
		{dueExpectationsQuery, []any{1, 1}, "expectations_due (due>? AND due<?)"},
		{dueExpectationsUnderQuery, []any{1, 1, "a", "a:"}, "expectations_due_under (job_group=? AND due>? AND due<?)"},
		{countOverdueQuery, []any{1, 1}, "expectations_overdue (overdue<?)"},
	}
	for _, c := range []struct {
		q    job.ListQuery
		want string
	}{
		{job.ListQuery{}, "jobs_state (work_state=?)"},
		{job.ListQuery{After: after}, "jobs_state (work_state=? AND (first_seen,job_id)<(?,?))"},
		{job.ListQuery{Order: job.OldestFirst, After: after}, "jobs_state (work_state=? AND (first_seen,job_id)>(?,?))"},
		{job.ListQuery{Filter: job.Filter{State: job.StateDead}, After: after}, "jobs_state (work_state=? AND (first_seen,job_id)<(?,?))"},
		{job.ListQuery{Filter: job.Filter{State: job.StateDead, SeenFrom: at, SeenBefore: at}}, "jobs_state (work_state=? AND first_seen>? AND first_seen<?)"},
		{job.ListQuery{Filter: job.Filter{Conflicts: true, State: job.StateDead}, After: after}, "jobs_conflict ((first_seen,job_id)<(?,?))"},
		{job.ListQuery{Order: job.ByID, Filter: job.Filter{Prefix: "a"}, After: after}, "sqlite_autoindex_jobs_1 (job_id>?)"},
	} {
		states := []string{c.q.State.String()}
		if c.q.State == job.StateUnknown {
			states, err = s.states(t.Context())
			testenv.Must(t, err)
		}
		query, args := listQuery(&c.q, states)
		plans = append(plans, plan{query, args, c.want})
	}
	for _, p := range plans {
		if got := planOf(t, s, p.query, p.args); !strings.Contains(got, p.want) || strings.Contains(got, "TEMP B-TREE") || strings.Contains(got, "SCAN jobs\n") {
			t.Errorf("%s\nis planned as\n%s\nwant %s", p.query, got, p.want)
		}
	}
}

// TestListsHaveStatesOfOthers: a job in a state that a newer version has left comes at its place in the list of all.
func TestListsHaveStatesOfOthers(t *testing.T) {
	clock := testenv.NewClock()
	s, err := Open(t.Context(), t.TempDir(), Options{Now: clock.Now})
	testenv.Must(t, err)
	defer func() { testenv.OK(t, s.Close()) }()
	const jobs = 6
	for i := range jobs {
		in := job.Input{JobID: fmt.Sprint("job ", i), Mode: job.ModeQueued}
		d, err := in.Delivery(1)
		testenv.Must(t, err)
		testenv.Must(t, s.Record(t.Context(), []job.Delivery{d})[0].Err)
		clock.Advance(time.Millisecond)
	}
	for id, state := range map[string]string{"job 1": "asleep", "job 2": "paused", "job 3": "zapped", "job 4": "completed"} {
		_, err := s.writer.ExecContext(t.Context(), "UPDATE jobs SET work_state = ? WHERE job_id = ?", state, id)
		testenv.Must(t, err)
	}
	page, err := s.List(t.Context(), job.ListQuery{Order: job.OldestFirst, Size: 10})
	if err != nil || len(page.Jobs) != jobs {
		t.Fatalf("%d jobs, %v", len(page.Jobs), err)
	}
	for i, r := range page.Jobs {
		if r.JobID != fmt.Sprint("job ", i) {
			t.Errorf("job %d of the list is %s", i, r.JobID)
		}
	}
}

func planOf(t *testing.T, s *Store, query string, args []any) string {
	t.Helper()
	rows, err := s.readerDB.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, args...)
	testenv.Must(t, err)
	defer rows.Close()
	var plan []string
	for rows.Next() {
		var id, parent, unused int
		var detail string
		testenv.Must(t, rows.Scan(&id, &parent, &unused, &detail))
		plan = append(plan, detail)
	}
	return strings.Join(plan, "\n")
}
