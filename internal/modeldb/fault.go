package modeldb

import (
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Fault is what happens to a command besides, or instead of, being executed and answered.
type Fault struct {
	Kind Kind
	// Item is which item fails, or before which the command is stopped.
	Item int
}

// Kind is a kind of fault.
type Kind uint8

// The kinds of faults.
const (
	// None: the command is executed and answered.
	None Kind = iota
	// Cut: the connection ends. A write may be executed later, or never.
	Cut
	// Refused: an error before anything was done.
	Refused
	// Stopped: an error after so many items were done.
	Stopped
	// ItemFailed: one item was not done, and the answer says so.
	ItemFailed
	// ConcernFailed: done, and the write concern timed out: it may be undone yet.
	ConcernFailed
	// ConcernRetryable: the same with a code after which drivers repeat the command.
	ConcernRetryable
	// NotPrimary: the member is not the primary, and nothing was done.
	NotPrimary
	// SteppedDown: done, or so many items of it where Item is not 0, and then the member was no longer primary: it may be undone yet.
	SteppedDown
	// Blind: an upsert has looked for its document before another one made it. Only a unique index keeps it from making a second one.
	Blind
)

var kindNames = []string{"ok", "cut", "refused", "stopped", "item", "concern", "concern-retryable", "not-primary", "stepped-down", "blind"}

func (f Fault) String() string {
	if f.Kind == Stopped || f.Kind == ItemFailed || f.Item > 0 {
		return kindNames[f.Kind] + "-" + strconv.Itoa(f.Item)
	}
	return kindNames[f.Kind]
}

// refusal is the code of an error in place of execution.
func (k Kind) refusal() int32 {
	switch k {
	case Refused:
		return codeMaxTimeExpired
	case NotPrimary:
		return codeNotWritablePrimary
	}
	return 0
}

// concern is the code of a write concern error.
func (k Kind) concern() int32 {
	switch k {
	case ConcernFailed:
		return codeWriteConcernFailed
	case ConcernRetryable:
		return codeShutdownInProgress
	}
	return 0
}

// Faults are the faults that a command may meet on a deployment of that kind, besides None.
func (c *Call) Faults(kind Deployment) []Fault {
	faults := []Fault{{Kind: Cut}, {Kind: Refused}}
	if kind == ReplicaSet {
		faults = append(faults, Fault{Kind: NotPrimary})
	}
	if !c.Writes() {
		return faults
	}
	items := max(1, len(c.Items()))
	for i := range items {
		faults = append(faults, Fault{ItemFailed, i}, Fault{Stopped, i + 1})
	}
	if kind == ReplicaSet {
		for i := range items { // 0 is after all of them
			faults = append(faults, Fault{SteppedDown, i})
		}
		faults = append(faults, Fault{Kind: ConcernFailed}, Fault{Kind: ConcernRetryable})
	}
	return faults
}

// UpsertsBlindly tells whether the command may make a document, and names no index that is to keep it from making a second one.
func (c *Call) UpsertsBlindly() bool {
	return c.Name == "update" && slices.ContainsFunc(c.Items(), func(s bson.Raw) bool {
		upsert, _ := s.Lookup("upsert").BooleanOK()
		_, err := s.LookupErr("hint")
		return upsert && err != nil
	})
}

// Writes tells whether the command may change something.
func (c *Call) Writes() bool {
	return c.Name == "update" || c.Name == "delete"
}
