package job

import "time"

// Verdict is the decision on one delivery.
type Verdict struct {
	Disposition Disposition
	// StartWork is true exactly when the caller is to start the downstream work now.
	StartWork bool
	// FirstDelivery is true when this logical call created the record.
	FirstDelivery bool
	// Conflict is set when the delivery disagrees with the record.
	Conflict *Conflict
	// Leased is true when the caller holds the lease that the record is under.
	Leased bool
	// Claim is true when the work is free and this delivery may claim it. It is not an answer yet: the store tries to put
	// the work under the delivery's lease, provided that nobody else has changed it since, and decides again on what
	// the record has become.
	Claim bool
}

// Decide says what a delivery turned out to be, given the record as it stands after the delivery was written. It is
// pure: the same record, delivery and time give the same verdict, so a repeated call gets the same answer for as long
// as the record's state stays.
func Decide(r *Record, d *Delivery, now time.Time) Verdict {
	v := Verdict{Conflict: compare(r, d, now)}
	otherEvent := v.Conflict != nil && v.Conflict.Kind == ConflictEvent
	v.FirstDelivery = isCreator(r, d) && !otherEvent
	w := &r.Work
	switch {
	case w.State == StateCompleted:
		v.Disposition = Completed
	case w.State == StateDead:
		v.Disposition = Dead
	case w.State == StateLeased && now.Before(w.Due):
		switch {
		case isHolder(w, d) && !otherEvent:
			v.Disposition, v.StartWork, v.Leased = Reclaimed, true, true
			if v.FirstDelivery && w.Attempts == 1 {
				v.Disposition = First
			}
		case v.FirstDelivery && w.Mode == ModeQueued:
			v.Disposition = First
		default:
			v.Disposition = InProgress
		}
	case w.State == StateQueued && v.FirstDelivery:
		v.Disposition = First
	case w.State == StateQueued || w.State == StateLeased:
		v.Disposition = Pending
		// An event that is not the stored one never starts work: it would be done on the stored one. Nor does one that may
		// be another and could not be read.
		v.Claim = d.Mode == ModeLeased && !otherEvent && !hidesEvent(r, d) && w.Free(now)
	case w.State == StateUntracked && v.FirstDelivery:
		v.Disposition, v.StartWork = First, true
	case w.State == StateUntracked:
		v.Disposition = Duplicate
	default:
		v.Disposition = Pending // StateUnknown: whoever knows the state is to go on with it
	}
	return v
}

// isCreator tells whether d is the logical call that made r. The same request id with another body is another call: a
// frontend that reuses ids must not start work twice.
func isCreator(r *Record, d *Delivery) bool {
	return d.RequestID != "" && r.RequestID == d.RequestID && r.Fingerprint == d.Fingerprint &&
		r.BodyOmitted == d.BodyOmitted && SameCaller(r.Caller, d.Caller)
}

// isHolder tells whether d is the logical call that the current lease was granted to. One of another mode than LEASED is not,
// whatever its request id: who did not ask for a lease would neither renew nor complete it.
func isHolder(w *Work, d *Delivery) bool {
	return d.Mode == ModeLeased && d.RequestID != "" && w.RequestID == d.RequestID && w.RequestFingerprint == d.Fingerprint &&
		SameCaller(w.Caller, d.Caller)
}

// SameCaller tells whether a call may be one that was stored earlier, by the names of their callers: a request id replays only
// for the caller that used it. Where one of the two had no caller, none were configured, and anybody may be anybody.
func SameCaller(stored, now string) bool { return stored == "" || now == "" || stored == now }

// compare finds how d disagrees with r; nil when it does not. What either side left empty cannot disagree, and bodies
// from different sources are never the same text, so only those of one source are compared.
func compare(r *Record, d *Delivery, now time.Time) *Conflict {
	kind := ConflictNone
	switch {
	case differ(r.Event, d.Event) || differ(r.Status, d.Status):
		kind = ConflictEvent
	case r.Source == d.Source && (differ(r.Fingerprint, d.Fingerprint) || differ(r.BodyOmitted, d.BodyOmitted)):
		kind = ConflictBody
	default:
		return nil
	}
	return &Conflict{Kind: kind, Event: d.Event, Status: d.Status, Time: Millis(now)}
}

// hidesEvent tells whether d may be another event than r for all that could be read of it. The stored body once more is
// the same event, read or not.
func hidesEvent(r *Record, d *Delivery) bool {
	if r.Fingerprint != "" && r.Fingerprint == d.Fingerprint {
		return false
	}
	return r.Event != "" && d.EventUnread != UnreadNothing || r.Status != "" && d.StatusUnread != UnreadNothing
}

// differ tells whether two values are both there and not the same.
func differ[T comparable](a, b T) bool {
	var none T
	return a != none && b != none && a != b
}
