package storetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/jobonce/jobonce/internal/job"
)

// RunModel runs random sequences of operations, with time moved by hand, against the store and the reference model, and
// compares every answer and every stored record. How many is rapid's to say (-rapid.checks, -rapid.steps).
func RunModel(t *testing.T, factory Factory) {
	e := factory(t)
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		m := &model{Env: e, driver: driver{e.Store, fmt.Sprintf("event-%d", run)}, run: run, jobs: map[string]*modelJob{}}
		defer m.resume(t)
		rt.Repeat(map[string]func(*rapid.T){
			"record":  m.record,
			"records": m.record, // twice as often
			"claim":   m.claim,
			"token":   m.token,
			"admin":   m.admin,
			"time":    m.time,
			"":        m.check,
		})
	})
}

type model struct {
	Env
	driver
	run  int
	jobs map[string]*modelJob
}

type modelJob struct {
	refJob
	tokens                []string // all that were ever seen
	deliveries, conflicts int64
}

func (m *model) pick(t *rapid.T) (string, *modelJob) {
	id := fmt.Sprintf("run-%d", m.run) + rapid.SampledFrom([]string{":a:job", ":b:job", "-job"}).Draw(t, "job")
	if m.jobs[id] == nil {
		m.jobs[id] = &modelJob{}
	}
	return id, m.jobs[id]
}

func (m *model) step(t *rapid.T, id string, j *modelJob, op any) {
	// No two leases begin or end at one moment, so that "oldest first" is one order.
	m.Clock.Advance(time.Millisecond)
	now := m.Clock.Now().UnixMilli()
	got, err := m.do(t.Context(), id, op)
	if err != nil {
		t.Fatalf("%s: %+v: %v", id, op, err)
	}
	ok, next := j.refJob.step(op, got, now)
	if !ok {
		t.Fatalf("%s: %+v at %d answered %+v\nbefore: %+v\nafter, by the reference: %+v", id, op, now, got, j.refJob, next)
	}
	m.became(t, j, next)
	if got.conflict != job.ConflictNone {
		j.conflicts++
	}
}

// became takes over a job's next state. A fencing number never falls.
func (m *model) became(t *rapid.T, j *modelJob, next refJob) {
	if next.exists && next.generation < j.generation {
		t.Fatalf("the generation fell from %d to %d", j.generation, next.generation)
	}
	if j.exists && !next.exists {
		j.deliveries, j.conflicts = 0, 0
	}
	if next.token != "" && next.token != j.token {
		for _, old := range j.tokens {
			if old == next.token {
				t.Fatalf("token %s came back", old)
			}
		}
		j.tokens = append(j.tokens, next.token)
	}
	j.refJob = next
}

func (m *model) record(t *rapid.T) {
	id, j := m.pick(t)
	j.deliveries++
	m.step(t, id, j, refRecord{
		request: fmt.Sprintf("request-%d", rapid.IntRange(0, 3).Draw(t, "request")),
		caller:  caller(t),
		status:  rapid.SampledFrom([]string{"OK", "OK", "OK", "OK", "ERROR"}).Draw(t, "status"),
		body:    rapid.SampledFrom([]string{"body", "body", "body", "other"}).Draw(t, "body"),
		mode: rapid.SampledFrom([]job.WorkMode{job.ModeLeased, job.ModeLeased, job.ModeLeased, job.ModeQueued, job.ModeUntracked}).
			Draw(t, "mode"),
	})
}

// caller picks who calls, most often nobody.
func caller(t *rapid.T) string {
	return rapid.SampledFrom([]string{"", "", "a", "a", "b"}).Draw(t, "caller")
}

