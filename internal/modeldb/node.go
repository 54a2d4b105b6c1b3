package modeldb

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// node is the log of the replica set, as its primary has it: what most members have, which nothing undoes, and after it
// what only the primary has yet. A standalone server is one whose writes are committed at once.
type node struct {
	log   []entry // the first is what most members have
	term  int
	ticks uint32 // of the logical clock, which never goes back
}

// entry is the data as it was after a write.
type entry struct {
	at bson.Timestamp
	*data
}

// deposed is what a primary has that was deposed: what most members had then, and with what only it had.
type deposed struct{ committed, latest entry }

func (d *deposed) pending() bool { return d.latest.at != d.committed.at }

// readable is the entry that a read sees.
func (d *deposed) readable(level string) entry {
	if level == "majority" {
		return d.committed
	}
	return d.latest
}

// epoch is the seconds of all timestamps.
const epoch = 1_790_000_000

func newNode() node {
	n := node{term: 1}
	n.append(newData())
	return n
}

func (n *node) tick() bson.Timestamp {
	n.ticks++
	return bson.Timestamp{T: epoch, I: n.ticks}
}

// now is the latest time of the logical clock.
func (n *node) now() bson.Timestamp { return bson.Timestamp{T: epoch, I: n.ticks} }

func (n *node) append(d *data) { n.log = append(n.log, entry{n.tick(), d}) }

func (n *node) latest() *data { return n.log[len(n.log)-1].data }

// committed is what most members have.
func (n *node) committed() entry { return n.log[0] }

// commit is what most members do when they have caught up.
func (n *node) commit() { n.log = n.log[len(n.log)-1:] }

// pending tells whether there is something that an election may undo.
func (n *node) pending() bool { return len(n.log) > 1 }

// elect makes another member the primary. It has what most members have, and with keep set all the rest too. The first it
// does is a write of its own, by which it commits.
func (n *node) elect(keep bool) {
	if !keep {
		n.log = slices.Clip(n.log[:1])
	}
	n.term++
	n.append(n.latest())
	n.commit()
}

// electionID grows with the term.
func (n *node) electionID() bson.ObjectID {
	return bson.ObjectID{0: 0x7f, 1: 0xff, 2: 0xff, 3: 0xff, 9: byte(n.term >> 16), 10: byte(n.term >> 8), 11: byte(n.term)}
}
