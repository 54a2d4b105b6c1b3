package ui

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

//go:embed html/*.html
var files embed.FS

//go:embed html/style.css
var style []byte

//go:embed html/icon.svg
var icon []byte

// templates are the views, each with the frame around it.
var templates = func() map[string]*template.Template {
	all := make(map[string]*template.Template)
	for _, name := range []string{"overview", "jobs", "job", "expected", "confirm", "changed", "problem", "signin"} {
		all[name] = template.Must(template.New("frame.html").Funcs(template.FuncMap{
			"visible": visible, "stamp": stamp, "machine": machine,
		}).ParseFS(files, "html/frame.html", "html/"+name+".html"))
	}
	return all
}()

// stamp is a time for people, in UTC; empty for none.
func stamp(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format("2006-01-02 15:04:05 UTC")
}

// machine is a time for machines.
func machine(t *timestamppb.Timestamp) string { return t.AsTime().Format(time.RFC3339Nano) }

// request is a request of a viewer.
type request struct {
	*http.Request
	page   *Page
	viewer viewer
	now    time.Time
}

// content is what a view shows: a template, and what that is made of.
type content struct {
	template, title string
	data            any
	// code is the status; 0: 200. refresh is after how many seconds the browser asks again; 0: never.
	code, refresh int
}

// view makes the content of a request. The error is a [refusal], or that of a call.
type view func(*request) (*content, error)

// refusal is why a request is not answered.
type refusal struct {
	code int
	why  string
}

func (r *refusal) Error() string { return r.why }

// show makes a handler of a view.
func (p *Page) show(v view) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), viewTime)
		defer cancel()
		who, ctx, err := p.who(ctx, p.token(r))
		req := &request{Request: r.WithContext(ctx), page: p, viewer: who, now: p.now()}
		var c *content
		if err == nil && !whole(r.URL.Query()) {
			err = &refusal{http.StatusBadRequest, "The address is not UTF-8."}
		}
		if err == nil {
			c, err = v(req)
		}
		if err != nil {
			p.refuse(w, req, err)
			return
		}
		p.render(w, req, c)
	})
}

// whole tells whether all values are UTF-8, which messages must be.
func whole(values url.Values) bool {
	for _, all := range values {
		if slices.ContainsFunc(all, func(s string) bool { return !utf8.ValidString(s) }) {
			return false
		}
	}
	return true
}

// problem is what the view of an error says.
type problem struct{ Message, Reason string }

// refuse answers with an error.
func (p *Page) refuse(w http.ResponseWriter, r *request, err error) {
	var s *stranger
	var no *refusal
	var tooLarge *http.MaxBytesError
	c := &content{template: "problem", title: "That did not work"}
	switch {
	case errors.As(err, &s):
		if s.code == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Bearer realm="jobonce"`)
		}
		back := r.URL.RequestURI()
		if r.Method != http.MethodGet {
			back = r.PostFormValue("back")
		}
		c = &content{template: "signin", title: "Sign in", code: s.code, data: map[string]string{"Why": s.why, "Back": here(back)}}
	case errors.As(err, &no):
		c.code, c.data = no.code, problem{Message: no.why}
	case errors.As(err, &tooLarge):
		c.code, c.data = http.StatusRequestEntityTooLarge, problem{Message: "The request is too large."}
	default:
		said := explain(err)
		c.code, c.data = runtime.HTTPStatusFromCode(status.Code(err)), said
		if status.Code(err) == codes.Unauthenticated { // The rights were lost in this moment.
			p.refuse(w, r, &stranger{http.StatusUnauthorized, said.Message})
			return
		}
	}
	p.render(w, r, c)
}

// explain is what the service said of a call that failed. What is not the service's own words is not shown.
func explain(err error) problem {
	st := status.Convert(err)
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == "jobonce" {
			return problem{st.Message(), info.GetReason()}
		}
	}
	switch st.Code() {
	case codes.DeadlineExceeded:
		return problem{"The service has not answered in time. What was asked for may have been done.", ""}
	case codes.Unavailable, codes.Canceled:
		return problem{"The service is not to be reached for now.", ""}
	}
	return problem{"The service has failed; its log says why.", ""}
}

// frame is what the template of the frame is made of.
type frame struct {
	Title, Path string
	Viewer      viewer
	// Callers tells that callers are configured.
	Callers bool
	Now     time.Time
	Data    any
}

// render writes a view, all or nothing of it.
func (p *Page) render(w http.ResponseWriter, r *request, c *content) {
	var b bytes.Buffer
	if r.now.IsZero() {
		r.now = p.now()
	}
	f := frame{c.title, r.URL.Path, r.viewer, p.cfg.Callers != nil, r.now.UTC(), c.data}
	if err := templates[c.template].Execute(&b, f); err != nil {
		p.cfg.Logger.Error("a view of the page could not be made", "path", r.URL.Path, "error", err)
		http.Error(w, "the view could not be made; the log says why", http.StatusInternalServerError)
		return
	}
	if c.refresh > 0 {
		w.Header().Set("Refresh", fmt.Sprintf("%d; url=%s", c.refresh, r.URL.RequestURI()))
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if c.code != 0 {
		w.WriteHeader(c.code)
	}
	_, _ = b.WriteTo(w)
}

// stateNames are the states in lists, as the page names them.
var stateNames = map[joboncev1.WorkState]string{
	joboncev1.WorkState_WORK_STATE_UNTRACKED: "Untracked", joboncev1.WorkState_WORK_STATE_QUEUED: "Queued", joboncev1.WorkState_WORK_STATE_LEASED: "Held",
	joboncev1.WorkState_WORK_STATE_COMPLETED: "Completed", joboncev1.WorkState_WORK_STATE_DEAD: "Dead",
}
