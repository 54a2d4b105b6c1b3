package sqlitestore

import (
	"database/sql"
	"errors"
	"time"

	"github.com/jobonce/jobonce/internal/job"
)

// bodyColumns gives the values of the columns text and bytes.
func bodyColumns(b job.Body) (text, bytes any) {
	switch b.Kind {
	case job.BodyText:
		return b.Data, nil
	case job.BodyBytes:
		return nil, []byte(b.Data)
	}
	return nil, nil
}

// workColumns gives the values of the work's columns from work_state on, without work_mode, in the order of the statements.
func workColumns(w *job.Work) []any {
	var fingerprint any
	if w.RequestID != "" {
		fingerprint = []byte(w.RequestFingerprint)
	}
	var due, granted any
	if !w.Due.IsZero() {
		due, granted = w.Due.UnixMilli(), w.Granted.Milliseconds()
	}
	return []any{w.State.String(), due, granted, orNull(w.Token), w.Generation, int64(w.Attempts), int64(w.Lapses),
		int64(w.Requeues), orNull(w.RequestID), fingerprint, orNull(w.ClaimID), orNull(w.Caller), orNull(w.Result), orNull(w.Error)}
}

// orNull is what a column holds of v, which is NULL for an empty one.
func orNull[T comparable](v T) any {
	var none T
	if v == none {
		return nil
	}
	return v
}

// row is a record and what the table knows of it beside.
type row struct {
	job.Record
	id   int64
	kind job.BodyKind
	// read: the body was read with the row.
	read bool
}

// scanner is a row that is being read.
type scanner interface{ Scan(into ...any) error }

// scannedWork is the columns of workColumns as they are read.
type scannedWork struct {
	state, mode                string
	due, granted               sql.NullInt64
	generation                 int64
	attempts, lapses, requeues int32
	token, requestID, claimID  sql.NullString
	caller, result, reason     sql.NullString
	fingerprint                []byte
}

func (c *scannedWork) into() []any {
	return []any{&c.state, &c.mode, &c.due, &c.granted, &c.token, &c.generation, &c.attempts, &c.lapses, &c.requeues,
		&c.requestID, &c.fingerprint, &c.claimID, &c.caller, &c.result, &c.reason}
}

func (c *scannedWork) work() job.Work {
	w := job.Work{
		State: job.StateNamed(c.state), Mode: job.ModeNamed(c.mode), Token: c.token.String, Generation: c.generation,
		Attempts: c.attempts, Lapses: c.lapses, Requeues: c.requeues, RequestID: c.requestID.String, RequestFingerprint: string(c.fingerprint),
		ClaimID: c.claimID.String, Caller: c.caller.String, Result: c.result.String, Error: c.reason.String,
	}
	if c.due.Valid {
		w.Due, w.Granted = fromMillis(c.due.Int64), job.MaxLease
	}
	if c.granted.Valid {
		w.Granted = time.Duration(c.granted.Int64) * time.Millisecond
	}
	return w
}

// scanRecord reads the columns of recordColumns, and the two of the body when withBody is set.
func scanRecord(from scanner, withBody bool) (r row, err error) {
	var (
		work                                scannedWork
		fingerprint, bytes                  []byte
		first, last                         int64
		omitted, dropped, conflictTime      sql.NullInt64
		contentType, traceparent            sql.NullString
		conflictKind                        sql.Null[uint8]
		conflictEvent, conflictStatus, text sql.NullString
		caller                              sql.NullString
	)
	into := append([]any{
		&r.id, &r.JobID, &r.Event, &r.Status, &fingerprint, &r.RequestID, &caller, &r.Source, &contentType, &traceparent, &omitted,
		&first, &last, &r.Deliveries, &r.kind, &dropped, &r.Conflicts, &conflictKind, &conflictEvent, &conflictStatus, &conflictTime,
	}, work.into()...)
	if withBody {
		into = append(into, &text, &bytes)
	}
	if err := from.Scan(into...); err != nil {
		return r, err
	}
	r.Fingerprint, r.Caller = string(fingerprint), caller.String
	r.ContentType, r.Traceparent, r.BodyOmitted = contentType.String, traceparent.String, omitted.Int64
	r.FirstSeen, r.LastSeen = fromMillis(first), fromMillis(last)
	if dropped.Valid {
		r.BodyDropped = fromMillis(dropped.Int64)
	}
	if conflictKind.Valid {
		r.LastConflict = &job.Conflict{Kind: job.ConflictKind(conflictKind.V), Event: conflictEvent.String,
			Status: conflictStatus.String, Time: fromMillis(conflictTime.Int64)}
	}
	r.Work = work.work()
	if withBody && r.BodyDropped.IsZero() {
		r.read = text.Valid || bytes != nil
		r.setBody(text, bytes)
	}
	return r, nil
}

func (r *row) setBody(text sql.NullString, bytes []byte) {
	r.Body.Kind = r.kind
	switch r.kind {
	case job.BodyText:
		r.Body.Data = text.String
	case job.BodyBytes:
		r.Body.Data = string(bytes)
	}
}

// lostBody is an error when the row must have a body and has none: work on it would be done on nothing.
func (r *row) lostBody() error {
	if r.Fingerprint != "" && r.Body.Data == "" && r.BodyDropped.IsZero() {
		return &unusable{r.JobID, errors.New("its body is missing")}
	}
	return nil
}

func fromMillis(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