// claim claims everything that is due, and lets the reference see for each job whether it was among it.
func (m *model) claim(t *rapid.T) {
	m.Clock.Advance(time.Millisecond)
	now := m.Clock.Now().UnixMilli()
	op := refClaim{request: fmt.Sprintf("claim-%d-%d", m.run, rapid.IntRange(0, 2).Draw(t, "claim")), caller: caller(t)}
	prefix := rapid.SampledFrom([]string{"", "", fmt.Sprintf("run-%d:", m.run), fmt.Sprintf("run-%d:a:", m.run)}).Draw(t, "prefix")
	claimed, err := m.store.Claim(t.Context(), job.ClaimRequest{RequestID: op.request, Caller: op.caller, Max: 10, Lease: lease,
		Events: []string{m.event}, Prefix: prefix, MaxBytes: 1 << 20})
	if err != nil {
		t.Fatalf("claim: %v", err)
	}
	answers := map[string]refAnswer{}
	for _, c := range claimed {
		answers[c.Record.JobID] = refAnswer{lease: leaseOf(&c.Lease), withBody: c.Record.Body.Data != ""}
	}
	held := false // a request that still holds leases gets those and nothing new
	for id, j := range m.jobs {
		held = held || strings.HasPrefix(id, prefix) && j.state == job.StateLeased && now < j.due && j.refJob.claim == op.request &&
			sameName(op.caller, j.holderCaller)
	}
	for id, j := range m.jobs {
		if !strings.HasPrefix(id, prefix) {
			continue
		}
		got, is := answers[id]
		delete(answers, id)
		if held && !is && (j.state != job.StateLeased || j.refJob.claim != op.request || now >= j.due || !sameName(op.caller, j.holderCaller)) {
			continue
		}
		ok, next := j.refJob.step(op, got, now)
		if !ok {
			t.Fatalf("%s: %+v at %d answered %+v\nbefore: %+v", id, op, now, got, j.refJob)
		}
		m.became(t, j, next)
	}
	if len(answers) > 0 {
		t.Fatalf("claimed jobs that are not there, or not under %q: %+v", prefix, answers)
	}
}

// token does something with a token: mostly the current one, sometimes an old one or one that never was.
func (m *model) token(t *rapid.T) {
	id, j := m.pick(t)
	tokens := append([]string{"never was", "", j.refJob.token, j.refJob.token, j.refJob.token, j.refJob.token}, j.tokens...)
	token := rapid.SampledFrom(tokens).Draw(t, "token")
	switch rapid.SampledFrom([]string{"renew", "complete", "release", "release", "dead", "unclaim"}).Draw(t, "operation") {
	case "renew":
		m.step(t, id, j, refRenew{token})
	case "complete":
		m.step(t, id, j, refComplete{token, rapid.SampledFrom([]string{"", "done"}).Draw(t, "result")})
	case "release":
		delay := time.Duration(rapid.IntRange(0, 1).Draw(t, "delay")) * time.Hour
		m.step(t, id, j, refRelease{token: token, reason: rapid.SampledFrom([]string{"", "why"}).Draw(t, "reason"), delay: delay})
	case "dead":
		m.step(t, id, j, refRelease{token: token, dead: true})
	case "unclaim":
		m.step(t, id, j, refUnclaim{token, j.due - int64(rapid.IntRange(0, 1).Draw(t, "told again"))})
	}
}

// admin does what operators do, mostly to the job as it is.
func (m *model) admin(t *rapid.T) {
	id, j := m.pick(t)
	read := refRead{j.generation, j.firstSeen, j.state}
	switch rapid.IntRange(0, 7).Draw(t, "as read") {
	case 0:
		read.generation--
	case 1:
		read.firstSeen--
	case 2:
		read.state = rapid.SampledFrom(job.EveryState).Draw(t, "state")
	case 3:
		read.state = job.StateUnknown
	}
	force := rapid.Bool().Draw(t, "force")
	switch rapid.SampledFrom([]string{"requeue", "requeue", "delete", "pause", "resume", "resume"}).Draw(t, "operation") {
	case "requeue":
		m.step(t, id, j, refRequeue{read, force})
	case "delete":
		m.step(t, id, j, refDelete{read, force})
	case "pause":
		m.step(t, id, j, refPause{})
	case "resume":
		m.step(t, id, j, refResume{})
	}
}

// resume ends the pauses, of which a store has room for few.
func (m *model) resume(t *testing.T) {
	for id, j := range m.jobs {
		if j.paused {
			if _, err := m.store.Unpause(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
	}
}

func (m *model) time(t *rapid.T) {
	m.Clock.Advance(time.Duration(rapid.SampledFrom([]int{1, 59, 60, 61, 3601}).Draw(t, "seconds")) * time.Second)
}

// check compares what is stored.
func (m *model) check(t *rapid.T) {
	for id, j := range m.jobs {
		r, err := m.store.Get(t.Context(), id, false)
		if !j.exists {
			if err == nil {
				t.Fatalf("%s exists", id)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		stored := endOf(&r, &j.refJob)
		if stored != j.refJob || r.Deliveries != j.deliveries || r.Conflicts != j.conflicts {
			t.Fatalf("%s is stored as\n%+v, %d deliveries, %d conflicts; the reference has\n%+v, %d, %d", id, stored, r.Deliveries,
				r.Conflicts, j.refJob, j.deliveries, j.conflicts)
		}
	}
}
