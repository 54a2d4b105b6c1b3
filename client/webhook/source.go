package webhook

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Source is where webhooks come from: one account at one sender. What a preset of the sender says is taken for each field
// that is left at its zero value; without a Provider, Signature and ID are required.
type Source struct {
	// Name stands in logs and metrics, as the job's source, and before ":" at the front of job ids. 1 to 32 lower-case
	// letters, digits, "_" and "-", the first of them a letter. Required. Changing it makes other jobs of the same events.
	Name string
	// Provider is the name of the preset, such as "stripe": see [Presets]. Empty for a scheme of one's own.
	Provider string
	// Secrets returns the secrets of which any may have signed: usually one, two while they are rotated. It is asked for
	// every request, from several goroutines, so that secrets can be replaced at any time. Required, unless the
	// signature's kind needs none (SNS, and keys that are fetched). See [Secrets].
	Secrets func() []string
	// Signature is how the sender signs, where it differs from the preset's. See [Preset.Signatures] for a base to change.
	Signature *Signature
	// SignatureHeader replaces the name of the header that holds the signature: senders such as AssemblyAI let one choose it.
	SignatureHeader string
	// PublicURL is the URL under which the sender knows the endpoint, for senders that sign it. Query and path are taken
	// from the request when PublicURL has none. Empty: it is put together from the request, which a proxy may have changed.
	PublicURL string
	// Tolerance is how far the time of a delivery may be off, in both directions, where the time is signed. 0: the preset's.
	Tolerance time.Duration
	// IDPrefix stands before each id. Nil: Name and ":". The empty prefix is for one provider on a live collection of
	// frontends that make the plain upsert.
	IDPrefix *string

	// ID returns the id of an item: the same for each redelivery, another for each job. One that is empty, has control
	// characters or is not UTF-8, and an error, make the body unreadable.
	ID func(*Item) (string, error)
	// Event and Status return what stands in the job beside the id. Nil, an error and what is too long (128 and 64 bytes)
	// mean: nothing.
	Event, Status func(*Item) (string, error)
	// Items takes a body apart that holds several events. Nil: the body is one.
	Items func(*Request) ([]*Item, error)
	// When says whether an item is to be recorded; what is not is answered like the rest. Nil: all are. An error makes the
	// body unreadable, and never means no.
	When func(*Item) (bool, error)
	// AllEvents also records what the preset leaves out, such as "started" of senders of job lifecycles.
	AllEvents bool

	// IDInHeader says that those of ID, Event, Status and When that are set look at nothing but headers and query. Bodies over the limit, up to
	// [MaxStreamed], are then verified as they come, where the signature allows it, and recorded without the body.
	IDInHeader bool

	// RecordOnly records as UNTRACKED: nobody will do the work.
	RecordOnly bool
	// VerifyTokens returns what a handshake by GET has to bring along (Meta's hub.verify_token): any of them, as with Secrets.
	// Nil, or none: it is refused.
	VerifyTokens func() []string
	// Success is the status of a good answer. 0: the preset's, which is 200 unless the sender wants another.
	Success int
	// AnswerWithin bounds the time until the answer. 0: the preset's, which is well below the sender's own timeout, or 4 s.
	AnswerWithin time.Duration
	// RetriedFor is for how long the sender delivers again what was answered 503: see [WithWork]. 0: the preset's.
	RetriedFor time.Duration
}

// DefaultAnswerWithin is how long an answer may take where no preset says otherwise.
const DefaultAnswerWithin = 4 * time.Second

// Secrets returns a function for [Source] that always returns the same secrets.
func Secrets(secrets ...string) func() []string {
	secrets = slices.Clone(secrets)
	return func() []string { return secrets }
}

var sourceName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)

// config is a source with what the preset adds.
type config struct {
	Source
	preset     *Preset // Nil without one.
	signatures []*scheme
	prefix     string
	publicURL  *url.URL
	refused    map[int]int // what is answered in the place of these statuses
	handshake  handshake
}

