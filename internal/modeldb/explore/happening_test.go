package explore_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/modeldb"
	"github.com/jobonce/jobonce/internal/mongostore"
)

// happening is something that may happen next.
type happening struct {
	// name is what a schedule calls it. It has no spaces.
	name string
	// about is what it is about, for people.
	about string
	// fault is set for what counts against the bound of faults.
	fault bool
	// hurts is set for what may cost the client of a store its connections.
	hurts bool
	store int
	do    func(w *world)
}

// events are what may happen next; none when the run is over. The first is what happens when nothing goes wrong.
func (w *world) events() (events []happening) {
	calls := w.db.Calls()
	active := w.active()
	events = w.choice[:0]
	defer func() { w.choice = events }()
	var late []happening
	for _, c := range calls {
		name := nameOf(c)
		if c.Gone {
			late = append(late, happening{name: name + "-late", about: c.Name + " is executed though its connection was cut", do: func(w *world) {
				w.db.Answer(c, modeldb.Fault{}, nil)
			}})
			continue
		}
		if events = append(events, answer(c, name, modeldb.Fault{})); w.indexes && c.UpsertsBlindly() {
			if there, _ := w.db.Index(jobs, unique); !there {
				events = append(events, answer(c, name, modeldb.Fault{Kind: modeldb.Blind}))
			}
		}
	}
	if active == 0 && len(late) > 0 {
		// What may still be executed is, or is not.
		last := calls[slices.IndexFunc(calls, func(c *modeldb.Call) bool { return c.Gone })]
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
	if w.lapses < w.mayLapse+len(w.moves) {
		events = append(events, happening{name: "lapse", about: "the clock moves past the lease", do: (*world).lapse})
	}
	for _, c := range calls {
		if c.Gone {
			continue
		}
		name := nameOf(c)
		for _, f := range c.Faults(w.kind) {
			events = append(events, answer(c, name, f))
		}
	}
	if w.mayLapse+len(w.moves) == 0 && w.lapses < 2 {
		events = append(events, happening{name: "lapse", about: "the clock moves past a lease", fault: true, do: (*world).lapse})
	}
	events = append(events, w.ofClocks()...)
	if w.indexes {
		events = append(events, w.ofIndex()...)
	}
	for _, c := range w.play.callers {
		w.mu.Lock()
		stays := !w.over[c.number] && !w.left[c.number]
		w.mu.Unlock()
		if stays {
			events = append(events, happening{name: fmt.Sprintf("leave-%d", c.number+1), about: "the caller's context ends", fault: true, hurts: true, store: w.storeOf(c.number), do: func(w *world) {
				w.left[c.number] = true
				if w.saw(c.number%len(w.stores), "left", c.number); !w.rehearsing {
					c.leave()
				}
			}})
		}
	}
	if w.kind == modeldb.ReplicaSet {
		for i := range w.stores {
			depose := func(name string, keep bool) {
				events = append(events, happening{name: fmt.Sprintf("%c-deposed%s", 'A'+i, name), fault: true, hurts: true, store: i,
					about: "the primary that the store knows is deposed, and knows it not", do: func(w *world) { w.db.Depose(i, keep) }})
			}
			switch {
			case w.db.Behind(i):
			case w.db.Pending():
				depose("-kept", true)
				depose("-undone", false)
			default:
				depose("", true)
			}
		}
	}
	return events
}

// ofClocks are what may happen to the clocks of the stores: one is ahead, since another member of the set is the primary, or somebody
// has set it; and it is as the others again.
func (w *world) ofClocks() (events []happening) {
	if w.drift == 0 {
		return nil
	}
	for i, c := range w.clocks {
		to := func(name string, fault bool, by time.Duration) {
			events = append(events, happening{name: fmt.Sprintf("%c-clock-%s", 'A'+i, name), about: fmt.Sprintf("the clock by which the store goes is set by %v", by),
				fault: fault, do: func(w *world) {
					c.Advance(by)
					w.read(i)
				}})
		}
		if c.Now().Equal(w.clock.Now()) {
			to("ahead", true, w.drift)
		} else {
			to("back", false, -w.drift)
		}
	}
	return events
}

// The collection of the jobs, and its unique index.
const (
	jobs   = mongostore.DefaultDatabase + "." + mongostore.DefaultCollection
	unique = "job_id_1"
)

// ofIndex are what may happen to the unique index.
func (w *world) ofIndex() []happening {
	wear := func(do func()) func(*world) {
		return func(w *world) {
			w.worn = w.worn || !w.rehearsing
			do()
		}
	}
	lost := happening{name: "index-lost", about: "somebody drops the unique index", fault: true, do: wear(func() { w.db.DropIndex(jobs, unique) })}
	switch there, building := w.db.Index(jobs, unique); {
	case !there:
		return nil
	case building:
		return []happening{lost, {name: "index-made", about: "the unique index is finished", do: wear(func() { w.db.Building(jobs, unique, false) })}}
	}
	return []happening{lost, {name: "index-building", about: "somebody drops the unique index, and begins to make it again", fault: true,
		do: wear(func() { w.db.Building(jobs, unique, true) })}}
}

// answer answers a command, with a fault on the way.
func answer(c *modeldb.Call, name string, f modeldb.Fault) happening {
	h := happening{name: name, about: c.Name, fault: f.Kind != modeldb.None && f.Kind != modeldb.Blind, store: c.Client}
	if f.Kind != modeldb.None {
		h.name = name + "-" + f.String()
		h.hurts = !slices.Contains([]modeldb.Kind{modeldb.Blind, modeldb.ItemFailed, modeldb.ConcernFailed, modeldb.Refused}, f.Kind)
	}
	h.do = func(w *world) {
		w.db.Answer(c, f, func(reply bson.Raw) { w.saw(c.Client, c.Number, f, string(reply)) })
	}
	return h
}

func nameOf(c *modeldb.Call) string { return string(rune('A'+c.Client)) + strconv.Itoa(c.Number) }

// schedule is what happened in a run, by name. It prints as a list, and is read from one.
type schedule []string

func (s schedule) String() string { return strings.Join(s, " ") }
