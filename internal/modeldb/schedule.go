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
	return Snapshot{s.latest()}
}

// Restore makes the database hold what it did, committed, as if nothing had been asked of it since. The times of the logical
// clock and the elections go on. No command may be under way.
func (s *Server) Restore(to Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = nil
	s.append(&data{collections: to.collections, retries: map[string]retry{}}) // what ended before is not repeated any more
	s.building, s.behind, s.numbers, s.told = nil, nil, nil, nil
	clear(s.sessions)
}

// Copy is the database as it is now, without its clients: commands go on waiting in it, and nobody gets the answers.
func (s *Server) Copy() *Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number()
	o := &Server{kind: s.kind, held: true, state: s.state.clone()}
	o.calls = slices.Clone(o.calls)
	for i, c := range o.calls {
		o.calls[i] = c.copied()
	}
	return o
}

// copied is a command without its client.
func (c *Call) copied() *Call {
	if c.conn == nil {
		return c
	}
	return &Call{Command: c.Command, Client: c.Client, Number: c.Number, Gone: c.Gone, parsed: c.document(), session: c.session, after: c.after, follows: c.follows}
}

// Since are the commands that came after each client's of some number, and wait, without their clients: for [Server.Arrive].
func (s *Server) Since(numbers []int) (calls []*Call) {
	for _, c := range s.Calls() {
		if c.Number > numbers[c.Client] {
			concern, _ := c.document().get("readConcern").(document)
			if at, ok := concern.get("afterClusterTime").(bson.Timestamp); ok && !at.IsZero() {
				panic(fmt.Sprintf("%v follows what its session was not told of", c))
			}
			calls = append(calls, c.copied())
		}
	}
	return calls
}

// And is a command that came in two runs, as it is known from both; false when it was not the same.
func (c *Call) And(o *Call) (both *Call, same bool) {
	after := slices.DeleteFunc(slices.Clone(c.after), func(session string) bool { return !slices.Contains(o.after, session) })
	if c.Client != o.Client || c.Number != o.Number || c.session != o.session || c.follows != o.follows ||
		(len(after) == 0) != (len(c.after) == 0) || (len(after) == 0) != (len(o.after) == 0) ||
		c.document().get("txnNumber") != o.document().get("txnNumber") || !bytes.Equal(c.essence(), o.essence()) {
		return nil, false
	}
	if len(after) == len(c.after) {
		return c, true
	}
	known := *c
	known.after = after
	return &known, true
}

func (c *Call) String() string {
	return fmt.Sprintf("%d of client %d in session %q after %q: %v", c.Number, c.Client, c.session, c.after, c.document())
}

// Latest is the number of a client's latest command.
func (s *Server) Latest(client int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.numbers[client]
}

// Arrive lets commands come as they did to the server that this is a copy of, and nobody wait for those that are named any more. It tells
// whether it is known what they are to see: a session may go on after one of several, of which it matters here which it is.
func (s *Server) Arrive(calls []*Call, gone func(*Call) bool) (known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone(gone)
	for _, c := range calls {
		for _, session := range c.after {
			if s.told[session] != s.told[c.after[0]] {
				return false
			}
		}
		s.inherit(c)
		s.numbers = with(s.numbers, c.Client, max(s.numbers[c.Client], c.Number))
		s.calls = append(s.calls, c)
	}
	return true
}

// Hold makes the commands of the store's callers wait for [Server.Answer], or lets them go on by themselves again, those
// that wait already too.
func (s *Server) Hold(hold bool) {
	s.mu.Lock()
	s.held = hold
	waiting := s.calls
	if !hold {
		s.calls = nil
		s.behind = nil
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
	s.number()
	return slices.Clone(s.calls)
}

// number gives the commands that have come their numbers.
func (s *Server) number() {
	s.calls = slices.Clone(s.calls)
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
			s.numbers = with(s.numbers, c.Client, s.numbers[c.Client]+1)
			c.Number = s.numbers[c.Client]
			s.noteSession(c)
			s.inherit(c)
		}
	}
}

