package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"time"
)

// Outcome is how a client fared in a scenario.
type Outcome struct {
	Scenario Scenario
	// Problems is empty when it passed.
	Problems []string
}

// Run puts a client through scenarios, all at the same time. patience is how long anything may take that is to come.
func Run(ctx context.Context, client Client, scenarios []Scenario, patience time.Duration) ([]Outcome, error) {
	d := Drive(ctx, client)
	outcomes := make([]Outcome, len(scenarios))
	var wg sync.WaitGroup
	for i, scenario := range scenarios {
		wg.Go(func() { outcomes[i] = Outcome{scenario, play(ctx, d, scenario, patience)} })
	}
	wg.Wait()
	return outcomes, d.Close()
}

// play puts the client through one scenario and returns what it did wrong.
func play(ctx context.Context, d *Driver, scenario Scenario, patience time.Duration) (problems []string) {
	s, err := startServer(scenario.Calls)
	if err != nil {
		return []string{err.Error()}
	}
	defer s.stop()
	p := &player{d: d, server: s, target: s.lis.Addr().String(), patience: patience, running: make(map[string]*Operation)}
	for i, step := range scenario.Steps {
		if err := p.step(ctx, step); err != nil {
			problems = append(problems, fmt.Sprintf("step %d: %v", i+1, err))
			break
		}
	}
	problems = append(problems, s.check(scenario.Counts)...)
	if closing, err := d.Begin(p.target, "close", nil); err == nil {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if _, err := closing.Outcome(ctx); err != nil {
			problems = append(problems, fmt.Sprintf("close: %v", err))
		}
	}
	return problems
}

type player struct {
	d        *Driver
	server   *server
	target   string
	patience time.Duration
	running  map[string]*Operation
	latest   *Operation // that does work
}

func (p *player) step(ctx context.Context, step Step) error {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	switch {
	case step.Call != "":
		op, err := p.d.Begin(p.target, step.Call, step.With)
		if err != nil {
			return err
		}
		return outcome(ctx, op, step.Gives)
	case step.Begin != "":
		op, err := p.d.Begin(p.target, step.Begin, step.With)
		p.running[step.Begin] = op
		if step.Begin == "do" || step.Begin == "work" {
			p.latest = op
		}
		return err
	case step.Outcome != "":
		return outcome(ctx, p.running[step.Outcome], step.Gives)
	case step.Working != "":
		return p.latest.Event(ctx, "working", step.Working)
	case step.Stopped != "":
		return p.latest.Event(ctx, "stopped", step.Stopped)
	case step.Finish != nil:
		return p.latest.Tell("finish", asMap(step.Finish))
	case step.Stop != "":
		return p.running[step.Stop].Tell("stop", nil)
	case step.Cancel != "":
		return p.running[step.Cancel].Tell("cancel", nil)
	case step.Until != nil:
		return p.server.await(ctx, step.Until)
	case step.Server != nil:
		return p.server.change(step.Server)
	case step.Pause > 0:
		select {
		case <-time.After(step.Pause):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return fmt.Errorf("a step that says nothing: %+v", step)
}

func outcome(ctx context.Context, op *Operation, want map[string]any) error {
	got, err := op.Outcome(ctx)
	if err != nil {
		return err
	}
	return matches("outcome", asMap(map[string]any{"result": got.Result, "error": got.Error}), want)
}

// asMap is a value as JSON has it.
func asMap(value any) map[string]any {
	var m map[string]any
	if b, err := json.Marshal(value); err == nil {
		_ = json.Unmarshal(b, &m)
	}
	return m
}

// matches says what got lacks of want. ">=1" stands for a number that is not less, null for what must not be there.
func matches(where string, got, want map[string]any) error {
	for key, wanted := range want {
		value, at := got[key], where+"."+key
		if inner, ok := wanted.(map[string]any); ok {
			has, _ := value.(map[string]any)
			if err := matches(at, has, inner); err != nil {
				return err
			}
			continue
		}
		if text, ok := wanted.(string); ok && strings.HasPrefix(text, ">=") {
			var least float64
			number, isNumber := value.(float64)
			if _, err := fmt.Sscan(text[2:], &least); err != nil || !isNumber || number < least {
				return fmt.Errorf("%s is %v, not %s", at, value, text)
			}
			continue
		}
		if n, ok := wanted.(int); ok {
			wanted = float64(n)
		}
		if !reflect.DeepEqual(value, wanted) {
			return fmt.Errorf("%s is %v, not %v", at, value, wanted)
		}
	}
	return nil
}

// Table writes how clients fared, a line for each scenario, and returns the number of failures.
func Table(out io.Writer, names []string, fared map[string][]Outcome) (failures int) {
	width := 0
	for _, o := range fared[names[0]] {
		width = max(width, len(o.Scenario.Name))
	}
	fmt.Fprintf(out, "%-*s", width, "scenario")
	for _, name := range names {
		fmt.Fprintf(out, "  %-*s", max(6, len(name)), name)
	}
	fmt.Fprintln(out)
	for i, o := range fared[names[0]] {
		fmt.Fprintf(out, "%-*s", width, o.Scenario.Name)
		for _, name := range names {
			verdict := "pass"
			if len(fared[name][i].Problems) > 0 {
				verdict = "FAIL"
				failures++
			}
			fmt.Fprintf(out, "  %-*s", max(6, len(name)), verdict)
		}
		fmt.Fprintln(out)
	}
	for _, name := range names {
		for _, o := range fared[name] {
			for _, problem := range o.Problems {
				fmt.Fprintf(out, "%s: %s: %s\n", name, o.Scenario.Name, problem)
			}
		}
	}
	return failures
}
