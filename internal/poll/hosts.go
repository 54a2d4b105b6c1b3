// Package poll is `jobonce poll`: it asks providers over HTTP about jobs whose webhook is overdue. Which hosts may be asked, with
// which headers, how often, and what their answers mean, the configuration file says; every other host is refused.
package poll

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	"go.yaml.in/yaml/v3"
	"golang.org/x/net/http/httpguts"
	"golang.org/x/time/rate"

	"github.com/jobonce/jobonce/client/webhook"
	"github.com/jobonce/jobonce/internal/config"
	"github.com/jobonce/jobonce/internal/expr"
)

// Host is one of `hosts:` in the configuration file.
type Host struct {
	// at is where it stands in the file, for errors.
	at string

	// Name is the name, or NAME:PORT for another port than that of the scheme. What is configured goes to it alone.
	Name string
	// Paths are what may be asked: one that ends in a slash is a beginning, any other a whole path. Without any, everything.
	Paths []string
	// HeadersFiles are files that hold values of headers, by the headers' names. They are sent over https alone.
	HeadersFiles map[string]string
	// Rate is how many requests a second are made at most. Default 1.
	Rate float64
	// Over tells whether the job is over, Event and Status give those to record. Event and Status may be empty.
	Over, Event, Status string
	// AllowPrivate lets the host have an address that is not of the public Internet.
	AllowPrivate bool
}

// Parse reads the hosts. path names the file, for errors.
func Parse(path string, node *yaml.Node) ([]Host, error) {
	if node.Kind != yaml.SequenceNode || len(node.Content) == 0 {
		return nil, fmt.Errorf("%s:%d: poll.hosts must be a list of hosts", path, node.Line)
	}
	hosts := make([]Host, len(node.Content))
	seen := map[string]bool{}
	for i, n := range node.Content {
		h := &hosts[i]
		h.at = fmt.Sprintf("%s:%d", path, n.Line)
		err := config.Fields(path, fmt.Sprintf("host %d", i+1), n, map[string]any{
			"host": &h.Name, "paths": &h.Paths, "headers_files": &h.HeadersFiles, "rate": &h.Rate, "over": &h.Over, "event": &h.Event, "status": &h.Status,
			"allow_private": &h.AllowPrivate,
		})
		if err != nil {
			return nil, err
		}
		if h.Name = strings.ToLower(h.Name); seen[h.Name] {
			return nil, h.wrong("host", errors.New("stands twice"))
		}
		seen[h.Name] = true
	}
	return hosts, nil
}

// wrong is an error about a key of the host.
func (h *Host) wrong(key string, err error) error {
	name := h.Name
	if name == "" {
		name = "a host"
	}
	return fmt.Errorf("%s: %s of %s: %w", h.at, key, name, err)
}

// language is what expressions can read of an answer: its body as JSON and as text, its status code and its headers. Numbers are read
// as those of a webhook are, so that both give the same event and status.
var language = expr.New(expr.Language{
	Values: []string{"body", "code"}, Texts: []string{"text"}, Maps: []string{"header"},
	JSON: func(s string) (any, error) { return webhook.DecodeJSON([]byte(s)) },
})

// host is a host made ready.
type host struct {
	Host
	limit *rate.Limiter
	// places has one of each poll of the host that is under way. line gives those that find none their times to come again, one after
	// the other at the host's rate.
	places chan struct{}
	line   *rate.Limiter
	// quietUntil is until when it is not to be asked, in milliseconds since 1970.
	quietUntil          atomic.Int64
	over, event, status *expr.Program
}

// compile makes a host ready, of which so many jobs are polled at a time.
func (h Host) compile(places int) (*host, error) {
	out := &host{Host: h, places: make(chan struct{}, places)}
	u, err := url.Parse("https://" + h.Name)
	if err != nil || u.Host != h.Name || u.Hostname() == "" || u.User != nil || strings.ContainsAny(h.Name, "/?#*") {
		return nil, h.wrong("host", errors.New("must be a name, or NAME:PORT"))
	}
	if name := nameOf(u); name != h.Name {
		return nil, h.wrong("host", fmt.Errorf("must be without the port of its scheme, and without an empty one: %s", name))
	}
	if h.Paths != nil && len(h.Paths) == 0 {
		return nil, h.wrong("paths", errors.New("is empty; leave it out for every path"))
	}
	for _, p := range h.Paths {
		if !strings.HasPrefix(p, "/") {
			return nil, h.wrong("paths", fmt.Errorf("%q must begin with a slash", p))
		}
	}
	if !(h.Rate >= 0) || math.IsInf(h.Rate, 1) { // not a number, for example
		return nil, h.wrong("rate", errors.New("must be a number above zero"))
	}
	if h.Rate == 0 {
		h.Rate = 1
	}
	out.limit, out.line = rate.NewLimiter(rate.Limit(h.Rate), 1), rate.NewLimiter(rate.Limit(h.Rate), 1)
	for _, p := range []struct {
		key, source string
		want        expr.Result
		into        **expr.Program
	}{{"over", h.Over, expr.Truth, &out.over}, {"event", h.Event, expr.Text, &out.event}, {"status", h.Status, expr.Text, &out.status}} {
		if p.source == "" && p.key != "over" {
			continue
		}
		program, err := language.Compile(p.source, p.want)
		if err != nil {
			return nil, h.wrong(p.key, err)
		}
		*p.into = program
	}
	for _, name := range slices.Sorted(maps.Keys(h.HeadersFiles)) {
		if !httpguts.ValidHeaderFieldName(name) || strings.EqualFold(name, "Host") {
			return nil, h.wrong("headers_files", fmt.Errorf("%q is no header that can be set", name))
		}
	}
	_, err = out.headers()
	return out, err
}

// mayAsk tells whether the URL is of a path that may be asked. One that a server may read as another path is none.
func (h *host) mayAsk(u *url.URL) bool {
	if len(h.Paths) == 0 {
		return true
	}
	asked, written := cmp.Or(u.Path, "/"), strings.ToLower(u.EscapedPath())
	for _, twice := range []string{"%2e", "%2f", "%5c"} { // some servers decode them before they look at the path, some after
		if strings.Contains(written, twice) {
			return false
		}
	}
	// A percent sign that is left is decoded once more by some.
	if strings.ContainsAny(asked, `;\%`) || strings.TrimSuffix(asked, "/") != strings.TrimSuffix(path.Clean(asked), "/") {
		return false
	}
	return slices.ContainsFunc(h.Paths, func(p string) bool {
		return asked == p || strings.HasSuffix(p, "/") && strings.HasPrefix(asked, p)
	})
}

// headers reads the values of the headers, which may have changed since the last time.
func (h *host) headers() (http.Header, error) {
	out := make(http.Header)
	for name, file := range h.HeadersFiles {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, h.wrong("headers_files", err)
		}
		value := strings.TrimSpace(string(b))
		if value == "" || !httpguts.ValidHeaderFieldValue(value) {
			return nil, h.wrong("headers_files", fmt.Errorf("%s is empty, or holds what no header can", file))
		}
		out.Set(name, value)
	}
	return out, nil
}

// nameOf is a URL's host as it is configured: without the port where that is its scheme's.
func nameOf(u *url.URL) string {
	name := strings.ToLower(u.Hostname())
	switch port := u.Port(); {
	case port == "", u.Scheme == "https" && port == "443", u.Scheme == "http" && port == "80":
		if strings.Contains(name, ":") {
			return "[" + name + "]"
		}
		return name
	default:
		return net.JoinHostPort(name, port)
	}
}
