// Package wireproxy is a proxy between a MongoDB client and its database that understands the wire protocol and can
// hurt single commands: cut the connection before or after the database did its work, change the answer, hold it, or
// answer in the database's stead.
//
// It is for tests and for the bench module only. It speaks neither TLS nor compression.
package wireproxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/jobonce/jobonce/internal/testenv/wire"
)

// Proxy stands in front of one database server.
type Proxy struct {
	upstream string // host and port
	uri      string
	listener net.Listener
	closed   chan struct{}
	close    sync.Once
	serving  sync.WaitGroup

	mu     sync.Mutex
	rules  []*Rule
	random *rand.Rand
	down   bool
	conns  map[net.Conn]struct{} // of both sides
}

// Start starts a proxy in front of the database at uri, the primary of a replica set, and closes it when the test
// ends.
func Start(t testing.TB, uri string) *Proxy {
	t.Helper()
	if options.Client().ApplyURI(uri).TLSConfig != nil {
		t.Skip("NOT TESTED: the database is reached with TLS, which the fault-injecting proxy does not speak")
	}
	upstream, err := primary(uri)
	if err != nil {
		t.Fatalf("finding the primary: %v", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{
		upstream: upstream, listener: listener, closed: make(chan struct{}), conns: map[net.Conn]struct{}{},
		random: rand.New(rand.NewPCG(0, 0)),
	}
	if p.uri, err = replaceHost(uri, listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	p.serving.Go(p.accept)
	t.Cleanup(p.Close)
	return p
}

// primary asks the database for the address of its primary.
func primary(uri string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	co := options.Client().ApplyURI(uri)
	client, err := mongo.Connect(co)
	if err != nil {
		return "", err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	var hello struct{ Primary string }
	if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		return "", err
	}
	if hello.Primary == "" { // a server of its own
		hello.Primary = co.Hosts[0]
	}
	return hello.Primary, nil
}

// replaceHost makes a URI lead to one address, and keeps what it says besides.
func replaceHost(uri, address string) (string, error) {
	scheme, rest, _ := strings.Cut(uri, "://")
	rest, query, _ := strings.Cut(rest, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return "", fmt.Errorf("the database's URI: %w", err)
	}
	if scheme != "mongodb" {
		return "", errors.New("the database's URI must begin with mongodb://")
	}
	for _, key := range []string{"replicaSet", "loadBalanced", "compressors"} {
		values.Del(key)
	}
	values.Set("directConnection", "true")
	hosts, path, _ := strings.Cut(rest, "/")
	user := ""
	if at := strings.LastIndexByte(hosts, '@'); at >= 0 {
		user = hosts[:at+1]
	}
	return "mongodb://" + user + address + "/" + path + "?" + values.Encode(), nil
}

// URI is the client's URI of the database behind the proxy.
func (p *Proxy) URI() string { return p.uri }

// Close cuts every connection, lets go of what is held, and waits until all is quiet. Closing twice is fine.
func (p *Proxy) Close() {
	p.close.Do(func() {
		close(p.closed)
		_ = p.listener.Close()
		p.cutAll()
	})
	p.serving.Wait()
}

// Down cuts every connection, and every new one at once, until [Proxy.Up].
func (p *Proxy) Down() {
	p.mu.Lock()
	p.down = true
	p.mu.Unlock()
	p.cutAll()
}

// Up ends [Proxy.Down].
func (p *Proxy) Up() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
}

func (p *Proxy) cutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.serving.Go(func() { p.serve(client) })
	}
}

// keep remembers a connection to be cut. false: it is cut already, because the proxy is down or closed.
func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.closed:
	default:
		if !p.down {
			p.conns[c] = struct{}{}
			return true
		}
	}
	_ = c.Close()
	return false
}

func (p *Proxy) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = c.Close()
	delete(p.conns, c)
}

// serve carries one client's commands, one after the other, until either side or a fault ends it.
func (p *Proxy) serve(client net.Conn) {
	if !p.keep(client) {
		return
	}
	defer p.drop(client)
	server, err := net.DialTimeout("tcp", p.upstream, 10*time.Second)
	if err != nil || !p.keep(server) {
		return
	}
	defer p.drop(server)
	for {
		request, err := wire.Read(client)
		if err != nil {
			return
		}
		x := &Exchange{proxy: p, client: client, server: server, request: request}
		if x.Command, err = request.Command(); err != nil {
			return
		}
		rule := p.find(x.Command)
		if rule == nil {
			err = x.Pass()
		} else {
			err = rule.Do(x)
			if err != nil {
				// Whoever waits for the end of the fault finds the connections cut.
				p.drop(client)
				p.drop(server)
			}
			rule.end()
		}
		if err != nil {
			return
		}
	}
}
