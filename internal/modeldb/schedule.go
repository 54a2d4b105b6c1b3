package modeldb

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Snapshot is what a database holds at one moment.
type Snapshot struct{ *data }

// Snapshot is what the primary has.
func (s *Server) Snapshot() Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Snapshot{s.node.latest()}
}

// Restore makes the database hold what it did, committed, as if nothing had been asked of it since. The times of the logical
// clock and the elections go on. No command may be under way.
func (s *Server) Restore(to Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node.log, s.node.committed = nil, 0
	s.node.append(&data{collections: to.collections, retries: map[string]retry{}}) // what ended before is not repeated any more
	clear(s.building)
	s.behind, s.numbers, s.told, s.sessions = map[int]deposed{}, map[int]int{}, map[int]bson.Timestamp{}, map[int][]session{}
}

// Hold makes the commands of the store's callers wait for [Server.Answer], or lets them go on by themselves again, those
// that wait already too.
func (s *Server) Hold(hold bool) {
	s.mu.Lock()
	s.held = hold
	waiting := s.calls
	if !hold {
		s.calls = nil
		s.behind = map[int]deposed{}
	}
	s.mu.Unlock()
	if hold {
		return
	}
	for _, c := range waiting {
		if !c.Gone {
			s.mu.Lock()
			reply := s.execute(c, Fault{})
			s.mu.Unlock()
			_ = c.reply(reply)
		}
	}
}

// Arrived is sent to when a command begins to wait.
func (s *Server) Arrived() <-chan struct{} { return s.arrived }

// Calls are the commands that wait, by their clients. Those of one client are in the order in which they came, and those
// that came together in one that depends on what they say alone.
func (s *Server) Calls() []*Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if c.Number == 0 {
			c.Number = -1
		}
	}
	slices.SortStableFunc(s.calls, func(a, b *Call) int {
		if a.Client != b.Client || a.Number > 0 && b.Number > 0 {
			return cmp.Or(cmp.Compare(a.Client, b.Client), cmp.Compare(a.Number, b.Number))
		}
		return cmp.Or(cmp.Compare(b.Number, a.Number), bytes.Compare(a.essence(), b.essence()))
	})
	for _, c := range s.calls {
		if c.Number < 0 {
			s.numbers[c.Client]++
			c.Number = s.numbers[c.Client]
		}
	}
	return slices.Clone(s.calls)
}

// essence is what the command says, without what is another one in each run.
func (c *Call) essence() []byte {
	d := document{}
	for _, e := range c.document() {
		if !slices.Contains([]string{"lsid", "txnNumber", "$clusterTime"}, e.key) {
			d = append(d, e)
		}
	}
	return d.encode()
}

// Answer ends a command's waiting: it is executed and answered, with a fault on the way. A write whose connection was cut
// waits on, to be executed or dropped. Before the client hears of it, heard is told what the answer says, but for times and
// the ids of documents, which depend on more than what was done; nil where the connection ends instead.
func (s *Server) Answer(c *Call, f Fault, heard func(bson.Raw)) {
	s.mu.Lock()
	gone := c.Gone
	if f.Kind == Cut {
		c.Gone = true
		if !c.Writes() {
			s.forget(c)
		}
		s.mu.Unlock()
		if heard(nil); !s.rehearsing {
			_ = c.conn.Close()
		}
		return
	}
	s.forget(c)
	reply := s.execute(c, f)
	if at, ok := reply.get("operationTime").(bson.Timestamp); ok && !gone && at.After(s.told[c.Client]) {
		s.told[c.Client] = at
	}
	s.mu.Unlock()
	if gone {
		return
	}
	if heard(timeless(reply).(document).encode()); !s.rehearsing {
		_ = c.reply(reply)
	}
}

