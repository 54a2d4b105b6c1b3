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
)

// spec says what a load child is to put under load.
type spec struct {
	Kind    string
	Address string // host:port, or a URI
	// Database and Collection are for MongoDB.
	Database, Collection string
	Callers, BodyBytes   int
}

// reply is what a load child answers: first that it is ready, then what came of each workload.
type reply struct {
	Error  string
	Note   string
	Result load.Result
}

// runner puts a workload on whatever its spec says.
type runner interface {
	run(context.Context, load.Workload) (load.Result, error)
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
	default:
		err = errors.New("usage: bench child load|echo|relay")
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// serveLoad runs workloads until its input ends, also in the middle of one.
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
	workloads := make(chan load.Workload)
	go func() {
		defer close(workloads)
		defer cancel()
		for {
			var w load.Workload
			if in.Decode(&w) != nil {
				return
			}
			workloads <- w
		}
	}()
	for w := range workloads {
		result, err := r.run(ctx, w)
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
	case kindBulk, kindBulkFull:
		return newBulk(ctx, s)
	case kindService:
		return newService(s, false)
	case kindBatching:
		return newService(s, true)
	case kindEcho, kindRelay:
		return newBare(s)
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

func (t target) run(ctx context.Context, w load.Workload) (load.Result, error) {
	l, err := load.New(t, w, t.reason)
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

// startCaller starts a load child and waits until it is connected.
func startCaller(ctx context.Context, dir string, s spec) (*caller, error) {
	p, err := startSelf(dir, "load-"+s.Kind, childLoad)
	if err != nil {
		return nil, err
	}
	c := &caller{process: p, in: json.NewEncoder(p.stdin)}
	r, err := c.ask(ctx, s, time.Minute)
	if err != nil {
		c.stop()
		return nil, err
	}
	c.note = r.Note
	return c, nil
}

// run puts a workload on; the child's answer may take the workload's own time and a minute.
func (c *caller) run(ctx context.Context, w load.Workload) (load.Result, error) {
	r, err := c.ask(ctx, w, w.Duration+time.Minute)
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

// startSelf starts this program as a child that ends when its input does.
func startSelf(dir, name, command string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, childCommand, command)
	cmd.Env = environment()
	return startHeld(dir, name, cmd)
}
