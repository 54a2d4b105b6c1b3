package auth

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// maxPrefixBytes is the longest prefix: that of a job's id.
const maxPrefixBytes = 255

// entry is a caller with one of its credentials, as the file has it.
type entry struct {
	Name        string            `yaml:"name"`
	TokenSHA256 string            `yaml:"token_sha256"`
	Certificate string            `yaml:"certificate"`
	OIDC        map[string]string `yaml:"oidc"`
	Allow       []grant           `yaml:"allow"`
	JobIDPrefix string            `yaml:"job_id_prefix"`
	Expires     time.Time         `yaml:"expires"`
	Rate        *float64          `yaml:"rate"`
}

// grant is an item of `allow`: a word, or `record` with the work modes.
type grant struct{ rights Rights }

// UnmarshalYAML reads a grant.
func (g *grant) UnmarshalYAML(node *yaml.Node) error {
	var word string
	if node.Kind == yaml.ScalarNode {
		word = node.Value
		g.rights = words[word]
	} else {
		var narrowed map[string][]string
		if err := node.Decode(&narrowed); err != nil || len(narrowed) != 1 || len(narrowed["record"]) == 0 {
			return fmt.Errorf("line %d: a right is a word, or record: [queued, untracked]", node.Line)
		}
		for _, mode := range narrowed["record"] {
			if modes[mode] == 0 {
				return fmt.Errorf("line %d: there is no work mode %s; there are %s", node.Line, shown(mode), list(modes))
			}
			g.rights |= modes[mode]
		}
		return nil
	}
	if g.rights == 0 {
		return fmt.Errorf("line %d: there is no right %s; there are %s", node.Line, shown(word), list(words))
	}
	return nil
}

func list(m map[string]Rights) string { return strings.Join(slices.Sorted(maps.Keys(m)), ", ") }

// table is what an auth file says.
type table struct {
	tokens       map[[sha256.Size]byte]*Caller
	certificates map[string]*Caller
	oidc         []oidcEntry
	// callers has them by name and credential, names one of each name.
	callers, names map[string]*Caller
}

// oidcEntry is a caller by what its token claims.
type oidcEntry struct {
	claims map[string]string
	caller *Caller
}

// parse reads an auth file. The file must end with its closing line, so that one that is half written is not taken for
// whole. Callers that stand in old as they do here stay the same.
func parse(content []byte, old *table) (*table, error) {
	if !bytes.HasSuffix(bytes.TrimRight(content, " \t\r\n"), []byte("\n...")) {
		return nil, errors.New("it lacks its closing line `...`, by which a whole file is told from one that is being written")
	}
	var file struct {
		Callers []entry `yaml:"callers"`
	}
	dec := yaml.NewDecoder(bytes.NewReader(content))
	dec.KnownFields(true)
	if err := dec.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, plain(err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("it holds more than one YAML document")
	}
	if len(file.Callers) == 0 {
		return nil, errors.New("it has no callers")
	}
	t := &table{
		tokens: make(map[[sha256.Size]byte]*Caller), certificates: make(map[string]*Caller),
		callers: make(map[string]*Caller), names: make(map[string]*Caller),
	}
	for i := range file.Callers {
		e := &file.Callers[i]
		if err := t.add(e, old); err != nil {
			return nil, fmt.Errorf("caller %d, %s: %w", i+1, shown(e.Name), err)
		}
	}
	return t, nil
}

// shown is a word of the file for an error, which may be logged: a secret in the wrong place is not repeated.
func shown(word string) string {
	if len(word) > maxShownBytes || isToken(word) {
		return "(a long word, not shown)"
	}
	return strconv.Quote(word)
}

const maxShownBytes = 32

// values are those that the library's errors repeat, and tokens wherever they stand.
var values = regexp.MustCompile("`[^`]*`|" + tokenPrefix + "[A-Za-z0-9_-]{20,}")

