package frontend

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/jobonce/jobonce/client/webhook"
	"github.com/jobonce/jobonce/internal/expr"
)

// language is what the expressions of a source may read.
var language = expr.New(expr.Language{
	Values: []string{"body", "item"}, Texts: []string{"text"}, Maps: []string{"form", "header", "query"},
	JSON: func(s string) (any, error) { return webhook.DecodeJSON([]byte(s)) },
})

// ofRequest are the variables of a request as a whole.
func ofRequest(r *webhook.Request) expr.Variables {
	return func(name string) (any, error) {
		switch name {
		case "body":
			return r.JSON()
		case "text":
			return r.Text()
		case "form":
			form, err := r.Form()
			return firsts(form), err
		case "query":
			return firsts(r.Query), nil
		case "header":
			return headers(r.Header), nil
		}
		return nil, errors.New("is there for each event alone, not for all of a body")
	}
}

// ofItem are the variables of one event.
func ofItem(i *webhook.Item) expr.Variables {
	whole := ofRequest(i.Request)
	return func(name string) (any, error) {
		if name == "item" {
			return i.JSON()
		}
		return whole(name)
	}
}

// firsts has the first value of each name.
func firsts(values url.Values) map[string]string {
	m := make(map[string]string, len(values))
	for name, v := range values {
		m[name] = v[0]
	}
	return m
}

// headers has the headers by their names in lower case; of several values, all with commas between them, as HTTP says.
func headers(h http.Header) map[string]string {
	m := make(map[string]string, len(h))
	for name, v := range h {
		m[strings.ToLower(name)] = strings.Join(v, ", ")
	}
	return m
}

// source is what the handler gets of a source.
func (s *Source) source(secrets, verifyTokens func() []string) (webhook.Source, error) {
	switch s.workMode {
	case "", "queued":
	case "untracked":
		return webhook.Source{}, s.wrong("work_mode", errors.New("say record_only: true, for what nobody is to work on"))
	case "leased":
		return webhook.Source{}, s.wrong("work_mode", errors.New("leased is for programs that do the work themselves, with the Go client; "+
			"what is recorded here is queued, for workers"))
	default:
		return webhook.Source{}, s.wrong("work_mode", fmt.Errorf("%q is none; what is recorded here is queued", s.workMode))
	}
	out := webhook.Source{
		Name: s.Name, Provider: s.Provider, Secrets: secrets, Signature: s.Signature, SignatureHeader: s.SignatureHeader,
		PublicURL: s.PublicURL, Tolerance: s.Tolerance, IDPrefix: s.IDPrefix, AllEvents: s.AllEvents, RecordOnly: s.RecordOnly,
		VerifyTokens: verifyTokens, Success: s.Success, AnswerWithin: s.AnswerWithin,
	}
	// Without a job_id, the preset knows whether its own stands in a header.
	out.IDInHeader = s.Items == "" && (s.JobID == "" || s.Provider == "" || s.When != "" || s.AllEvents)
	for _, f := range []struct {
		key, source string
		into        *func(*webhook.Item) (string, error)
	}{{"job_id", s.JobID, &out.ID}, {"event", s.Event, &out.Event}, {"status", s.Status, &out.Status}} {
		if f.source == "" {
			continue
		}
		p, err := language.Compile(f.source, expr.Text)
		if err != nil {
			return out, s.wrong(f.key, err)
		}
		if f.key == "job_id" && s.Items != "" && p.ReadsOnly("body", "text", "form", "header", "query") {
			return out, s.wrong(f.key, errors.New("reads nothing of item, so that all the events of a body would be one job"))
		}
		out.IDInHeader = out.IDInHeader && p.ReadsOnly("header", "query")
		*f.into = func(i *webhook.Item) (string, error) { return p.Text(i.Request.Context(), ofItem(i)) }
	}
	if s.When != "" {
		p, err := language.Compile(s.When, expr.Truth)
		if err != nil {
			return out, s.wrong("when", err)
		}
		out.IDInHeader = out.IDInHeader && p.ReadsOnly("header", "query")
		out.When = func(i *webhook.Item) (bool, error) { return p.Truth(i.Request.Context(), ofItem(i)) }
	}
	if s.Items == "" {
		return out, nil
	}
	p, err := language.Compile(s.Items, expr.List)
	if err != nil {
		return out, s.wrong("items", err)
	}
	out.Items = items(p)
	if path, ok := plainPath(s.Items); ok {
		out.Items = webhook.Array(path)
	}
	return out, nil
}

// plainPaths are the lists within the body that are taken as they are: body.a.b, and one member of each element of it, as in
// body.a.map(x, x.b.c).
var plainPaths = regexp.MustCompile(`^\s*body((?:\.\w+)*?)(?:\.map\(\s*(\w+)\s*,\s*(\w+)((?:\.\w+)+)\s*\))?\s*$`)

// plainPath is the path, as [webhook.Array] has it, of an expression that is nothing else. What it takes is stored byte for byte.
func plainPath(source string) (path string, ok bool) {
	m := plainPaths.FindStringSubmatch(source)
	if m == nil || m[2] != m[3] {
		return "", false
	}
	return strings.TrimPrefix(m[1], ".") + "[]" + m[4], true
}

// items takes a body apart by an expression.
func items(p *expr.Program) func(*webhook.Request) ([]*webhook.Item, error) {
	return func(r *webhook.Request) ([]*webhook.Item, error) {
		values, err := p.List(r.Context(), ofRequest(r), webhook.MaxItems+1)
		if err != nil {
			return nil, err
		}
		list := make([]*webhook.Item, len(values))
		for n, v := range values {
			if v == nil {
				return nil, fmt.Errorf("element %d is null", n)
			}
			list[n] = &webhook.Item{Value: v}
		}
		return list, nil
	}
}
