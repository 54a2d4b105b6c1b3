package sqlitestore

import (
	"strings"
	"testing"

	"github.com/jobonce/jobonce/internal/testenv"
)

// TestClaimsUseTheDueIndex shows the query plans of claims: finished jobs are in neither index, so however many there are,
// they are not looked at.
func TestClaimsUseTheDueIndex(t *testing.T) {
	s, err := Open(t.Context(), t.TempDir(), Options{})
	testenv.Must(t, err)
	defer func() { testenv.OK(t, s.Close()) }()
	for query, want := range map[string]string{
		dueQuery:         "SEARCH jobs USING INDEX jobs_due",
		longestDueQuery:  "SEARCH jobs USING INDEX jobs_due",
		dueTooFarQuery:   "SEARCH jobs USING INDEX jobs_due",
		unclaimableQuery: "CO-ROUTINE (subquery-1)\nSEARCH jobs USING INDEX jobs_unclaimable",
		ofClaimCallQuery: "SEARCH jobs USING INDEX jobs_claim",
		byIDQuery:        "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1",
	} {
		args := []any{1, 1, 1}[:map[string]int{dueQuery: 2, longestDueQuery: 2, dueTooFarQuery: 3, unclaimableQuery: 2, ofClaimCallQuery: 2, byIDQuery: 1}[query]]
		rows, err := s.readerDB.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, args...)
		testenv.Must(t, err)
		var plan []string
		for rows.Next() {
			var id, parent, unused int
			var detail string
			testenv.Must(t, rows.Scan(&id, &parent, &unused, &detail))
			plan = append(plan, detail)
		}
		testenv.Must(t, rows.Close())
		got := strings.Join(plan, "\n")
		if !strings.HasPrefix(got, want) || strings.Contains(got, "SCAN jobs") || strings.Contains(got, "TEMP B-TREE FOR ORDER BY") && query != ofClaimCallQuery {
			t.Errorf("%s\nis planned as\n%s\nwant %s", query, got, want)
		}
	}
}