// compile checks the source and adds what it leaves to the preset.
func (s Source) compile() (*config, error) {
	c := &config{Source: s}
	if !sourceName.MatchString(s.Name) {
		return nil, fmt.Errorf("name %q: want 1 to 32 of a-z, 0-9, _ and -, a letter first", s.Name)
	}
	c.prefix = s.Name + ":"
	if s.IDPrefix != nil {
		c.prefix = *s.IDPrefix
	}
	if err := checkPrefix(c.prefix); err != nil {
		return nil, err
	}
	var signatures []Signature
	if s.Provider != "" {
		preset, ok := presets[s.Provider]
		if !ok {
			return nil, fmt.Errorf("provider %q: there is no such preset; there are %q", s.Provider, slices.Sorted(maps.Keys(presets)))
		}
		c.preset = preset
		if s.Items != nil && s.ID == nil && preset.items == nil {
			return nil, errors.New("id: is required with items: the preset's is that of a whole delivery, and all its events would be one job")
		}
		c.fill(preset)
		signatures = preset.Signatures
	}
	if s.Signature != nil {
		signatures = []Signature{*s.Signature}
	}
	if len(signatures) == 0 {
		return nil, errors.New("signature: is required where there is no preset")
	}
	if c.Success == 0 {
		c.Success = http.StatusOK
	}
	if c.AnswerWithin == 0 {
		c.AnswerWithin = DefaultAnswerWithin
	}
	for _, signature := range signatures {
		if s.SignatureHeader != "" && signature.Header != "" || signature.Header == "" && signature.Field == "" {
			signature.Header = s.SignatureHeader
		}
		if s.Tolerance != 0 && signature.Unit != "" {
			signature.Tolerance = s.Tolerance
		}
		scheme, err := signature.compile()
		if err != nil {
			return nil, fmt.Errorf("signature: %w", err)
		}
		c.signatures = append(c.signatures, scheme)
	}
	switch {
	case c.ID == nil && c.preset != nil:
		return nil, fmt.Errorf("id: is required: for %q it is not known what is the same on every redelivery (%s)",
			s.Provider, c.preset.ID)
	case c.ID == nil:
		return nil, errors.New("id: is required where there is no preset")
	case s.Tolerance < 0:
		return nil, errors.New("tolerance: is negative")
	case c.AnswerWithin < 0:
		return nil, errors.New("answer_within: is negative")
	case c.Success < 200 || c.Success > 299:
		return nil, fmt.Errorf("success: %d is not from 200 to 299", c.Success)
	}
	if s.PublicURL != "" {
		u, err := url.Parse(s.PublicURL)
		if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
			return nil, errors.New("public_url: want http:// or https:// and a host")
		}
		c.publicURL = u
	}
	return c, c.checkSecrets(c.secrets())
}

// fill sets what the source leaves to the preset, and then to the defaults.
func (c *config) fill(p *Preset) {
	if c.Items == nil && c.ID == nil {
		c.Items = p.items
	}
	if c.ID == nil {
		c.ID, c.IDInHeader = p.id, p.idInHeader && (c.When == nil || c.IDInHeader)
	}
	if c.RetriedFor == 0 {
		c.RetriedFor = p.RetriedFor
	}
	if c.Event == nil {
		c.Event = p.event
	}
	if c.Status == nil {
		c.Status = p.status
	}
	if c.When == nil && !c.AllEvents {
		c.When = p.when
	}
	if c.Success == 0 {
		c.Success = p.Success
	}
	if c.AnswerWithin == 0 {
		c.AnswerWithin = p.AnswerWithin
	}
	c.refused, c.handshake = p.Instead, p.handshake
}

// CheckSecrets says what is wrong with secrets before they are used: none of them, or one that is not of the form that the
// sender gives out. The error never has a secret in it.
func (h *Handler) CheckSecrets(secrets []string) error { return h.source.checkSecrets(secrets) }

func (c *config) secrets() []string {
	if c.Secrets == nil {
		return nil
	}
	return c.Secrets()
}

// The longest id that the service takes, and the longest prefix that leaves room for an id's hash.
const (
	maxIDBytes     = 255
	maxPrefixBytes = 128
)

func checkPrefix(prefix string) error {
	if len(prefix) > maxPrefixBytes {
		return fmt.Errorf("id_prefix: is longer than %d bytes", maxPrefixBytes)
	}
	if prefix != "" && !isID(prefix) {
		return errors.New("id_prefix: is not UTF-8, or has control characters")
	}
	return nil
}

// isID says whether the service takes s as an id, its length aside.
func isID(s string) bool {
	return s != "" && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}
