package job

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Expectations is the part of a store that keeps watch for webhooks that never come. Nothing about deliveries touches it.
type Expectations interface {
	// Expect keeps an expectation, unless there is one of the job, and only then looks whether the job is recorded: then it
	// keeps none. It returns the expectation as it is kept. Errors are those of Record.
	Expect(ctx context.Context, e ExpectRequest) (kept Expectation, recorded bool, err error)

	// ClaimOverdue hands out what is due, the longest due first, each to one caller at a time. It removes those whose job is
	// recorded, and gives up those whose time is over. With a prefix it touches none but those under it. Errors are those of
	// Record.
	ClaimOverdue(ctx context.Context, r OverdueRequest) (Overdue, error)

	// ReportPoll gives one back, see [Expectation.Report], and then looks whether the job is recorded: then it removes it.
	// ErrNoExpectation when there is certainly none, ErrLeaseLost when the token certainly does not hold. Errors are
	// otherwise those of Record.
	ReportPoll(ctx context.Context, p PollReport) (e Expectation, recorded bool, err error)

	// CancelExpectation removes one. ErrNoExpectation when there is certainly none. Errors are otherwise those of Record.
	CancelExpectation(ctx context.Context, jobID string) error

	// ListExpectations returns a page in the order of the job ids, from behind after on: size of those that match, after at
	// most ExaminedPerJob times as many. Ids that do not begin with the prefix are neither looked at nor told of. next is where
	// the next page goes on, empty at the end. Errors are those of Get.
	ListExpectations(ctx context.Context, which ExpectationFilter, prefix, after string, size int) (page []Expectation, next string, err error)

	// CountOverdue is how many are overdue and not given up, up to MaxCount. Errors are those of Get.
	CountOverdue(ctx context.Context) (int64, error)
}

// ErrNoExpectation says that nothing is expected of the job.
var ErrNoExpectation = errors.New("expectation not found")

// The limits of expectations, and the delay before the first poll is repeated, which grows by half each time.
const (
	MaxStatusURLBytes = 2048
	MaxPollErrorBytes = 1 << 10
	MaxOverdueAfter   = 30 * 24 * time.Hour
	MaxGiveUpAfter    = 90 * 24 * time.Hour
	DefaultGiveUp     = 72 * time.Hour
	MaxOverdueJobs    = 100
	MaxPollLease      = time.Hour
	MaxNextAfter      = 24 * time.Hour

	firstPollDelay = 15 * time.Second
	maxPollDelay   = 5 * time.Minute
)

// Expectation is a webhook that is to come.
type Expectation struct {
	JobID     string
	StatusURL string
	Created   time.Time
	Overdue   time.Time
	GiveUp    time.Time
	// Due is when it is looked at next; zero once it was given up.
	Due time.Time
	// Leased is whether somebody has it, until Due. Token is the latest holder's, also when it was given back.
	Leased bool
	Token  string
	Polls  int32
	// Error is that of the latest report.
	Error   string
	GivenUp time.Time
}

// ExpectRequest says what is to come. Make one with [NewExpectRequest].
type ExpectRequest struct {
	JobID                string
	StatusURL            string
	OverdueAfter, GiveUp time.Duration
}

// NewExpectRequest checks a request. giveUp is nil for the default.
func NewExpectRequest(jobID, statusURL string, overdueAfter, giveUp *time.Duration) (ExpectRequest, error) {
	r := ExpectRequest{JobID: jobID, StatusURL: statusURL}
	if err := CheckJobID(jobID); err != nil {
		return r, err
	}
	if err := checkStatusURL(statusURL); err != nil {
		return r, err
	}
	if overdueAfter == nil || *overdueAfter < 0 || *overdueAfter > MaxOverdueAfter {
		return r, &InvalidError{Field: "overdue_after", Problem: fmt.Sprintf("is required, and must be 0 to %v", MaxOverdueAfter)}
	}
	r.OverdueAfter, r.GiveUp = *overdueAfter, *overdueAfter+DefaultGiveUp
	if *overdueAfter < DefaultGiveUp {
		r.GiveUp = DefaultGiveUp
	}
	if giveUp != nil {
		if *giveUp <= r.OverdueAfter || *giveUp > MaxGiveUpAfter {
			return r, &InvalidError{Field: "give_up_after", Problem: fmt.Sprintf("must be above overdue_after, and at most %v", MaxGiveUpAfter)}
		}
		r.GiveUp = *giveUp
	}
	return r, nil
}

// checkStatusURL checks a URL that a poller may be sent to. Whether it is one of a host that may be polled is the poller's to
// decide. The error never repeats the URL, which may hold a secret.
func checkStatusURL(text string) error {
	const field = "status_url"
	if text == "" {
		return &InvalidError{Field: field, Problem: "is required"}
	}
	if err := CheckText(field, text, MaxStatusURLBytes); err != nil {
		return err
	}
	if err := checkPlain(field, text); err != nil {
		return err
	}
	switch u, err := url.Parse(text); {
	case err != nil:
		return &InvalidError{Field: field, Problem: "is not a URL"}
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return &InvalidError{Field: field, Problem: "must be an http or https URL with a host"}
	case !properPort(u):
		return &InvalidError{Field: field, Problem: "has a port that is none; it must be 1 to 65535, or be left out with its colon"}
	case u.User != nil:
		return &InvalidError{Field: field, Problem: "has user information in it; the poller has credentials of its own"}
	}
	return nil
}