// essence is what the command says, without the session that it came in, which depends on who was first, how long it may take, and how much
// it may find: a store learns how much it should read for a claim, and that is more than there is here.
func (c *Call) essence() []byte {
	d := document{}
	for _, e := range c.document() {
		if !slices.Contains([]string{"lsid", "txnNumber", "maxTimeMS", "limit"}, e.key) {
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
		s.gone(func(other *Call) bool { return other == c })
		s.mu.Unlock()
		if heard(nil); c.conn != nil {
			_ = c.conn.Close()
		}
		return
	}
	s.forget(c)
	reply := s.execute(c, f)
	if at, ok := reply.get("operationTime").(bson.Timestamp); ok && !gone && at.After(s.told[c.session]) {
		s.told = with(s.told, c.session, at)
	}
	s.mu.Unlock()
	if gone {
		return
	}
	heard(timeless(reply).(document).encode())
	_ = c.reply(reply)
}

func (s *Server) forget(c *Call) {
	s.calls = slices.DeleteFunc(slices.Clone(s.calls), func(other *Call) bool { return other == c })
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
	return s.pending()
}

// Elect makes another member the primary. What most members do not have is kept or undone.
func (s *Server) Elect(keep bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.elect(keep)
}

// Depose lets a client's commands go to the member that was the primary until now, which does not know yet that another one is. That
// one has what only the old one had so far, or not. It ends when the old one is asked for what it cannot do, or by [Server.Heal].
func (s *Server) Depose(client int, keep bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behind = with(s.behind, client, deposed{committed: s.committed(), latest: s.log[len(s.log)-1]})
	s.elect(keep)
}

// Heal ends [Server.Depose].
func (s *Server) Heal(client int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behind = without(s.behind, client)
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
	write := func(d *data) { b.Write(d.digest()) }
	for _, e := range s.log {
		write(e.data)
	}
	for _, client := range slices.Sorted(maps.Keys(s.behind)) {
		fmt.Fprintf(&b, "behind %d", client)
		old := s.behind[client]
		write(old.committed.data)
		write(old.latest.data)
		fmt.Fprint(&b, old.pending())
		s.toldAfter(&b, old.committed)
		s.toldAfter(&b, old.latest)
	}
	fmt.Fprint(&b, len(s.building), s.building)
	s.toldAfter(&b, s.committed()) // which may be more than most members have
	return b.Bytes()
}

// toldAfter writes which sessions were told a later time than that of an entry.
func (s *Server) toldAfter(b *bytes.Buffer, e entry) {
	for _, session := range slices.Sorted(maps.Keys(s.told)) {
		if s.told[session].After(e.at) {
			b.WriteString(session)
		}
	}
	b.WriteByte(';')
}

// session is one of a client's.
type session struct {
	id, name string
	first    int64 // the number of its first numbered command
}

// noteSession gives the session of a command that is to wait a name, and has it count from its first numbered command: its id and
// numbers are others in each run.
func (s *Server) noteSession(c *Call) {
	d := document{}
	for _, e := range parse(c.Body) {
		if e.key != "$clusterTime" {
			d = append(d, e)
		}
	}
	c.parsed = d
	lsid, ok := d.get("lsid").(document)
	if !ok {
		return
	}
	id := lsid.get("id").(binary).data
	i := slices.IndexFunc(s.sessions[c.Client], func(o session) bool { return o.id == id })
	fresh := i < 0
	if fresh {
		i = len(s.sessions[c.Client])
		s.sessions[c.Client] = append(s.sessions[c.Client], session{id: id, name: fmt.Sprintf("%d/%d;", c.Client, i), first: -1})
	}
	is := &s.sessions[c.Client][i]
	c.session = is.name
	for i, e := range d {
		switch e.key {
		case "lsid":
			d[i].value = document{{"id", binary{4, is.name}}}
		case "txnNumber":
			n := e.value.(int64)
			if is.first < 0 {
				is.first = n
			}
			d[i].value = n - is.first
		}
	}
	concern, _ := d.get("readConcern").(document)
	after, ok := concern.get("afterClusterTime").(bson.Timestamp)
	if !ok {
		return
	}
	if c.follows = s.told[c.session] == after; fresh {
		for _, o := range s.sessions[c.Client] {
			if s.told[o.name] == after {
				c.follows, c.after = true, append(c.after, o.name)
			}
		}
	}
	if !c.follows { // but something from before commands had to wait
		return
	}
	concern[slices.IndexFunc(concern, func(e element) bool { return e.key == "afterClusterTime" })].value = bson.Timestamp{} // it depends on the run
}

// inherit has a command's session go on after another one.
func (s *Server) inherit(c *Call) {
	if len(c.after) > 0 {
		s.told = with(s.told, c.session, s.told[c.after[0]])
	}
}
