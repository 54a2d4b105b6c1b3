package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/jobonce/jobonce/internal/load"
)

// The callers of each cell, and the bare servers, are processes of their own, so that their CPU time can be told from that
// of everything else. They are this program again: `bench child load` reads a spec and then workloads from its standard
// input, as JSON, and answers each with a reply.
const (
	childCommand = "child"
	childLoad    = "load"
	childEcho    = "echo"
	childRelay   = "relay"

	childFrontend = "frontend"
)

// spec says what a load child is to put under load.
type spec struct {
	Kind    string
	Address string // host:port, or a URI; of several instances, with commas between
	// Database and Collection are for MongoDB.
	Database, Collection string
	Callers, BodyBytes   int
	secured
}

// order is a workload, and what else a child must know of it.
type order struct {
	load.Workload
	// Step is what a queue is to do with it.
	Step step `json:",omitempty"`
	// Example is the body of the run's key 0, for children that are not written in Go.
	Example string `json:",omitempty"`
}

// reply is what a load child answers: first that it is ready, then what came of each order.
type reply struct {
	Error  string
	Note   string
	Result load.Result
}

// runner does orders on whatever its spec says.
type runner interface {
	run(context.Context, order) (load.Result, error)
	close()
}

func childMain(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var err error
	switch {
	case len(args) == 1 && args[0] == childLoad:
		err = serveLoad(stdin, stdout)
	case len(args) == 1 && args[0] == childEcho:
		err = serveEcho(stdin, stdout)
	case len(args) == 1 && args[0] == childRelay:
		err = serveRelay(stdin, stdout)
	case len(args) == 1 && args[0] == childFrontend:
		err = serveFrontend(stdin, stdout)
	default:
		err = errors.New("usage: bench child load|echo|relay|frontend")
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// serveLoad does orders until its input ends, also in the middle of one.
func serveLoad(stdin io.Reader, stdout io.Writer) error {
	in, out := json.NewDecoder(stdin), json.NewEncoder(stdout)
	var s spec
	if err := in.Decode(&s); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, note, err := newRunner(ctx, s)
	if err != nil {
		return out.Encode(reply{Error: err.Error()})
	}
	defer r.close()
	if err := out.Encode(reply{Note: note}); err != nil {
		return err
	}
	orders := make(chan order)
	go func() {
		defer close(orders)
		defer cancel()
		for {
			var o order
			if in.Decode(&o) != nil {
				return
			}
			orders <- o
		}
	}()
	for o := range orders {
		result, err := r.run(ctx, o)
		answer := reply{Result: result}
		if err != nil {
			answer.Error = err.Error()
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
	return nil
}

// newRunner connects to what the spec names.
func newRunner(ctx context.Context, s spec) (r runner, note string, err error) {
	switch s.Kind {
	case kindDirect:
		return newDirect(ctx, s)
	case kindBulk, kindBulkOnce, kindBulkFull:
		return newBulk(ctx, s)
	case kindService:
		return newService(s, false)
	case kindBatching:
		return newService(s, true)
	case kindWorkers:
		return newWorkers(s)
	case kindByHand:
		return newByHand(ctx, s)
	case kindRiver:
		return newRiver(ctx, s)
	case kindAsynq:
		return newAsynq(ctx, s)
	case kindEcho, kindRelay:
		return newBare(s)
	case kindFrontend, kindBareHTTP:
		return newSender(s)
	case kindPostgres:
		return newPostgres(ctx, s)
	case kindRedis:
		return newRedis(ctx, s)
	default:
		return nil, "", fmt.Errorf("there is no kind %q", s.Kind)
	}
}

// target is a runner on a load.Target.
type target struct {
	load.Target
	reason func(error) string
	end    func()
}

func (t target) run(ctx context.Context, o order) (load.Result, error) {
	l, err := load.New(t, o.Workload, t.reason)
	if err != nil {
		return load.Result{}, err
	}
	r := l.Run(ctx)
	switch {
	case r.Ops == 0 && r.FirstError != nil:
		return r, fmt.Errorf("nothing was answered: %w", r.FirstError)
	case r.Failed() == 0 && ctx.Err() == nil && r.Firsts != r.Keys:
		return r, fmt.Errorf("%d firsts for %d keys", r.Firsts, r.Keys)
	}
	return r, nil
}

func (t target) close() { t.end() }

// caller is a load child, seen from its parent.
type caller struct {
	process *process
	in      *json.Encoder
	// note is what the child said about itself.
	note string
}

// startCaller starts a load child, a bench of some version, and waits until it is connected.
func startCaller(ctx context.Context, dir, bench string, s spec) (*caller, error) {
	p, err := startChild(dir, "load-"+s.Kind, bench, childLoad)
	if err != nil {
		return nil, err
	}
	return connect(ctx, p, s)
}

// connect gives a load child its spec.
func connect(ctx context.Context, p *process, s spec) (*caller, error) {
	c := &caller{process: p, in: json.NewEncoder(p.stdin)}
	r, err := c.ask(ctx, s, time.Minute)
	if err != nil {
		c.stop()
		return nil, err
	}
	c.note = r.Note
	return c, nil
}

// run gives an order; the child's answer may take the workload's own time and two minutes.
func (c *caller) run(ctx context.Context, o order) (load.Result, error) {
	r, err := c.ask(ctx, o, o.Duration+2*time.Minute)
	return r.Result, err
}

func (c *caller) ask(ctx context.Context, question any, within time.Duration) (reply, error) {
	if err := c.in.Encode(question); err != nil {
		return reply{}, c.process.failed(err)
	}
	line, err := c.process.line(ctx, within)
	if err != nil {
		return reply{}, err
	}
	var r reply
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		return reply{}, c.process.failed(err)
	}
	if r.Error != "" {
		return r, fmt.Errorf("%s: %s", c.process.name, r.Error)
	}
	return r, nil
}

func (c *caller) stop() { c.process.stop() }

// startSelf starts this program as a child.
func startSelf(dir, name, command string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return startChild(dir, name, self, command)
}

// startChild starts a bench as a child that ends when its input does.
func startChild(dir, name, bench, command string) (*process, error) {
	cmd := exec.Command(bench, childCommand, command)
	cmd.Env = environment()
	return startHeld(dir, name, cmd)
}
