// Package modeldb is MongoDB in memory, as far as internal/mongostore uses it: small enough to be exact, and fast enough
// that internal/modeldb/explore runs every schedule of a scenario on it. It speaks the wire protocol over [net.Pipe] to the
// real driver. Every command, operator or option that it does not model is refused, and [Server.Strange] tells of it.
//
// It is a standalone server, or the primary of a replica set whose log has a part that most members have and a part that an
// election may undo. Its data are values that never change; a write makes new ones.
package modeldb

import (
	"bufio"
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/testenv/wire"
)

// Deployment is what the server is.
type Deployment uint8

// The deployments.
const (
	Standalone Deployment = iota
	ReplicaSet
)

func (d Deployment) String() string {
	if d == ReplicaSet {
		return "replica set"
	}
	return "standalone"
}

// Server is a database. Its zero value is not ready: see [New].
type Server struct {
	kind Deployment

	mu sync.Mutex
	state
	// held is set while commands wait for [Server.Answer], those about indexes too with indexesToo.
	held, indexesToo bool
	arrived          chan struct{}
	sessions         map[int][]session // of each client, in the order in which they came
}

// state is what commands change, and what else a schedule is made of.
type state struct {
	node
	lastID     uint32
	made       int // collections
	cursors    map[int64][]document
	lastCursor int64
	strange    []string
	// building are the indexes, by namespace and name, that are still being made: they are listed, but hold nothing yet, and
	// are no hint.
	building map[string]bool
	// behind are the clients whose commands a deposed primary gets, and what that has.
	behind  map[int]deposed
	calls   []*Call                   // that wait for an answer
	numbers map[int]int               // of each client's latest call
	told    map[string]bson.Timestamp // the latest time of the logical clock that each session was told
}

// clone is the same state. What they share is not changed: who writes makes it anew.
func (s state) clone() state {
	s.log, s.strange, s.calls = slices.Clip(s.log), slices.Clip(s.strange), slices.Clip(s.calls)
	return s
}

// with and without are a map with a key, and without one.
func with[K comparable, V any](m map[K]V, key K, value V) map[K]V {
	if m = maps.Clone(m); m == nil {
		m = map[K]V{}
	}
	m[key] = value
	return m
}

func without[K comparable, V any](m map[K]V, key K) map[K]V {
	if _, is := m[key]; is {
		m = maps.Clone(m)
		delete(m, key)
	}
	return m
}

// New makes an empty database.
func New(kind Deployment) *Server {
	return &Server{kind: kind, arrived: make(chan struct{}, 1), sessions: map[int][]session{}, state: state{node: newNode()}}
}

// URI is what a client connects to, with a dialer of [Server.Dialer].
func (s *Server) URI() string {
	if s.kind == ReplicaSet {
		return "mongodb://" + address + "/?replicaSet=" + setName
	}
	return "mongodb://" + address + "/?directConnection=true"
}

const (
	address = "model.test:27017"
	setName = "model"
)

// Dialer connects a client, whose commands have its number.
func (s *Server) Dialer(client int) Dialer { return Dialer{s, client} }

// Dialer connects to a server.
type Dialer struct {
	server *Server
	client int
}

// DialContext connects.
func (d Dialer) DialContext(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go d.server.serve(ours, d.client)
	return theirs, nil
}

// Call is a command of a client.
type Call struct {
	wire.Command
	Client int
	// Number is the call's place among those of its client that waited.
	Number int
	// Gone is set when the client will not get the answer.
	Gone bool

	conn    net.Conn // nil in a copy of the server
	message wire.Message
	parsed  document // the body, once it was read
	// session names the session that the command came in; empty without one. follows is set where it is to see what the session was told
	// of. after names the sessions that this one may go on after: those that were told the same.
	session string
	follows bool
	after   []string
}

// document is the command as a document. It is read once: a command is executed many times, in copies of the server. Of one that waits, the
// session has its name here, and counts from its first numbered command.
func (c *Call) document() document {
	if c.parsed == nil {
		c.parsed = parse(c.Body)
	}
	return c.parsed
}

// serve reads a connection's commands until it ends.
func (s *Server) serve(conn net.Conn, client int) {
	defer conn.Close()
	r := bufio.NewReaderSize(conn, 1024) // a message at once, not its header and then the rest
	for {
		message, err := wire.Read(r)
		if err != nil {
			s.leave(conn)
			return
		}
		command, err := message.Command()
		if err != nil {
			s.mu.Lock()
			s.strange = append(s.strange, err.Error())
			s.mu.Unlock()
			return
		}
		c := &Call{Command: command, Client: client, conn: conn, message: message}
		s.mu.Lock()
		if s.holds(c) {
			s.calls = append(s.calls, c)
			s.mu.Unlock()
			select {
			case s.arrived <- struct{}{}:
			default:
			}
			continue
		}
		reply := s.execute(c, Fault{})
		s.mu.Unlock()
		if c.reply(reply) != nil {
			return
		}
	}
}

