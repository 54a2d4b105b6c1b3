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
	// Experimental: some of these is not certain. The signature is checked; the id must be given.
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
	// IDNote says what the id is.
	IDNote string
	// Success is the status of a good answer.
	Success int
	// Instead has the status that is answered in the place of another, where that would lose deliveries.
	Instead map[int]int
	// AnswerWithin is how long the answer may take.
	AnswerWithin time.Duration
	// Sources are where the facts are from.
	Sources []string

	id, event, status func(*Item) (string, error)
	items             func(*Request) ([]*Item, error)
	when              func(*Item) (bool, error)
	handshake         handshake
}

var presets = map[string]*Preset{}

// Presets returns all presets, by name.
func Presets() []Preset {
	var all []Preset
	for _, name := range slices.Sorted(maps.Keys(presets)) {
		all = append(all, *presets[name])
	}
	return all
}
