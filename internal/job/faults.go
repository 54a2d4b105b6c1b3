package job

import (
	"crypto/sha256"
	"fmt"
)

// Faults says what cannot be right in a record that we wrote, as read with its body: one short sentence each, none when
// all is well. It is for checking a store; records that others wrote need not keep to this.
func (r *Record) Faults() []string {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if err := CheckJobID(r.JobID); err != nil {
		fault("%v", err)
	}
	if r.Deliveries < 1 {
		fault("counts %d deliveries", r.Deliveries)
	}
	if r.LastSeen.Before(r.FirstSeen) {
		fault("was last seen before it was first seen")
	}
	erased := !r.BodyDropped.IsZero() || r.Fingerprint == "" // the latest conflict may have gone with the payload
	if r.Conflicts == 0 && r.LastConflict != nil || r.Conflicts > 0 && r.LastConflict == nil && !erased {
		fault("counts %d conflicts, but which was the latest does not fit that", r.Conflicts)
	}
	r.bodyFaults(fault)
	r.Work.faults(fault)
	return faults
}

func (r *Record) bodyFaults(fault func(string, ...any)) {
	switch {
	case !r.BodyDropped.IsZero() && r.Body.Data != "":
		fault("has a payload that was dropped")
	case r.BodyOmitted < 0 || r.BodyOmitted > 0 && (r.Body.Kind != BodyNone || r.Fingerprint != ""):
		fault("has a payload, and says that one of %d bytes was left out", r.BodyOmitted)
	case !r.BodyDropped.IsZero():
	case r.Body.Data == "" && r.Fingerprint != "":
		fault("has no payload, but the fingerprint of one")
	case r.Body.Data != "":
		if sum := sha256.Sum256([]byte(r.Body.Data)); string(sum[:]) != r.Fingerprint {
			fault("has a payload that is not the one delivered: its SHA-256 differs")
		}
	}
}

func (w *Work) faults(fault func(string, ...any)) {
	if w.State == StateUnknown {
		fault("has a work state that this version does not know")
		return
	}
	running := w.State == StateQueued || w.State == StateLeased
	if running == w.Due.IsZero() {
		fault("is %s, but when its work is due does not fit that", w.State)
	}
	if w.State == StateLeased && (w.Token == "" || w.Generation == 0 || w.Attempts < 1) {
		fault("is leased without a token, a generation or an attempt")
	}
	if w.State != StateLeased && (w.RequestID != "" || w.ClaimID != "" || w.Caller != "") {
		fault("is %s, but a call holds its lease", w.State)
	}
	if (w.Mode == ModeUntracked) != (w.State == StateUntracked) {
		fault("is %s in the wrong work mode", w.State)
	}
	if w.Attempts < 0 || w.Generation < 0 || w.Requeues < 0 {
		fault("counts %d attempts, %d leases and %d requeues", w.Attempts, w.Generation, w.Requeues)
	}
}
