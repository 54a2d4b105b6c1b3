package frontend

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/jobonce/jobonce/client/webhook"
	"github.com/jobonce/jobonce/internal/config"
)

// Source is one of `sources:` in the configuration file. docs/webhooks.md says what each key means.
type Source struct {
	// at is where it stands in the file, for errors.
	at string

	Name, Path, Provider string

	SecretsFiles, SecretsEnv          []string
	VerifyTokenFile, VerifyTokenEnv   string
	Signature                         *webhook.Signature
	SignatureHeader, PublicURL        string
	Tolerance                         time.Duration
	IDPrefix                          *string
	JobID, Event, Status, Items, When string
	AllEvents, RecordOnly             bool
	Success                           int
	AnswerWithin                      time.Duration
	Examples                          []Example
	workMode                          string
}

// Example is a body, and what is to become of it.
type Example struct {
	at string

	Name, Body, BodyFile string
	Headers              map[string]string
	Query                string
	// Records are the jobs that are to be recorded; Outcome is "recorded", "filtered" or "unreadable".
	Records []Recorded
	Outcome string
}

// Recorded is what an example expects of a job. Event and Status are looked at where they are said.
type Recorded struct{ JobID, Event, Status string }

// Parse reads the sources. path names the file, for errors.
func Parse(path string, node *yaml.Node) ([]Source, error) {
	if node.Kind != yaml.SequenceNode || len(node.Content) == 0 {
		return nil, fmt.Errorf("%s:%d: webhook.sources must be a list of sources", path, node.Line)
	}
	sources := make([]Source, len(node.Content))
	for i, n := range node.Content {
		s := &sources[i]
		s.at = fmt.Sprintf("%s:%d", path, n.Line)
		if err := s.parse(path, fmt.Sprintf("source %d", i+1), n); err != nil {
			return nil, err
		}
		if s.Name == "" {
			return nil, s.wrong("name", errors.New("is required"))
		}
		if s.Path == "" {
			s.Path = "/" + s.Name
		}
	}
	return sources, checkTogether(sources)
}

func (s *Source) parse(path, what string, node *yaml.Node) error {
	return config.Fields(path, what, node, map[string]any{
		"name": &s.Name, "path": &s.Path, "provider": &s.Provider,
		"secrets_files": &s.SecretsFiles, "secrets_env": &s.SecretsEnv,
		"verify_token_file": &s.VerifyTokenFile, "verify_token_env": &s.VerifyTokenEnv,
		"signature_header": &s.SignatureHeader, "public_url": &s.PublicURL, "tolerance": &s.Tolerance,
		"id_prefix": &s.IDPrefix, "job_id": &s.JobID, "event": &s.Event, "status": &s.Status, "items": &s.Items, "when": &s.When,
		"all_events": &s.AllEvents, "record_only": &s.RecordOnly, "work_mode": &s.workMode,
		"answer_status": &s.Success, "answer_within": &s.AnswerWithin,
		"signature": func(n *yaml.Node) error {
			s.Signature = &webhook.Signature{}
			return parseSignature(path, "the signature of "+what, n, s.Signature)
		},
		"examples": func(n *yaml.Node) error {
			if n.Kind != yaml.SequenceNode {
				return fmt.Errorf("%s:%d: examples of %s must be a list", path, n.Line, what)
			}
			for i, n := range n.Content {
				e := Example{at: fmt.Sprintf("%s:%d", path, n.Line), Name: fmt.Sprint(i + 1)}
				if err := e.parse(path, fmt.Sprintf("example %d of %s", i+1, what), n); err != nil {
					return err
				}
				s.Examples = append(s.Examples, e)
			}
			return nil
		},
	})
}

