package mongostore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/jobonce/jobonce/internal/job"
)

const (
	// remeasure is how often the indexes are looked at again.
	remeasure = time.Minute
	// prepareTimeout bounds one look. Making an index has its own time.
	prepareTimeout = 15 * time.Second
	// uniqueWait and workWait are how long a look waits for an index to be made before it leaves that to a later look.
	uniqueWait = 3 * time.Second
	workWait   = time.Second
	// workPause is how soon the indexes for work are tried again.
	workPause = 5 * time.Second
	// graceTime is how long a start may take before that is an error.
	graceTime = 10 * time.Second
)

// deployment is what a database says of itself.
type deployment struct {
	kind string // one of the constants below
	// sessions is true where reads can be ordered after writes.
	sessions bool
}

// The kinds of deployment, for people too.
const (
	standalone = "standalone"
	replicaSet = "replica set"
	sharded    = "sharded cluster"
)

// schemaError is a state of the collection in which nothing may be recorded.
type schemaError struct {
	problem string
	// passing is set when the store ends the state itself; otherwise a person has to.
	passing bool
}

func (e *schemaError) Error() string { return e.problem }

// preparation prepares a store, and looks after it from then on. One goroutine does all of it.
type preparation struct {
	*Store
	// life ends when the store is closed.
	life context.Context
	// since is when the store became unready.
	since time.Time
	// good is when the latest look began that found all in order, and was is what it found.
	good time.Time
	was  collection
	// unique, work and lists make the indexes; nil until it is begun.
	unique, work, lists *build
	builds              sync.WaitGroup
	// blind is set once it was said that a build of the unique index may go unseen, hintless once the server was found to
	// take no hint.
	blind, hintless bool
	// made is set when the first look found no collection.
	made bool
	// said and saidLevel are what was logged last about the unready store.
	said      string
	saidLevel slog.Level
}

// maintain prepares the store until it succeeds. After that it looks again every minute, and at once when a write has a
// doubt about the unique index.
func (s *Store) maintain(ctx context.Context) {
	defer close(s.stopped)
	p := &preparation{Store: s, life: ctx, since: time.Now()}
	defer p.builds.Wait()
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 100*time.Millisecond, 5*time.Second
	for {
		doubts := s.doubts.take()
		if len(doubts) > 0 {
			s.log.Warn("the database refuses a hint at the unique index; looking at the index", "store", s.String())
		}
		err := p.look(len(doubts) > 0)
		if ctx.Err() != nil {
			return
		}
		p.report(err)
		if unready := s.unready.Load(); unready != nil {
			err = *unready
		}
		for _, answer := range doubts {
			answer <- err
		}
		wait := remeasure
		if err == nil {
			pause.Reset()
		} else {
			wait = pause.NextBackOff()
		}
		if s.workUnready.Load() != nil || s.listsUnready.Load() != nil {
			wait = min(wait, workPause)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		case <-p.building():
		case <-s.doubts.wake:
		}
	}
}

// doubts are the writes that wait for a look at the unique index.
type doubts struct {
	mu      sync.Mutex
	waiting []chan<- error
	wake    chan struct{}
}

func (d *doubts) add() <-chan error {
	answer := make(chan error, 1)
	d.mu.Lock()
	d.waiting = append(d.waiting, answer)
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
	return answer
}

func (d *doubts) take() []chan<- error {
	d.mu.Lock()
	defer d.mu.Unlock()
	taken := d.waiting
	d.waiting = nil
	return taken
}

// hintName is the name of the unique index, for every upsert to send as its hint; empty when the server takes none.
func (s *Store) hintName() string {
	if name := s.hint.Load(); name != nil {
		return *name
	}
	return ""
}

// indexSuspect is for a write that failed under a hint with code 2 or 27, which applied nothing. It returns nil once a look
// has found the unique index good: the server takes no hints, and then [Store.hintName] gives none any more, or the error was
// not about the hint. Otherwise the error matches [job.ErrUnavailable]. Calls that come at the same time share a look, which
// began after they came.
func (s *Store) indexSuspect(ctx context.Context) error {
	var err error
	select {
	case err = <-s.doubts.add():
	case <-s.stopped:
		err = errors.New("closed")
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return unready(s.explain(err))
	}
	return nil
}