// holds tells whether a command is one that a caller of the store waits for: monitoring and handshakes go on by themselves, and so
// does the look at the indexes, unless [Server.HoldIndexes] says otherwise.
func (s *Server) holds(c *Call) bool {
	if !s.held {
		return false
	}
	if c.Name == "createIndexes" {
		return s.indexesToo
	}
	if _, err := c.Body.LookupErr("updates", "0", "q", "_id", "$exists"); err == nil { // the store tries its hint
		return s.indexesToo
	}
	return slices.Contains([]string{"find", "aggregate", "getMore", "update", "delete"}, c.Name)
}

// HoldIndexes has [Server.Hold] hold what makes indexes and tries hints too.
func (s *Server) HoldIndexes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.indexesToo = true
}

// DropIndex drops an index, as an operator may at any time. Most members have done so, too.
func (s *Server) DropIndex(ns, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.latest().collections[ns]
	kept := slices.DeleteFunc(slices.Clone(c.indexes), func(i index) bool { return i.name == name })
	s.append(s.latest().withCollection(ns, &collection{number: c.number, docs: c.docs, indexes: kept}))
	s.commit()
	s.building = without(s.building, ns+" "+name)
}

// Index tells whether there is an index, finished or not, and whether it is still being made.
func (s *Server) Index(ns, name string) (there, building bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.latest().collections[ns]
	return c != nil && slices.ContainsFunc(c.indexes, func(i index) bool { return i.name == name }), s.building[ns+" "+name]
}

// leave: the client of a connection has ended it.
func (s *Server) leave(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone(func(c *Call) bool { return c.conn == conn })
}

// gone notes that nobody waits for the answers of some commands any more. Writes may be executed all the same.
func (s *Server) gone(are func(*Call) bool) {
	waiting := s.calls
	s.calls = nil
	for _, c := range waiting {
		if are(c) && !c.Gone {
			if c.conn == nil { // copies share it
				other := *c
				c = &other
			}
			c.Gone = true
		}
		if !c.Gone || c.Writes() {
			s.calls = append(s.calls, c)
		}
	}
}

func (s *Server) execute(c *Call, f Fault) document {
	x := &execution{Server: s, call: c, fault: f}
	if view, is := s.behind[c.Client]; is {
		x.view = &view
	}
	return x.execute()
}

func (c *Call) reply(d document) error {
	if c.conn == nil {
		return nil
	}
	_, err := c.conn.Write(c.message.Reply(d.encode()))
	return err
}

func (x *execution) hello() document {
	d := document{
		{"helloOk", true}, {"isWritablePrimary", true}, {"maxBsonObjectSize", int32(16 << 20)},
		{"maxMessageSizeBytes", int32(48_000_000)}, {"maxWriteBatchSize", int32(100_000)}, {"localTime", date(time.Now().UnixMilli())},
		{"minWireVersion", int32(0)}, {"maxWireVersion", int32(21)}, {"readOnly", false}, {"ok", 1.0},
	}
	if x.kind == ReplicaSet {
		d = append(d, document{
			{"logicalSessionTimeoutMinutes", int32(0)}, // no session is taken up again: what it was told tells it from others
			{"setName", setName}, {"setVersion", int32(1)}, {"secondary", false},
			{"hosts", array{address}}, {"primary", address}, {"me", address}, {"electionId", x.electionID()},
			{"lastWrite", document{{"opTime", document{{"ts", x.now()}, {"t", int64(x.term)}}}, {"lastWriteDate", date(epoch * 1000)}}},
		}...)
	}
	return d
}

// Building says that an index is still being made, or is finished: over duplicates it is not, and there is none then.
func (s *Server) Building(ns, index string, building bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if building {
		s.building = with(s.building, ns+" "+index, true)
		return
	}
	s.building = without(s.building, ns+" "+index)
	if c := s.latest().collections[ns]; c.checkAll() != nil {
		s.append(s.latest().withCollection(ns, c.without(index)))
		s.commit()
	}
}

// Strange is what was asked for that the model does not have.
func (s *Server) Strange() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.strange)
}

// Documents are the documents of a collection as the primary has them.
func (s *Server) Documents(ns string) (docs []bson.Raw) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.latest().collections[ns]; c != nil {
		for _, d := range c.docs {
			docs = append(docs, d.encode())
		}
	}
	return docs
}