func properPort(u *url.URL) bool {
	if u.Port() == "" {
		return !strings.HasSuffix(u.Host, ":")
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	return err == nil && port > 0
}

// checkPlain refuses control characters.
func checkPlain(field, value string) error {
	for _, r := range value {
		if r < ' ' || r == 0x7f {
			return &InvalidError{Field: field, Problem: fmt.Sprintf("holds the control character %U", r)}
		}
	}
	return nil
}

// Expectation is what is kept.
func (r *ExpectRequest) Expectation(now time.Time) Expectation {
	overdue := Millis(now.Add(r.OverdueAfter))
	return Expectation{JobID: r.JobID, StatusURL: r.StatusURL, Created: Millis(now), Overdue: overdue, Due: overdue, GiveUp: Millis(now.Add(r.GiveUp))}
}

// OverdueRequest asks for what is due.
type OverdueRequest struct {
	Max   int
	Lease time.Duration
	// Prefix is what the ids of the jobs begin with. It ends in ":", or is empty for all.
	Prefix string
}

// Overdue is what came of it.
type Overdue struct {
	// Jobs are leased to the caller, each under its token.
	Jobs []Expectation
	// GivenUp were given up by this call.
	GivenUp []Expectation
	// Recorded is how many were removed, since their job is recorded.
	Recorded int
	// More is true when there may be more.
	More bool
}

// Claim returns the expectation as it is leased, or as it is given up when its time is over. It must be due.
func (e Expectation) Claim(lease time.Duration, now time.Time) Expectation {
	if !now.Before(e.GiveUp) {
		e.GivenUp, e.Due, e.Leased, e.Token = Millis(now), time.Time{}, false, ""
		return e
	}
	e.Due, e.Leased, e.Token = Millis(now.Add(lease)), true, NewToken()
	return e
}

// PollReport says what came of a poll.
type PollReport struct {
	JobID, Token string
	// Next is how long to wait before the next one; nil for a delay that grows.
	Next  *time.Duration
	Error string
	// PutOff is set when there was no poll, so that none counts.
	PutOff bool
	// Jitter varies the delay that grows: from 0 to 1.
	Jitter float64
}

// Report gives the expectation back. Repeated with the same token it changes nothing. ErrLeaseLost when the token does not
// hold it; one whose lease is over and that nobody else has holds it still.
func (e Expectation) Report(p *PollReport, now time.Time) (Expectation, error) {
	switch {
	case p.Token == "" || e.Token != p.Token:
		return e, ErrLeaseLost
	case !e.Leased:
		return e, nil
	}
	delay := pollDelay(e.Polls, p.Jitter)
	if p.Next != nil {
		delay = *p.Next
	}
	if e.Leased, e.Error = false, p.Error; !p.PutOff {
		e.Polls++
	}
	if e.Due = Millis(now.Add(delay)); e.Due.After(e.GiveUp) {
		e.Due = e.GiveUp
	}
	return e, nil
}

// pollDelay is how long to wait after so many polls: from 15 seconds, by half more each time to 5 minutes, varied by a fifth.
func pollDelay(polls int32, jitter float64) time.Duration {
	delay := float64(firstPollDelay)
	for range min(polls, 20) {
		delay = min(delay*1.5, float64(maxPollDelay))
	}
	return time.Duration(delay * (0.8 + 0.4*jitter))
}

// ExpectationFilter says which expectations. The numbers are those of the proto enum.
type ExpectationFilter uint8

// The filters.
const (
	AllExpectations ExpectationFilter = iota
	OverdueExpectations
	GivenUpExpectations
)

// Matches tells whether the filter finds the expectation.
func (f ExpectationFilter) Matches(e *Expectation, now time.Time) bool {
	switch f {
	case OverdueExpectations:
		return e.GivenUp.IsZero() && !now.Before(e.Overdue)
	case GivenUpExpectations:
		return !e.GivenUp.IsZero()
	}
	return true
}

// Faults says what cannot be right in an expectation that we wrote, one short sentence each.
func (e *Expectation) Faults() (faults []string) {
	if err := CheckJobID(e.JobID); err != nil {
		faults = append(faults, err.Error())
	}
	if err := checkStatusURL(e.StatusURL); err != nil {
		faults = append(faults, err.Error())
	}
	if e.Overdue.Before(e.Created) || e.GiveUp.Before(e.Overdue) {
		faults = append(faults, "its times are not in order")
	}
	if e.GivenUp.IsZero() == e.Due.IsZero() {
		faults = append(faults, "is given up and due, or neither")
	}
	if e.Leased && e.Token == "" {
		faults = append(faults, "is leased without a token")
	}
	return faults
}
