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
		all[name] = template.Must(template.New("frame.html").Funcs(template.FuncMap{"visible": visible, "plain": plain}).ParseFS(
			files, "html/frame.html", "html/"+name+".html"))
	}
	return all
}()

// request is a request of a viewer.
type request struct {
	*http.Request
	viewer viewer
	now    time.Time
}

// content is what a view shows: a template, and what that is made of. id is the job that it is about; it may have none.
type content struct {
	template, title, id string
	data                any
	// code is the status; 0: 200. refresh is after how many seconds the browser asks again; 0: never.
	code, refresh int
}

// view makes the content of a request. The error is a [refusal], or that of a call.
type view func(*request) (*content, error)

// refusal is why a request is not answered, and what can be done about that.
type refusal struct {
	code      int
	why, hint string
}

func (r *refusal) Error() string { return r.why }

var noPage = &refusal{http.StatusNotFound, "There is no such page.", ""}

// show makes a handler of a view.
func (p *Page) show(v view) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), viewTime)
		defer cancel()
		req := &request{Request: r, now: p.now()}
		token, err := p.token(r)
		if err == nil {
			req.viewer, ctx, err = p.who(ctx, token)
			req.Request = r.WithContext(ctx)
		}
		var c *content
		if err == nil && !whole(r.URL.Query()) {
			err = &refusal{http.StatusBadRequest, "The address is not UTF-8.", ""}
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

// problem is what is said of an error: what the service calls it, if it does, and what can be done.
type problem struct{ Message, Reason, Hint string }

// refuse answers with an error.
func (p *Page) refuse(w http.ResponseWriter, r *request, err error) {
	var s *stranger
	var no *refusal
	var tooLarge *http.MaxBytesError
	said := explain(err)
	code := runtime.HTTPStatusFromCode(status.Code(err))
	switch {
	case errors.As(err, &s):
		p.askWho(w, r, s)
		return
	case status.Code(err) == codes.Unauthenticated: // The rights were lost in this moment.
		p.askWho(w, r, &stranger{http.StatusUnauthorized, said.Message})
		return
	case errors.As(err, &no):
		code = no.code
	case errors.As(err, &tooLarge):
		code, said = http.StatusRequestEntityTooLarge, problem{Message: "The request is too large."}
	}
	data := struct {
		problem
		Again string
	}{problem: said}
	if r.Method == http.MethodGet && code >= http.StatusInternalServerError {
		data.Again = here(r.URL.RequestURI())
	}
	p.render(w, r, &content{template: "problem", title: "That did not work", code: code, data: data})
}

// askWho has the viewer sign in.
func (p *Page) askWho(w http.ResponseWriter, r *request, s *stranger) {
	if s.code == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="jobonce"`)
	}
	q := r.URL.Query()
	q.Del("body") // Whoever comes by another's link has not asked for it.
	back := r.URL.Path + "?" + q.Encode()
	if r.Method != http.MethodGet {
		back = r.PostFormValue("back")
	} else if site := r.Header.Get("Sec-Fetch-Site"); s.why == "" && (site == "cross-site" || site == "same-site") && !q.Has("again") {
		// Browsers send no strict cookie by a link of another site, such as an alert's. Once the page asks itself, they do.
		q.Set("again", "1")
		w.Header().Set("Refresh", "0; url="+here(r.URL.Path+"?"+q.Encode()))
	}
	p.render(w, r, &content{template: "signin", title: "Sign in", code: s.code, data: map[string]string{"Why": s.why, "Back": here(back)}})
}

// again is what to do when the service is slow or away.
const again = "Ask again in a moment. If it lasts, look at the service's log, and whether its database answers."

// hints say what to do, by the reason of the service.
var hints = map[string]string{
	"JOB_NOT_FOUND":     "Ids are compared byte by byte: capitals and blanks count. The job may have been deleted, or removed by retention.",
	"PERMISSION_DENIED": "The auth file says which jobs are whose.",
	"INVALID_FIELD":     "Go back and correct it, or begin with the first page.",
	"WRONG_STATE":       "Look at the job as it is now.",
	"STORE_UNAVAILABLE": again,
	"OUTCOME_UNKNOWN":   again,
	"OVERLOADED":        again,
	"RATE_LIMITED":      "Ask again in a moment.",
}

// explain is what is said of an error. Of the words of a call's only the service's own are shown.
func explain(err error) problem {
	var no *refusal
	if errors.As(err, &no) {
		return problem{no.why, "", no.hint}
	}
	st := status.Convert(err)
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == "jobonce" {
			return problem{"The service says: " + st.Message() + ".", info.GetReason(), hints[info.GetReason()]}
		}
	}
	switch st.Code() {
	case codes.DeadlineExceeded:
		return problem{"The service has not answered in time.", "", again}
	case codes.Unavailable, codes.Canceled:
		return problem{"The service is not to be reached for now.", "", again}
	}
	return problem{"The service has failed; its log says why.", "", ""}
}

// frame is what the template of the frame is made of.
type frame struct {
	Title, ID, Path string
	Viewer          viewer
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
	f := frame{c.title, c.id, r.URL.Path, r.viewer, p.cfg.Callers != nil, r.now.UTC(), c.data}
	if err := templates[c.template].Execute(&b, f); err != nil {
		p.cfg.Logger.Error("a view of the page could not be made", "path", r.URL.Path, "error", err)
		http.Error(w, "the view could not be made; the log says why", http.StatusInternalServerError)
		return
	}
	if c.refresh > 0 {
		w.Header().Set("Refresh", fmt.Sprintf("%d; url=%s", c.refresh, here(r.URL.RequestURI())))
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if c.code != 0 {
		w.WriteHeader(c.code)
	}
	_, _ = b.WriteTo(w)
}