// CheckWork implements [job.Store]. Without the indexes for work a claim would read the whole collection. The error matches
// [job.ErrUnavailable].
func (s *Store) CheckWork(context.Context) error {
	if err := s.workUnready.Load(); err != nil {
		return fmt.Errorf("%w: %w", job.ErrUnready, *err)
	}
	return nil
}

// report takes note of what a look came to, and logs what changed. A database that cannot be reached makes a prepared store
// no less prepared: its calls find out by themselves, and Check does. A schemaError does.
func (p *preparation) report(err error) {
	before := p.unready.Load()
	var schema *schemaError
	bad := errors.As(err, &schema)
	switch {
	case err == nil && before != nil:
		p.unready.Store(nil)
		p.said = ""
		t := p.deployment.Load()
		p.log.Info("store ready", "store", p.String(), "topology", t.kind, "clock_offset", p.ClockOffset())
		if t.kind == standalone {
			p.log.Warn("the database is a standalone server: it loses what it has when its disk is lost, and has no " +
				"retryable writes, so every interrupted write is settled by repeating it with its request id; " +
				"use a replica set in production")
		}
		select {
		case <-p.ready:
		default:
			if p.made {
				p.log.Warn("the collection was not there, and was made: no job is known. Unless this is a new service, it is another one than "+
					"the jobs are in; look at the URI, --mongodb-database and --mongodb-collection", "store", p.String())
			}
			close(p.ready)
		}
	case bad && before == nil:
		p.unready.Store(&err)
		p.since, p.said, p.saidLevel = time.Now(), err.Error(), slog.LevelError
		p.log.Error("store not ready any more: what keeps a delivery from being FIRST twice is gone, and those recorded since the "+
			"last good look may have been", "store", p.String(), "error", err, "last_good_look", p.good.UTC().Format(time.RFC3339))
	case err != nil && before != nil:
		err = p.explain(err)
		p.unready.Store(&err)
		level := slog.LevelWarn // a start takes its time
		if bad && !schema.passing || !bad && time.Since(p.since) > graceTime {
			level = slog.LevelError
		}
		if p.said != err.Error() || p.saidLevel != level {
			p.said, p.saidLevel = err.Error(), level
			p.log.Log(p.life, level, "store not ready", "store", p.String(), "error", err)
		}
	case err != nil:
		p.log.Warn("cannot look after the store", "store", p.String(), "error", p.explain(err))
	}
}

// look looks at all that must be in order for the store to serve, and makes what is missing. With suspect set, the unique
// index may be under construction.
func (p *preparation) look(suspect bool) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(p.life, prepareTimeout)
	defer cancel()
	if p.client == nil {
		if err := p.lookUp(ctx, p.life); err != nil {
			return err
		}
	}
	if err := p.hello(ctx); err != nil {
		return err
	}
	found, err := p.inspect(ctx)
	if err == nil {
		err = p.gone(&found)
	}
	var schema *schemaError
	if errors.As(err, &schema) {
		p.unique = nil // what comes next may be under construction again
	}
	if err != nil {
		return err
	}
	if p.unique == nil && len(found.names) == 0 {
		p.made = true
	}
	if err := p.ensureUnique(ctx, &found, suspect); err != nil {
		return err
	}
	p.good, p.was = began, found
	p.ensureWork(&found)
	p.ensureLists(&found)
	return nil
}

// gone compares what is there with what an earlier look found good. What was dropped is made again by the next look; first
// it has to be said.
func (p *preparation) gone(found *collection) error {
	was := p.was
	p.was = collection{}
	switch {
	case was.uuid != nil && (found.uuid == nil || !bytes.Equal(was.uuid.Data, found.uuid.Data)):
		return &schemaError{"the collection was dropped or replaced: the jobs that it held are forgotten, and their next " +
			"deliveries will be FIRST", true}
	case was.unique != nil && (found.unique == nil || nameOf(was.unique) != nameOf(found.unique)):
		return &schemaError{"the unique index on job_id was dropped", true}
	}
	p.was = was
	return nil
}
