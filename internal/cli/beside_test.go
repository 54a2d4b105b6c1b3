package cli

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/jobonce/jobonce/internal/job"
	"github.com/jobonce/jobonce/internal/mongostore"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
)

// everything fills a data directory: something in every table.
func everything(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	clock := testenv.NewClock()
	s, err := sqlitestore.Open(t.Context(), dir, sqlitestore.Options{Now: clock.Now, Logger: slog.New(slog.DiscardHandler)})
	testenv.Must(t, err)
	for _, body := range []string{"small", strings.Repeat("large", 1000)} {
		d, err := job.Input{JobID: body[:5], Body: job.Body{Kind: job.BodyText, Data: body}}.Delivery(1 << 20)
		testenv.Must(t, err)
		testenv.Must(t, s.Record(t.Context(), []job.Delivery{d})[0].Err)
	}
	for i := range 4 {
		overdue, giveUp := time.Duration(i)*time.Minute, time.Hour
		req, err := job.NewExpectRequest(fmt.Sprint("expected ", i), "https://provider.example/?key=value", &overdue, &giveUp)
		testenv.Must(t, err)
		_, _, err = s.Expect(t.Context(), req)
		testenv.Must(t, err)
	}
	// One is leased, one was polled, one is to come, one was given up.
	o, err := s.ClaimOverdue(t.Context(), job.OverdueRequest{Max: 1, Lease: time.Minute})
	testenv.Must(t, err)
	clock.Advance(2 * time.Hour)
	_, _, err = s.ReportPoll(t.Context(), job.PollReport{JobID: o.Jobs[0].JobID, Token: o.Jobs[0].Token, Error: "503"})
	testenv.Must(t, err)
	_, err = s.ClaimOverdue(t.Context(), job.OverdueRequest{Max: 2, Lease: time.Minute})
	testenv.Must(t, err)
	for _, prefix := range []string{"", "shop:"} {
		_, err := s.Pause(t.Context(), prefix, "closed")
		testenv.Must(t, err)
	}
	testenv.Must(t, s.Close())
	return dir
}

// tables are the rows of each table of a file.
func tables(t *testing.T, file string) map[string][]string {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+file+"?mode=ro")
	testenv.Must(t, err)
	defer db.Close()
	out := map[string][]string{}
	names := rowsOf(t, db, "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
	for _, name := range names {
		name = strings.Trim(name, "[]")
		out[name] = rowsOf(t, db, "SELECT * FROM "+name+" ORDER BY 1")
	}
	return out
}

func rowsOf(t *testing.T, db *sql.DB, query string) (out []string) {
	t.Helper()
	rows, err := db.Query(query)
	testenv.Must(t, err)
	defer rows.Close()
	columns, err := rows.Columns()
	testenv.Must(t, err)
	for rows.Next() {
		values := make([]any, len(columns))
		into := make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		testenv.Must(t, rows.Scan(into...))
		out = append(out, fmt.Sprint(values))
	}
	return out
}

// TestEveryTableIsCarried: a backup has all that each table has, check looks at it, and copy takes it to MongoDB. A table
// that is added is to be carried too.
func TestEveryTableIsCarried(t *testing.T) {
	dir := everything(t)
	was := tables(t, sqlitestore.File(dir))
	names := []string{"claim_pauses", "expectations", "file", "jobs", "large_bodies"}
	for _, name := range names {
		if len(was[name]) == 0 {
			t.Errorf("the table %s is empty", name)
		}
	}
	if len(was) != len(names) {
		t.Fatalf("the file has %d tables, of which this test knows %v", len(was), names)
	}
	backup := filepath.Join(t.TempDir(), "backup.db")
	for _, args := range [][]string{{"check", "--data-dir", dir}, {"backup", "--data-dir", dir, backup}, {"check", backup}} {
		if code, err := execute(context.Background(), args, nil, io.Discard, io.Discard); code != 0 {
			t.Fatalf("%v: %v", args, err)
		}
	}
	kept := tables(t, backup)
	delete(kept, "file") // which marks each file
	delete(was, "file")
	if diff := cmp.Diff(was, kept); diff != "" {
		t.Errorf("the backup (-file +backup):\n%s", diff)
	}

	uri, database := testenv.MongoURI(t), testenv.Database(t)
	for range 2 { // it may be called again
		var out strings.Builder
		t.Setenv("MONGODB_URI", uri)
		code, err := execute(context.Background(), []string{"copy", "--data-dir", dir, "--mongodb-database", database}, nil, &out, io.Discard)
		if code != 0 || !strings.Contains(out.String(), "expectations: 4\npauses: 2\n") {
			t.Fatalf("copy: %v\n%s", err, &out)
		}
	}
	from, err := sqlitestore.OpenReader(t.Context(), dir)
	testenv.Must(t, err)
	defer from.Close()
	into, err := mongostore.Open(mongostore.Options{URI: uri, Database: database, Logger: slog.New(slog.DiscardHandler)})
	testenv.Must(t, err)
	defer into.Close()
	testenv.Must(t, awaitReady(t.Context(), into, time.Minute))
	expected, err := from.Expectations(t.Context())
	testenv.Must(t, err)
	copied, next, err := into.ListExpectations(t.Context(), job.AllExpectations, "", "", 100)
	if diff := cmp.Diff(expected, copied); err != nil || next != "" || diff != "" || len(expected) != 4 {
		t.Errorf("expectations: %v (-file +MongoDB)\n%s", err, diff)
	}
	paused, err := from.Pauses(t.Context())
	testenv.Must(t, err)
	if got, err := into.Pauses(t.Context()); err != nil || !slices.Equal(got, paused) || len(paused) != 2 {
		t.Errorf("pauses %+v, %v; want %+v", got, err, paused)
	}
}
