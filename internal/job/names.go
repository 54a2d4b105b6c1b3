package job

import "slices"

// The names of states, modes and kinds of conflict, by their numbers: in both stores and in texts for people.
var (
	stateNames    = []string{"unknown", "untracked", "queued", "leased", "completed", "dead"}
	modeNames     = []string{"unknown", "untracked", "leased", "queued"}
	conflictNames = []string{"unknown", "event", "payload"}
)

// String is the state's name, as it is stored.
func (s WorkState) String() string { return stateNames[s] }

// String is the mode's name, as it is stored.
func (m WorkMode) String() string { return modeNames[m] }

// String is the name of the kind, as it is stored.
func (k ConflictKind) String() string { return conflictNames[k] }

// StateNamed is the state of that name; StateUnknown when it is not ours.
func StateNamed(name string) WorkState { return WorkState(number(stateNames, name)) }

// ModeNamed is the mode of that name; ModeUnspecified when it is not ours.
func ModeNamed(name string) WorkMode { return WorkMode(number(modeNames, name)) }

// ConflictNamed is the kind of conflict of that name; ConflictNone when it is not ours.
func ConflictNamed(name string) ConflictKind { return ConflictKind(number(conflictNames, name)) }

func number(names []string, name string) int { return max(0, slices.Index(names, name)) }