// plain takes the names of Go, and values, out of the library's errors.
func plain(err error) error {
	text := values.ReplaceAllString(strings.TrimPrefix(err.Error(), "yaml: "), "(a value)")
	return errors.New(strings.NewReplacer("\n  ", " ", "type auth.entry", "a caller", "type struct { Callers []auth.entry \"yaml:\\\"callers\\\"\" }", "the file").Replace(text))
}

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@:/-]{0,127}$`)

// add adds an entry.
func (t *table) add(e *entry, old *table) error {
	if !nameForm.MatchString(e.Name) || isToken(e.Name) {
		return errors.New("its name must be 1 to 128 letters, digits and any of . _ @ : / -, and begin with a letter or digit")
	}
	c, err := e.caller()
	if err != nil {
		return err
	}
	switch first := t.names[c.Name]; {
	case first == nil:
		if old != nil && old.names[c.Name] != nil && limit(old.names[c.Name]) == limit(c) {
			c.rate = old.names[c.Name].rate // It remembers the calls that there were.
		}
		t.names[c.Name] = c
	case first.Rights != c.Rights || first.Prefix != c.Prefix || limit(first) != limit(c):
		return errors.New("its entries differ in allow, job_id_prefix or rate; a caller with several credentials has the same in each")
	default:
		c.rate = first.rate
	}
	key, index, err := t.credential(e)
	if err != nil {
		return err
	}
	key = c.Name + " " + key
	if old != nil && old.callers[key] != nil && old.callers[key].same(c) {
		c = old.callers[key] // It keeps its calls.
	}
	index(c)
	t.callers[key] = c
	return nil
}

// caller makes a caller of the entry.
func (e *entry) caller() (*Caller, error) {
	c := &Caller{Name: e.Name, Prefix: e.JobIDPrefix, Expires: e.Expires}
	c.gone, c.end = context.WithCancel(context.Background())
	for _, g := range e.Allow {
		c.Rights |= g.rights
	}
	switch {
	case c.Rights == 0:
		return nil, errors.New("allow is missing")
	case c.Prefix != "" && !strings.HasSuffix(c.Prefix, ":"):
		return nil, errors.New("job_id_prefix must end in a colon")
	case len(c.Prefix) > maxPrefixBytes:
		return nil, fmt.Errorf("job_id_prefix is %d bytes; the limit is %d", len(c.Prefix), maxPrefixBytes)
	case e.Rate == nil:
	case *e.Rate > 0 && *e.Rate <= 1e6:
		c.rate = newLimiter(*e.Rate)
	default: // also what is no number
		return nil, errors.New("rate must be above 0, at most 1000000 calls a second; leave it out for any")
	}
	return c, nil
}

// credential is the entry's credential: a name for it, and what has calls with it find a caller.
func (t *table) credential(e *entry) (key string, index func(*Caller), err error) {
	given := 0
	for _, is := range []bool{e.TokenSHA256 != "", e.Certificate != "", e.OIDC != nil} {
		if is {
			given++
		}
	}
	twice := errors.New("its credential stands twice in the file")
	switch {
	case given != 1:
		return "", nil, errors.New("it needs one of token_sha256, certificate and oidc; more credentials are entries of the same name")
	case e.TokenSHA256 != "":
		b, err := hex.DecodeString(e.TokenSHA256)
		if err != nil || len(b) != sha256.Size {
			return "", nil, errors.New("its token_sha256 must be 64 hexadecimal digits; `jobonce token new` makes a token and its entry")
		}
		sum := [sha256.Size]byte(b)
		if t.tokens[sum] != nil {
			return "", nil, twice
		}
		return "token " + hexOf(sum), func(c *Caller) { t.tokens[sum] = c }, nil
	case e.Certificate != "":
		san := canonicalSAN(e.Certificate)
		if t.certificates[san] != nil {
			return "", nil, twice
		}
		return "certificate " + san, func(c *Caller) { t.certificates[san] = c }, nil
	}
	if !slices.ContainsFunc(identifying, func(claim string) bool { return e.OIDC[claim] != "" }) {
		return "", nil, fmt.Errorf("its oidc must name one of %s", strings.Join(identifying, ", "))
	}
	for claim, value := range e.OIDC {
		if value == "" {
			return "", nil, fmt.Errorf("its oidc has no value for %s", shown(claim))
		}
	}
	if slices.ContainsFunc(t.oidc, func(other oidcEntry) bool { return maps.Equal(other.claims, e.OIDC) }) {
		return "", nil, twice
	}
	return fmt.Sprintf("oidc %q", e.OIDC), func(c *Caller) { t.oidc = append(t.oidc, oidcEntry{e.OIDC, c}) }, nil
}

// identifying are the claims that name a subject, and not a group of them. The issuer's own promise is that they are not
// given to somebody else.
var identifying = []string{"sub", "email", "client_id", "azp", "appid", "oid"}

// canonicalSAN is a subject alternative name in one spelling.
func canonicalSAN(san string) string {
	if strings.Contains(san, "://") || strings.Contains(san, "@") {
		return san
	}
	if ip, err := netip.ParseAddr(san); err == nil {
		return ip.Unmap().String()
	}
	return strings.ToLower(strings.TrimSuffix(san, "."))
}

func hexOf(sum [sha256.Size]byte) string { return hex.EncodeToString(sum[:]) }
