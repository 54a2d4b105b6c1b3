package failuretest

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver/dns"

	"github.com/jobonce/jobonce/client"
	"github.com/jobonce/jobonce/internal/batch"
	"github.com/jobonce/jobonce/internal/sqlitestore"
	"github.com/jobonce/jobonce/internal/testenv"
	"github.com/jobonce/jobonce/server"
)

// clusterClients is how many clients there are: with three instances they have 60 connections. Each is made anew every other second,
// however slow the machine, which must have time left for calls.
const clusterClients = 20

// cluster is instances of the service behind one name, at addresses of their own and on one port, as in a headless service of
// Kubernetes. They share a store within this process.
type cluster struct {
	t     *testing.T
	jobs  *batch.Store
	age   time.Duration
	port  int
	names string // the address of the name server

	mu        sync.Mutex
	instances map[byte]*instance // by the last byte of their address, as the name server has them
	next      byte
}

// instance is one of a cluster.
type instance struct {
	last  byte
	calls atomic.Int64
	stop  func()

	mu      sync.Mutex
	callers map[string]bool // the clients that have called it
	all     chan struct{}   // closed once all have
}

func startCluster(t *testing.T, age time.Duration, instances int) *cluster {
	t.Helper()
	store, err := sqlitestore.Open(t.Context(), t.TempDir(), sqlitestore.Options{Logger: testenv.Logger(t)})
	must(t, err)
	f := &cluster{t: t, age: age, jobs: batch.New(store, batch.Config{Logger: testenv.Logger(t)}), instances: make(map[byte]*instance)}
	t.Cleanup(func() { testenv.OK(t, f.jobs.Close()) })
	f.names = testenv.StartNames(t, f.answer)
	for range instances {
		f.add()
	}
	return f
}

func (f *cluster) answer(q dnsmessage.Question) []dnsmessage.ResourceBody {
	f.mu.Lock()
	defer f.mu.Unlock()
	found := []dnsmessage.ResourceBody{}
	if q.Type == dnsmessage.TypeA {
		for last := range f.instances {
			found = append(found, &dnsmessage.AResource{A: [4]byte{127, 0, 0, last}})
		}
	}
	return found
}

// add starts an instance and gives it the name.
func (f *cluster) add() *instance {
	f.t.Helper()
	f.next++
	i := &instance{last: f.next, callers: make(map[string]bool), all: make(chan struct{})}
	log := testenv.Logger(f.t)
	s, err := server.New(server.Config{Logger: log, MaxConnectionAge: f.age, UnaryInterceptors: []grpc.UnaryServerInterceptor{i.count}}, f.jobs)
	must(f.t, err)
	lis, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:%d", i.last, f.port)) // The first one has the system choose the port.
	must(f.t, err)
	f.port = lis.Addr().(*net.TCPAddr).Port
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- s.Run(ctx, lis) }()
	i.stop = sync.OnceFunc(func() {
		stop()
		testenv.OK(f.t, <-stopped)
	})
	f.t.Cleanup(i.stop)
	await(f.t, "the instance serves", s.Ready())
	f.mu.Lock()
	defer f.mu.Unlock()
	f.instances[i.last] = i
	return i
}

// remove takes the name from an instance and stops it.
func (f *cluster) remove(i *instance) {
	f.mu.Lock()
	delete(f.instances, i.last)
	f.mu.Unlock()
	i.stop()
}

func (i *instance) count(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	i.calls.Add(1)
	md, _ := metadata.FromIncomingContext(ctx)
	i.mu.Lock()
	if n := len(i.callers); n < clusterClients {
		if i.callers[md.Get("user-agent")[0]] = true; n < len(i.callers) && len(i.callers) == clusterClients {
			close(i.all)
		}
	}
	i.mu.Unlock()
	return handler(ctx, req)
}

// pressure is clients that call a cluster, each with a connection to every instance, until the test ends.
type pressure struct {
	answered chan struct{}
	stop     func()
	failed   chan error
}

