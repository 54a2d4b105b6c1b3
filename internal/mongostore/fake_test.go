package mongostore_test

import (
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/internal/testenv/wire"
)

// fakeServer speaks as much of MongoDB's wire protocol as the driver needs, for what the test database cannot be made to
// say: a refused password, a missing role, a collation, a clock that is off.
type fakeServer struct {
	listener net.Listener

	mu      sync.Mutex
	indexes []bson.D                         // what listIndexes returns, and createIndexes adds to
	answers map[string]func(bson.Raw) bson.D // by the command's name
	seen    map[string][]bson.Raw
	conns   []net.Conn

	serving sync.WaitGroup
}

// probe is the name here of the update that finds out whether the server takes a hint.
const probe = "update with a hint alone"

// startFake starts a server that answers like a healthy standalone with an empty database. With a TLS configuration it
// speaks TLS only.
func startFake(t *testing.T, config *tls.Config) *fakeServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	if config != nil {
		listener = tls.NewListener(listener, config)
	}
	f := &fakeServer{listener: listener, seen: map[string][]bson.Raw{}, answers: map[string]func(bson.Raw) bson.D{}}
	f.answer("hello", bson.D{})
	f.answer("ping", bson.D{{Key: "ok", Value: 1.0}})
	f.answer("endSessions", bson.D{{Key: "ok", Value: 1.0}})
	f.answer(probe, bson.D{{Key: "ok", Value: 1.0}, {Key: "n", Value: int32(0)}, {Key: "nModified", Value: int32(0)}})
	f.answer("listCollections", cursorOf())
	f.answer("find", cursorOf())
	f.answerWith("createIndexes", f.createIndexes)
	f.answerWith("listIndexes", func(bson.Raw) bson.D {
		f.mu.Lock()
		defer f.mu.Unlock()
		return cursorOf(f.indexes...)
	})
	f.serving.Go(f.accept)
	t.Cleanup(f.stop)
	return f
}

// cursorOf is the reply of a command that returns documents.
func cursorOf(docs ...bson.D) bson.D {
	batch := bson.A{}
	for _, d := range docs {
		batch = append(batch, d)
	}
	return bson.D{{Key: "ok", Value: 1.0}, {Key: "cursor", Value: bson.D{
		{Key: "id", Value: int64(0)}, {Key: "ns", Value: "app.sume_jobs"}, {Key: "firstBatch", Value: batch},
	}}}
}

// failure is the reply of a command that failed.
func failure(code int32, name, message string) bson.D {
	return bson.D{{Key: "ok", Value: 0.0}, {Key: "code", Value: code}, {Key: "codeName", Value: name}, {Key: "errmsg", Value: message}}
}

// setIndexes replaces the indexes of the collection.
func (f *fakeServer) setIndexes(specs ...bson.D) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.indexes = specs
}

// createIndexes is what a healthy server answers: it makes what is not there by name.
func (f *fakeServer) createIndexes(command bson.Raw) bson.D {
	specs, _ := command.Lookup("indexes").Array().Values()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, value := range specs {
		var spec bson.D
		if err := bson.Unmarshal(value.Document(), &spec); err != nil {
			return failure(9, "FailedToParse", err.Error())
		}
		named := func(e bson.E) bool {
			return e.Key == "name" && e.Value == value.Document().Lookup("name").StringValue()
		}
		if !slices.ContainsFunc(f.indexes, func(have bson.D) bool { return slices.ContainsFunc(have, named) }) {
			f.indexes = append(f.indexes, spec)
		}
	}
	return bson.D{{Key: "ok", Value: 1.0}}
}

// answer sets what the server replies to a command from now on. To that of hello is added what the protocol needs.
func (f *fakeServer) answer(command string, reply bson.D) {
	f.answerWith(command, func(bson.Raw) bson.D { return reply })
}

func (f *fakeServer) answerWith(command string, reply func(bson.Raw) bson.D) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[command] = reply
}

// commands returns the commands of that name that the server has got.
func (f *fakeServer) commands(name string) []bson.Raw {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.seen[name])
}

func (f *fakeServer) addr() string { return f.listener.Addr().String() }

func (f *fakeServer) stop() {
	_ = f.listener.Close()
	f.mu.Lock()
	for _, c := range f.conns {
		_ = c.Close()
	}
	f.mu.Unlock()
	f.serving.Wait()
}

func (f *fakeServer) accept() {
	for {
		conn, err := f.listener.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		f.conns = append(f.conns, conn)
		f.mu.Unlock()
		f.serving.Go(func() {
			defer conn.Close()
			for f.serveOne(conn) == nil {
			}
		})
	}
}

// serveOne answers one message. Its error ends the connection.
func (f *fakeServer) serveOne(conn net.Conn) error {
	message, err := wire.Read(conn)
	if err != nil {
		return err
	}
	command, err := message.Command()
	if err != nil {
		return err
	}
	reply, err := bson.Marshal(f.reply(command.Name, command.Body))
	if err != nil {
		return err
	}
	_, err = conn.Write(message.Reply(reply))
	return err
}

func (f *fakeServer) reply(name string, command bson.Raw) bson.D {
	if _, err := command.LookupErr("updates", "0", "q", "_id", "$exists"); err == nil {
		name = probe
	}
	f.mu.Lock()
	f.seen[name] = append(f.seen[name], command)
	answer := f.answers[name]
	f.mu.Unlock()
	if answer == nil {
		return failure(59, "CommandNotFound", "no such command: "+name)
	}
	reply := answer(command)
	if name != "hello" {
		return reply
	}
	protocol := bson.D{
		{Key: "ok", Value: 1.0}, {Key: "isWritablePrimary", Value: true}, {Key: "maxWireVersion", Value: int32(21)}, {Key: "minWireVersion", Value: int32(0)},
		{Key: "maxBsonObjectSize", Value: int32(16 << 20)}, {Key: "maxMessageSizeBytes", Value: int32(48_000_000)},
		{Key: "maxWriteBatchSize", Value: int32(100_000)}, {Key: "saslSupportedMechs", Value: bson.A{"SCRAM-SHA-256"}},
	}
	if !slices.ContainsFunc(reply, func(e bson.E) bool { return e.Key == "localTime" }) {
		protocol = append(protocol, bson.E{Key: "localTime", Value: time.Now()})
	}
	return append(protocol, reply...)
}
