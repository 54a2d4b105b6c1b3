package ui

import (
	"net/url"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
)

// expectedShows are the lists of expectations, by the word that stands in their address, and what is said of an empty one.
var expectedShows = []struct {
	Word, Name, tone, title, empty string
	filter                         joboncev1.ExpectationFilter
}{
	{"", "All", "", "Expected webhooks", "No webhook is expected.", joboncev1.ExpectationFilter_EXPECTATION_FILTER_UNSPECIFIED},
	{"overdue", "Overdue", "due", "Overdue webhooks", "No webhook is overdue.", joboncev1.ExpectationFilter_EXPECTATION_FILTER_OVERDUE},
	{"given-up", "Given up", "dead", "Webhooks that were given up", "No webhook was given up.", joboncev1.ExpectationFilter_EXPECTATION_FILTER_GIVEN_UP},
}

// expectation is a webhook that is to come, as it is listed.
type expectation struct {
	*joboncev1.Expectation
	clock
	badge
	// URL is where its job is asked about, without what follows the question mark, which may be a secret.
	URL string
}

// expected shows webhooks that are to come.
func (p *Page) expected(r *request) (*content, error) {
	word, token := r.URL.Query().Get("show"), r.URL.Query().Get("page")
	data := struct {
		Shows       any
		Show, Empty string
		Rows        []expectation
		Pages       pages
	}{Shows: expectedShows, Show: word}
	title, req := "", &joboncev1.ListExpectationsRequest{PageSize: pageSize, PageToken: token}
	for _, e := range expectedShows {
		if e.Word == word {
			req.Filter, title, data.Empty = e.filter, e.title, e.empty
		}
	}
	if title == "" {
		return nil, noPage
	}
	page, err := p.admin.ListExpectations(r.Context(), req)
	if err != nil {
		return nil, err
	}
	for _, e := range page.GetExpectations() {
		one := expectation{e, clock(r.now), badge{"", "Not due yet"}, ""}
		if u, err := url.Parse(e.GetStatusUrl()); err == nil {
			one.URL = (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
		}
		switch {
		case e.GetGivenUpTime() != nil:
			one.badge = badge{"dead", "Given up"}
		case !e.GetOverdueTime().AsTime().After(r.now):
			one.badge = badge{"due", "Overdue"}
		}
		data.Rows = append(data.Rows, one)
	}
	data.Pages = pagesOf("/expected", url.Values{"show": {word}}, token, page.GetNextPageToken())
	return &content{template: "expected", title: title, data: data}, nil
}
