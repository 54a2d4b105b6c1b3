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
	do    func(p *play)
}

// events are what may happen next; none when the run is over. The first is what happens when nothing goes wrong.
func (p *play) events() (events []happening) {
	calls := p.db.Calls()
	active := p.active()
	events = make([]happening, 0, 32)
	var late []happening
	for _, c := range calls {
		name := nameOf(c)
		if c.Gone {
			late = append(late, happening{name: name + "-late", about: c.Name + " is executed though its connection was cut", do: func(p *play) {
				p.db.Answer(c, modeldb.Fault{}, nil)
			}})
			continue
		}
		if events = append(events, answer(c, name, modeldb.Fault{})); p.indexes && c.UpsertsBlindly() {
			if there, building := p.db.Index(jobs, unique); !there || building {
				events = append(events, answer(c, name, modeldb.Fault{Kind: modeldb.Blind}))
			}
		}
	}
	if active == 0 && len(late) > 0 {
		// What may still be executed is, or is not.
		last := calls[slices.IndexFunc(calls, func(c *modeldb.Call) bool { return c.Gone })]
		events = append(events, happening{name: "drop", about: last.Name + " is never executed", do: func(p *play) { p.db.Drop(last) }})
	}
	events = append(events, late...)
	if p.db.Pending() {
		events = append(events,
			happening{name: "replicated", about: "all members have caught up", do: func(p *play) { p.db.Elect(true) }},
			happening{name: "undone", about: "an election undoes what not most members have", do: func(p *play) { p.db.Elect(false) }})
	}
	for i := range p.clocks {
		if p.db.Behind(i) && active > 0 {
			events = append(events, happening{name: fmt.Sprintf("%c-finds-primary", 'A'+i), about: "the store's driver learns who is primary",
				do: func(p *play) { p.db.Heal(i) }})
		}
	}
	if active == 0 {
		return events
	}
	if p.lapses < p.mayLapse+len(p.moves) {
		events = append(events, happening{name: "lapse", about: "the clock moves past the lease", do: (*play).lapse})
	}
	for _, c := range calls {
		if c.Gone {
			continue
		}
		name := nameOf(c)
		for _, f := range c.Faults(p.kind) {
			events = append(events, answer(c, name, f))
		}
	}
	if p.mayLapse+len(p.moves) == 0 && p.lapses < 2 {
		events = append(events, happening{name: "lapse", about: "the clock moves past a lease", fault: true, do: (*play).lapse})
	}
	if store := p.goesOn(); store >= 0 && !p.waited {
		events = append(events, happening{name: "wait", about: "the store has gone on for long enough after its caller left",
			do: func(p *play) { p.wait(store) }})
	}
	events = append(events, p.ofClocks()...)
	if p.indexes {
		events = append(events, p.ofIndex()...)
	}
	for caller := range p.over {
		if !p.over[caller] && !p.left[caller] {
			events = append(events, happening{name: fmt.Sprintf("leave-%d", caller+1), about: "the caller's context ends", fault: true, hurts: true,
				store: p.storeOf(caller), do: func(p *play) { p.leave(caller) }})
		}
	}
	if p.kind == modeldb.ReplicaSet {
		for i := range p.clocks {
			depose := func(name string, keep bool) {
				events = append(events, happening{name: fmt.Sprintf("%c-deposed%s", 'A'+i, name), fault: true, hurts: true, store: i,
					about: "the primary that the store knows is deposed, and knows it not", do: func(p *play) { p.db.Depose(i, keep) }})
			}
			switch {
			case p.db.Behind(i):
			case p.db.Pending():
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
func (p *play) ofClocks() (events []happening) {
	if p.drift == 0 {
		return nil
	}
	for i, c := range p.clocks {
		to := func(name string, fault bool, by time.Duration) {
			events = append(events, happening{name: fmt.Sprintf("%c-clock-%s", 'A'+i, name), about: fmt.Sprintf("the clock by which the store goes is set by %v", by),
				fault: fault, do: func(p *play) { p.move(i, by) }})
		}
		if c.Equal(p.clock) {
			to("ahead", true, p.drift)
		} else {
			to("back", false, -p.drift)
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
func (p *play) ofIndex() []happening {
	wear := func(do func(*modeldb.Server)) func(*play) {
		return func(p *play) {
			p.worn = true
			do(p.db)
		}
	}
	lost := happening{name: "index-lost", about: "somebody drops the unique index", fault: true, do: wear(func(db *modeldb.Server) { db.DropIndex(jobs, unique) })}
	switch there, building := p.db.Index(jobs, unique); {
	case !there:
		return nil
	case building:
		return []happening{lost, {name: "index-made", about: "the unique index is finished", do: wear(func(db *modeldb.Server) { db.Building(jobs, unique, false) })}}
	}
	return []happening{lost, {name: "index-building", about: "somebody drops the unique index, and begins to make it again", fault: true,
		do: wear(func(db *modeldb.Server) { db.Building(jobs, unique, true) })}}
}

// answer answers a command, with a fault on the way.
func answer(c *modeldb.Call, name string, f modeldb.Fault) happening {
	h := happening{name: name, about: c.Name, fault: f.Kind != modeldb.None && f.Kind != modeldb.Blind, store: c.Client}
	if f.Kind != modeldb.None {
		h.name = name + "-" + f.String()
		h.hurts = !slices.Contains([]modeldb.Kind{modeldb.Blind, modeldb.ItemFailed, modeldb.ConcernFailed, modeldb.Refused}, f.Kind)
	}
	h.do = func(p *play) {
		p.db.Answer(c, f, func(reply bson.Raw) { p.saw(c.Client, c.Number, f, string(reply)) })
	}
	return h
}

func nameOf(c *modeldb.Call) string { return string(rune('A'+c.Client)) + strconv.Itoa(c.Number) }

// schedule is what happened in a run, by name. It prints as a list, and is read from one.
type schedule []string

func (s schedule) String() string { return strings.Join(s, " ") }
