package webhook

import (
	"maps"
	"slices"
	"time"
)

// Tier says how much is known of a sender.
type Tier string

// The tiers.
const (
	// Promised: signature, id and retries each have a source, and the signature a published value or the sender's own
	// package to compare with.
	Promised Tier = "promised"
	// Experimental: some of these is not certain. The signature is checked; an id must be given, unless its source is certain.
	Experimental Tier = "experimental"
)

// Preset is what is known of a sender.
type Preset struct {
	// Name is what [Source] names it by.
	Name string
	// Title is the sender's name.
	Title string
	// Tier says how much of it is certain.
	Tier Tier
	// Signatures are the ways in which it signs; the first whose header is there counts.
	Signatures []Signature
	// Secret says what the source's secrets are.
	Secret string
	// ID says what the id is or, where HasID is false, what could be one and why it is not taken.
	ID string
	// HasID: the preset has an id. Otherwise the source must say one.
	HasID bool
	// Left says which events are not recorded unless AllEvents is set. Empty: all are recorded.
	Left string
	// Notes are what a user has to know beside.
	Notes string
	// Success is the status of a good answer. 0: 200.
	Success int
	// Instead has the status that is answered in the place of another, where that would lose deliveries.
	Instead map[int]int
	// AnswerWithin is how long the answer may take. 0: [DefaultAnswerWithin].
	AnswerWithin time.Duration
	// RetriedFor is for how long it delivers again, by its own words. 0: not said, or not at all.
	RetriedFor time.Duration
	// Punishes says what failures cost beside. Empty: nothing is known.
	Punishes string
	// Sources are where the facts are from.
	Sources []string

	id, event, status func(*Item) (string, error)
	items             func(*Request) ([]*Item, error)
	when              func(*Item) (bool, error)
	idInHeader        bool // See [Source].
	handshake         handshake
}

// Presets returns all presets, by name. What they hold is shared: it is not to be changed.
func Presets() []Preset {
	var all []Preset
	for _, name := range slices.Sorted(maps.Keys(presets)) {
		all = append(all, *presets[name])
	}
	return all
}

var presets = index(senders())

func index(senders []*Preset) map[string]*Preset {
	byName := make(map[string]*Preset)
	for _, p := range senders {
		p.HasID = p.id != nil
		byName[p.Name] = p
	}
	return byName
}