// Rehearse lets what comes until end is called reach no client. After that the database is as before.
func (s *Server) Rehearse() (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.state
	s.state, s.rehearsing = s.state.clone(), true
	var gone []*Call
	for _, c := range s.calls {
		if c.Gone {
			gone = append(gone, c)
		}
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.state, s.rehearsing = before, false
		for _, c := range s.calls {
			c.Gone, c.failed = slices.Contains(gone, c), nil
		}
	}
}

func (s *Server) forget(c *Call) {
	s.calls = slices.DeleteFunc(s.calls, func(other *Call) bool { return other == c })
}

// timeless is a value without the times of the logical clock, and without the ids of documents.
func timeless(v any) any {
	switch v := v.(type) {
	case document:
		out := make(document, 0, len(v))
		for _, e := range v {
			if e.key != "operationTime" && e.key != "$clusterTime" && e.key != "_id" {
				out = append(out, element{e.key, timeless(e.value)})
			}
		}
		return out
	case array:
		out := make(array, len(v))
		for i, item := range v {
			out[i] = timeless(item)
		}
		return out
	}
	return v
}

// Drop forgets a write whose connection was cut.
func (s *Server) Drop(c *Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(c)
}

// Pending tells whether there are writes that an election may undo.
func (s *Server) Pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node.pending()
}

// Elect makes another member the primary. What most members do not have is kept or undone.
func (s *Server) Elect(keep bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node.elect(keep)
}

// Depose lets a client's commands go to the member that was the primary until now, which does not know yet that another one is. That
// one has what only the old one had so far, or not. It ends when the old one is asked for what it cannot do, or by [Server.Heal].
func (s *Server) Depose(client int, keep bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.node
	s.behind[client] = deposed{committed: n.log[n.committed], latest: n.log[len(n.log)-1]}
	n.elect(keep)
}

// Heal ends [Server.Depose].
func (s *Server) Heal(client int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.behind, client)
}

// Behind tells whether a client's commands go to a deposed primary.
func (s *Server) Behind(client int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, is := s.behind[client]
	return is
}

// Digest stands for all that the database is: what two servers with the same digest do from now on is the same.
func (s *Server) Digest() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b bytes.Buffer
	write := func(d *data) { b.Write(d.digest(s.sessionNumber)) }
	for _, e := range s.node.log[s.node.committed:] {
		write(e.data)
	}
	for _, client := range slices.Sorted(maps.Keys(s.behind)) {
		fmt.Fprintf(&b, "behind %d", client)
		old := s.behind[client]
		write(old.committed.data)
		write(old.latest.data)
		fmt.Fprintf(&b, "%t%t%t", old.pending(), s.told[client].After(old.committed.at), s.told[client].After(old.latest.at))
	}
	fmt.Fprint(&b, len(s.building), s.building)
	for _, client := range slices.Sorted(maps.Keys(s.told)) { // what it was told may be more than most members have
		fmt.Fprintf(&b, "%t", s.told[client].After(s.node.log[s.node.committed].at))
	}
	return b.Bytes()
}

// session is one of a client's.
type session struct {
	id    string
	first int64 // the number of its first numbered command
}

// noteSession remembers in which order a client's sessions came, and where their numbers begin: both are others in each run.
func (s *Server) noteSession(c *Call) {
	if !s.held {
		return
	}
	id, err := c.Body.LookupErr("lsid", "id")
	txn, numbered := c.Body.Lookup("txnNumber").AsInt64OK()
	if err != nil || !numbered {
		return
	}
	_, data := id.Binary()
	if !slices.ContainsFunc(s.sessions[c.Client], func(o session) bool { return o.id == string(data) }) {
		s.sessions[c.Client] = append(s.sessions[c.Client], session{string(data), txn})
	}
}

// sessionNumber names a session by its client and place, and gives the first number.
func (s *Server) sessionNumber(id string) (number int, first int64) {
	for client, sessions := range s.sessions {
		for i, o := range sessions {
			if o.id == id {
				return client*1000 + i, o.first
			}
		}
	}
	return -1, 0
}
