package explore_test

import (
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/modeldb"
)

// happening is something that may happen next.
type happening struct {
	// name is what a schedule calls it. It has no spaces.
	name string
	// about is what it is about, for people.
	about string
	// fault is set for what counts against the bound of faults.
	fault bool
	// hurts is set for what may cost a client its connections.
	hurts bool
	// store is whose command or caller it is about when it is about one, and reach how far it goes.
	store int
	reach reach
	do    func(w *world)
}

// reach is what something that happens may have to do with what other stores do.
type reach uint8

const (
	everything reach = iota
	changes          // the database
	reads
	nothing // it never comes to the database, and is told nothing by it
)

// apart tells whether two things that may happen have nothing to do with each other, while no election is to come.
func apart(a, b option) bool {
	less, more := max(a.reach, b.reach), min(a.reach, b.reach)
	return a.store != b.store && (more == reads || more == changes && less == nothing || more == nothing)
}

// events are what may happen next; none when the run is over. The first is what happens when nothing goes wrong.
func (w *world) events() (events []happening) {
	calls := w.db.Calls()
	active := w.active()
	var late []happening
	for _, c := range calls {
		name := fmt.Sprintf("%c%d", 'A'+c.Client, c.Number)
		if c.Gone {
			late = append(late, happening{name: name + "-late", about: c.Name + " is executed though its connection was cut", do: func(w *world) {
				w.db.Answer(c, modeldb.Fault{}, nil)
			}})
			continue
		}
		events = append(events, answer(c, name, modeldb.Fault{}))
	}
	if active == 0 && len(late) > 0 {
		// What may still be executed is, or is not.
		last := calls[0]
		events = append(events, happening{name: "drop", about: last.Name + " is never executed", do: func(w *world) { w.db.Drop(last) }})
	}
	events = append(events, late...)
	if w.db.Pending() {
		events = append(events,
			happening{name: "replicated", about: "all members have caught up", do: func(w *world) { w.db.Elect(true) }},
			happening{name: "undone", about: "an election undoes what not most members have", do: func(w *world) { w.db.Elect(false) }})
	}
	for i := range w.stores {
		if w.db.Behind(i) && active > 0 {
			events = append(events, happening{name: fmt.Sprintf("%c-finds-primary", 'A'+i), about: "the store's driver learns who is primary",
				do: func(w *world) { w.db.Heal(i) }})
		}
	}
	if active == 0 {
		return events
	}
	if w.lapses >= len(w.nows) {
		events = append(events, happening{name: "lapse", about: "the clock moves past the lease", do: (*world).lapse})
	}
	for _, c := range calls {
		if c.Gone {
			continue
		}
		name := fmt.Sprintf("%c%d", 'A'+c.Client, c.Number)
		for _, f := range c.Faults(w.kind) {
			events = append(events, answer(c, name, f))
		}
	}
	if w.lapses == 0 && len(w.nows) <= 2 {
		events = append(events, happening{name: "lapse", about: "the clock moves past a lease", fault: true, do: (*world).lapse})
	}
	for _, c := range w.play.callers {
		w.mu.Lock()
		stays := !c.over && !c.left
		w.mu.Unlock()
		if stays {
			events = append(events, happening{name: fmt.Sprintf("leave-%d", c.number+1), about: "the caller's context ends", fault: true, hurts: true, store: c.number % len(w.stores), reach: nothing, do: func(w *world) {
				c.left = true
				w.saw(c.number%len(w.stores), "left", c.number)
				c.leave()
			}})
		}
	}
	if w.kind == modeldb.ReplicaSet {
		for i := range w.stores {
			if !w.db.Behind(i) && !w.db.Pending() {
				events = append(events, happening{name: fmt.Sprintf("%c-deposed", 'A'+i), fault: true, hurts: true, about: "the primary that the store knows is deposed, and knows it not",
					do: func(w *world) { w.db.Depose(i) }})
			}
		}
	}
	return events
}

// answer answers a command, with a fault on the way.
func answer(c *modeldb.Call, name string, f modeldb.Fault) happening {
	h := happening{name: name, about: c.Name, fault: f != modeldb.Fault{}}
	switch h.store, h.reach = c.Client, changes; {
	case f.Kind == modeldb.Cut:
		h.reach = nothing
	case !c.Writes():
		h.reach = reads
	}
	if h.fault {
		h.hurts = !slices.Contains([]modeldb.Kind{modeldb.ItemFailed, modeldb.ConcernFailed, modeldb.Refused}, f.Kind)
		h.name, h.about = name+"-"+f.String(), c.Name+": "+f.String()
	}
	h.do = func(w *world) {
		w.db.Answer(c, f, func(reply bson.Raw) { w.saw(c.Client, c.Number, f, string(reply)) })
	}
	return h
}

// schedule is what happened in a run, by name. It prints as a list, and is read from one.
type schedule []string

func (s schedule) String() string { return strings.Join(s, " ") }
