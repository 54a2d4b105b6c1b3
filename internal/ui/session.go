package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/jobonce/jobonce/internal/auth"
)

const (
	// sessionTime is how long somebody stays signed in.
	sessionTime = 8 * time.Hour
	// maxToken is the longest token that a cookie holds. Browsers keep 4096 bytes of name, value and attributes.
	maxToken = 3800
)

// cookieName is the name of the cookie. A browser keeps a __Host- cookie only when this host has set it, over TLS and for itself
// alone. In plaintext the name has no prefix, since some browsers then keep no secure cookie, not even on this machine.
func (p *Page) cookieName() string {
	if p.cfg.Certificates != nil {
		return "__Host-jobonce"
	}
	return "jobonce"
}

// cookie keeps the token in the browser. Its value says when it ends, for browsers that keep cookies for longer.
func (p *Page) cookie(token string) *http.Cookie {
	c := &http.Cookie{
		Name: p.cookieName(), Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: p.cfg.Certificates != nil, MaxAge: -1,
	}
	if token != "" {
		c.Value = strconv.FormatInt(p.now().Add(sessionTime).Unix(), 10) + "." + token
		c.MaxAge = int(sessionTime.Seconds())
	}
	return c
}

// token is what the viewer has signed in with; empty when the viewer has not, or too long ago. The error is a [stranger].
func (p *Page) token(r *http.Request) (string, error) {
	cookies := r.CookiesNamed(p.cookieName())
	switch len(cookies) {
	case 0:
		return "", nil
	case 1:
	default: // Signing in again would not help: somebody else has set one of them, for another path.
		return "", &stranger{http.StatusUnauthorized, "the browser has several cookies called " + p.cookieName() +
			", of which one is not this page's: have it delete the cookies of this site"}
	}
	end, token, _ := strings.Cut(cookies[0].Value, ".")
	seconds, err := strconv.ParseInt(end, 10, 64)
	if left := time.Unix(seconds, 0).Sub(p.now()); err != nil || left <= 0 || left > sessionTime {
		return "", nil
	}
	return token, nil
}

// viewer is who looks at the page.
type viewer struct {
	// Name is the caller's; empty where no callers are configured.
	Name string
	// Prefix is what the ids of the viewer's jobs begin with; empty for all jobs.
	Prefix string
	// Bodies tells that the viewer may see bodies, Change that the viewer may requeue and delete.
	Bodies, Change bool
}

// stranger is the error of a request whose viewer has to sign in first.
type stranger struct {
	code int
	why  string
}

func (s *stranger) Error() string { return s.why }

// who finds the viewer by the token. The context that it returns makes the viewer's calls.
func (p *Page) who(ctx context.Context, token string) (viewer, context.Context, error) {
	if p.cfg.Callers == nil {
		return viewer{}, ctx, nil
	}
	if token == "" {
		return viewer{}, ctx, &stranger{http.StatusUnauthorized, ""}
	}
	authorization := "Bearer " + token
	switch c, err := p.cfg.Callers.Who(ctx, auth.Shown{Authorization: []string{authorization}}); {
	case errors.Is(err, auth.ErrUnavailable):
		return viewer{}, ctx, &stranger{http.StatusServiceUnavailable, err.Error()}
	case err != nil:
		return viewer{}, ctx, &stranger{http.StatusUnauthorized, err.Error()}
	case !c.May(auth.Read | auth.Admin):
		return viewer{}, ctx, &stranger{http.StatusForbidden, fmt.Sprintf("%s may not look at jobs: that needs the right read, or admin", c.Name)}
	default:
		return viewer{c.Name, c.Prefix, c.May(auth.ReadBodies), c.May(auth.Admin)}, metadata.AppendToOutgoingContext(ctx, "authorization", authorization), nil
	}
}

// signIn checks a token and has the browser keep it.
func (p *Page) signIn(w http.ResponseWriter, r *http.Request) {
	token := strings.TrimSpace(r.PostFormValue("token"))
	ctx, cancel := context.WithTimeout(r.Context(), viewTime)
	defer cancel()
	v, _, err := p.who(ctx, token)
	if token == "" {
		err = &stranger{http.StatusUnauthorized, "a token is needed"}
	}
	if err == nil && (len(token) > maxToken || strings.ContainsFunc(token, notInToken)) {
		err = &stranger{http.StatusRequestEntityTooLarge, fmt.Sprintf("the token is longer than the %d bytes that a browser keeps", maxToken)}
	}
	if err != nil {
		if p.few.Allow() {
			p.cfg.Logger.Warn("somebody could not sign in to the page", "peer", r.RemoteAddr, "error", err)
		}
		p.refuse(w, &request{Request: r}, err)
		return
	}
	p.cfg.Logger.Info("signed in to the page", "caller", v.Name, "peer", r.RemoteAddr)
	http.SetCookie(w, p.cookie(token))
	http.Redirect(w, r, here(r.PostFormValue("back")), http.StatusSeeOther)
}

// notInToken tells which characters no token has (RFC 6750, b64token).
func notInToken(c rune) bool {
	return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-._~+/=", c)
}

// signOut has the browser forget the token.
func (p *Page) signOut(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, p.cookie(""))
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// here is the address, if it is one of this page's views, or else that of the first one.
func here(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || u.Opaque != "" {
		return "/"
	}
	switch u.Path {
	case "/", "/jobs", "/job", "/expected":
		return (&url.URL{Path: u.Path, RawQuery: u.Query().Encode()}).String()
	}
	return "/"
}
