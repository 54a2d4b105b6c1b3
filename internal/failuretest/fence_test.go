package failuretest

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/jobonce/jobonce/internal/testenv"
)

// The code in docs/failures.md is this, word for word.

// errFenced says that a later holder of the job has written already.
var errFenced = errors.New("a later holder has written")

// saveInvoice writes what the work of a job came to. generation is that of the lease that the work is done under.
func saveInvoice(ctx context.Context, db *sql.DB, jobID string, cents, generation int64) error {
	result, err := db.ExecContext(ctx, `
		INSERT INTO invoices (job_id, cents, generation) VALUES ($1, $2, $3)
		ON CONFLICT (job_id) DO UPDATE SET cents = excluded.cents, generation = excluded.generation
		WHERE invoices.generation <= excluded.generation`, jobID, cents, generation)
	if err != nil {
		return err
	}
	written, err := result.RowsAffected()
	if err == nil && written == 0 {
		return errFenced
	}
	return err
}

// TestFencingNumber: a holder that stalls past its lease comes back when the next one has done the work, and writes. It is
// refused.
func TestFencingNumber(t *testing.T) {
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "invoices.db"))
	testenv.Must(t, err)
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), codeBlock(t, "sql")); err != nil {
		t.Fatal(err)
	}
	onBothStores(t, func(t *testing.T, w *world) {
		c := w.client()
		id := t.Name()
		save := func(cents, generation int64) error { return saveInvoice(t.Context(), db, id, cents, generation) }
		stalled := record(t, c, leased(completed(id))).GetLease()
		w.clock.Advance(lease)
		next := record(t, c, leased(completed(id))).GetLease()
		for range 2 { // a holder may write more than once
			if err := save(200, next.GetGeneration()); err != nil {
				t.Errorf("the holder writes: %v", err)
			}
		}
		if err := save(100, stalled.GetGeneration()); !errors.Is(err, errFenced) {
			t.Errorf("the stalled holder writes: %v, want errFenced", err)
		}
		w.clock.Advance(lease)
		w.clock.Advance(-lease / 2) // clocks are set back, too
		w.clock.Advance(lease)
		last := record(t, c, leased(completed(id))).GetLease()
		if err := save(300, last.GetGeneration()); err != nil {
			t.Errorf("a later holder writes: %v", err)
		}
		var cents int64
		row := db.QueryRowContext(t.Context(), "SELECT cents FROM invoices WHERE job_id = $1", id)
		if err := row.Scan(&cents); err != nil || cents != 300 {
			t.Errorf("the invoice is over %d, %v; want 300", cents, err)
		}
	})
}
