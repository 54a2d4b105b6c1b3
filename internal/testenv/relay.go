package testenv

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Relay stands between clients and a service, so that connections can be cut and the service can come back at another
// address.
type Relay struct {
	lis     net.Listener
	running sync.WaitGroup

	mu     sync.Mutex
	target string // empty: nobody is there
	conns  map[net.Conn]bool
	closed bool
}

// StartRelay starts a relay to target, or to nobody when that is empty. It ends with the test.
func StartRelay(t testing.TB, target string) *Relay {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	Must(t, err)
	r := &Relay{lis: lis, target: target, conns: make(map[net.Conn]bool)}
	r.running.Go(func() {
		for {
			in, err := lis.Accept()
			if err != nil {
				return
			}
			r.running.Go(func() { r.serve(in) })
		}
	})
	t.Cleanup(func() {
		_ = lis.Close()
		r.mu.Lock()
		r.closed = true
		r.mu.Unlock()
		r.Cut()
		r.running.Wait()
	})
	return r
}

// Addr is the one address that clients are told.
func (r *Relay) Addr() string { return r.lis.Addr().String() }

// To lets new connections go to target; to nobody when it is empty.
func (r *Relay) To(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = target
}

// Cut ends every connection, on both sides.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		_ = c.Close()
	}
	clear(r.conns)
}

// keep remembers a connection to be cut, unless it leads to where nobody is any more.
func (r *Relay) keep(target string, conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.target != target {
		return false
	}
	for _, c := range conns {
		r.conns[c] = true
	}
	return true
}

func (r *Relay) serve(in net.Conn) {
	defer in.Close()
	r.mu.Lock()
	target := r.target
	r.mu.Unlock()
	if target == "" {
		return
	}
	out, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer out.Close()
	if !r.keep(target, in, out) {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(in, out)
		_ = in.Close()
	})
	_, _ = io.Copy(out, in)
	_ = out.Close()
	back.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, in)
	delete(r.conns, out)
}