func (f *cluster) pressure() *pressure {
	l := &pressure{answered: make(chan struct{}), failed: make(chan error, clusterClients)}
	stopping := make(chan struct{})
	var callers sync.WaitGroup
	l.stop = sync.OnceFunc(func() {
		close(stopping)
		callers.Wait()
	})
	for n := range clusterClients {
		c := newClient(f.t, fmt.Sprintf("dns://%s/jobonce.example.com:%d", f.names, f.port),
			client.WithInsecure(), client.WithUserAgent(fmt.Sprintf("caller-%d", n)))
		callers.Go(func() {
			for k := 0; ; k++ {
				if _, err := c.RecordDelivery(context.Background(), completed(fmt.Sprintf("job-%d-%d", n, k))); err != nil {
					l.failed <- err
					return
				}
				select {
				case l.answered <- struct{}{}:
				case <-stopping:
					return
				}
			}
		})
	}
	f.t.Cleanup(l.stop)
	return l
}

// pass waits for a number of answered calls.
func (l *pressure) pass(t *testing.T, calls int) {
	t.Helper()
	for range calls {
		select {
		case <-l.answered:
		case err := <-l.failed:
			t.Fatalf("a call failed: %v", err)
		case <-time.After(patience):
			t.Fatal("the callers do not get on")
		}
	}
}

// until lets calls pass until something has happened.
func (l *pressure) until(t *testing.T, what string, happened <-chan struct{}) {
	t.Helper()
	for end := time.Now().Add(patience); ; l.pass(t, 1) {
		select {
		case <-happened:
			return
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("it did not happen that %s", what)
		}
	}
}

// shares are the calls that each instance got of two thousand.
func (l *pressure) shares(t *testing.T, instances ...*instance) (shares []int64) {
	t.Helper()
	for _, i := range instances {
		shares = append(shares, -i.calls.Load())
	}
	l.pass(t, 2000)
	for n, i := range instances {
		shares[n] += i.calls.Load()
	}
	t.Logf("calls of each instance: %d", shares)
	return shares
}

// wantEven fails unless each share is within a fifth of even.
func wantEven(t *testing.T, shares []int64) {
	t.Helper()
	sum := int64(0)
	for _, n := range shares {
		sum += n
	}
	even := sum / int64(len(shares))
	if slices.Min(shares) < even*4/5 || slices.Max(shares) > even*6/5 {
		t.Errorf("the instances got %d calls: not within a fifth of %d", shares, even)
	}
}

// lookUpOften lets clients look names up every 100 ms instead of every 30 s, until all of the test has ended.
func lookUpOften(t *testing.T) {
	dns.SetMinResolutionInterval(100 * time.Millisecond)
	t.Cleanup(func() { dns.SetMinResolutionInterval(30 * time.Second) })
}

// TestInstancesShareTheLoad: three instances behind a name, one added and one removed under load. All connections live on, but
// for their age, and yet the new instance gets its share; no call fails.
func TestInstancesShareTheLoad(t *testing.T) {
	lookUpOften(t)
	f := startCluster(t, 2*time.Second, 2)
	one, two := f.instances[1], f.instances[2]
	l := f.pressure()
	l.until(t, "all clients call both", one.all)
	l.until(t, "all clients call both", two.all)
	wantEven(t, l.shares(t, one, two))

	three := f.add()
	l.until(t, "all clients call the new instance", three.all)
	wantEven(t, l.shares(t, one, two, three))

	f.remove(one)
	four := f.add()
	l.until(t, "all clients call the instance in the place of another", four.all)
	wantEven(t, l.shares(t, two, three, four))
	l.stop()
	select {
	case err := <-l.failed:
		t.Errorf("a call failed: %v", err)
	default:
	}
}

// TestInstancesNeedAge: without an age of connections, nobody finds a new instance while the old ones live.
func TestInstancesNeedAge(t *testing.T) {
	lookUpOften(t)
	f := startCluster(t, time.Hour, 1)
	one := f.instances[1]
	l := f.pressure()
	l.until(t, "all clients call it", one.all)
	if shares := l.shares(t, one, f.add()); shares[1] != 0 {
		t.Errorf("the new instance got %d calls of clients that had no reason to look for it", shares[1])
	}
}