func parseSignature(path, what string, node *yaml.Node, s *webhook.Signature) error {
	return config.Fields(path, what, node, map[string]any{
		"kind": &s.Kind, "header": &s.Header, "field": &s.Field, "split": &s.Split, "prefix": &s.Prefix,
		"asymmetric_prefix": &s.AsymmetricPrefix, "timestamp_prefix": &s.TimestampPrefix, "timestamp_header": &s.TimestampHeader,
		"timestamp_field": &s.TimestampField, "unit": &s.Unit, "tolerance": &s.Tolerance, "id_header": &s.IDHeader,
		"template": &s.Template, "items": &s.Items, "hash": &s.Hash, "encoding": &s.Encoding, "key": &s.Key, "keys_url": &s.KeysURL,
		"account_header": &s.AccountHeader,
	})
}

func (e *Example) parse(path, what string, node *yaml.Node) error {
	err := config.Fields(path, what, node, map[string]any{
		"name": &e.Name, "body": &e.Body, "body_file": &e.BodyFile, "headers": &e.Headers, "query": &e.Query,
		"expect": func(n *yaml.Node) error {
			if n.Kind == yaml.ScalarNode {
				e.Outcome = n.Value
				return nil
			}
			e.Outcome = "recorded"
			list := n.Content
			if n.Kind == yaml.MappingNode {
				list = []*yaml.Node{n}
			}
			for _, n := range list {
				var r Recorded
				err := config.Fields(path, "expect of "+what, n, map[string]any{"job_id": &r.JobID, "event": &r.Event, "status": &r.Status})
				if err == nil && r.JobID == "" {
					err = fmt.Errorf("%s:%d: expect of %s has no job_id", path, n.Line, what)
				}
				if err != nil {
					return err
				}
				e.Records = append(e.Records, r)
			}
			return nil
		},
	})
	switch {
	case err != nil:
		return err
	case e.Outcome != "recorded" && e.Outcome != "filtered" && e.Outcome != "unreadable":
		return fmt.Errorf("%s: expect of %s must be recorded, filtered, unreadable, or the job_id, event and status of what is recorded", e.at, what)
	case (e.Body == "") == (e.BodyFile == ""):
		return fmt.Errorf("%s: %s needs either body or body_file", e.at, what)
	}
	return nil
}

// wrong is an error about a key of the source.
func (s *Source) wrong(key string, err error) error {
	return fmt.Errorf("%s: source %q: %s: %w", s.at, s.Name, key, err)
}

// prefix is what stands before the ids.
func (s *Source) prefix() string {
	if s.IDPrefix != nil {
		return *s.IDPrefix
	}
	return s.Name + ":"
}

// checkTogether refuses sources that get into each other's way.
func checkTogether(sources []Source) error {
	for i := range sources {
		a := &sources[i]
		if !strings.HasPrefix(a.Path, "/") || strings.ContainsAny(a.Path, "?#*{} \t") {
			return a.wrong("path", fmt.Errorf("%q: want a path such as /hooks/%s, without a query and without placeholders", a.Path, a.Name))
		}
		for j := range sources[:i] {
			b := &sources[j]
			switch p, q := a.prefix(), b.prefix(); {
			case a.Name == b.Name:
				return a.wrong("name", fmt.Errorf("the source at %s has it too", b.at))
			case a.Path == b.Path:
				return a.wrong("path", fmt.Errorf("%s is that of source %q too", a.Path, b.Name))
			case p == q:
				return a.wrong("id_prefix", fmt.Errorf("%q is that of source %q too: two events of one id would be one job", p, b.Name))
			case p != "" && q != "" && (strings.HasPrefix(p, q) || strings.HasPrefix(q, p)):
				return a.wrong("id_prefix", fmt.Errorf("%q and %q, of source %q, begin alike: two events could be one job", p, q, b.Name))
			}
		}
	}
	return nil
}

// fromEnvironment reads variables that hold secrets.
func fromEnvironment(names []string) (values []string, err error) {
	for _, name := range names {
		value := strings.TrimSpace(os.Getenv(name))
		if value == "" {
			return nil, fmt.Errorf("%s is not set, or empty", name)
		}
		values = append(values, value)
	}
	return values, nil
}
