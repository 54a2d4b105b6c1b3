package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Command is a line that the harness writes: what the client is to do, and at which service. README.md says what there is.
type Command struct {
	ID     int            `json:"id"`
	Target string         `json:"target,omitempty"`
	Op     string         `json:"op"`
	Args   map[string]any `json:"args,omitempty"`
}

// Report is a line that the client writes: what came of a command, or what happens during it.
type Report struct {
	ID int `json:"id"`
	// Event is "working" or "stopped", with the job's id. Otherwise the command has ended, with Result or Error.
	Event  string         `json:"event,omitempty"`
	JobID  string         `json:"job_id,omitempty"`
	Result map[string]any `json:"result,omitempty"`
	Error  map[string]any `json:"error,omitempty"`
}

// Client is a client under test: it reads commands and writes reports until its input ends.
type Client func(ctx context.Context, in io.Reader, out io.Writer) error

// Driver has a client do things. One driver serves many scenarios at a time.
type Driver struct {
	in     io.WriteCloser
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // why the client ended, once it has

	writing sync.Mutex // a line at a time

	mu      sync.Mutex
	last    int
	running map[int]*Operation
}

// Operation is a command under way.
type Operation struct {
	d       *Driver
	id      int
	target  string
	changed chan struct{} // holds one sign that there is a new report

	mu      sync.Mutex
	events  map[[2]string]bool // by event and job
	outcome *Report
}

// Drive starts a client.
func Drive(ctx context.Context, client Client) *Driver {
	ctx, cancel := context.WithCancel(ctx)
	inRead, inWrite := io.Pipe()
	outRead, outWrite := io.Pipe()
	d := &Driver{in: inWrite, cancel: cancel, ended: make(chan struct{}), running: make(map[int]*Operation)}
	go func() {
		err := client(ctx, inRead, outWrite)
		_ = inRead.CloseWithError(errors.New("the client has ended"))
		_ = outWrite.CloseWithError(err) // EOF without an error
	}()
	go func() {
		defer close(d.ended)
		for dec := json.NewDecoder(bufio.NewReader(outRead)); ; {
			var r Report
			if err := dec.Decode(&r); err != nil {
				d.err = err
				_ = outRead.CloseWithError(err)
				return
			}
			d.mu.Lock()
			op := d.running[r.ID]
			d.mu.Unlock()
			if op != nil {
				op.note(r)
			}
		}
	}()
	return d
}

// Close ends the client and returns what it failed with.
func (d *Driver) Close() error {
	_ = d.in.Close()
	<-d.ended
	d.cancel()
	if errors.Is(d.err, io.EOF) {
		return nil
	}
	return d.err
}

// Begin has the client do something. id names an operation that this is about, 0 for a new one.
func (d *Driver) Begin(target, op string, args map[string]any) (*Operation, error) {
	d.mu.Lock()
	d.last++
	o := &Operation{d: d, id: d.last, target: target, changed: make(chan struct{}, 1), events: make(map[[2]string]bool)}
	d.running[o.id] = o
	d.mu.Unlock()
	return o, d.send(Command{ID: o.id, Target: target, Op: op, Args: args})
}

// Tell tells the client something about an operation under way.
func (o *Operation) Tell(op string, args map[string]any) error {
	return o.d.send(Command{ID: o.id, Target: o.target, Op: op, Args: args})
}

func (d *Driver) send(c Command) error {
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	_, err = d.in.Write(append(line, '\n'))
	return err
}

func (o *Operation) note(r Report) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r.Event != "" {
		o.events[[2]string{r.Event, r.JobID}] = true
	} else {
		o.outcome = &r
	}
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// Event waits until the client reports an event. It fails when the operation ends without.
func (o *Operation) Event(ctx context.Context, event, jobID string) error {
	what := fmt.Sprintf("%q of %s", event, jobID)
	return o.await(ctx, what, func() (bool, error) {
		if o.events[[2]string{event, jobID}] {
			return true, nil
		}
		if o.outcome != nil {
			return false, fmt.Errorf("it ended without %s: %v", what, o.outcome)
		}
		return false, nil
	})
}

// Outcome waits until the operation has ended.
func (o *Operation) Outcome(ctx context.Context) (outcome Report, err error) {
	err = o.await(ctx, "its outcome", func() (bool, error) {
		if o.outcome != nil {
			outcome = *o.outcome
		}
		return o.outcome != nil, nil
	})
	return outcome, err
}

func (o *Operation) await(ctx context.Context, what string, there func() (bool, error)) error {
	for {
		o.mu.Lock()
		done, err := there()
		o.mu.Unlock()
		if done || err != nil {
			return err
		}
		select {
		case <-o.changed:
		case <-o.d.ended:
			return fmt.Errorf("the client has ended: %w", o.d.err)
		case <-ctx.Done():
			return fmt.Errorf("%s did not come", what)
		}
	}
}
