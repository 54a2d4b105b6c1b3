package main

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"
)

//go:embed scenarios/*.yaml
var scenarioFiles embed.FS

// Scenario is what befalls a client, and what it must then do.
type Scenario struct {
	Name string
	// About says what the client must do, and why.
	About string
	// Naive says how a client without this knowledge fares.
	Naive Fate
	// Calls is what befalls the calls of a method, in order, before the scenario begins. Those beyond the list go through.
	Calls map[string][]Fault
	Steps []Step
	// Counts is what the server must have counted for a method at the end. "NotStarted" are the jobs given back as not begun.
	Counts map[string]Count
}

// Fate says whether a client passes.
type Fate string

// Fates.
const (
	Passes Fate = "passes"
	Fails  Fate = "fails"
)

// Fault is what befalls one call. The zero value is nothing.
type Fault struct {
	// Lose cuts the connection, "before" the call is carried out or "after".
	Lose string
	// Hang leaves the call without an answer, until the client ends it. It is carried out before if Applied says so.
	Hang bool
	// Error is the answer instead of the true one. The call is carried out before if Applied says so.
	Error   *ErrorAnswer
	Applied bool
	// Disposition and StartWork replace those of an answer to RecordDelivery.
	Disposition int32
	StartWork   *bool `yaml:"start_work"`
}

// ErrorAnswer is an error as the service, or something before it, answers.
type ErrorAnswer struct {
	Code statusCode
	// Reason and Domain are the ErrorInfo's. There is none without a reason; the domain is "jobonce" unless it is set.
	Reason, Domain string
	Message        string
	Field          string
	RetryAfter     time.Duration `yaml:"retry_after"`
	// Garbled puts details before the others that are of their types and cannot be read.
	Garbled bool
}

// statusCode is a gRPC code, which stands in a scenario by its name.
type statusCode codes.Code

// UnmarshalYAML reads a name such as NOT_FOUND.
func (c *statusCode) UnmarshalYAML(node *yaml.Node) error {
	return (*codes.Code)(c).UnmarshalJSON([]byte(strconv.Quote(node.Value)))
}

// Step is one thing that the harness does or waits for: exactly one field is set, beside With and Gives.
type Step struct {
	// Call has the client do an operation and waits for its outcome.
	Call string
	// Begin has the client do an operation. Outcome waits for what comes of it.
	Begin, Outcome string
	// With are the operation's arguments.
	With map[string]any
	// Gives is the outcome, as far as it matters.
	Gives map[string]any
	// Working waits until the client works on a job, Stopped until it tells that work to stop. The value is the job's id.
	Working, Stopped string
	// Finish ends the work on a job.
	Finish *Finish
	// Stop ends a worker in order, Cancel has the caller of an operation give up. The value is what Begin named.
	Stop, Cancel string
	// Until waits until the server has counted that many calls of a method, or refused that many connections ("refused").
	Until map[string]int
	// Server changes the server.
	Server *Change
	// Pause lets time pass, in which the client hears of what the server did.
	Pause time.Duration
}

// Finish is how the work on a job ends: with a result, an error, or an error that no other try mends.
type Finish struct {
	Job       string `json:"job_id"`
	Result    string `json:"result,omitempty"`
	Error     string `json:"error,omitempty"`
	Permanent bool   `json:"permanent,omitempty"`
}

// Change is what happens at the server.
type Change struct {
	// Down cuts all connections and refuses new ones; Up ends that.
	Down, Up bool
	// Clock moves the server's clock, which is the store's.
	Clock time.Duration
	// Take gives the lease of a job to somebody else.
	Take string
	// Queue records jobs as QUEUED.
	Queue []string
	// Calls is what befalls later calls.
	Calls map[string][]Fault
}

// Count is what the server counts for a method. A zero field says nothing.
type Count struct {
	Calls      int
	AtLeast    int `yaml:"at_least"`
	RequestIDs int `yaml:"request_ids"`
	// None: there was no call.
	None bool
}

// Scenarios returns all scenarios, in the order of the files.
func Scenarios() ([]Scenario, error) {
	files, err := fs.Glob(scenarioFiles, "scenarios/*.yaml")
	if err != nil {
		return nil, err
	}
	var all []Scenario
	for _, file := range files {
		content, err := scenarioFiles.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var some []Scenario
		dec := yaml.NewDecoder(bytes.NewReader(content))
		dec.KnownFields(true)
		if err := dec.Decode(&some); err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s: %w", path.Base(file), err)
		}
		all = append(all, some...)
	}
	return all, nil
}
